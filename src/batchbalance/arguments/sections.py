"""Settings in files: sections of named values that are validated, with a one-sentence error for a mistake."""

import re
from collections.abc import Callable, Iterable
from dataclasses import fields
from typing import Annotated, Any, ClassVar, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, TypeAdapter, ValidationError, model_validator

from batchbalance.errors import UnknownNameError

MAX_DRAWS = 100_000  # more draws of a pool than fit in any memory

# Strict: `true` and "5" are not numbers, and "no" is not false.
Whole = Annotated[int, Field(ge=1, strict=True)]
NumDraws = Annotated[int, Field(ge=1, le=MAX_DRAWS, strict=True)]
Threads = Annotated[int, Field(ge=1, le=1024, strict=True)]  # with many more, a process crashes
NotNegative = Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)]
Flag = Annotated[bool, Field(strict=True)]
Model = TypeVar("Model", bound=BaseModel)


def check_keys(where: str, given: Any, known: Iterable[str]) -> Any:
    """Return the given table if all its keys are known; the error for an unknown key suggests the nearest one."""
    if not isinstance(given, dict):
        return given
    known = list(known)
    for key in given:
        if key not in known:
            raise UnknownNameError(f"setting of {where}", key, known)
    return given


def fields_of(where: str, cls: Any) -> BeforeValidator:
    """Return a validator that refuses unknown keys of a dataclass and values of another type, such as `true` for 1."""
    return BeforeValidator(lambda given: check_fields(where, given, cls))


def check_fields(where: str, given: Any, cls: Any) -> Any:
    """Return the given table if its keys are fields of a dataclass and its values have the right types."""
    types: dict[str, Any] = {field.name: field.type for field in fields(cls)}
    check_keys(where, given, types)
    for key, value in given.items() if isinstance(given, dict) else ():
        try:
            TypeAdapter(types[key]).validate_python(value, strict=True)
        except ValidationError as error:
            told = error.errors()[0]["msg"].replace("Input should", "must")
            raise ValueError(f"`{where.strip('[]')}.{key}` {told}, got {value!r}") from None
    return given


class Section(BaseModel):
    """A section of a settings file; unknown keys are refused."""

    model_config = ConfigDict(frozen=True, extra="forbid")
    table: ClassVar[str]

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, given: Any) -> Any:
        return check_keys(cls.table, given, cls.model_fields)


def parsed(build: Callable[[], Model]) -> Model:
    """Return the result of `build`; raise a validation error as a one-sentence ValueError."""
    try:
        return build()
    except ValidationError as error:
        first = error.errors()[0]
        cause = first.get("ctx", {}).get("error")
        where = ".".join(str(part) for part in first["loc"] if "[" not in str(part) and "-" not in str(part))
        if isinstance(cause, UnknownNameError):
            raise cause from error
        if cause is not None:
            raise ValueError(str(cause)) from error
        if first["type"] == "missing":
            raise ValueError(f"`{where}` must be given, got none") from error
        told = re.sub(r"^\w+ should", "must", first["msg"]).replace(" after validation", "")
        if first["type"] == "too_short":
            least = first["ctx"]["min_length"]
            told = f"must have at least {least} {'entry' if least == 1 else 'entries'}"
        raise ValueError(f"`{where}` {told}, got {first['input']!r}") from error

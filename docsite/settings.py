"""`reference/config.md`: every table and key of the two TOML files, from the models that check them."""

import inspect
import re
from collections.abc import Iterator
from dataclasses import MISSING, fields, is_dataclass
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin, get_type_hints

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from batchbalance.balance.edges import EdgeSettings
from batchbalance.lab.config import Comparison, DataSettings
from batchbalance.lab.data import SplitSizes
from batchbalance.posteriors import POSTERIORS, Schedule
from batchbalance.posteriors.training.fitting import Recipe
from batchbalance.posteriors.training.networks import NETWORKS, network_options
from batchbalance.project import settings as project
from batchbalance.strategies import STRATEGIES
from docsite.tables import NOTE, code, paragraph, plain, sentence, table

NAMES = {int: "whole number", float: "number", bool: "true or false", str: "text", dict: "table", list: "list"}
LIMITS = {"ge": "at least", "gt": "above", "le": "at most", "lt": "below"}
Key = tuple[str, Any, Any]  # name, type, default


def settings_page() -> str:
    """The page as Markdown."""
    return "\n\n".join([*_run(), *_parts(), *_project()]) + "\n"


def _run() -> Iterator[str]:
    yield NOTE
    yield "# Config keys"
    yield paragraph(
        "Two files are written by people: the TOML file of a comparison, for "
        "[`batchbalance run`](cli.md#batchbalance-run), and the `project.toml` of a labelling project. A key that is "
        "not listed here is refused, and the error suggests the nearest one."
    )
    yield "## The file of a comparison"
    yield "[Runs](../runs.md#the-file) shows a whole file. At its top:"
    tables = {"data", "split", "model", "training", "posterior", "edges"}
    yield keys(Comparison, leave_out=tables)
    yield "### `[data]`"
    yield keys(DataSettings)
    yield "### `[split]`"
    yield keys(SplitSizes)
    yield "### `[model]`"
    yield paragraph(
        "For posteriors that have a network: `name`, and the options of that network. `width` multiplies the number of "
        "filters and hidden units, `dropout` is the rate."
    )
    rows = []
    for name, network in NETWORKS.items():
        options = network_options(network).items()
        shown = (code(f"{key} = {written(value)}") for key, value in options)
        rows.append([code(name), sentence(plain(first_line(network))), ", ".join(shown)])
    yield table(["name", "network", "options and their defaults"], rows)
    yield "### `[training]`"
    yield keys(Recipe)
    yield "### `[edges]`"
    yield "For strategies that compare pairs of draws."
    yield keys(EdgeSettings)


def _parts() -> Iterator[str]:
    yield "### `[posterior]`"
    yield "`kind` names one of these, `mc-dropout` if omitted; the other keys are its options."
    for name, options in POSTERIORS.items():
        yield f"#### {name}"
        yield paragraph(plain(first_line(options)))
        if "schedule" in options.model_fields:
            yield "Keys of `[posterior.schedule]`:"
            yield keys(Schedule)
        else:
            yield keys(options, leave_out={"kind"})
    yield "### Options of strategies"
    yield paragraph(
        "`auto` takes none. A strategy stands in the list `strategies` by its name, or in a table with its options; "
        "`select` and `Learner` take the same by `strategy=` and the command line by `--option`. "
        "[Strategies](../strategies.md) says what each is for."
    )
    without = []
    for name, strategy in STRATEGIES.items():
        if not strategy.model_fields:
            without.append(code(name))
            continue
        yield f"#### {name}"
        yield paragraph(plain(sentence(strategy.summary)))
        yield keys(strategy)
    yield paragraph(f"Without options: {', '.join(without)}.")


def _project() -> Iterator[str]:
    yield "## project.toml"
    yield "`batchbalance init` writes it; [projects](../project.md) says how to use it."
    yield keys(project.ProjectSettings, leave_out={"data"})
    yield "### `[data]` of a project"
    yield keys(project.Data)


def keys(model: Any, leave_out: set[str] | frozenset[str] = frozenset()) -> str:
    """The keys of a model or dataclass as a table."""
    meanings = documented(model)
    rows = []
    for name, kind, default in declared(model):
        if name in leave_out:
            continue
        if name not in meanings:
            raise ValueError(f"`{name}` of {model.__name__} must have a line under Attributes in its docstring")
        rows.append([code(name), words(kind) + shown_default(default), sentence(plain(meanings[name]))])
    return table(["key", "type and default", "meaning"], rows)


def declared(model: Any) -> Iterator[Key]:
    """Name, type and default of every field."""
    if is_dataclass(model):
        hints = get_type_hints(model, include_extras=True)
        yield from ((field.name, hints[field.name], field.default) for field in fields(model))
        return
    for name, field in model.model_fields.items():
        kind = Annotated[field.annotation, *field.metadata] if field.metadata else field.annotation
        yield name, kind, field.get_default(call_default_factory=True) if not field.is_required() else MISSING


def documented(model: Any) -> dict[str, str]:
    """The meanings of the fields: the section "Attributes" of the docstring, those of parent classes included."""
    found: dict[str, str] = {}
    for cls in reversed(inspect.getmro(model)):
        doc = inspect.cleandoc(cls.__dict__.get("__doc__") or "")
        section = re.search(r"^Attributes:\n((?:    .*\n?|\n)*)", doc + "\n", re.MULTILINE)
        if section:
            found |= dict(re.findall(r"^    (\w+): (.*(?:\n {8}.*)*)", section[1], re.MULTILINE))
    return found


def words(kind: Any) -> str:
    """A type in words, with its limits."""
    origin, inside = get_origin(kind), get_args(kind)
    if origin is Annotated:
        limits = [text for each in inside[1:] for text in _limits(each)]
        return ", ".join([words(inside[0]), *limits])
    if origin in (Union, UnionType):
        return " or ".join(words(each) for each in inside if each is not NoneType)
    if origin is Literal:
        return " or ".join(code(f'"{each}"') for each in inside)
    if origin in (list, tuple):
        inner, *limits = words(inside[0]).split(", ")
        return "list" if inner == "Any" else ", ".join([f"list of {inner}s", *limits])
    return NAMES.get(origin or kind, getattr(kind, "__name__", str(kind)))


def _limits(constraint: Any) -> Iterator[str]:
    parts = constraint.metadata if isinstance(constraint, FieldInfo) else [constraint]
    for part in parts:
        for key, text in LIMITS.items():
            if hasattr(part, key):
                yield f"{text} {written(getattr(part, key))}"
        if getattr(part, "min_length", 0) > 1:
            yield f"at least {part.min_length}"


def shown_default(default: Any) -> str:
    """A default behind a type; a key that may be omitted has none."""
    if default in (MISSING, PydanticUndefined):
        return "; must be given"
    return "" if default is None else f"; default {code(written(default))}"


def written(value: Any) -> str:
    """A value as TOML."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list | tuple):
        return f"[{', '.join(written(each) for each in value)}]"
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key} = {written(each)}" for key, each in value.items()) + "}"
    return f'"{value}"' if isinstance(value, str) else f"{value:g}" if isinstance(value, float) else str(value)


def first_line(thing: Any) -> str:
    """The first paragraph of a docstring."""
    return inspect.cleandoc(thing.__doc__ or "").split("\n\n")[0]

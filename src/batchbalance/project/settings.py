"""`project.toml`: the settings of a project, which users may edit."""

import json
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field, model_validator

from batchbalance.arguments.registry import is_path, texts_in
from batchbalance.arguments.sections import Flag, Section, Whole, check_keys, parsed
from batchbalance.encoders.embedding import runs_own_code
from batchbalance.errors import FileFormatError
from batchbalance.project.labelling import check_names
from batchbalance.system.files import replacing
from batchbalance.system.ids import check_unicode

FILE = "project.toml"
HEADING = """\
# Settings of this project, which you may edit; the labels are in labels.sqlite.
# Classes: add new ones at the end; rename one with `batchbalance rename-class`.
# Another encoder: items are embedded again by the next command that needs it.
"""

Share = Annotated[float, Field(ge=0, le=1, strict=True, allow_inf_nan=False)]
Name = Annotated[str, Field(min_length=1, strict=True)]
SourceKind = Literal["images", "texts", "table", "embeddings"]
NAMES: dict[SourceKind, str] = {"images": "images", "texts": "texts", "table": "rows", "embeddings": "embeddings"}
KINDS = {"column": ("texts", "table"), "id": ("texts", "table"), "drop": ("texts", "table"), "ids": ("embeddings",)}


class Data(Section):
    """The source of the items.

    Attributes:
        kind: the kind of items.
        path: the folder or file, absolute or relative to the project's folder.
        column: the column of the texts, or the columns of a table to use.
        id: the column of the ids.
        drop: columns of a table to omit.
        ids: for embeddings, a file of ids, one per line.
        skip_bad: omit damaged files and empty texts.
    """

    table = "[data]"

    kind: SourceKind
    path: Name
    column: tuple[Name, ...] = ()
    id: Name | None = None
    drop: tuple[Name, ...] = ()
    ids: Name | None = None
    skip_bad: Flag = False

    @model_validator(mode="after")
    def _only_what_is_used(self) -> "Data":
        for name, kinds in KINDS.items():
            if getattr(self, name) and self.kind not in kinds:
                raise ValueError(f"`{name}` is for {' and '.join(kinds)}, got it with {self.kind}; omit it")
        return self


class ProjectSettings(Section):
    """A project's settings.

    Attributes:
        classes: the labels.
        multi_label: whether an item may have several of them, or none; it cannot be changed later.
        encoder: computes the embeddings; None for bare embeddings, or for the default of the kind of items.
        image_size: side in pixels of the square that images are scaled to.
        batch_size: the default number of questions in a batch.
        audit: the share of items set aside, and of questions about them.
        random_arm: the share of other questions that are chosen at random.
        annotators_per_item: how many people are asked the same item.
        target_accuracy: the accuracy at which `status` advises to stop.
        target_f1: with several labels for an item, the micro F1 at which it does.
        budget: the number of labels at which `status` advises to stop.
        seed: the same seed and answers give the same questions.
        instructions: shown to people who label.
        data: the source of the items.
        model: the kind of posterior and its options; `network` names a network, `estimator` one of scikit-learn.
        strategy: its name and options.
    """

    table = FILE

    classes: Annotated[tuple[Name, ...], Field(min_length=2)]
    multi_label: Flag = False
    encoder: Name | None = None
    image_size: Whole | None = None
    batch_size: Whole = 20
    audit: Share = 0.1
    random_arm: Annotated[float, Field(ge=0, lt=1, strict=True, allow_inf_nan=False)] = 0.0
    annotators_per_item: Whole = 1
    target_accuracy: Share | None = None
    target_f1: Share | None = None
    budget: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    seed: Annotated[int, Field(ge=0, strict=True)] = 0
    instructions: str = ""
    data: Data
    model: dict[str, Any] = Field(default_factory=lambda: {"kind": "bayesian-head"})
    strategy: dict[str, Any] = Field(default_factory=lambda: {"name": "auto"})

    @model_validator(mode="after")
    def _fits_the_labels(self) -> "ProjectSettings":
        if self.multi_label:
            check_names(self.classes)
        if self.target_f1 is not None and (not self.multi_label or self.target_accuracy is not None):
            raise ValueError("`target_f1` is for `multi_label`, and instead of `target_accuracy`; give one target")
        return self

    def paths_named(self) -> dict[str, str]:
        """Return the import paths in the settings ("package.module:Name"), and what each is for."""
        named = [(text, f"model's {key}") for key, value in self.model.items() for text in texts_in(value)]
        named += [(text, "strategy") for text in texts_in(self.strategy)] + [(self.encoder or "", "encoder")]
        return {text: kind for text, kind in named if is_path(text) and not _is_installed(text, kind)}


def _is_installed(name: str, kind: str) -> bool:
    """Return whether a path names an installed dependency, or a model that consists of weights only."""
    if kind == "encoder":
        return not runs_own_code(name)
    return kind == "model's estimator" and name.startswith("sklearn.")


def as_settings(given: dict[str, Any]) -> ProjectSettings:
    """Return settings from plain values; raise one clear error for a mistake."""
    return parsed(lambda: ProjectSettings(**check_keys(FILE, given, ProjectSettings.model_fields)))


def read_settings(folder: Path) -> ProjectSettings:
    """Return the settings of the project in a folder.

    Raises:
        FileFormatError: if the file is damaged, or has an invalid value.
    """
    path = folder / FILE
    if not path.is_file():
        raise FileNotFoundError(
            f"no project in {folder}: there is no {FILE}; create one with: batchbalance init {folder}"
        )
    try:
        return as_settings(tomllib.loads(path.read_text(encoding="utf-8-sig")))
    except (ValueError, TypeError) as error:  # UnicodeDecodeError and TOMLDecodeError are ValueErrors
        raise FileFormatError(f"{path}: {error}") from error


def write_settings(folder: Path, settings: ProjectSettings) -> None:
    """Write the settings atomically."""
    text = check_unicode(FILE, HEADING + "\n".join(_lines(settings)) + "\n")
    with replacing(folder / FILE) as temporary:
        temporary.write_text(text, encoding="utf-8")


def _lines(settings: ProjectSettings) -> Iterator[str]:
    values = settings.model_dump(exclude_none=True)
    tables = {key: value for key, value in values.items() if isinstance(value, dict)}
    for key, value in values.items():
        if key not in tables:
            yield f"{key} = {_toml(value)}"
    for name, table in tables.items():
        yield ""
        yield f"[{name}]"
        for key, value in table.items():
            if value not in ((), []):
                yield f"{key if key.isidentifier() else json.dumps(key)} = {_toml(value)}"


def _toml(value: Any) -> str:
    """Return a value as TOML, which shares strings, numbers and lists with JSON."""
    if isinstance(value, dict):
        return "{" + ", ".join(f"{json.dumps(key)} = {_toml(each)}" for key, each in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(_toml(each) for each in value) + "]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")

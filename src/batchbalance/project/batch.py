"""A batch of questions: what to label next."""

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from batchbalance.project.answers import ID, LABEL, beside_ours, write_sheet
from batchbalance.project.pages import batch_fragment, batch_page
from batchbalance.project.settings import NAMES, SourceKind
from batchbalance.project.store import ShownItem, shown_item
from batchbalance.selection import Selection
from batchbalance.system.files import replacing

COLUMNS: dict[SourceKind, str] = {"images": "file", "texts": "text"}


def shown_path(path: Path) -> str:
    """Return a path relative to the current folder if it is below that, else absolute."""
    here = Path.cwd()
    return (path.relative_to(here) if path.is_relative_to(here) else path).as_posix()


@dataclass(frozen=True, eq=False)
class Batch:
    """Questions for one person.

    Attributes:
        ids: the ids of the items, in the order to answer them.
        contents: the text of each, the path of its file, its row as JSON, or None for a bare embedding.
        kind: the kind of items.
        classes: the labels to choose from.
        annotator: the person asked; None if unknown.
        root: the folder that files are in.
        notes: remarks on how they were chosen.
        selection: the result of the strategy for the part it chose just now, or None.
        is_multi: whether an item may have several labels, or none.
    """

    ids: tuple[str, ...]
    contents: tuple[str | None, ...]
    kind: SourceKind
    classes: tuple[str, ...]
    annotator: str | None = None
    root: Path | None = None
    notes: tuple[str, ...] = ()
    selection: Selection | None = None
    is_multi: bool = False

    def __len__(self) -> int:
        return len(self.ids)

    def __iter__(self) -> Iterator[str]:
        return iter(self.ids)

    def __repr__(self) -> str:
        shown = ", ".join(map(repr, self.ids[:3])) + (", …" if len(self.ids) > 3 else "")
        return f"Batch({len(self.ids)} {NAMES[self.kind]}: {shown})"

    def shown(self) -> list[ShownItem]:
        """Return the items as a person sees them."""
        return [
            shown_item(self.kind, name, each, self.root) for name, each in zip(self.ids, self.contents, strict=True)
        ]

    def _repr_html_(self) -> str:
        return batch_fragment(self.shown())

    def to_html(self, path: str | os.PathLike[str], project: str, answers: str = "batch.csv") -> None:
        """Write a contact sheet.

        Args:
            path: the file.
            project: the project's name.
            answers: the CSV file to fill in.
        """
        with replacing(path) as temporary:
            temporary.write_text(
                batch_page(project, self.shown(), self.classes, answers, is_multi=self.is_multi), encoding="utf-8"
            )

    def to_csv(self, path: str | os.PathLike[str]) -> None:
        """Write a CSV file with ids, an empty column of labels to fill in, and the contents."""
        columns = self.columns
        rows = ((name, "", *self.cells(i)) for i, name in enumerate(self.ids))
        write_sheet(path, (ID, LABEL, *columns), rows, mark=True)

    @property
    def columns(self) -> tuple[str, ...]:
        """The columns beside id and label: the text, the file, or the columns of a table."""
        if self.kind in COLUMNS:
            return (COLUMNS[self.kind],)
        if self.kind == "embeddings":
            return ()
        return tuple(self._named.values())

    @cached_property
    def _named(self) -> dict[str, str]:
        """The columns of a table, and the name of each in the batch file."""
        return beside_ours(name for content in self.contents for name in json.loads(content or "{}"))

    def cells(self, i: int) -> list[str]:
        """Return the i-th item in these columns."""
        content = self.contents[i] or ""
        if self.kind == "images" and self.root is not None:
            return [shown_path(self.root / content)]
        if self.kind != "table":
            return [content] if self.columns else []
        row = json.loads(content)
        return ["" if row.get(name) is None else str(row[name]) for name in self._named]

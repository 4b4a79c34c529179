"""Items as a person sees them: an image, a text, or the columns of a row."""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from batchbalance.project.settings import SourceKind
from batchbalance.project.store import ProjectStore


@dataclass(frozen=True)
class ShownItem:
    """An item as a person sees it.

    Attributes:
        id: of the item.
        text: the text; "" if there is none.
        image: the file of an image, or None.
        fields: the columns of a row of a table, name and value; "" for an empty cell.
    """

    id: str
    text: str = ""
    image: Path | None = None
    fields: tuple[tuple[str, str], ...] = ()


def shown_item(kind: SourceKind, name: str, content: str | None, root: Path | None) -> ShownItem:
    """Return an item as a person sees it, from what the project stores of it."""
    if kind == "images" and root is not None and content is not None:
        return ShownItem(name, image=root / content)
    if kind == "table" and content is not None:
        row = json.loads(content)
        return ShownItem(name, fields=tuple((key, "" if value is None else str(value)) for key, value in row.items()))
    return ShownItem(name, content or "")


def shown_items(store: ProjectStore, kind: SourceKind, root: Path | None, rows: Sequence[int]) -> list[ShownItem]:
    """Return some rows of a project as a person sees them."""
    pairs = zip(store.ids(rows), store.contents(rows), strict=True)
    return [shown_item(kind, name, content, root) for name, content in pairs]

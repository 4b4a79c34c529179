"""Items as other tools get them: what is known of each, and what it shows."""

import base64
import json
import mimetypes
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from batchbalance.project import Project
from batchbalance.project.exporting import Exported
from batchbalance.project.state import ItemView, Who

ITEM = "item_id"  # the key of an item's id; these tools have ids of their own under `id`


@dataclass(frozen=True)
class ExportItem:
    """An item, and all that is known of it.

    Attributes:
        id: its name.
        row: what is exported of it.
        view: what happened to it.
        content: its text, the path of its file, its row as JSON, or None for a bare embedding.
        is_audit: whether it is set aside to measure by.
        is_open: whether it was asked and still wants an answer.
    """

    id: str
    row: Exported
    view: ItemView
    content: str | None
    is_audit: bool
    is_open: bool

    def answers(self, classes: list[str]) -> list[tuple[Who, str]]:
        """Return who answered, and what."""
        return [(who, classes[number]) for who, number in self.view.answers.items()]


def items_of(project: Project, *, predictions: bool, only_open: bool) -> list[ExportItem]:
    """Return the items to export: open questions first, in the order they were asked, then the others."""
    views, wanted = project.views(), project.settings.annotators_per_item
    asked = {name: min(view.open.values()) for name, view in views.items() if view.open}
    turns = {name: turn for name, turn in asked.items() if not views[name].is_complete(wanted)}
    rows = [row for row in project.exported(predictions=predictions) if row.id in turns or not only_open]
    rows.sort(key=lambda row: (row.id not in turns, turns.get(row.id, 0)))
    names = [row.id for row in rows]
    return [
        ExportItem(row.id, row, views.get(row.id, ItemView()), content, is_audit, row.id in turns)
        for row, content, is_audit in zip(rows, project.contents(names), project.is_audit(names), strict=True)
    ]


def shown_data(project: Project, image: Callable[[Path], str]) -> Callable[[str | None], dict[str, str]]:
    """Return a function from an item's content to the data that a tool shows: {"text": …} or {"image": …}.

    Raises:
        ValueError: for bare embeddings, of which there is nothing to show.
    """
    kind, root = project.settings.data.kind, project.root
    if kind == "embeddings":
        raise ValueError("bare embeddings have nothing that people could look at; label them with ask and tell")
    if kind == "images" and root is not None:
        return lambda content: {"image": image(root / (content or ""))}
    if kind == "table":
        return lambda content: {"text": as_lines(json.loads(content or "{}"))}
    return lambda content: {"text": content or ""}


def as_lines(row: Mapping[str, Any]) -> str:
    """Return a row of a table as text, one column a line."""
    return "\n".join(f"{name}: {'' if value is None else value}" for name, value in row.items())


def image_source(root: Path | None, url: str | None) -> Callable[[Path], str]:
    """Return a function from an image to its address: below `url`, or with the image itself in it."""
    if url is None or root is None:
        return data_address
    return lambda path: f"{url.rstrip('/')}/{quote(path.relative_to(root).as_posix())}"


def data_address(path: Path) -> str:
    """Return an address that holds the image itself."""
    kind = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode('ascii')}"


def one_choice(choices: Iterable[Any], where: str) -> str:
    """Return the label of an answer that must be one choice."""
    found = list(choices)
    if len(found) != 1:
        raise ValueError(
            f"{where}: an answer must be one class, got {', '.join(map(str, found)) or 'none'}; "
            "let people choose one at a time"
        )
    return str(found[0])

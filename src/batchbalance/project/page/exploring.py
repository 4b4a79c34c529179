"""Searching and the map: items that nobody was asked yet can be looked at, labelled in place, or queued."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from starlette.exceptions import HTTPException
from starlette.responses import FileResponse, Response

from batchbalance.project.mapping import colours
from batchbalance.project.page.chooser import MAP_FOLDER, Reply, Request
from batchbalance.project.page.page import NOT_YOURS, Page
from batchbalance.project.state import State, Who

PER_SEARCH = 60
MOST_QUEUED = 100  # items of a region that are asked at a time
MOST_LISTED = 200
BINARY = "application/octet-stream"
HIDDEN = "It is asked of somebody else, or measures the model."


class Explorer:
    """Search, neighbours and the map of a page.

    Args:
        page: of the project.
    """

    def __init__(self, page: Page) -> None:
        self._page, self._project = page, page.project

    # Searching.

    def search(self, who: Who, text: str, moment: int) -> dict[str, Any]:
        """Return items whose text or id has all words of a text; `moment` tells one search from the next."""
        request = {"do": "search", "text": text[:200], "count": PER_SEARCH + 1}
        return self._found(who, request, moment)

    def like(self, who: Who, name: str, moment: int) -> dict[str, Any]:
        """Return items like one, by embeddings, that this person can be asked."""
        self._check_seen(name, who)
        found = self._found(who, {"do": "find", "like": name, "count": PER_SEARCH, "who": who}, moment)
        return found | {"like": self._page.shown(name)}

    def _found(self, who: Who, request: Request, moment: int) -> dict[str, Any]:
        reply, is_current = self._page.chooser.latest(request, moment)
        if not is_current or reply is None:
            return {"entries": [], "isPending": True}
        names = [name for name in reply.get("ids", []) if self._page.may_see(name, who)]
        return {
            "entries": [self._entry(name, who) for name in names[:PER_SEARCH]], "isPending": False,
            "isMore": len(reply.get("ids", [])) > PER_SEARCH, "trouble": reply.get("trouble", ""),
        }  # fmt: skip

    def label(self, who: Who, name: str, label: str, seconds: float | None) -> dict[str, Any]:
        """Label an item that a person found: it is asked first, so that the log says how it was chosen."""
        self._check_seen(name, who)
        if not self._page.may_answer(name, who) and name not in self._project.queue([name], who):
            raise HTTPException(403, NOT_YOURS)
        return self._page.label(who, {name: label}, seconds)

    def queue(self, who: Who, rows: Sequence[int]) -> dict[str, Any]:
        """Ask this person items of a region; of many, as many as fit, drawn at random."""
        store = self._project.store
        with store.reading() as state:
            free = self._project.questions.free_rows(state, who) & ~store.is_audit
            batch = state.num_batches
        inside = np.unique(np.array([row for row in rows if row < store.num_items], dtype=np.int64))
        open_rows = inside[free[inside]]
        if len(open_rows) > MOST_QUEUED:
            seed = [self._project.settings.seed, batch]
            open_rows = np.random.default_rng(seed).choice(open_rows, MOST_QUEUED, replace=False)
        asked = self._project.queue(store.ids(open_rows.tolist()), who) if len(open_rows) else []
        return self._page.situation(who) | {"queued": len(asked), "of": len(inside)}

    # The map.

    def map(self, who: Who) -> dict[str, Any]:
        """Return what the map consists of: which files of coordinates there are, and which items are marked."""
        store = self._project.store
        with store.reading() as state:
            change, batch = state.last_change, state.last_batch()
            found = {"classes": _colours(state), "sizes": list(state.sizes), "change": change,
                     "sources": [Path(each).name for each in state.sources]}  # fmt: skip
            mine = store.rows_of(self._project.open_questions(who))
        ask = self._page.chooser.latest
        pca, is_there = ask({"do": "map"}, store.num_items)
        better = ask({"do": "layout"}, store.num_items) if is_there else (None, False)
        model, is_current = ask({"do": "opinions"}, change) if is_there else (None, False)
        troubles = [each["trouble"] for each in (pca, better[0], model) if each and "trouble" in each]
        return found | {
            "count": store.num_items, "batch": batch, "mine": mine, "pca": _file(pca), "better": _file(better[0]),
            "model": _file(model), "isPending": not (is_there and better[1] and is_current),
            "trouble": troubles[0] if troubles else "",
        }  # fmt: skip

    def file(self, name: str) -> Response:
        """Return a file of the map: coordinates, or what the model says."""
        folder = self._project.folder / MAP_FOLDER
        if not folder.is_dir() or name not in {each.name for each in folder.iterdir()}:
            raise HTTPException(404, "There is no such file of the map.")
        return FileResponse(folder / name, media_type=BINARY, headers={"cache-control": "private, max-age=86400"})

    def labels(self) -> Response:
        """Return the number of every item's colour as 16 bits, 0 for items without a label."""
        found = np.zeros(self._project.store.num_items, dtype="<u2")
        with self._project.store.reading() as state:
            labels = state.labels()
            found[list(labels)] = colours(state.labelling.array(labels.values()))
        return Response(found.tobytes(), media_type=BINARY)

    def items(self, who: Who, rows: Sequence[int]) -> dict[str, Any]:
        """Return some rows of the map."""
        names = self._project.ids([row for row in rows if row < self._project.store.num_items][:MOST_LISTED])
        return {"entries": [self._entry(name, who) for name in names]}

    def _entry(self, name: str, who: Who) -> dict[str, Any]:
        """Return an item and what can be done with it."""
        if not self._page.may_see(name, who):
            return {"row": self._project.store.row_of(name), "item": None, "state": HIDDEN}
        view, labelling = self._project.view(name), self._project.labelling
        label = None if view.label is None else labelling.text(view.label)
        mine = labelling.text(view.answers[who]) if who in view.answers else None
        is_queued, is_free = who in view.open, not (view.answers or view.open or who in view.skipped)
        state = "queued" if is_queued else "labelled" if label else "disputed" if view.answers else ""
        item = self._page.shown(name)
        return {"row": item["row"], "item": item, "label": label, "mine": mine, "state": state,
                "canLabel": is_queued or is_free or mine is not None, "canQueue": is_free}  # fmt: skip

    def _check_seen(self, name: str, who: Who) -> None:
        if not self._page.may_see(name, who):
            raise HTTPException(403, NOT_YOURS)


def _colours(state: State) -> list[str]:
    """Return what the colours of `colours` stand for, from 1 on."""
    return [*state.classes, *(["several classes", "none of the classes"] if state.is_multi else [])]


def _file(reply: Reply | None) -> str | None:
    """Return the name of the file that a process wrote; None if there is none yet."""
    return None if reply is None else reply.get("file")

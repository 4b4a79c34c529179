"""What to look at again: suspected labels, disagreements between people, and flagged items."""

from typing import Any

from starlette.exceptions import HTTPException

from batchbalance.project.answers import record_review
from batchbalance.project.labelling import Labelling
from batchbalance.project.page.page import Page
from batchbalance.project.state import ItemView, Who

PER_LIST = 200
PER_SOURCE = 50  # suggestions at a time
NO_NAME = "no name"


class Review:
    """The review list of a page.

    Args:
        page: of the project.
    """

    def __init__(self, page: Page) -> None:
        self._page, self._project = page, page.project

    def listed(self, who: Who) -> dict[str, Any]:
        """Return items to look at again: the most probable errors, disagreements, flags, then doubtful suggestions."""
        with self._project.store.reading() as state:
            revision, labelling, has_machines = state.last_change, state.labelling, bool(state.suggested)
            doubtful = {row: view for row, view in state.items.items() if _reasons(view)}
        reply, is_current = self._page.chooser.latest({"do": "suspects"}, revision)
        suspects = {name: rest for name, *rest in (reply or {}).get("suspects", [])}
        named = dict(zip(self._project.ids(list(doubtful)), doubtful.values(), strict=True))
        views = {name: named.get(name) or self._project.view(name) for name in [*suspects, *named]}
        found = [
            self._entry(name, view, labelling, suspects.get(name))
            for name, view in views.items()
            if name in named or (view.settled is None and view.label is not None)
        ]
        if has_machines:
            machine, is_there = self._page.chooser.latest({"do": "doubtful", "count": PER_SOURCE}, revision)
            found += [
                self._suggestion(*each) for each in (machine or {}).get("doubtful", []) if self._is_open(each[0], who)
            ]
            reply, is_current = reply or machine, is_current and is_there
        return {"entries": found[:PER_LIST], "total": len(found), "isPending": not is_current,
                "trouble": (reply or {}).get("trouble", "") if is_current else ""}  # fmt: skip

    def decide(self, who: Who, name: str, label: str | None) -> dict[str, Any]:
        """Keep the label of an item, or change it; return the situation of this person."""
        if label is not None:
            self._page.check_label(label)
        view = self._page.view(name)
        if not view.answers and not view.flags:
            raise HTTPException(403, "Only items with an answer or a flag can be reviewed.")
        record_review(self._project.store, name, label, who)
        return self._page.situation(who)

    def _is_open(self, name: str, who: Who) -> bool:
        """Return whether a person may still answer an item that has no answer yet."""
        return self._page.may_see(name, who) and not self._project.view(name).answers

    def _suggestion(self, name: str, by: str, label: str, wrong: float) -> dict[str, Any]:
        """Return an item that a machine suggests a label for; the label is nobody's answer until it is accepted."""
        return {"item": self._page.shown(name), "reasons": ["suggestion"], "label": None, "answers": [], "notes": [],
                "suggested": label, "wrong": wrong, "by": by}  # fmt: skip

    def _entry(self, name: str, view: ItemView, labelling: Labelling, suspect: list[Any] | None) -> dict[str, Any]:
        """Return one item, ready for JSON; `suggested` has room for whoever suggests a label."""
        reasons = _reasons(view)
        if suspect is not None and view.settled is None:
            reasons = ["suspect", *reasons]
        _, suggested, wrong = suspect or (None, None, None)
        return {
            "item": self._page.shown(name),
            "reasons": reasons,
            "label": None if view.label is None else labelling.text(view.label),
            "answers": [{"who": who or NO_NAME, "label": labelling.text(value)} for who, value in view.answers.items()],
            "notes": [{"who": note.who or NO_NAME, "text": note.text} for note in view.flags[view.num_seen :]],
            "suggested": suggested,
            "wrong": wrong,
        }


def _reasons(view: ItemView) -> list[str]:
    """Return why people themselves make an item doubtful: they disagree, or one of them flagged it."""
    differ = view.settled is None and len(set(view.answers.values())) > 1
    return [*(["disagreement"] if differ else []), *(["flag"] if len(view.flags) > view.num_seen else [])]

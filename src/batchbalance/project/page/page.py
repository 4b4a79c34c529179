"""What the page shows and does, for each person: questions, answers, images, and progress.

The answer to every change is the situation of the person who made it: what is next, and what was last.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from itertools import islice
from typing import Any

from starlette.exceptions import HTTPException
from starlette.responses import Response

from batchbalance.errors import FileFormatError
from batchbalance.learner.labels import Event
from batchbalance.project import Project
from batchbalance.project.labelling import Labelling
from batchbalance.project.page.chooser import ProcessChooser
from batchbalance.project.page.images import Pictures, version
from batchbalance.project.page.insight import guess_sentence, why
from batchbalance.project.state import ItemView, State, Who, as_value
from batchbalance.system.ids import mended

AHEAD = 4  # items that a page loads before they are shown
RECENT = 10
PER_GRID = 60
PER_HISTORY = 50
IDLE_SECONDS = 600.0
COMPARED = "random.json"  # in the folder of a demo: the accuracy of random questions, by the number of labels
PASSED_ON = ("returned", "again")  # reasons that do not tell why an item was chosen
NOT_YOURS = "You cannot answer this item: it was asked of somebody else, or was given back after ten minutes."


class Page:
    """The page of one project.

    Args:
        project: open.
        chooser: chooses and explains items.
        people: everybody who labels; None alone for somebody without a name.
        clock: seconds from any point in time.
    """

    def __init__(
        self,
        project: Project,
        chooser: ProcessChooser,
        people: Sequence[Who],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.project, self.chooser, self._clock = project, chooser, clock
        self._pictures = Pictures(lambda: project.embeddings.roots)
        self._seen = dict.fromkeys(people, clock())
        self._first: dict[Who, str] = {}  # an item that a person undid comes first
        path = project.folder / COMPARED
        self._compared = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []

    @property
    def name(self) -> str:
        """The name of the project's folder."""
        return mended(self.project.folder.resolve().name)

    # Changes.

    def label(self, who: Who, answers: Mapping[str, str], seconds: float | None) -> dict[str, Any]:
        """Add labels, all or none."""
        for name, label in answers.items():
            self._check_mine(name, who)
            self.check_label(label)
        self.project.tell(answers, who, seconds)
        return self.situation(who)

    def check_label(self, label: str) -> None:
        """Refuse what is not a class, or with several labels classes as `a;b`, or `none`."""
        try:
            self.project.labelling.read(label)
        except ValueError as error:
            raise HTTPException(400, f"The label must be one of the classes, got {label!r}.") from error

    def skip(self, who: Who, name: str) -> dict[str, Any]:
        """Skip an item."""
        self._check_mine(name, who)
        self.project.skip(name, who)
        return self.situation(who)

    def flag(self, who: Who, name: str, note: str, skip: bool) -> dict[str, Any]:
        """Flag an item, and skip it if `skip`."""
        self._check_mine(name, who)
        self.project.flag(name, note, who)
        return self.skip(who, name) if skip else self.situation(who)

    def undo(self, who: Who) -> dict[str, Any]:
        """Undo the last thing that this person did; labels that were confirmed together are one thing."""
        with self.project.store.reading() as state:
            count = _num_together(state.undoable(who))
        if not count:
            raise HTTPException(409, "There is nothing to undo.")
        undone = self.project.undo(who, count)
        self._first[who] = undone[-1].id
        told = "Undone." if count == 1 else f"Undone: {count} labels that were confirmed together."
        return self.situation(who) | {"told": "Undone: a review." if undone[0].kind == "reviewed" else told}

    def ask_skipped(self, who: Who) -> dict[str, Any]:
        """Ask this person again what they skipped; nothing new is chosen."""
        with self.project.store.reading() as state:
            num_skipped = state.num_skipped(who, self._wanted)
        if num_skipped:
            self.project.ask(len(self.project.open_questions(who)) + num_skipped, who, again=True)
        return self.situation(who)

    def try_again(self, who: Who) -> dict[str, Any]:
        """Choose again after an error."""
        self.chooser.try_again()
        return self.situation(who)

    # What is shown.

    def situation(self, who: Who) -> dict[str, Any]:
        """Return what a person sees now."""
        self._touch(who)
        questions = self.project.open_questions(who)
        first = self._first.get(who)
        if first in questions:
            questions.remove(first)
            questions.insert(0, first)
        with self.project.store.reading() as state:
            revision, today, total = state.num_events, state.tallies.today()[who], _num_labels(state)
            batch = state.asked_with(who, self.project.store.row_of(questions[0])) if questions else []
            num_left = sum(who in state.view(row).open for row in batch)
            can_undo = any(state.undoable(who))
            taken = state.num_open(self._wanted) - len(questions)
            num_skipped = state.num_skipped(who, self._wanted)
        self._want_more(who, len(questions), revision)
        self.chooser.explain(questions[:AHEAD])
        recent = self._latest(who, 0, RECENT)
        choosing = self.chooser.choosing(who)
        return {
            "queue": [self.shown(name) for name in questions[:AHEAD]],
            "recent": recent,
            "canUndo": can_undo,
            "place": [len(batch) - num_left + 1, len(batch)],
            "today": today,
            "total": total,
            "taken": taken,
            "skipped": num_skipped,
            "choosing": asdict(choosing),
        }

    def facts(self, who: Who) -> dict[str, Any]:
        """Return what stays the same."""
        return {
            "project": self.name, "classes": self.project.classes, "isMulti": self.project.labelling.is_multi,
            "instructions": self.project.settings.instructions, "annotator": who,
        }  # fmt: skip

    def history(self, who: Who, skip: int) -> dict[str, Any]:
        """Return earlier answers of this person."""
        return {"answers": self._latest(who, skip, PER_HISTORY)}

    def why(self, who: Who, name: str) -> dict[str, Any]:
        """Return why an item was asked."""
        self._check_mine(name, who)
        found = why(self.reason(name), self._is_audit(name), self.chooser.insight(name))
        found["isPending"] = self._is_pending(name)
        found["like"] = [
            {"item": self.shown(each["id"]), "label": each["label"]}
            for each in found.get("like", [])
            if self.may_see(each["id"], who)
        ]
        return found

    def guess(self, who: Who, name: str) -> dict[str, Any]:
        """Return the model's prediction for an item, unless that item measures the model."""
        self._check_mine(name, who)
        sentence = guess_sentence(self._is_audit(name), self.chooser.insight(name))
        return {"sentence": sentence, "isPending": self._is_pending(name)}

    def grid(self, who: Who) -> dict[str, Any]:
        """Return open questions with the model's guesses, and which are sure; never items that measure the model."""
        self._touch(who)
        questions = self.project.open_questions(who)
        with self.project.store.reading() as state:
            self._want_more(who, len(questions), state.num_events)
        names = [name for name in questions if not self._is_audit(name)][:PER_GRID]
        self.chooser.explain(names)
        found = {name: self.chooser.insight(name) for name in names}
        threshold = self.chooser.threshold()
        least = None if threshold is None else threshold["value"]
        tiles = [
            {"item": self.shown(name), "guess": insight["guess"], "confidence": insight["confidence"],
             "isSure": least is not None and insight["confidence"] >= least}
            for name, insight in found.items() if insight is not None
        ]  # fmt: skip
        is_unexplained = any(not self.chooser.is_explained(name) for name in names)
        choosing = self.chooser.choosing(who)
        return {
            "tiles": tiles, "threshold": threshold, "note": choosing.trouble or _grid_note(len(questions), len(names)),
            "isPending": is_unexplained or (not tiles and bool(choosing.doing)),
        }  # fmt: skip

    def progress(self, who: Who) -> dict[str, Any]:
        """Return how many labels there are, and the status."""
        with self.project.store.reading() as state:
            tallies, revision, today = state.tallies, state.num_events, state.tallies.today()
            people = [
                {"name": name or "no name", "count": count, "today": today[name], "isMe": name == who}
                for name, count in tallies.answers.items() if count
            ]  # fmt: skip
            classes = [{"name": name, "count": tallies.labels[c]} for c, name in enumerate(state.classes)]
            counts = {"today": today.total(), "total": _num_labels(state)}
        reply, is_current = self.chooser.latest({"do": "status"}, revision)
        found = reply or {}
        return counts | {
            "people": people, "classes": classes, "status": found.get("status"), "isComputing": not is_current,
            "trouble": found.get("trouble", "") if is_current else "", "compared": self._compared,
        }  # fmt: skip

    def image(self, who: Who, name: str, size: str) -> Response:
        """Return an image by the id of its item."""
        try:
            is_allowed = self.may_see(name, who)
        except HTTPException:
            is_allowed = False
        if not is_allowed:
            raise HTTPException(403, "You cannot see this item, or there is no item of that name.")
        (item,) = self.project.shown([name])
        if item.image is None:
            raise HTTPException(404, "This item is not an image.")
        try:
            found = self._pictures.small(item.image) if size == "small" else self._pictures.full(item.image)
        except (FileFormatError, OSError) as error:
            raise HTTPException(415, str(error)) from error
        return Response(found.content, media_type=found.media_type, headers={"cache-control": "private, max-age=86400"})

    def shown(self, name: str) -> dict[str, Any]:
        """Return an item, ready for JSON."""
        (item,) = self.project.shown([name])
        kind = "image" if item.image is not None else "row" if item.fields else "text" if item.text else "bare"
        return {
            "id": item.id, "row": self.project.store.row_of(name), "kind": kind, "text": item.text,
            "fields": [[name, value or None] for name, value in item.fields],
            "version": "" if item.image is None else version(item.image),
        }  # fmt: skip

    def reason(self, name: str) -> str:
        """Return why an item was asked last; "" if it never was."""
        reasons = [each for each in self.project.view(name).reasons if each not in PASSED_ON]
        return reasons[-1] if reasons else ""

    def _want_more(self, who: Who, num_open: int, revision: int) -> None:
        """Have the next batch chosen while a person answers the last items of the current one."""
        if num_open <= max(3, self.project.settings.batch_size // 4):
            self.chooser.want(who, revision)

    @property
    def _wanted(self) -> int:
        return self.project.settings.annotators_per_item

    def _latest(self, who: Who, skip: int, count: int) -> list[dict[str, Any]]:
        """Return what a person did last to each item, the latest first, ready for JSON."""
        with self.project.store.reading() as state:
            events, labelling = list(islice(state.latest(who), skip, skip + count)), state.labelling
        names = self.project.ids([event.item or 0 for event in events])
        return [self._past(name, event, labelling) for name, event in zip(names, events, strict=True)]

    def _past(self, name: str, event: Event, labelling: Labelling) -> dict[str, Any]:
        kind = event.kind if event.kind in ("skipped", "flagged") else "labelled"
        label = labelling.text(as_value(event.value)) if kind == "labelled" else None
        return {
            "item": self.shown(name),
            "kind": kind,
            "label": label,
            "note": event.value if kind == "flagged" else "",
        }

    def _is_audit(self, name: str) -> bool:
        return self.project.is_audit([name])[0]

    def _is_pending(self, name: str) -> bool:
        """Return whether the explanation of an item is still to come."""
        self.chooser.explain([name])
        return not self._is_audit(name) and not self.chooser.is_explained(name)

    def view(self, name: str) -> ItemView:
        """Return what is known about an item."""
        try:
            return self.project.view(name)
        except ValueError as error:
            raise HTTPException(404, "There is no item of that name.") from error

    def may_see(self, name: str, who: Who) -> bool:
        """Return whether a person may look at an item: not at one that others are asked, or that is set aside."""
        view = self.view(name)
        return _may_answer(view, who) or bool(view.answers) or not (view.open or self._is_aside(name))

    def _is_aside(self, name: str) -> bool:
        """Return whether an item measures the model, as one of the audit set or of the test set."""
        with self.project.store.reading() as state:
            return self._is_audit(name) or self.project.store.row_of(name) in state.tests

    def may_answer(self, name: str, who: Who) -> bool:
        """Return whether a person was asked an item, or has answered, skipped or flagged it before."""
        return _may_answer(self.view(name), who)

    def _check_mine(self, name: str, who: Who) -> None:
        if not self.may_answer(name, who):
            raise HTTPException(403, NOT_YOURS)

    def _touch(self, who: Who) -> None:
        """Note that a person is active, and take back the questions of others who were idle for ten minutes."""
        now = self._clock()
        self._seen[who] = now
        for other, last in self._seen.items():
            if other != who and now - last >= IDLE_SECONDS:
                self._seen[other] = now
                names = self.project.open_questions(other)
                if names:
                    self.project.give_back(names, other)


def _num_together(done: Iterator[Event]) -> int:
    """Return how many of what a person did, the latest first, is one thing: labels of one confirmation, or 1; or 0.

    Events that were written together have the same time and consecutive numbers. Labels from a file also do, but have
    no time that they took.
    """
    last, count = next(done, None), 0
    before = last
    while before is not None and last is not None:
        count += 1
        following = next(done, None)
        is_same = following is not None and (
            last.seconds is not None
            and (following.time, following.kind, following.seconds) == (last.time, last.kind, last.seconds)
            and following.number == before.number - 1
        )
        before = following if is_same else None
    return count


def _num_labels(state: State) -> int:
    """Return the number of labelled items; with several labels for an item, that of answers."""
    return (state.tallies.answers if state.is_multi else state.tallies.labels).total()


def _grid_note(num_open: int, num_guessed: int) -> str:
    """Return why the grid is empty, and what to do."""
    if not num_open:
        return "Nothing is open. The next batch comes with Label, once there is something left to ask."
    if not num_guessed:
        return f"The {num_open} open items measure the model, so they come without a guess. Label them one by one."
    return "The model's guesses come with its next batch, once two classes have labels. Label one by one until then."


def _may_answer(view: ItemView, who: Who) -> bool:
    """Return whether a person was asked an item, or has answered, skipped or flagged it before."""
    return who in view.open or who in view.answers or who in view.skipped or who in {note.who for note in view.flags}

"""A project as the page sees it."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path

from batchbalance.learner.labels import Event
from batchbalance.project import Project
from batchbalance.project.page.desk import Counts, Desk, Past, Shown, ShownKind, Who
from batchbalance.project.settings import SourceKind
from batchbalance.system.ids import mended

KINDS: dict[SourceKind, ShownKind] = {"images": "image", "texts": "text", "table": "row", "embeddings": "bare"}
PASSED_ON = ("returned", "again")  # words of the project that say nothing about why an item was chosen


class ProjectDesk(Desk):
    """Questions and answers of a project.

    Args:
        project: open.
    """

    def __init__(self, project: Project) -> None:
        self._project = project

    @property
    def name(self) -> str:
        """The name of the project's folder."""
        return mended(self._project.folder.resolve().name)

    @property
    def classes(self) -> Sequence[str]:
        """The labels to choose from."""
        return self._project.classes

    @property
    def instructions(self) -> str:
        """For people who label."""
        return self._project.settings.instructions

    @property
    def roots(self) -> Sequence[Path]:
        """The folders that images must be in; empty if items are no images."""
        return self._project.roots

    @property
    def batch_size(self) -> int:
        """Questions to choose at a time."""
        return self._project.settings.batch_size

    @property
    def revision(self) -> int:
        """The number of events so far."""
        return self._project.num_events()

    def item(self, name: str) -> Shown:
        """What the page shows of an item."""
        (content,) = self._project.contents([name])
        kind = KINDS[self._project.settings.data.kind]
        root = self._project.root
        if kind == "image" and root is not None:
            return Shown(name, kind, file=root / (content or ""))
        if kind == "row":
            row = json.loads(content or "{}")
            return Shown(name, kind, fields=tuple((key, None if x is None else str(x)) for key, x in row.items()))
        return Shown(name, kind, text=content or "")

    def questions(self, who: Who) -> list[str]:
        """What a person was asked and has not answered, oldest first."""
        return self._project.open_questions(who)

    def num_taken(self, who: Who) -> int:
        """Open questions of others, also of those who do not use the page."""
        return self._project.num_open() - len(self._project.open_questions(who))

    def num_skipped(self, who: Who) -> int:
        """Items that a person skipped and that still want an answer."""
        return self._project.num_skipped(who)

    def ask_skipped(self, who: Who) -> None:
        """Ask a person again what they skipped; nothing new is chosen."""
        num_skipped = self.num_skipped(who)
        if num_skipped:
            self._project.ask(len(self.questions(who)) + num_skipped, who, again=True)

    def may_answer(self, name: str, who: Who) -> bool:
        """Whether a person was asked this item, or has answered, skipped or flagged it before."""
        view = self._project.view(name)
        flagged = {note.who for note in view.flags}
        return who in view.open or who in view.answers or who in view.skipped or who in flagged

    def may_see(self, name: str, who: Who) -> bool:
        """Whether a person may look at an item: their own, and what has a label."""
        return self.may_answer(name, who) or bool(self._project.view(name).answers)

    def is_audit(self, name: str) -> bool:
        """Whether an item measures the model."""
        return self._project.is_audit([name])[0]

    def reason(self, name: str) -> str:
        """Why it was asked last."""
        reasons = [each for each in self._project.view(name).reasons if each not in PASSED_ON]
        return reasons[-1] if reasons else ""

    def label(self, answers: Mapping[str, str], who: Who, seconds: float | None) -> None:
        """Take in labels, all or none."""
        self._project.tell(answers, who, seconds)

    def skip(self, name: str, who: Who) -> None:
        """Pass an item over."""
        self._project.skip(name, who)

    def flag(self, name: str, note: str, who: Who) -> None:
        """Mark an item that something is wrong with."""
        self._project.flag(name, note, who)

    def undo(self, who: Who) -> str | None:
        """Undo what a person did last."""
        return self._project.undo(who)[0].id if self._project.latest(who, 0, 1) else None

    def history(self, who: Who, skip: int, count: int) -> list[Past]:
        """What a person did, the latest first; each item once."""
        part = self._project.latest(who, skip, count)
        names = self._project.ids([event.item or 0 for event in part])
        return [self._past(name, event) for name, event in zip(names, part, strict=True)]

    def counts(self) -> Counts:
        """How many labels there are."""
        project = self._project
        classes = project.class_counts()
        return Counts(project.num_today(), sum(classes.values()), project.answer_counts(), classes)

    def give_back(self, who: Who) -> None:
        """Take all open questions from a person."""
        names = self._project.open_questions(who)
        if names:
            self._project.give_back(names, who)

    def _past(self, name: str, event: Event) -> Past:
        if event.kind == "skipped":
            return Past(name, "skipped")
        if event.kind == "flagged":
            return Past(name, "flagged", note=str(event.value))
        return Past(name, "labelled", self._project.classes[event.value])

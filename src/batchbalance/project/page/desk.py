"""What the page needs from a project, and from whoever chooses the next items."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Protocol

Who = str | None
ShownKind = Literal["image", "text", "row", "bare"]


@dataclass(frozen=True)
class Shown:
    """An item as people see it.

    Attributes:
        id: its name.
        kind: how it is shown.
        text: of a text.
        fields: of a row of a table: names and values.
        file: of an image.
    """

    id: str
    kind: ShownKind
    text: str = ""
    fields: tuple[tuple[str, str | None], ...] = ()
    file: Path | None = None


@dataclass(frozen=True)
class Past:
    """Something that a person did to an item: its latest, if there was more.

    Attributes:
        id: of the item.
        kind: "labelled", "skipped" or "flagged".
        label: if it was labelled.
        note: if it was flagged.
    """

    id: str
    kind: str
    label: str | None = None
    note: str = ""


@dataclass(frozen=True)
class Counts:
    """How many labels there are.

    Attributes:
        today: given since midnight.
        total: items with a label.
        people: answers of each person.
        classes: labels of each class.
    """

    today: int
    total: int
    people: Mapping[Who, int]
    classes: Mapping[str, int]


class Desk(Protocol):
    """Questions and answers of a project. Answers are on disk when a call returns.

    Names of items that are not there raise ValueError.
    """

    @property
    def name(self) -> str:
        """Of the project."""

    @property
    def classes(self) -> Sequence[str]:
        """The labels to choose from."""

    @property
    def instructions(self) -> str:
        """For people who label."""

    @property
    def roots(self) -> Sequence[Path]:
        """The folders that images must be in; empty if items are no images."""

    @property
    def batch_size(self) -> int:
        """Questions to choose at a time."""

    @property
    def revision(self) -> int:
        """Another number after anything has happened."""

    def item(self, name: str) -> Shown:
        """What the page shows of an item."""

    def questions(self, who: Who) -> list[str]:
        """What a person was asked and has not answered, oldest first."""

    def num_taken(self, who: Who) -> int:
        """Open questions of others."""

    def num_skipped(self, who: Who) -> int:
        """Items that a person skipped and that still want an answer."""

    def ask_skipped(self, who: Who) -> None:
        """Ask a person again what they skipped."""

    def may_answer(self, name: str, who: Who) -> bool:
        """Whether a person was asked this item, or has answered or skipped it before."""

    def may_see(self, name: str, who: Who) -> bool:
        """Whether a person may look at an item: their own, and what has a label."""

    def is_audit(self, name: str) -> bool:
        """Whether an item measures the model: it is shown without any guess."""

    def reason(self, name: str) -> str:
        """Why it was asked: "audit", "random", the name of a strategy, or another word of the project."""

    def label(self, answers: Mapping[str, str], who: Who, seconds: float | None) -> None:
        """Take in labels, all or none."""

    def skip(self, name: str, who: Who) -> None:
        """Pass an item over."""

    def flag(self, name: str, note: str, who: Who) -> None:
        """Mark an item that something is wrong with."""

    def undo(self, who: Who) -> str | None:
        """Undo what a person did last; the item, or None if there is nothing."""

    def history(self, who: Who, skip: int, count: int) -> list[Past]:
        """What a person did, the latest first; each item once."""

    def counts(self) -> Counts:
        """How many labels there are."""

    def give_back(self, who: Who) -> None:
        """Take all open questions from a person, so that others can be asked."""


@dataclass(frozen=True)
class Choosing:
    """How far the choice of the next items is.

    Attributes:
        doing: what is being done; empty if nothing is.
        done: steps done.
        total: of so many; 0 if that is not known.
        trouble: why it failed; empty if it did not.
    """

    doing: str = ""
    done: int = 0
    total: int = 0
    trouble: str = ""


class Chooser(Protocol):
    """Chooses items and explains them, without keeping anybody waiting."""

    def want(self, who: Who, revision: int) -> None:
        """Ask a person a batch more, unless that is under way, or was in vain and nothing has happened since."""

    def explain(self, names: Sequence[str]) -> None:
        """Find out why items were chosen, those that are not explained yet."""

    def choosing(self, who: Who) -> Choosing:
        """How far it is for a person."""

    def is_explained(self, name: str) -> bool:
        """Whether all is known about an item that there is to know."""

    def insight(self, name: str) -> Mapping[str, Any] | None:
        """What is known about an item; None if nothing is."""

    def status(self, revision: int) -> Mapping[str, Any] | None:
        """The latest status; a newer one is computed if anything has happened since. None if there is none yet."""

    def try_again(self) -> None:
        """Forget troubles."""

    def close(self) -> None:
        """End what is under way."""

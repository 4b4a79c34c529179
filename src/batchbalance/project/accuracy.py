"""The accuracy of the models of a project: the curve that `status` shows, and the looks that its advice goes by."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from batchbalance.project.audit import Interval, Look, clopper_pearson, looks
from batchbalance.project.stopping import UNKNOWN, Round

ONE_LOOK = "for one look"


@dataclass(frozen=True)
class Accuracy:
    """The accuracy of one model.

    Attributes:
        num_labels: what it was trained on.
        correct: right answers.
        total: of so many.
        interval: Clopper and Pearson's 95 %, for one look.
        source: "audit" or "test".
        about: what it is the accuracy of, in words; "" for all items.
    """

    num_labels: int
    correct: int
    total: int
    interval: Interval
    source: str
    about: str = ""

    @property
    def value(self) -> float:
        """The share of right answers."""
        return self.correct / self.total


def curve_on_audit(
    rounds: Sequence[Round], predicted: NDArray[Any], is_right: NDArray[Any], about: str
) -> tuple[Accuracy, ...]:
    """Return the accuracy on today's audit labels of every model that was there with all of their items.

    Args:
        rounds: (R,) every trained model, oldest first.
        predicted: (R, n) its classes for the audit items that count today; −1 for items that were added later.
        is_right: (R, n) whether they are the labels.
        about: what these items are a sample of.
    """
    total = predicted.shape[1]
    knows = (predicted != UNKNOWN).all(axis=1) & (total > 0)
    found = zip(rounds, is_right.sum(axis=1), knows, strict=True)
    return tuple(_accuracy(each.num_labels, int(right), total, "audit", about) for each, right, known in found if known)


def curve_on_test(rounds: Sequence[Round], about: str) -> tuple[Accuracy, ...]:
    """Return the accuracy of every model on the test set of its time."""
    found = [each for each in rounds if each.test_total]
    return tuple(_accuracy(each.num_labels, each.test_correct, each.test_total, "test", about) for each in found)


def looks_of(rounds: Sequence[Round], has_test: bool) -> list[Look]:
    """Return the looks at the test set, or else at the audit labels, that count for advice."""
    trained, about = [each.num_labels for each in rounds], [each.about for each in rounds]
    if has_test:
        correct, totals = [each.test_correct for each in rounds], [each.test_total for each in rounds]
        return looks(trained, correct, totals, trained, about)
    totals = [each.audit_total for each in rounds]
    return looks(totals, [each.audit_correct for each in rounds], totals, trained, about)


def told_accuracy(found: Accuracy | None) -> str:
    """Return an accuracy with its interval, in words."""
    if found is None:
        return "not known"
    low, high = found.interval.low, found.interval.high
    of = f"{found.correct} of {found.total} {found.source} labels"
    about = f" {found.about}" if found.about else ""
    return f"{found.value:.3f} [{low:.3f}, {high:.3f}]{about} (95 %, {ONE_LOOK}; {of})"


def _accuracy(num_labels: int, correct: int, total: int, source: str, about: str) -> Accuracy:
    return Accuracy(num_labels, correct, total, clopper_pearson(correct, total), source, about)

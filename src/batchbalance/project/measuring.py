"""How good machines' labels are, by audit items, which people label without seeing them.

A file of suggestions does not change with the labels, so the intervals hold at any look (``anytime``).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from batchbalance.project.anytime import any_look
from batchbalance.project.audit import Calibration, calibration
from batchbalance.project.class_quality import ClassQuality, Estimate
from batchbalance.project.suggestions import MODEL, NONE, Source

QUANTILES = (0.0, 0.25, 0.5, 0.75)  # of the pool's confidences, at which the accuracy is measured


@dataclass(frozen=True)
class Above:
    """The accuracy of suggestions at or above a confidence, which `num_items` items have."""

    confidence: float
    num_items: int
    accuracy: Estimate | None


@dataclass(frozen=True)
class SourceQuality:
    """The quality of a source of labels. All intervals hold at any look; figures are None without audit labels.

    Attributes:
        name: the source.
        num_items: items with a suggestion.
        right: audit items for which the suggestion is the label.
        total: of so many audit items with a suggestion and a label.
        accuracy: the share of suggestions that are right.
        classes: suggestions, precision and recall of each class.
        above: the accuracy at or above some confidences, the lowest first; empty without confidences.
        calibration: of the confidences.
        agreement: the share of audit items, labelled or not, for which the model and other sources say the same.
    """

    name: str
    num_items: int
    right: int
    total: int
    accuracy: Estimate | None
    classes: tuple[ClassQuality, ...]
    above: tuple[Above, ...]
    calibration: Calibration | None
    agreement: dict[str, float]

    def sentence(self) -> str:
        """Return the quality in one line."""
        if self.accuracy is None:
            known = "accuracy not known before people label audit items"
        else:
            known = f"accuracy {self.accuracy} (95 %, at any look; {self.right} of {self.total} audit labels)"
        sure = next(
            (
                f"; {each.accuracy} from confidence {each.confidence:.2f} on"
                for each in self.above[2:3]
                if each.accuracy
            ),
            "",
        )
        says = "".join(f"; agrees with {name} on {100 * share:.0f} %" for name, share in self.agreement.items())
        return f"{self.num_items:,} suggestions, {known}{sure}{says}"


def measured(right: int, total: int) -> Estimate | None:
    """Return a share with an interval that holds at any look; None if `total` is 0."""
    return Estimate(right / total, any_look(right, total)) if total else None


def source_quality(
    source: Source,
    audit: np.ndarray,
    truth: np.ndarray,
    classes: Sequence[str],
    others: Mapping[str, np.ndarray],
    compared: np.ndarray,
) -> SourceQuality:
    """Measure a source.

    Args:
        source: its suggestions.
        audit: (n,) rows of a uniform sample of items.
        truth: (n,) the labels that people gave them.
        classes: (C,) names.
        others: (N,) the classes that the model and other sources say, −1 for none.
        compared: rows on which they are compared.
    """
    said, has = source.labels, source.labels != NONE
    known = has[audit]
    audit, truth = audit[known], truth[known]
    is_right = said[audit] == truth
    sure = source.confidence
    return SourceQuality(
        source.name,
        int(has.sum()),
        int(is_right.sum()),
        len(audit),
        measured(int(is_right.sum()), len(audit)),
        tuple(
            ClassQuality(
                name,
                int((said == number).sum()),
                precision=measured(int((is_right & (truth == number)).sum()), int((said[audit] == number).sum())),
                recall=measured(int((is_right & (truth == number)).sum()), int((truth == number).sum())),
            )
            for number, name in enumerate(classes)
        ),
        () if sure is None else tuple(_above(sure[has], sure[audit], is_right)),
        None if sure is None else calibration(sure[audit], is_right),
        {name: _agreement(said[compared], labels[compared]) for name, labels in others.items() if name != source.name},
    )


def _above(pool: np.ndarray, sure: np.ndarray, is_right: np.ndarray) -> list[Above]:
    """Return the accuracy at or above quantiles of the pool's confidences."""
    levels = sorted({float(np.quantile(pool, each, method="lower")) for each in QUANTILES})
    counted = [(level, sure >= level) for level in levels]
    return [
        Above(level, int((pool >= level).sum()), measured(int(is_right[which].sum()), int(which.sum())))
        for level, which in counted
    ]


def _agreement(first: np.ndarray, second: np.ndarray) -> float:
    """Return the share of items with the same class, of those with two; 0 if there are none."""
    both = (first != NONE) & (second != NONE)
    return float((first[both] == second[both]).mean()) if both.any() else 0.0


def qualities(
    sources: Mapping[str, Source],
    audit: np.ndarray,
    truth: np.ndarray,
    classes: Sequence[str],
    compared: np.ndarray,
    predicted: np.ndarray | None,
) -> tuple[SourceQuality, ...]:
    """Measure all sources.

    Args:
        sources: by name.
        audit: (n,) rows of a uniform sample of items.
        truth: (n,) the labels that people gave them.
        classes: (C,) names.
        compared: (m,) rows on which sources and the model are compared; it is not trained on them.
        predicted: (m,) the model's predictions for them; None without a model.
    """
    others = {name: each.labels for name, each in sources.items()}
    if predicted is not None and sources:
        every = np.full(max(len(each.labels) for each in sources.values()), NONE)
        every[compared] = predicted
        others = {MODEL: every, **others}
    return tuple(source_quality(each, audit, truth, classes, others, compared) for each in sources.values())

"""The facts about a project that its status is computed from."""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from batchbalance.arguments.seeds import derived_seed
from batchbalance.project.arm import NUM_SPLITS, ArmComparison, compare_arms
from batchbalance.project.audit import audit_order
from batchbalance.project.label_errors import Duplicates, agreements, doubted, duplicates
from batchbalance.project.labelling import Labelling, as_codes
from batchbalance.project.learning import ProjectModel, Trained, can_refit, class_probs
from batchbalance.project.measuring import SourceQuality, qualities
from batchbalance.project.state import AUDIT, FOUND, RANDOM, State
from batchbalance.project.stopping import UNKNOWN, Round, read_rounds
from batchbalance.project.store import ShownItem
from batchbalance.project.suggestions import sources_of


@dataclass(frozen=True)
class SuspectLabel:
    """A label that is probably wrong.

    Attributes:
        item: the item.
        label: the label that was given.
        suggested: the class that the model predicts.
        probability: the label's probability, by a model that has not seen it.
        wrong: the probability that the label is wrong, given all labels.
        is_audit: whether the item is in the audit set.
    """

    item: ShownItem
    label: str
    suggested: str
    probability: float
    wrong: float
    is_audit: bool = False


@dataclass(frozen=True)
class Counts:
    """Numbers of items by state.

    Attributes:
        items: all items in the project.
        asked: items asked so far, answered or not.
        labelled: items with a label to train on.
        open: items asked and not answered.
        skipped: items that somebody skipped and nobody answered.
        flagged: items with a flag.
        disputed: items whose annotators tie; not trained on.
        audit_items: items in the audit set.
        audit_asked: audit items asked.
        audit_labelled: audit items with a label.
        audit_skipped: audit items skipped. If these are the hard ones, the accuracy is overestimated.
        audit_disputed: audit items whose annotators tie, with the same effect.
        chosen: items whose labels were added as chosen; they train and never measure.
    """

    items: int = 0
    asked: int = 0
    labelled: int = 0
    open: int = 0
    skipped: int = 0
    flagged: int = 0
    disputed: int = 0
    audit_items: int = 0
    audit_asked: int = 0
    audit_labelled: int = 0
    audit_skipped: int = 0
    audit_disputed: int = 0
    chosen: int = 0


@dataclass(frozen=True, eq=False)
class Facts:
    """The facts about a project.

    Attributes:
        name: the project's name.
        classes: the class names.
        counts: the numbers of items.
        audit_share: the share of audit items; 0 without an audit set.
        rounds: every trained model, oldest first.
        audit_labels: (F,) the code of the label of each item of the fixed set (`Labelling.codes`); −1 for those without
            a label and for items outside the audit set.
        confidence: (F,) the newest model's probability of its predicted class, for the same items.
        class_counts: (C,) items with each class, including audit labels.
        test_labels: (T,) the code of the label of each item of the user's own test set.
        test_predicted: (T,) the newest model's predictions for them; empty before there is a model.
        cross_validated_error: the error on the training labels; None if there are too few.
        target: the target accuracy or, with `is_f1_target`, the target of micro F1; None for none.
        budget: the labels that may be spent, or None.
        num_first: the audit labels or the test set are a sample of the first `num_first` items; None for all.
        num_missing: audit items among the added ones that must be answered before all audit labels count.
        model_warning: why predictions should not be trusted yet, or None.
        random_arm: the share of uniform labels; 0 without a random arm.
        arm: the comparison of the two heads, or None if there are too few labels.
        suspects: labels that are probably wrong, in descending order of probability.
        num_judged: labels judged by a model that has not seen them.
        duplicates: exact copies.
        annotators: Cohen's κ of each pair of people who labelled the same items; of each label if there are several.
        sources: the quality of each source of suggestions.
        notes: other remarks.
        is_multi: whether an item may have several labels.
        is_f1_target: whether the target is one of micro F1.
    """

    name: str
    classes: tuple[str, ...]
    counts: Counts
    audit_share: float = 0.1
    rounds: tuple[Round, ...] = ()
    audit_labels: NDArray[Any] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    confidence: NDArray[Any] = field(default_factory=lambda: np.zeros(0))
    class_counts: tuple[int, ...] = ()
    test_labels: NDArray[Any] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    test_predicted: NDArray[Any] = field(default_factory=lambda: np.zeros(0, dtype=np.int64))
    cross_validated_error: float | None = None
    target: float | None = None
    budget: float | None = None
    num_first: int | None = None
    num_missing: int = 0
    model_warning: str | None = None
    random_arm: float = 0.0
    arm: ArmComparison | None = None
    suspects: tuple[SuspectLabel, ...] = ()
    num_judged: int = 0
    duplicates: Duplicates = field(default_factory=Duplicates)
    annotators: dict[str, float] = field(default_factory=dict)
    sources: tuple[SourceQuality, ...] = ()
    notes: tuple[str, ...] = ()
    is_multi: bool = False
    is_f1_target: bool = False

    @property
    def labelling(self) -> Labelling:
        """The classes, and how answers name them."""
        return Labelling(self.classes, self.is_multi)


class FactCollector:
    """Collects the facts about a project, with the model of its labels; it is trained if necessary.

    Args:
        model: the project's model.
        root: the folder of image files.
        state: the project's state.
        vectors: (N, D) the embeddings of all items.
    """

    def __init__(self, model: ProjectModel, root: Path | None, state: State, vectors: np.ndarray) -> None:
        self._model, self._root, self._state, self._vectors = model, root, state, vectors
        self._store, self._settings = model.store, model.settings
        self._trained = model.trained(state, vectors)
        self._aside = self._store.set_aside(state)

    def facts(self, notes: tuple[str, ...]) -> Facts:
        """Return all facts, with `notes` about the project."""
        settings, state, trained, vectors = self._settings, self._state, self._trained, self._vectors
        fixed = self._model.fixed_rows(state)
        audit, truth = self._model.audit_labels(state)
        labelling, labels = state.labelling, state.labels()
        known = dict(zip(audit.tolist(), labelling.codes(truth).tolist(), strict=True))
        by_row = [labels.get(row) for row in range(self._store.num_items)]
        sample = self._model.audit_sample(state)
        collected = Facts(
            self._model.folder.resolve().name,
            labelling.classes,
            self._counts(),
            audit_share=settings.audit if self._store.is_audit.any() else 0.0,
            rounds=tuple(read_rounds(self._model.folder, fixed)),
            audit_labels=as_codes([known.get(row, UNKNOWN) for row in fixed.tolist()]),
            confidence=np.zeros(len(fixed)),
            class_counts=tuple(labelling.counts(labels.values())),
            test_labels=labelling.codes(labelling.array(state.tests.values())),
            target=settings.target_accuracy if settings.target_f1 is None else settings.target_f1,
            is_f1_target=settings.target_f1 is not None,
            budget=settings.budget,
            num_first=state.tests_of if state.tests else sample.num_first,
            num_missing=sample.num_missing,
            random_arm=settings.random_arm,
            duplicates=duplicates(self._store.digests(), by_row, self._aside),
            annotators={each.name: each.kappa for each in agreements(state)},
            notes=notes,
            is_multi=labelling.is_multi,
        )
        probs = None if trained is None else trained.probs(vectors, fixed)
        said = None if probs is None else labelling.predicted(probs)
        sources = sources_of(state, self._store.num_items)
        collected = replace(collected, sources=qualities(sources, audit, truth, state.classes, fixed, said))
        if trained is None or probs is None:
            return collected
        tests = list(state.tests)
        return replace(
            collected,
            confidence=labelling.confidence(probs),
            test_predicted=self._codes_for(trained, tests) if tests else collected.test_predicted,
            cross_validated_error=self._model.cross_validated_error(vectors, trained),
            model_warning=getattr(getattr(trained.posterior, "tuned", None), "warning", None),
            arm=self._arm(trained) if settings.random_arm else None,
            suspects=self.suspects(),
            num_judged=len(self._judged(trained)),
        )

    def suspects(self) -> tuple[SuspectLabel, ...]:
        """Return the labels that are probably wrong, of training and audit items; none before there is a model."""
        if self._trained is None:
            return ()
        trained, vectors, labelling = self._trained, self._vectors, self._state.labelling
        probs, is_judged = self._model.cross_validated(vectors, trained)
        rows = self._judged(trained)
        aside = rows[len(trained.rows) :]
        if len(aside):
            probs = np.concatenate([probs, trained.probs(vectors, aside)])
            is_judged = np.concatenate([is_judged, np.ones((len(aside), *is_judged.shape[1:]), dtype=bool)])
        given = self._state.labels()
        labels = [given[row] for row in rows.tolist()]
        found = doubted(probs, labelling, labels, is_judged)
        found = [each for each in found if self._state.items[int(rows[each.row])].settled is None]  # reviewed since
        items = self._store.shown([int(rows[each.row]) for each in found], self._root)
        return tuple(
            SuspectLabel(
                item,
                labelling.text(each.label),
                labelling.text(each.suggested),
                each.probability,
                each.wrong,
                each.row >= len(trained.rows),
            )
            for item, each in zip(items, found, strict=True)
        )

    def _codes_for(self, trained: Trained, rows: list[int]) -> NDArray[Any]:
        labelling = trained.labelling
        return labelling.codes(labelling.predicted(trained.probs(self._vectors, rows)))

    def _counts(self) -> Counts:
        state, aside, views = self._state, self._aside, self._state.items
        outcomes = {row: view.outcome for row, view in views.items()}
        labels = state.labels()
        return Counts(
            items=self._store.num_items,
            asked=state.num_asked(),
            labelled=len(self._model.training_labels(state)[0]),
            open=sum(bool(view.open) and row not in labels for row, view in views.items()),
            skipped=sum(each == "skipped" for each in outcomes.values()),
            flagged=sum(bool(view.flags) for view in views.values()),
            disputed=sum(each == "disputed" for each in outcomes.values()),
            audit_items=int(aside.sum()),
            audit_asked=len(state.asked_for(AUDIT)),
            audit_labelled=len(self._model.audit_labels(state)[0]),
            audit_skipped=sum(each == "skipped" and bool(aside[row]) for row, each in outcomes.items()),
            audit_disputed=sum(each == "disputed" and bool(aside[row]) for row, each in outcomes.items()),
            chosen=len(state.chosen()),
        )

    def _arm(self, trained: Trained) -> ArmComparison | None:
        """Compare the strategy's labels with those of the random arm."""
        state, vectors, views = self._state, self._vectors, self._state.items
        labels = state.labels()
        rows = [row for row in self._model.training_labels(state)[0].tolist() if views[row].reasons]
        chosen = [row for row in rows if views[row].reasons[0] not in (RANDOM, AUDIT, FOUND)]
        chosen.sort(key=lambda row: views[row].first_asked or 0)
        uniform = np.array([row for row in rows if RANDOM in views[row].reasons], dtype=np.int64)
        # In arm order: ordered by first question, those that the strategy had chosen before would come first.
        turns = audit_order(self._store.ids(uniform.tolist()), self._settings.seed, "arm")
        uniform = uniform[np.argsort(turns, kind="stable")]
        known = state.labelling.array(labels.values())
        every = np.full((self._store.num_items, *known.shape[1:]), UNKNOWN, dtype=np.int64)
        every[list(labels)] = known

        def train(rows: np.ndarray, test: np.ndarray) -> np.ndarray:
            return class_probs(self._model.retrain(vectors, trained, rows, every[rows]), vectors[test])

        return compare_arms(
            np.array(chosen, dtype=np.int64),
            uniform,
            self._model.audit_labels(state)[0],
            every,
            train,
            num_splits=NUM_SPLITS if can_refit(trained.posterior) else 0,
            seed=derived_seed(self._settings.seed, "deals"),
        )

    def _judged(self, trained: Trained) -> np.ndarray:
        """Return the rows whose labels are judged: those that were trained on, then those of the audit set."""
        audit = [row for row in self._state.labels() if self._aside[row]]
        return np.array([*trained.rows.tolist(), *audit], dtype=np.int64)

"""The facts about a project that `status` is made of."""

from collections import Counter
from pathlib import Path

import numpy as np

from batchbalance.arguments.seeds import derived_seed
from batchbalance.project.agreement import agreements
from batchbalance.project.arm import NUM_SPLITS, ArmComparison, compare_arms
from batchbalance.project.batch import shown
from batchbalance.project.exporting import DISPUTED, SKIPPED, state_of
from batchbalance.project.label_errors import Duplicates, duplicates, likely_errors
from batchbalance.project.learning import Learning
from batchbalance.project.model import Trained, can_refit, class_probs, model_warning
from batchbalance.project.planning import arm_order, set_aside, training_rows
from batchbalance.project.rounds import read_rounds
from batchbalance.project.settings import Settings
from batchbalance.project.state import ANSWERS, AUDIT, FOUND, RANDOM, State
from batchbalance.project.status import Counts, Facts, Hard, Shown, SuspectLabel
from batchbalance.project.stopping import UNKNOWN
from batchbalance.project.store import ProjectStore

NUM_HARDEST = 10
SAMPLED = 2000  # unlabelled items among which the hardest are looked for
NOBODY = "(no name)"


class Gathering:
    """Gathers what a project knows.

    Args:
        folder: of the project.
        store: its items.
        settings: of it.
        learning: its model.
        root: the folder that files are in.
    """

    def __init__(
        self, folder: Path, store: ProjectStore, settings: Settings, learning: Learning, root: Path | None
    ) -> None:
        self._folder, self._store, self._settings = folder, store, settings
        self._learning, self._root = learning, root

    def facts(self, state: State, vectors: np.ndarray, notes: tuple[str, ...]) -> Facts:
        """All of them; trains a model if there is none of these labels yet."""
        settings, learning = self._settings, self._learning
        model = learning.trained(state, vectors)
        fixed = learning.fixed_rows(state)
        audit, truth = learning.audit_labels(state)
        known = dict(zip(audit.tolist(), truth.tolist(), strict=True))
        answers = [event for event in state.history() if event.kind in ANSWERS]
        counts = Counter(state.labels().values())
        tested = np.zeros(0, dtype=np.int64)
        if model is not None and state.tests:
            tested = class_probs(model.posterior, vectors[list(state.tests)]).argmax(axis=1)
        error = None if model is None else learning.cross_validated_error(state, vectors, model)
        suspects = () if model is None else self.suspects(state, vectors, model)
        return Facts(
            self._folder.resolve().name,
            tuple(state.classes),
            self._counts(state),
            audit_share=settings.audit if self._store.is_audit.any() else 0.0,
            rounds=tuple(read_rounds(self._folder, fixed)),
            audit_labels=np.array([known.get(row, UNKNOWN) for row in fixed.tolist()], dtype=np.int64),
            confidence=np.zeros(len(fixed)) if model is None else class_probs(model.posterior, vectors[fixed]).max(1),
            class_counts=tuple(counts[each] for each in range(len(state.classes))),
            test_labels=np.array(list(state.tests.values()), dtype=np.int64),
            test_predicted=tested,
            label_times=tuple(event.time for event in answers),
            cross_validated_error=error,
            target=settings.target_accuracy,
            budget=settings.budget,
            cost=None if settings.data.cost is None else self._cost(state),
            num_first=state.tests_of if state.tests else learning.audit_sample(state).num_first,
            num_missing=learning.audit_sample(state).num_missing,
            model_warning=None if model is None else model_warning(model.posterior),
            random_arm=settings.random_arm,
            arm=self._arm(state, vectors, model) if settings.random_arm and model is not None else None,
            hardest=() if model is None else self._hardest(state, vectors, model),
            suspects=suspects,
            num_judged=0 if model is None else len(self._judged(state, model)),
            duplicates=self._duplicates(state),
            annotators={f"{x.first or NOBODY} and {x.second or NOBODY}": x.kappa for x in agreements(state)},
            notes=notes,
        )

    def _counts(self, state: State) -> Counts:
        aside, views = set_aside(state, self._store), state.items
        became = {row: state_of(view) for row, view in views.items()}
        labels = state.labels()
        is_open = [row for row, view in views.items() if view.open and row not in labels]
        return Counts(
            items=self._store.num_items,
            asked=state.num_asked(),
            labelled=len(self._learning.training_labels(state)[0]),
            open=len(is_open),
            skipped=sum(each == SKIPPED for each in became.values()),
            flagged=sum(bool(view.flags) for view in views.values()),
            disputed=sum(each == DISPUTED for each in became.values()),
            audit_items=int(aside.sum()),
            audit_asked=len(state.asked_for(AUDIT)),
            audit_labelled=len(self._learning.audit_labels(state)[0]),
            audit_skipped=sum(each == SKIPPED and bool(aside[row]) for row, each in became.items()),
            audit_disputed=sum(each == DISPUTED and bool(aside[row]) for row, each in became.items()),
            chosen=len(state.chosen()),
        )

    def _cost(self, state: State) -> float:
        """Of all answers: an item that several people answered costs as often."""
        return float(sum(len(view.answers) * self._store.costs[row] for row, view in state.items.items()))

    def _arm(self, state: State, vectors: np.ndarray, model: Trained) -> ArmComparison | None:
        labels, views = state.labels(), state.items
        rows = [row for row in training_rows(state, self._store).tolist() if views[row].reasons]
        chosen = [row for row in rows if views[row].reasons[0] not in (RANDOM, AUDIT, FOUND)]
        chosen.sort(key=lambda row: views[row].first_asked or 0)
        uniform = np.array([row for row in rows if RANDOM in views[row].reasons], dtype=np.int64)
        # By their turns: by when they were first asked, those that the strategy had chosen before would come first.
        uniform = uniform[np.argsort(arm_order(self._store.ids(uniform.tolist()), self._settings.seed), kind="stable")]
        audit, _ = self._learning.audit_labels(state)
        every = np.full(self._store.num_items, UNKNOWN, dtype=np.int64)
        every[list(labels)] = list(labels.values())

        def train(rows: np.ndarray, test: np.ndarray) -> np.ndarray:
            return class_probs(self._learning.retrain(state, vectors, model, rows, every[rows]), vectors[test])

        return compare_arms(
            np.array(chosen, dtype=np.int64),
            uniform,
            audit,
            every,
            train,
            num_splits=NUM_SPLITS if can_refit(model.posterior) else 0,
            seed=derived_seed(self._settings.seed, "deals"),
        )

    def _hardest(self, state: State, vectors: np.ndarray, model: Trained) -> tuple[Hard, ...]:
        """Unlabelled items with the smallest margin between their two most probable classes, in a sample."""
        free = ~self._store.is_audit
        free[[row for row, view in state.items.items() if view.answers]] = False
        rows = np.flatnonzero(free)
        if len(rows) > SAMPLED:
            random = np.random.default_rng(derived_seed(self._settings.seed, "hardest"))
            rows = np.sort(random.choice(rows, SAMPLED, replace=False))
        if not len(rows):
            return ()
        probs = class_probs(model.posterior, vectors[rows])
        best = np.sort(probs, axis=1)
        order = np.argsort(best[:, -1] - best[:, -2], kind="stable")[:NUM_HARDEST]
        items = self._shown(rows[order].tolist())
        found = []
        for item, p in zip(items, probs[order], strict=True):
            ranked = np.argsort(-p, kind="stable")[:2]
            found.append(Hard(item, tuple((state.classes[each], float(p[each])) for each in ranked.tolist())))
        return tuple(found)

    def suspects(self, state: State, vectors: np.ndarray, model: Trained) -> tuple[SuspectLabel, ...]:
        """Labels that are probably wrong, of training and audit items."""
        probs, is_judged = self._learning.cross_validated(state, vectors, model)
        rows = self._judged(state, model)
        aside = rows[len(model.rows) :]
        every = [probs, class_probs(model.posterior, vectors[aside])] if len(aside) else [probs]
        labels = state.labels()
        found = likely_errors(
            np.concatenate(every),
            np.array([labels[row] for row in rows.tolist()]),
            np.concatenate([is_judged, np.ones(len(aside), dtype=bool)]),
        )
        items = self._shown([int(rows[each.row]) for each in found])
        names = state.classes
        return tuple(
            SuspectLabel(
                item,
                names[each.label],
                names[each.suggested],
                each.probability,
                each.wrong,
                each.row >= len(model.rows),
            )
            for item, each in zip(items, found, strict=True)
        )

    def _judged(self, state: State, model: Trained) -> np.ndarray:
        """Rows whose labels are judged: those that the model was trained on, then those of the audit set."""
        aside = set_aside(state, self._store)
        return np.array([*model.rows.tolist(), *(row for row in state.labels() if aside[row])], dtype=np.int64)

    def _duplicates(self, state: State) -> Duplicates:
        labels = state.labels()
        told = [labels.get(row) for row in range(self._store.num_items)]
        return duplicates(self._store.digests(), told, set_aside(state, self._store))

    def _shown(self, rows: list[int]) -> list[Shown]:
        kind = self._settings.data.kind
        pairs = zip(self._store.ids(rows), self._store.contents(rows), strict=True)
        return [shown(kind, name, content, self._root) for name, content in pairs]

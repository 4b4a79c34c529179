"""What a project does with labels by machines: take them in, and use them without mistaking them for people's."""

import os
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, SupportsIndex

import numpy as np

from batchbalance.arguments.checks import check_unit, check_whole
from batchbalance.errors import NothingLeftError
from batchbalance.learner.labels import NewEvent
from batchbalance.project.accepting import Accepted, accept
from batchbalance.project.answers import check_name
from batchbalance.project.doubtful import doubtful
from batchbalance.project.embeddings import Embeddings
from batchbalance.project.learning import Guess, ProjectModel
from batchbalance.project.planning import Questions
from batchbalance.project.state import State
from batchbalance.project.store import ProjectStore
from batchbalance.project.suggestions import MODEL, NONE, Source, Suggested, add_suggestions, source_named


@dataclass(frozen=True)
class Reviewed:
    """A suggestion to review.

    Attributes:
        id: the item's id.
        suggestion: the class that the source suggests.
        confidence: the source's confidence; None if it has none.
        guess: the class that the model predicts; "" without a model.
        wrong: the probability that the suggestion is wrong, by a model that learned from people's labels only.
    """

    id: str
    suggestion: str
    confidence: float | None
    guess: str
    wrong: float


class MachineLabels:
    """The part of a ``Project`` about labels by machines."""

    store: ProjectStore
    embeddings: Embeddings
    model: ProjectModel
    questions: Questions
    guess: Callable[[Iterable[Any]], list[Guess] | None]

    def suggest(self, path: str | os.PathLike[str], by: str) -> Suggested:
        """Add labels that a machine suggests. They are measured on the audit set, and never count as anybody's answer.

        Args:
            path: a CSV, TSV, JSONL or Parquet file with the columns id and label, and optionally confidence; or with
                id and a column of probabilities for each class.
            by: the name of the source. A newer file of the same name replaces the older one.
        """
        return add_suggestions(self.store, path, by)

    def review(self, source: str, n: SupportsIndex = 20, annotator: str | None = None) -> list[Reviewed]:
        """Return suggestions of a source that are most likely wrong, spread over the data; ``queue`` asks them.

        Only items that this person can be asked are offered, never those of the audit set.

        Args:
            source: the name of a source.
            n: how many.
            annotator: who will be asked.

        Raises:
            NothingLeftError: if no such item is left.
        """
        count, state, vectors = check_whole("n", n), self.store.snapshot(), self.embeddings.array()
        found = source_named(state, source, self.store.num_items)
        free = self.questions.free_rows(state, check_name(annotator)) & ~self.store.is_audit
        trained = self.model.trained(state, vectors)
        chosen = doubtful(state, vectors, trained, free, count, self.questions.metric, source)
        if not chosen:
            raise NothingLeftError(f"no suggestion by {source} is left to review: all are labelled, asked or set aside")
        names = self.store.ids([each.row for each in chosen])
        guesses = [str(each.label) for each in self.guess(names) or ()] or [""] * len(names)
        return [
            Reviewed(
                name,
                state.classes[each.label],
                None if found.confidence is None else float(found.confidence[each.row]),
                guess,
                each.wrong,
            )
            for name, each, guess in zip(names, chosen, guesses, strict=True)
        ]

    def accept(self, source: str, at_least: float = 0.95) -> Accepted:
        """Accept labels of a source of which at least a share is right, with 95 % confidence; ``export`` writes them.

        The audit labels decide. Labels from a confidence on are accepted, of items that nobody labelled or skipped.

        Args:
            source: the name of a source, or "model" for the model's predictions. Each further model that is tried needs
                more evidence, as does each further file of a source; models are counted in the log.
            at_least: the share that must be right.
        """
        share, state = check_unit("at_least", at_least), self.store.snapshot()
        if state.is_multi:
            raise ValueError("labels of machines can only be accepted where each item has one class; omit `accept`")
        if not self.store.is_audit.any():
            raise ValueError("machine labels can only be accepted by audit labels, got a project without an audit set")
        found = self._model_source(state) if source == MODEL else source_named(state, source, self.store.num_items)
        sample, views = self.model.audit_sample(state), state.items
        labels = found.labels.copy()
        labels[sample.num_first :] = NONE  # the audit labels are a sample of the first items only
        labels[state.chosen()] = NONE
        if not (labels != NONE).any():
            raise ValueError(f"labels by {source} must be of items that the audit set represents, got none")
        closed = np.zeros(self.store.num_items, dtype=bool)
        closed[[*state.tests, *(row for row, view in views.items() if view.outcome in ("skipped", "disputed"))]] = True
        known: dict[int, Any] = dict(state.labels())
        num_left = int(self.store.set_aside(state).sum()) - len(sample.rows)
        return accept(replace(found, labels=labels), sample.rows, known, closed, share, num_audit=num_left)

    def _model_source(self, state: State) -> Source:
        """Return the model's predictions as a source; for training items, those of models that have not seen them."""
        vectors = self.embeddings.array()
        trained = self.model.required(state, vectors)
        probs = trained.probs(vectors)
        unseen, _ = self.model.cross_validated(vectors, trained)
        probs[trained.rows] = trained.mixture.combined(unseen, trained.rows) if trained.mixture else unseen
        with self.store.writing() as state:
            if trained.key not in state.checked:
                self.store.append([NewEvent("checked", value=trained.key)])
                state.update(self.store.events())
        return Source(MODEL, probs.argmax(axis=1), probs.max(axis=1), state.checked.index(trained.key) + 1)

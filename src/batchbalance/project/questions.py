"""The questions of a project: which items a person is asked next, written to the log."""

import numpy as np

from batchbalance.arguments.checks import check_bytes
from batchbalance.errors import NothingLeftError
from batchbalance.learner.labels import NewEvent
from batchbalance.project.batch import Batch
from batchbalance.project.embeddings import Embeddings
from batchbalance.project.finding import Found, nearest
from batchbalance.project.learning import ProjectModel
from batchbalance.project.planning import Plan, Planner, Rules, free_rows, is_free, strategy_of, waiting
from batchbalance.project.settings import ProjectSettings
from batchbalance.project.state import FOUND, State, Who
from batchbalance.project.store import ProjectStore
from batchbalance.selection import Selection
from batchbalance.strategies.pool import Metric


class Questions:
    """Chooses questions and writes them.

    Args:
        settings: of the project.
        store: its items and events.
        embeddings: of its items.
        model: of its labels.
        progress: show progress.
    """

    def __init__(
        self,
        settings: ProjectSettings,
        store: ProjectStore,
        embeddings: Embeddings,
        model: ProjectModel,
        *,
        progress: bool,
    ) -> None:
        self._store, self._embeddings, self._model, self._progress = store, embeddings, model, progress
        self._kind = settings.data.kind
        self._rules = Rules(settings.seed, settings.audit, settings.random_arm, settings.annotators_per_item)
        self._metric: Metric = "raw" if self._kind == "table" else "auto"  # columns of a table are standardised
        self._planner = Planner(store, self._rules, strategy_of(settings.strategy, settings.classes), self._metric)

    def open(self, who: Who) -> Batch:
        """Return the open questions of a person."""
        state = self._store.snapshot()
        return self._batch(state, state.open_questions(who, self._rules.wanted), who)

    def ask(self, who: Who, count: int, *, again: bool, memory_budget: int | str | None) -> Batch:
        """Return `count` open questions of a person, or as many as there can be; new ones are chosen and written.

        Choosing takes no lock: others may ask and answer meanwhile. Questions that became obsolete are not written,
        and the rest are chosen again.

        Raises:
            NothingLeftError: if nothing is left to ask.
        """
        if memory_budget is not None:
            check_bytes("memory_budget", memory_budget)
        selection, notes = None, list[str]()
        while True:
            state = self._store.snapshot()
            rows = state.open_questions(who, self._rules.wanted)[:count]
            if len(rows) == count:
                break
            plan = self._plan(state, who, count - len(rows), again, memory_budget)
            if not plan.questions:
                break
            selection, notes = plan.selection or selection, notes + [x for x in plan.notes if x not in notes]
            self._write(plan, who, state.num_batches)
        if not rows:
            hint = "; --again (`again=True`) brings skipped ones back" if state.skipped(who, self._rules.wanted) else ""
            raise NothingLeftError(f"nothing is left to ask: every item is labelled, asked of others, or skipped{hint}")
        if len(rows) < count:
            notes.append(f"{count} were asked for and {len(rows)} are left")
        return self._batch(state, rows, who, tuple(notes), selection)

    def _batch(
        self,
        state: State,
        rows: list[int],
        who: Who,
        notes: tuple[str, ...] = (),
        selection: Selection | None = None,
    ) -> Batch:
        names, contents, root = self._store.ids(rows), self._store.contents(rows), self._embeddings.root
        return Batch(tuple(names), tuple(contents), self._kind, tuple(state.classes), who, root, notes, selection)

    def queue(self, rows: list[int], who: Who) -> list[int]:
        """Ask items that somebody found; return the rows that could be asked.

        Raises:
            ValueError: if an item is in the audit set or in the test set.
        """
        with self._store.writing() as state:
            for row in rows:
                if self._store.is_audit[row] or row in state.tests:
                    name = self._store.ids([row])[0]
                    raise ValueError(f"items to ask must not be set aside to measure by, got {name!r}; omit it")
            asked = [row for row in rows if is_free(state, row, who)]
            self._store.append([NewEvent("asked", row, FOUND, who, batch=state.num_batches) for row in asked])
        return asked

    def find(self, like: list[int], text: str | None, count: int, who: Who) -> list[Found]:
        """Return items like some rows, or like a text, that a person can be asked; the nearest first."""
        if not like and text is None:
            raise ValueError("`like` or `text` must be given, got neither; name an item or say what to look for")
        state, vectors = self._store.snapshot(), self._embeddings.array()
        queries = [vectors[like]] if like else []
        if text is not None:
            queries.append(self._embeddings.encoded_text(text))
        free = free_rows(state, self._store.num_items, who) & ~self._store.is_audit
        free[like] = False
        found = nearest(vectors, np.concatenate(queries), np.flatnonzero(free), count, metric=self._metric)
        names = self._store.ids([row for row, _ in found])
        return [Found(name, distance) for name, (_, distance) in zip(names, found, strict=True)]

    def _plan(self, state: State, who: Who, count: int, again: bool, memory_budget: int | str | None) -> Plan:
        """Choose questions: items in progress that this person can answer, else new ones."""
        in_progress = waiting(state, self._rules, who, count, again)
        if in_progress:
            return Plan(tuple(in_progress))
        vectors = self._embeddings.array()
        return self._planner.new(
            state,
            who,
            count,
            vectors,
            lambda: self._model.trained(state, vectors),
            lambda trained: self._model.validation_error(state, vectors, trained),
            memory_budget=memory_budget,
            progress=self._progress,
        )

    def _write(self, plan: Plan, who: Who, batch: int) -> None:
        """Write the questions that can still be asked, now that no one else writes."""
        with self._store.writing() as state:
            in_progress = {question.row for question in waiting(state, self._rules, who, len(state.items), True)}
            asked = [each for each in plan.questions if each.row in in_progress or is_free(state, each.row, who)]
            drawn = [each for each in plan.drawn if each.reason not in state.view(each.row).reasons]
            batch = max(batch, state.num_batches)
            events = [NewEvent("asked", each.row, each.reason, who, batch=batch) for each in asked]
            events += [NewEvent("drawn", each.row, each.reason, batch=batch) for each in drawn]
            self._store.append(events)

"""Choose the items to ask next, and record why. Choosing with a model is slow, so it does not hold a lock."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from batchbalance.arguments.checks import check_bytes
from batchbalance.encoders.embedding import DEFAULTS, metric_of
from batchbalance.errors import NothingLeftError
from batchbalance.learner.engine import batch_seed, next_batch
from batchbalance.learner.labels import NewEvent
from batchbalance.project.answers import named_class
from batchbalance.project.audit import audit_due, audit_order
from batchbalance.project.batch import Batch
from batchbalance.project.embeddings import Embeddings
from batchbalance.project.insight import Found, nearest
from batchbalance.project.learning import ProjectModel, as_inputs, pool_predictions
from batchbalance.project.mixing import doubts
from batchbalance.project.settings import ProjectSettings
from batchbalance.project.state import AUDIT, FOUND, RANDOM, State, Who
from batchbalance.project.store import ProjectStore
from batchbalance.project.suggestions import sources_of
from batchbalance.selection import Selection
from batchbalance.strategies import AUTO, Seek, Strategy, strategy_named
from batchbalance.strategies.pool import Metric, Pool
from batchbalance.strategies.seeking import class_position

AGAIN, DISPUTED, OVERLAP, RETURNED = "again", "disputed", "overlap", "returned"  # other reasons to ask
TAKEN = {AUDIT, RANDOM, FOUND, AGAIN, DISPUTED, OVERLAP, RETURNED}  # reserved reasons
FIND = "`batchbalance find` finds a first example by a text, or by similar items"


@dataclass(frozen=True)
class Question:
    """An item to ask, and why: "audit", "random", a reason of `strategy_reason`, or another word of this module."""

    row: int
    reason: str


@dataclass(frozen=True, eq=False)
class Plan:
    """A plan of what to ask next.

    Attributes:
        questions: the questions, in the order to ask them.
        drawn: items whose turn in the audit or the random arm came, but which are already labelled or asked.
        selection: the result of the strategy for its part, or None.
    """

    questions: list[Question]
    drawn: Sequence[Question] = ()
    selection: Selection | None = None


class Questions:
    """Chooses the questions of a project, and writes them to its log."""

    def __init__(
        self,
        settings: ProjectSettings,
        store: ProjectStore,
        embeddings: Embeddings,
        model: ProjectModel,
        *,
        progress: bool,
    ) -> None:
        self._settings, self._store, self._embeddings, self._model = settings, store, embeddings, model
        self._progress, self._wanted = progress, settings.annotators_per_item
        self._strategy = strategy_of(settings.strategy, settings.classes)
        default = DEFAULTS["rows"] if settings.data.kind == "table" else None  # others are measured by "auto" anyway
        self.metric: Metric = metric_of(settings.encoder or default)
        self._arm: list[int] = []

    def open(self, who: Who) -> Batch:
        """Return the open questions of a person."""
        state = self._store.snapshot()
        return self._batch(state, state.open_questions(who, self._wanted), who)

    def ask(self, who: Who, count: int, *, again: bool, memory_budget: int | str | None) -> Batch:
        """Return `count` open questions of a person, or as many as are left; new ones are chosen and written.

        Other people may ask and answer meanwhile. Obsolete questions are not written; others are chosen instead.

        Raises:
            NothingLeftError: if nothing is left to ask.
        """
        if memory_budget is not None:
            check_bytes("memory_budget", memory_budget)
        selection, notes = None, list[str]()
        while True:
            state = self._store.snapshot()
            rows = state.open_questions(who, self._wanted)[:count]
            if len(rows) == count:
                break
            plan = self._plan(state, who, count - len(rows), again, memory_budget)
            if not plan.questions:
                break
            if plan.selection is not None:
                selection = plan.selection
                notes += [x for x in (selection.note, *selection.warnings) if x and x not in notes]
            self._write(plan, who, state.num_batches)
        if not rows:
            hint = "; use --again (`again=True`) to ask skipped ones again" if state.skipped(who, self._wanted) else ""
            raise NothingLeftError(f"nothing is left to ask: every item is labelled, asked of others, or skipped{hint}")
        if len(rows) < count:
            notes.append(f"{count} items were requested and {len(rows)} are left")
        return self._batch(state, rows, who, tuple(notes), selection)

    def queue(self, rows: list[int], who: Who) -> list[int]:
        """Ask specific items; return the rows that could be asked.

        Raises:
            ValueError: if an item is in the audit set or in the test set.
        """
        with self._store.writing() as state:
            for row in rows:
                if self._store.is_audit[row] or row in state.tests:
                    name = self._store.ids([row])[0]
                    raise ValueError(f"items to ask must not be in the audit or test set, got {name!r}; omit it")
            asked = [row for row in rows if is_free(state, row, who)]
            self._store.append([NewEvent("asked", row, FOUND, who, batch=state.num_batches) for row in asked])
        return asked

    def find(self, like: list[int], text: str | None, count: int, who: Who) -> list[Found]:
        """Return items similar to some rows or to a text that a person can be asked, the nearest first."""
        if not like and text is None:
            raise ValueError("`like` or `text` must be given, got neither; name an item or describe what to look for")
        state, vectors = self._store.snapshot(), self._embeddings.array()
        queries = [vectors[like]] if like else []
        if text is not None:
            queries.append(self._embeddings.encoded_text(text))
        free = self.free_rows(state, who) & ~self._store.is_audit
        free[like] = False
        found = nearest(vectors, np.concatenate(queries), np.flatnonzero(free), count, metric=self.metric)
        names = self._store.ids([row for row, _ in found])
        return [Found(name, distance) for name, (_, distance) in zip(names, found, strict=True)]

    def _batch(
        self,
        state: State,
        rows: list[int],
        who: Who,
        notes: tuple[str, ...] = (),
        selection: Selection | None = None,
    ) -> Batch:
        names, contents = self._store.ids(rows), self._store.contents(rows)
        kind, root = self._settings.data.kind, self._embeddings.root
        return Batch(
            tuple(names), tuple(contents), kind, tuple(state.classes), who, root, notes, selection, state.is_multi
        )

    def _waiting(self, state: State, who: Who, again: bool) -> list[Question]:
        """Return items in progress that this person can answer: skipped, disputed, returned, or short of answers.

        Skipped items are included if `again`.
        """
        found = [Question(row, AGAIN) for row in state.skipped(who, self._wanted)] if again else []
        taken = {question.row for question in found}
        for row, view in sorted(state.items.items(), key=lambda pair: (pair[1].first_asked or 0, pair[0])):
            if row in taken or who in view.open or who in view.skipped:
                continue
            if view.is_disputed and len(view.answers) >= self._wanted:
                if view.last != who and not view.open:
                    found.append(Question(row, DISPUTED))
            elif who not in view.answers and 0 < len(set(view.answers) | set(view.open)) < self._wanted:
                found.append(Question(row, OVERLAP))
            elif view.is_returned and not view.answers and not view.open:
                found.append(Question(row, RETURNED))
        return found

    def _plan(self, state: State, who: Who, count: int, again: bool, memory_budget: int | str | None) -> Plan:
        """Choose items in progress that this person can answer or, if there are none, new ones.

        New ones come from the audit set, the random arm and the strategy, in their shares.
        """
        in_progress = self._waiting(state, who, again)[:count]
        if in_progress:
            return Plan(in_progress)
        settings, is_audit, free = self._settings, self._store.is_audit, self.free_rows(state, who)
        count = min(count, int(free.sum()))
        asked, audit_asked = state.num_asked(), len(state.asked_for(AUDIT))
        num_audit = min(audit_due(settings.audit, asked + count, audit_asked), count)
        num_audit = max(num_audit, count - int((free & ~is_audit).sum()))  # if nothing else is left
        order = self._model.audit_order(state).tolist() if num_audit else []
        audit, drawn = next_in_order(state, order, AUDIT, free, num_audit)
        free &= ~is_audit
        uniform: list[Question] = []
        left = count - len(audit)
        if settings.random_arm and left:
            num_random = audit_due(settings.random_arm, asked - audit_asked + left, len(state.asked_for(RANDOM)))
            uniform, more = next_in_order(state, self._arm_order(), RANDOM, free, min(num_random, left))
            drawn += more
            left -= len(uniform)
            free[[question.row for question in uniform]] = False
        chosen, selection = list[Question](), None
        if left:
            selection = self._selected(state, left, free, memory_budget)
            names = selection.choice.reasons or (selection.strategy.name,) * left
            chosen = [Question(int(row), strategy_reason(x)) for row, x in zip(selection.indices, names, strict=True)]
        seed, batch = settings.seed, state.num_batches
        return Plan(spread(spread(chosen, uniform, seed, batch), audit, seed, batch), drawn, selection)

    def _selected(self, state: State, count: int, free: np.ndarray, memory_budget: int | str | None) -> Selection:
        """Choose among the `free` items (N,) with the strategy."""
        vectors = self._embeddings.array()
        trained = self._model.trained(state, vectors)
        labelled, labels = self._model.training_labels(state)
        made: dict[str, Callable[[], Any]] = {"embeddings": lambda: vectors, "metric": lambda: self.metric}
        if trained is not None:
            made |= {
                "predictions": lambda: pool_predictions(trained, vectors),
                "validation_error": lambda: self._model.validation_error(state, vectors, trained),
                "draw_embeddings": lambda: trained.posterior.embed(as_inputs(vectors), every_draw=True),
            }
        elif self._strategy is None and (sources := sources_of(state, len(vectors))):
            made["weights"] = lambda: doubts(sources, len(state.classes))  # a cold start that is not cold
        rows = torch.from_numpy(np.setdiff1d(np.flatnonzero(free), labelled))
        pool = Pool(made=made, num_points=len(vectors)).to_choose(
            candidates=rows,
            labelled=torch.from_numpy(labelled),
            batch_size=count,
            seed=batch_seed(self._settings.seed, state.num_batches),
            progress=self._progress,
        )

        return next_batch(
            pool,
            self._strategy,
            range(len(state.classes)),
            state.labelling.counts(state.labelling.values(labels)),
            class_names=state.classes,
            advice=FIND,
            memory_budget=memory_budget,
        )

    def _write(self, plan: Plan, who: Who, batch: int) -> None:
        """Write the questions that can still be asked, under the lock."""
        with self._store.writing() as state:
            in_progress = {question.row for question in self._waiting(state, who, True)}
            asked = [each for each in plan.questions if each.row in in_progress or is_free(state, each.row, who)]
            drawn = [each for each in plan.drawn if each.reason not in state.view(each.row).reasons]
            batch = max(batch, state.num_batches)
            events = [NewEvent("asked", each.row, each.reason, who, batch=batch) for each in asked]
            events += [NewEvent("drawn", each.row, each.reason, batch=batch) for each in drawn]
            self._store.append(events)

    def free_rows(self, state: State, who: Who) -> np.ndarray:
        """Return (N,) which items can be asked of this person as new ones."""
        free = np.ones(self._store.num_items, dtype=bool)
        free[[row for row in {*state.items, *state.tests} if not is_free(state, row, who)]] = False
        return free

    def _arm_order(self) -> list[int]:
        """Return the rows outside the audit set in the order of the random arm."""
        rows = np.flatnonzero(~self._store.is_audit)
        if len(self._arm) != len(rows):  # items were added
            keys = audit_order(self._store.ids(rows.tolist()), self._settings.seed, "arm")
            self._arm = rows[np.argsort(keys, kind="stable")].tolist()
        return self._arm


def is_free(state: State, row: int, who: Who) -> bool:
    """Return whether an item can be asked of this person as a new one."""
    view = state.items.get(row)
    return row not in state.tests and (view is None or not (view.answers or view.open or who in view.skipped))


def next_in_order(
    state: State, order: Sequence[int], reason: str, free: np.ndarray, count: int
) -> tuple[list[Question], list[Question]]:
    """Return the next `count` items in a fixed order, and the earlier ones that need no question.

    An item that is already labelled or asked has its turn like any other: omitting such items would bias the sample
    towards items that were not chosen. An item that somebody else skipped is asked again.
    """
    questions: list[Question] = []
    drawn: list[Question] = []
    for row in order:
        view = state.items.get(row)
        if view is not None and reason in view.reasons and not free[row]:
            continue
        if len(questions) == count:
            break
        if free[row]:
            questions.append(Question(row, reason))
        elif view is not None and (view.answers or view.open):
            drawn.append(Question(row, reason))
    return questions, drawn if questions else []


def spread(questions: Sequence[Question], others: Sequence[Question], seed: int, batch: int) -> list[Question]:
    """Merge `others` into `questions` at positions given by a hash of seed and batch; both keep their order.

    So people who stop early answer their share of them, and the position of an item does not reveal why it was asked.
    """
    num_places = len(questions) + len(others)
    digests = [hashlib.sha256(f"{seed}/place/{batch}/{place}".encode()).digest() for place in range(num_places)]
    taken = set(sorted(range(num_places), key=digests.__getitem__)[: len(others)])
    left, right = iter(questions), iter(others)
    return [next(right if place in taken else left) for place in range(num_places)]


def strategy_table(strategy: Any, seek: str | Iterable[Any] | None, share: float | None) -> Any:
    """Return the settings of a named strategy, or of seeking classes; None for neither."""
    if seek is None:
        if share is not None:
            raise ValueError("`seek_share` must be given together with `seek`; name the classes to look for")
        return {"name": strategy} if isinstance(strategy, str) else strategy
    if strategy is not None:
        raise ValueError("`seek` must not be given together with `strategy`: it sets it to 'seek'; omit one of them")
    sought = [named_class(each) for each in ([seek] if isinstance(seek, str) else seek)]
    if not sought:
        raise ValueError("`seek` must name at least one class, got none; omit it to look for none")
    return {"name": Seek.name, "classes": sought, **({} if share is None else {"share": share})}


def strategy_of(table: dict[str, Any], classes: Sequence[str]) -> Strategy | None:
    """Return the strategy for a table of settings; None for "auto". Classes to seek become their numbers."""
    options = dict(table)
    name = options.pop("name", AUTO)
    if name == AUTO:
        if options:
            raise ValueError(f"strategy 'auto' has no options, got {', '.join(options)}; name a strategy")
        return None
    found = strategy_named(name, options)
    if not isinstance(found, Seek):
        return found
    if not found.classes:
        raise ValueError(f"strategy 'seek' must name the classes to look for, of {', '.join(classes)}; got none")
    sought = tuple(class_position(each, classes) for each in found.classes)
    if len(set(sought)) == len(classes):
        raise ValueError(f"strategy 'seek' must not look for all classes, got {', '.join(classes)}; name rare ones")
    return found.model_copy(update={"classes": sought})


def strategy_reason(name: str) -> str:
    """Return the reason for a strategy's questions: its name, prefixed if that is a reserved reason."""
    return f"strategy {name}" if name in TAKEN else name

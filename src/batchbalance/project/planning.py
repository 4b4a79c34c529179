"""Which items to ask next, and why. Slow where a model chooses; nothing is written here."""

import hashlib
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from batchbalance.learner.engine import batch_seed, next_batch
from batchbalance.project.answers import named_class
from batchbalance.project.audit import audit_due, audit_order
from batchbalance.project.model import Trained, as_inputs, pool_predictions
from batchbalance.project.state import AUDIT, FOUND, RANDOM, State, Who
from batchbalance.project.store import ProjectStore
from batchbalance.selection import Selection
from batchbalance.selection.choosing import as_strategy
from batchbalance.strategies import AUTO, Choice, Explore, Random, Seek, Strategy, strategy_named
from batchbalance.strategies.baselines import ScoreStrategy
from batchbalance.strategies.pool import Metric, Pool
from batchbalance.strategies.seeking import class_position

OFFERED = 4  # times as many items as are wanted, to choose from by gain per cost
AGAIN, DISPUTED, OVERLAP, RETURNED = "again", "disputed", "overlap", "returned"  # other reasons to ask
TAKEN = {AUDIT, RANDOM, FOUND, AGAIN, DISPUTED, OVERLAP, RETURNED}  # words that are not the name of a strategy
FIND = "`batchbalance find` looks for a first example by a text, or by items like it"


@dataclass(frozen=True)
class Question:
    """An item to ask, and why: "audit", "random", a reason of `strategy_reason`, or another word of this module."""

    row: int
    reason: str


@dataclass(frozen=True, eq=False)
class Plan:
    """What to ask next.

    Attributes:
        questions: in the order they are to be asked.
        drawn: items whose turn in the audit or in the random arm came, and whose labels are known or asked already.
        selection: what is known about the part that a strategy chose, or None.
        notes: what is worth knowing.
    """

    questions: tuple[Question, ...]
    drawn: tuple[Question, ...] = ()
    selection: Selection | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Rules:
    """What decides, beside the model, which items are asked."""

    seed: int
    audit: float
    random_arm: float
    wanted: int  # answers per item


def waiting(state: State, rules: Rules, who: Who, count: int, again: bool) -> list[Question]:
    """Items under way that can be asked of this person: skipped ones, ties, given back, wanting more answers."""
    found: list[Question] = []
    if again:
        found += [Question(row, AGAIN) for row in state.skipped(who, rules.wanted)]
    taken = {question.row for question in found}
    for row, view in sorted(state.items.items(), key=lambda pair: (pair[1].first_asked or 0, pair[0])):
        if row in taken or who in view.open or who in view.skipped:
            continue
        if view.is_disputed and len(view.answers) >= rules.wanted:
            if view.last != who and not view.open:
                found.append(Question(row, DISPUTED))
        elif who not in view.answers and 0 < len(set(view.answers) | set(view.open)) < rules.wanted:
            found.append(Question(row, OVERLAP))
        elif view.is_returned and not view.answers and not view.open:
            found.append(Question(row, RETURNED))
    return found[:count]


def is_free(state: State, row: int, who: Who) -> bool:
    """Whether an item can be asked of this person as a new one."""
    view = state.items.get(row)
    return row not in state.tests and (view is None or not (view.answers or view.open or who in view.skipped))


def set_aside(state: State, store: ProjectStore) -> np.ndarray:
    """(N,) which items measure the model: the audit set, without labels that somebody brought as chosen."""
    aside = store.is_audit.copy()
    aside[state.chosen()] = False
    return aside


def training_rows(state: State, store: ProjectStore) -> np.ndarray:
    """(L,) rows to train on: all that have a label, but for the audit set and the test set."""
    aside = set_aside(state, store)
    found = [row for row in state.labels() if not aside[row] and row not in state.tests]
    return np.array(found, dtype=np.int64)


def free_rows(state: State, num_items: int, who: Who) -> np.ndarray:
    """(N,) which items can be asked of this person as new ones."""
    free = np.ones(num_items, dtype=bool)
    free[[row for row in {*state.items, *state.tests} if not is_free(state, row, who)]] = False
    return free


def next_in_order(
    state: State, order: Sequence[int], reason: str, free: np.ndarray, count: int
) -> tuple[list[Question], list[Question]]:
    """The next `count` items in an order fixed beforehand, and those before them that need no question.

    An item whose label is known, or that is asked already, has its turn like any other: leaving such items out would
    leave the sample to what others did not choose. One that somebody else passed over is asked of this person too.
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
    """Put `others` among `questions`, at places that a hash of seed and batch decides; both keep their own order.

    People who stop early answer their share of them, and the place of an item does not tell why it was asked.
    """
    num_places = len(questions) + len(others)
    digests = [hashlib.sha256(f"{seed}/place/{batch}/{place}".encode()).digest() for place in range(num_places)]
    taken = set(sorted(range(num_places), key=digests.__getitem__)[: len(others)])
    left, right = iter(questions), iter(others)
    return [next(right if place in taken else left) for place in range(num_places)]


def arm_order(ids: Sequence[str], seed: int) -> np.ndarray:
    """(N,) numbers by a hash of seed and id; the random arm goes through the items in their order."""
    digests = (hashlib.sha256(f"{seed}/arm/{name}".encode()).digest()[:8] for name in ids)
    return np.array([int.from_bytes(each, "big") >> 1 for each in digests], dtype=np.int64)


def by_gain_per_cost(selection: Selection, costs: np.ndarray, count: int) -> Selection:
    """The items of a larger selection that gain the most for what they cost; in the order of gain per cost."""
    gains = selection.gains if selection.gains is not None else selection.scores
    if gains is None:
        order = torch.arange(count)
    else:
        paid = torch.from_numpy(costs)[selection.indices]
        order = torch.argsort(gains.double() / paid, descending=True, stable=True)[:count]
    scores = None if gains is None else gains[order]
    kept = Choice(selection.indices[order], scores=scores, notes=selection.choice.notes)
    note = f"of {len(selection.indices)} items those with the most gain for their cost"
    return Selection(
        selection.strategy, selection.seed, kept, warnings=(*selection.warnings, note), note=selection.note
    )


def strategy_table(strategy: Any, seek: str | Iterable[Any] | None, share: float | None) -> Any:
    """Return the settings of a strategy that is named, or of looking for classes; None for neither."""
    if seek is None:
        if share is not None:
            raise ValueError("`seek_share` must be given together with `seek`; name the classes to look for")
        return {"name": strategy} if isinstance(strategy, str) else strategy
    if strategy is not None:
        raise ValueError("`seek` must not be given together with `strategy`: it sets it to 'seek'; omit one of them")
    sought = [named_class(each) for each in ([seek] if isinstance(seek, str) else seek)]
    if not sought:
        raise ValueError("`seek` must name at least one class, got none; leave it out to look for no class")
    return {"name": Seek.name, "classes": sought, **({} if share is None else {"share": share})}


def strategy_of(table: dict[str, Any], classes: Sequence[str]) -> str | Strategy:
    """The strategy that a table of settings names; "auto" is left for later. Classes to seek become their numbers."""
    options = dict(table)
    name = options.pop("name", AUTO)
    if name != AUTO:
        found = strategy_named(name, options)
        if not isinstance(found, Seek):
            return found
        if not found.classes:
            raise ValueError(f"strategy 'seek' must name the classes to look for, of {', '.join(classes)}; got none")
        sought = tuple(class_position(each, classes) for each in found.classes)
        if len(set(sought)) == len(classes):
            raise ValueError(f"strategy 'seek' must not look for all classes, got {', '.join(classes)}; name rare ones")
        return found.model_copy(update={"classes": sought})
    if options:
        raise ValueError(f"strategy 'auto' has no options, got {', '.join(options)}; name a strategy")
    return AUTO


def strategy_reason(name: str) -> str:
    """Return the reason to ask what a strategy chose: its name, unless that is a word for another reason."""
    return f"strategy {name}" if name in TAKEN else name


class Planner:
    """Plans questions for the items of a store."""

    def __init__(self, store: ProjectStore, rules: Rules, strategy: str | Strategy, metric: Metric) -> None:
        self._store, self._rules = store, rules
        self._strategy, self._metric = strategy, metric
        self._orders: dict[str, list[int]] = {}
        self._orders_of = -1

    def new(
        self,
        state: State,
        who: Who,
        count: int,
        vectors: np.ndarray,
        model: Callable[[], Trained | None],
        validation_error: Callable[[Trained], float | None],
        *,
        memory_budget: int | str | None = None,
        progress: bool = False,
    ) -> Plan:
        """Items that were never asked: audit, random arm, and the strategy's, in their shares."""
        store, rules = self._store, self._rules
        free = free_rows(state, store.num_items, who)
        count = min(count, int(free.sum()))
        others = int((free & ~store.is_audit).sum())
        asked, audit_asked = state.num_asked(), len(state.asked_for(AUDIT))
        num_audit = min(audit_due(rules.audit, asked + count, audit_asked), count) if rules.audit else 0
        num_audit = max(num_audit, count - others)
        aside = set_aside(state, store)
        order = [row for row in self._order(AUDIT) if aside[row]]
        audit, drawn = next_in_order(state, order, AUDIT, free, num_audit) if num_audit else ([], [])
        uniform: list[Question] = []
        left = count - len(audit)
        if rules.random_arm and left:
            random_asked = len(state.asked_for(RANDOM))
            due = audit_due(rules.random_arm, asked - audit_asked + left, random_asked)
            uniform, more = next_in_order(state, self._order(RANDOM), RANDOM, free & ~store.is_audit, min(due, left))
            drawn += more
        left -= len(uniform)
        free[[question.row for question in uniform]] = False
        chosen: list[Question] = []
        selection = None
        if left:
            trained = model()
            selection = self._selected(
                state, left, free & ~store.is_audit, vectors, trained, validation_error, memory_budget, progress
            )
            names = selection.choice.reasons or (selection.strategy.name,) * left
            chosen = [Question(int(row), strategy_reason(x)) for row, x in zip(selection.indices, names, strict=True)]
        notes = () if selection is None else (*([selection.note] if selection.note else []), *selection.warnings)
        questions = spread(spread(chosen, uniform, rules.seed, state.num_batches), audit, rules.seed, state.num_batches)
        return Plan(tuple(questions), tuple(drawn), selection, tuple(notes))

    def _selected(
        self,
        state: State,
        count: int,
        candidates: np.ndarray,
        vectors: np.ndarray,
        trained: Trained | None,
        validation_error: Callable[[Trained], float | None],
        memory_budget: int | str | None,
        progress: bool,
    ) -> Selection:
        labelled = training_rows(state, self._store)
        made: dict[str, Callable[[], Any]] = {"embeddings": lambda: vectors, "metric": lambda: self._metric}
        if trained is not None:
            made |= {
                "predictions": lambda: pool_predictions(trained.posterior, vectors),
                "validation_error": lambda: validation_error(trained),
                "draw_embeddings": lambda: trained.posterior.embed(as_inputs(vectors), every_draw=True),
            }
        labels = state.labels()
        of_class = np.bincount([labels[row] for row in labelled.tolist()], minlength=len(state.classes))
        rows = torch.from_numpy(np.setdiff1d(np.flatnonzero(candidates), labelled))
        pool = Pool(made=made, num_points=len(vectors)).to_choose(
            candidates=rows,
            labelled=torch.from_numpy(labelled),
            batch_size=count,
            seed=batch_seed(self._rules.seed, state.num_batches),
            progress=progress,
        )
        found = next_batch(
            pool,
            as_strategy(self._strategy),
            range(len(state.classes)),
            of_class.tolist(),
            class_names=state.classes,
            advice=FIND,
            offered=lambda strategy: self._offered(strategy, count, len(rows)),
            memory_budget=memory_budget,
        )
        return found if len(found.indices) == count else by_gain_per_cost(found, self._store.costs, count)

    def _offered(self, strategy: Strategy, count: int, most: int) -> int:
        """How many items a strategy offers: more than are wanted where costs differ, to choose by gain per cost."""
        costs = self._store.costs
        if not len(costs) or costs.min() == costs.max():
            return count
        if isinstance(strategy, Random | Explore | Seek):  # what they choose has no gain to divide by a cost
            return count
        return most if isinstance(strategy, ScoreStrategy) else min(OFFERED * count, most)

    def _order(self, reason: str) -> list[int]:
        """Rows in the order in which the audit set, or the random arm, is asked."""
        store = self._store
        if self._orders_of != store.num_items:
            self._orders, self._orders_of = {}, store.num_items
        if reason not in self._orders:
            rows = np.flatnonzero(store.is_audit if reason == AUDIT else ~store.is_audit)
            names = store.ids(rows.tolist())
            keys = audit_order(names, self._rules.seed) if reason == AUDIT else arm_order(names, self._rules.seed)
            self._orders[reason] = rows[np.argsort(keys, kind="stable")].tolist()
        return self._orders[reason]

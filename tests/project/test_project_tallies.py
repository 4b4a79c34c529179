"""Counts that are kept up to date with each event, against loops over all events."""

import sys
import time
from collections import Counter

import numpy as np
import pytest

from batchbalance.learner.labels import Event
from batchbalance.project.page.page import Page
from batchbalance.project.state import State
from made_projects import make, truth
from page_fakes import FakeChooser

PEOPLE = (None, "Ann", "Bob")
NUM_ITEMS, DAY = 12, 86_400.0


def random_events(rng, num):
    """Events as people might write them, with undoings of their own."""
    found = [Event("begun", value={"classes": ["a", "b", "c"]}, number=1, time=0.0)]
    undoable = []
    while len(found) < num:
        number, who, row = len(found) + 1, PEOPLE[rng.integers(3)], int(rng.integers(NUM_ITEMS))
        kinds = ["asked", "labelled", "corrected", "skipped", "flagged", "commented", "returned", "drawn",
                 "reviewed", "undone"]  # fmt: skip
        kind = str(rng.choice(kinds))
        moment = time.time() - DAY * float(rng.choice([0, 0, 3]))
        if kind == "undone":
            mine = [each for each in undoable if each.who == who]
            if not mine:
                continue
            undoable.remove(mine[-1])
            found.append(Event(kind, mine[-1].item, mine[-1].number, who, number=number, time=moment))
            continue
        value = int(rng.integers(3)) if kind in ("labelled", "corrected", "reviewed") else "x"
        found.append(Event(kind, row, value, who, number=number, time=moment))
        if kind in ("labelled", "corrected", "skipped", "flagged", "commented", "reviewed"):
            undoable.append(found[-1])
    return found


def majority(answers):
    ranked = Counter(answers.values()).most_common()
    return None if not ranked or (len(ranked) > 1 and ranked[0][1] == ranked[1][1]) else ranked[0][0]


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("wanted", [1, 2])
def test_tallies_are_what_a_loop_over_all_events_finds(seed, wanted):
    events = random_events(np.random.default_rng(seed), 300)
    state = State()
    for end in (40, 41, 150, 300):
        state.update(events[:end])
        gone = {each.value for each in events[:end] if each.kind == "undone"}
        left = [each for each in events[:end] if each.number not in gone and each.kind != "undone"]
        labels = [each for each in left if each.kind == "labelled"]
        given, settled = {row: {} for row in range(NUM_ITEMS)}, {}
        for each in left:
            if each.kind in ("labelled", "corrected"):
                given[each.item][each.who] = each.value
                settled.pop(each.item, None)
            if each.kind == "reviewed":
                settled[each.item] = each.value
        complete = {row for row, each in given.items() if len(each) >= wanted and majority(each) is not None}
        complete |= set(settled)
        label = {row: settled.get(row, majority(each)) for row, each in given.items()}
        counted = Counter(each for each in label.values() if each is not None)
        assert +state.tallies.labels == counted
        assert +state.tallies.answers == Counter(each.who for each in labels)
        today = time.localtime()[:3]
        assert +state.tallies.today() == Counter(each.who for each in labels if time.localtime(each.time)[:3] == today)
        for who in PEOPLE:
            mine = [each for each in reversed(left) if each.who == who]
            done = [each for each in mine if each.kind not in ("begun", "asked", "returned", "drawn")]
            assert list(state.undoable(who)) == done
            once = {}
            for each in done:
                if each.kind not in ("commented", "reviewed"):
                    once.setdefault(each.item, each)
            assert list(state.latest(who)) == list(once.values())
            open_now = [row for row, view in state.items.items() if who in view.open and row not in complete]
            assert sorted(state.open_questions(who, wanted)) == sorted(open_now)
            skipped = [row for row, view in state.items.items() if who in view.skipped and row not in complete]
            assert sorted(state.skipped(who, wanted)) == sorted(skipped)
            assert state.num_skipped(who, wanted) == len(skipped)
        owed = sum(len(view.open) for row, view in state.items.items() if row not in complete)
        assert state.num_open(wanted) == owed


def calls(action):
    """How many functions are entered, generators each time they go on."""
    count = 0

    def look(_frame, kind, _argument):
        nonlocal count
        count += kind in ("call", "c_call")

    sys.setprofile(look)
    try:
        action()
    finally:
        sys.setprofile(None)
    return count


@pytest.mark.slow
def test_what_an_answer_costs_does_not_grow_with_the_log(tmp_path):
    num = 2_000
    project = make(tmp_path, num=num, strategy="random", batch_size=5, audit=0.0)
    page = Page(project, FakeChooser(), [None])
    names = project.ids()
    costs = []
    for part in (names[:100], names[100:-100]):
        project.tell(truth(part, num))
        project.ask(5)
        page.situation(None)
        first, second = project.open_questions()[:2]
        costs.append([
            calls(lambda: page.situation(None)),
            calls(lambda first=first: page.label(None, {first: "ant"}, 1.0)),
            calls(lambda second=second: page.skip(None, second)),
            calls(lambda: page.undo(None)),
            calls(lambda: page.progress(None)),
            calls(lambda: project.embeddings.roots),
        ])  # fmt: skip
    few, many = costs
    assert all(after <= before + 200 for before, after in zip(few, many, strict=True)), costs

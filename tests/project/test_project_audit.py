"""The audit set: who belongs to it, when it is asked, and intervals that hold what they say."""

import math
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from batchbalance.project import learning
from batchbalance.project.audit import (
    Interval,
    accept_threshold,
    audit_due,
    audit_order,
    audit_sample,
    calibration,
    clopper_pearson,
    is_audit,
    look_number,
    looks,
)
from batchbalance.project.labelling import Labelling
from batchbalance.project.learning import ProjectModel, Trained

IDS = [f"item {i}" for i in range(4000)]


def binomial_tail(least, total, p):
    """P(X ≥ least) by adding up."""
    return math.fsum(math.comb(total, k) * p**k * (1 - p) ** (total - k) for k in range(least, total + 1))


def bisected(function, level):
    """Where a rising function of a share reaches a level."""
    low, high = 0.0, 1.0
    for _ in range(100):
        middle = (low + high) / 2
        low, high = (middle, high) if function(middle) < level else (low, middle)
    return (low + high) / 2


def test_membership_is_a_fixed_function_of_seed_and_id():
    # By `printf '7/audit/a' | sha256sum`, so that no system and no version can move an item into or out of the set.
    expected = [0.6342783904784359, 0.257623724230285, 0.7870278800452867, 0.13494680940299453, 0.5788823464306732]
    assert audit_order(["a", "b", "ü 🐈", "", "\udc80"], 7).tolist() == expected


def test_membership_does_not_depend_on_the_other_items_and_grows_with_the_share():
    tenth, fifth = is_audit(IDS, 3, 0.1), is_audit(IDS, 3, 0.2)
    assert (is_audit(IDS[::-1], 3, 0.1)[::-1] == tenth).all()
    assert is_audit(IDS[50:51], 3, 0.1)[0] == tenth[50]
    assert (fifth | ~tenth).all()
    assert fifth.sum() > tenth.sum()
    assert not is_audit(IDS, 3, 0.0).any()
    assert is_audit(IDS, 3, 1.0).all()
    assert (is_audit(IDS, 4, 0.1) != tenth).any()


def test_a_tenth_is_a_tenth():
    found = [is_audit(IDS, seed, 0.1).sum() for seed in range(20)]
    assert np.mean(found) == pytest.approx(400, abs=4 * math.sqrt(4000 * 0.09 / 20))


def plain_sample(order, labelled, settled, sampled, sizes):
    """The audit labels that count, and of how many items they are a sample, by plain loops."""
    for size in sorted(sizes, reverse=True):
        known, counted, is_whole = [], [], True
        for row in order:
            if row >= size:
                continue
            if row >= min(sizes) and row not in settled:
                is_whole = False
            if row in labelled:
                known.append(row)
                if is_whole or sampled.get(row, 0) >= size:
                    counted.append(row)
        if size == min(sizes) or len(counted) >= 10 or len(counted) == len(known):
            return counted, size
    raise AssertionError


@given(st.data())
def test_the_sample_is_uniform_up_to_the_first_added_item_without_its_turn(data):
    sizes = sorted(data.draw(st.sets(st.integers(1, 60), min_size=1, max_size=3)))
    rows = data.draw(st.permutations(range(sizes[-1])))
    order = np.array(rows[: data.draw(st.integers(0, len(rows)))], dtype=np.int64)
    settled = {int(row) for row in order if data.draw(st.integers(0, 9))}
    labelled = {row for row in settled if data.draw(st.integers(0, 4))}
    sampled = {row: data.draw(st.sampled_from(sizes)) for row in settled if data.draw(st.booleans())}
    sampled = {row: size for row, size in sampled.items() if size > row}
    found = audit_sample(order, labelled, settled, sampled, sizes)
    assert (found.rows.tolist(), found.num_first) == plain_sample(order.tolist(), labelled, settled, sampled, sizes)


def test_added_items_count_as_soon_as_ten_labels_are_a_sample_of_all():
    old, new = np.arange(0, 30), np.arange(100, 130)
    order = np.stack([old, new], axis=1).ravel()  # in turn, as hashes would have it
    before = audit_sample(order, old, old, {}, [100, 200])
    assert (before.num_first, before.rows.tolist(), before.num_missing) == (100, old.tolist(), 29)
    some = [*old, *new[:4]]
    assert audit_sample(order, some, some, {}, [100, 200]).num_first == 100
    some = [*old, *new[:5]]
    found = audit_sample(order, some, some, {}, [100, 200])
    assert (found.num_first, found.rows.tolist(), found.num_missing) == (200, order[:11].tolist(), 24)
    skipped = audit_sample(order, some, [*some, 105], {}, [100, 200])
    assert skipped.rows.tolist() == [*order[:11].tolist(), 6]
    everybody = audit_sample(order, order, order, {}, [100, 200])
    assert (len(everybody.rows), everybody.num_first, everybody.num_missing) == (60, 200, 0)
    brought = audit_sample(
        order, [*old, *new[20:]], [*old, *new[20:]], dict.fromkeys(new[20:].tolist(), 200), [100, 200]
    )
    assert brought.num_first == 200
    assert brought.rows.tolist() == [0, *new[20:]]


@given(st.integers(1, 99), st.integers(0, 5000))
def test_the_share_that_is_due_is_exact(percent, asked):
    due = percent * asked // 100  # whole numbers only
    assert audit_due(percent / 100, asked, 0) == due
    assert audit_due(percent / 100, asked, due + 3) == 0


def test_asking_in_batches_gives_the_floor_of_the_share():
    asked = audits = 0
    for size in (20, 1, 7, 13, 50, 3, 6):
        asked += size
        audits += audit_due(0.29, asked, audits)
        assert audits == 29 * asked // 100


@pytest.mark.parametrize("total", [1, 2, 10, 33])
@pytest.mark.parametrize("alpha", [0.05, 0.05 / 12])
def test_intervals_are_where_the_binomial_tails_say(total, alpha):
    for correct in range(total + 1):
        found = clopper_pearson(correct, total, alpha)
        low = bisected(lambda p, k=correct: binomial_tail(k, total, p), alpha / 2) if correct else 0.0
        high = bisected(lambda p, k=correct: binomial_tail(k + 1, total, p), 1 - alpha / 2) if correct < total else 1.0
        assert (found.low, found.high) == pytest.approx((low, high), abs=1e-10)


def test_no_labels_say_nothing():
    assert clopper_pearson(0, 0) == Interval(0.0, 1.0)
    with pytest.raises(ValueError, match="`correct` must be"):
        clopper_pearson(3, 2)


def test_looks_are_at_10_15_22_33_50():
    sizes = [10, 15, 22, 33, 50, 75, 113, 170]
    for size in range(200):
        assert look_number(size) == sum(each <= size for each in sizes)


def test_only_the_first_round_at_each_size_is_a_look():
    sizes = [4, 9, 11, 12, 14, 16, 21, 34, 40]
    correct = [4, 8, 9, 12, 13, 15, 18, 30, 39]
    found = looks(sizes, correct, sizes, [10 * size for size in sizes], [100] * len(sizes))
    assert [(look.number, look.total, look.correct) for look in found] == [(1, 11, 9), (2, 16, 15), (4, 34, 30)]
    assert [look.num_labels for look in found] == [110, 160, 340]
    for look, level in zip(found, (Fraction(5, 200), Fraction(5, 600), Fraction(5, 2000)), strict=True):
        assert look.interval == clopper_pearson(look.correct, look.total, float(level))


def test_looks_at_other_items_are_spent_and_not_returned():
    sizes, about = [10, 16, 16, 4, 11, 23], [100, 100, 100, 200, 200, 200]
    found = looks(sizes, sizes, sizes, sizes, about)
    assert [(look.number, look.total) for look in found] == [(3, 11), (5, 23)]
    assert found[1].interval == clopper_pearson(23, 23, 0.05 / 30)


def test_levels_of_all_looks_add_up_to_alpha():
    assert math.fsum(0.05 / (t * (t + 1)) for t in range(1, 100_000)) == pytest.approx(0.05, abs=1e-6)


@pytest.mark.parametrize(("total", "expected"), [(19, 0.3), (20, 0.25)])
def test_the_error_is_cross_validated_until_there_are_20_audit_labels(monkeypatch, total, expected):
    labels = np.array([0] * 15 + [1] * (total - 15))
    monkeypatch.setattr(ProjectModel, "audit_labels", lambda *_: (np.arange(total), labels))
    monkeypatch.setattr(ProjectModel, "cross_validated_error", lambda *_: 0.3)
    monkeypatch.setattr(learning, "class_probs", lambda _, vectors: np.tile([0.9, 0.1], (len(vectors), 1)))
    model = Trained(None, np.arange(3), np.arange(3), Labelling(("a", "b")), "")
    found = object.__new__(ProjectModel).validation_error(None, np.zeros((total, 2)), model)
    assert found == expected


def test_calibration_by_hand():
    confidence = np.array([0.9] * 10 + [0.6] * 10)
    is_right = np.array([1] * 7 + [0] * 3 + [1] * 8 + [0] * 2)
    found = calibration(confidence, is_right)
    assert found.confidence == pytest.approx(0.75)
    assert found.accuracy == pytest.approx(0.75)
    assert found.error == pytest.approx((10 * abs(0.9 - 0.7) + 10 * abs(0.6 - 0.8)) / 20)
    assert calibration(np.zeros(0), np.zeros(0)) is None


def test_what_chance_allows_is_what_a_perfect_model_shows():
    rng = np.random.default_rng(5)
    confidence = rng.uniform(0.4, 1, 60)
    below = 0
    for _ in range(200):
        found = calibration(confidence, rng.random(60) < confidence)
        below += found.error <= found.by_chance
    assert below / 200 == pytest.approx(0.95, abs=4 * math.sqrt(0.95 * 0.05 / 200) + 0.01)


def threshold_by_loops(confidence, is_right, least):
    """The least confidence such that enough guesses at or above it are right, one wrong one added."""
    found = None
    for value in sorted(set(confidence), reverse=True):
        inside = [right for sure, right in zip(confidence, is_right, strict=True) if sure >= value]
        if sum(inside) >= least * (len(inside) + 1):
            found = value, sum(inside), len(inside)
    return found


@pytest.mark.parametrize("seed", range(20))
def test_the_threshold_of_the_grid_by_plain_loops(seed):
    rng = np.random.default_rng(seed)
    num = int(rng.integers(1, 120))
    confidence = np.round(rng.random(num), 2)
    is_right = rng.random(num) < confidence ** (0.2 if seed % 2 else 1)
    found = accept_threshold(confidence, is_right, "labels", least=0.8)
    wanted = threshold_by_loops(confidence.tolist(), is_right.tolist(), 0.8)
    assert (found.value, found.right, found.total) == (wanted or (None, is_right.sum(), num))


def test_a_handful_of_right_guesses_is_not_enough_for_the_grid():
    assert accept_threshold(np.full(18, 0.9), np.ones(18, dtype=bool), "labels").value is None
    assert accept_threshold(np.full(19, 0.9), np.ones(19, dtype=bool), "labels").value == 0.9
    assert accept_threshold(np.zeros(0), np.zeros(0, dtype=bool), "labels").total == 0

"""The random arm: two heads at equal counts on the same audit items, and a test that is right about chance."""

import math

import numpy as np
import pytest

from batchbalance.project import Project, facts
from batchbalance.project.arm import ArmComparison, compare_arms
from batchbalance.project.planning import strategy_reason


def nearest_mean(x, y):
    """Trains on rows: the nearest of two class means."""

    def train(rows, others):
        means = np.array([x[rows][y[rows] == label].mean(axis=0) for label in (0, 1)])
        weights = np.exp(-((x[others][:, None] - means) ** 2).sum(axis=2))
        return weights / weights.sum(axis=1, keepdims=True)

    return train


def points(rng, num):
    y = rng.integers(0, 2, num)
    return rng.normal(size=(num, 2)) + 0.8 * y[:, None], y


def test_what_a_comparison_says():
    found = ArmComparison(30, 40, 16, 8, 39, 6)
    assert (found.difference, found.p) == (pytest.approx(0.2), pytest.approx(7 / 40))
    assert "+20.0 points of accuracy against random, two heads of 30 labels each on 40 audit items" in found.sentence()
    assert "6 differ by at least as much (p = 0.175, for one look)" in found.sentence()
    assert "statistically indistinguishable" in found.sentence()
    assert "statistically indistinguishable" in ArmComparison(30, 40, 16, 8, 39, 1).sentence()
    assert "better than random here" in ArmComparison(30, 40, 16, 8, 39, 0).sentence()
    assert "worse than random here" in ArmComparison(30, 40, 8, 16, 39, 0).sentence()
    unknown = ArmComparison(30, 40, 30, 0, 0, 0).sentence()
    assert "The difference was not tested" in unknown
    assert "better" not in unknown


def test_heads_are_trained_at_equal_counts_on_the_first_labels():
    trained = []

    def train(rows, others):
        trained.append(sorted(rows))
        right = np.isin(others, [80, 81]) if 0 in rows else np.isin(others, [80])
        return np.stack([~right, right], axis=1).astype(float)

    labels = np.ones(100, dtype=int)
    labels[[3, 53]] = 0
    chosen, uniform, audit = np.arange(40), np.array([*range(50, 60), 3, 5, *range(62, 66)]), np.arange(80, 92)
    found = compare_arms(chosen, uniform[:12], audit, labels, train, num_splits=5)
    assert trained[:2] == [list(range(12)), sorted(uniform[:12].tolist())]
    assert (found.num_labels, found.total, found.only_chosen, found.only_random) == (12, 12, 1, 0)
    union = sorted({*range(12), *range(50, 60)})
    for one, other in zip(trained[2::2], trained[3::2], strict=True):  # rows of both arms stay in both
        assert set(one) & set(other) == {3, 5}
        assert sorted({*one, *other}) == union
        assert len(one) == len(other) == 12
    assert compare_arms(chosen, uniform[:9], audit, labels, train) is None
    assert compare_arms(chosen, uniform, audit[:9], labels, train) is None


def test_arms_of_one_class_need_no_model():
    labels = np.array([0] * 30 + [1] * 10)
    found = compare_arms(np.arange(10), np.arange(10, 20), np.arange(20, 40), labels, lambda *_: pytest.fail("trained"))
    assert (found.difference, found.p) == (0, 1)


def test_p_is_that_of_all_deals():
    """The share of deals that differ by as much, by a loop over others."""
    rng = np.random.default_rng(5)
    x, y = points(rng, 60)
    y[:4] = [0, 1, 0, 1]
    chosen, uniform, audit = np.arange(0, 20, 2), np.arange(1, 20, 2), np.arange(20, 60)
    train = nearest_mean(x, y)

    def score(rows):
        """Right answers, and the mean probability of the truth for ties."""
        total = 0.0
        for row in audit:
            means = [np.mean([x[i] for i in rows if y[i] == label], axis=0) for label in (0, 1)]
            zero, one = (math.exp(-float(((x[row] - mean) ** 2).sum())) for mean in means)
            truth = (one if y[row] else zero) / (zero + one)
            total += (truth > 0.5) + truth / len(audit)
        return total

    difference = abs(score(chosen) - score(uniform))
    far = []
    for _ in range(150):
        half = [int(each) for each in rng.choice(20, 10, replace=False)]
        others = [row for row in range(20) if row not in half]
        far.append(abs(score(half) - score(others)) >= difference)
    found = compare_arms(chosen, uniform, audit, y, train, num_splits=600, seed=1)
    share = np.mean(far)
    assert found.p == pytest.approx(share, abs=4 * math.sqrt(share * (1 - share) / 120) + 2e-3)


@pytest.mark.slow
def test_p_values_are_uniform_where_both_arms_are_random():
    """With two labels in both arms; so false verdicts stay at 2.5 %."""
    rng = np.random.default_rng(0)
    num, found = 300, []
    for seed in range(num):
        x, y = points(rng, 80)
        rows = np.arange(14), np.arange(12, 26), np.arange(26, 80)
        found.append(compare_arms(*rows, y, nearest_mean(x, y), seed=seed).p)
    for most in (0.025, 0.05, 0.25, 0.5):
        assert np.mean(np.array(found) <= most) == pytest.approx(most, abs=3 * math.sqrt(most * (1 - most) / num))


def test_a_strategy_that_is_far_better_is_found():
    rng = np.random.default_rng(0)
    verdicts = 0
    for seed in range(10):
        x, y = points(rng, 400)
        poor = y.copy()
        poor[:80] = rng.integers(0, 2, 80)  # labels of this arm say nothing
        rows = np.arange(80, 160), np.arange(80), np.arange(200, 400)
        verdicts += "better than random" in compare_arms(*rows, poor, nearest_mean(x, poor), seed=seed).sentence()
    assert verdicts >= 4


def labelled(tmp_path, random_arm):
    """A project of two classes whose strategy is random, with 60 labels; and what is compared in it."""
    x, y = points(np.random.default_rng(0), 120)
    np.save(tmp_path / "e.npy", x.astype(np.float32))
    made = Project.create(
        tmp_path / "p", embeddings=tmp_path / "e.npy", classes="ab", strategy="random", audit=0.25,
        random_arm=random_arm, model={"method": "laplace", "num_draws": 4},
    )  # fmt: skip
    for _ in range(4):
        made.tell({name: "ab"[y[int(name)]] for name in made.ask(20)})
    return made


def test_a_strategy_that_is_random_is_compared_with_the_random_arm(tmp_path):
    """Its questions are not taken for those of the random arm, though both are called random."""
    made = labelled(tmp_path, 0.5)
    reasons = [view.reasons for view in made.views().values() if view.reasons]
    chosen = sum("strategy random" in each for each in reasons)
    uniform = sum("random" in each for each in reasons)
    assert 25 <= chosen <= 35
    assert 25 <= uniform <= 35
    assert sum("audit" in each for each in reasons) == 20
    arm = made.status().facts.arm
    assert arm is not None
    assert arm.num_labels == min(chosen, uniform)


@pytest.mark.parametrize("name", ["audit", "random", "found", "again", "disputed", "overlap", "returned"])
def test_the_name_of_a_strategy_is_no_other_reason(name):
    assert strategy_reason(name) == f"strategy {name}"
    assert strategy_reason("u-herding") == "u-herding"


def test_the_first_uniform_labels_are_the_first_in_turn(tmp_path, monkeypatch):
    """Not those that the strategy had chosen before their turn came."""
    made = labelled(tmp_path, 0.8)
    given = []
    monkeypatch.setattr(facts, "compare_arms", lambda *args, **_: given.append(args))
    made.status()
    chosen, uniform = given[0][:2]
    assert len(chosen) < len(uniform)
    assert np.intersect1d(chosen, uniform).size
    order = [row for row in made.questions._arm_order() if row in uniform]
    assert uniform.tolist() == order

"""Strategies of coverage through `select`: weights, labelled and excluded points, no predictions, auto, memory."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch

import oracles
from batchbalance import MaxHerding, Predictions, ProbCover, UHerding, balance_scores, connect, select
from batchbalance.batches.typiclust import k_means, typical, typiclust
from batchbalance.scores import entropy, margin
from batchbalance.strategies.pool import Pool
from conftest import random_probs, random_weights
from peaks import WATCHED

pytestmark = pytest.mark.typed

COVER = ["max-herding", "prob-cover", "u-herding", "cover-balance"]


@pytest.fixture
def small():
    """25 points with predictions and embeddings."""
    rng = np.random.default_rng(2)
    return Predictions.from_probs(random_probs(25, 6, 3, seed=4)), rng.normal(size=(25, 3))


def value_of(points, weights, length, kernel="gaussian", labelled=(), targets=None):
    rows = list(range(len(points))) if targets is None else targets
    return lambda batch: oracles.covered(points.tolist(), rows, weights, batch, kernel, length, labelled)


@pytest.mark.parametrize(
    ("strategy", "weights"),
    [
        ("max-herding", lambda _: np.ones(25)),
        ("u-herding", lambda pool: margin(pool).numpy()),
        (UHerding(score="entropy"), lambda pool: entropy(pool).numpy()),
        ("cover-balance", lambda pool: balance_scores(pool, connect(pool, 0.05)).numpy()),
        ("prob-cover", lambda _: np.ones(25)),
    ],
)
def test_each_strategy_has_its_own_weights(small, strategy, weights):
    pool, points = small
    needs = {"threshold": 0.05} if strategy == "cover-balance" else {}
    chosen = select(pool, 5, strategy=strategy, embeddings=points, **needs)
    kernel = "ball" if strategy == "prob-cover" else "gaussian"
    length = oracles.squared_length(points.tolist(), 5)
    value = value_of(points, weights(pool).tolist(), length, kernel)
    expected = oracles.greedy(value, range(25), 5)
    assert chosen.indices.tolist() == expected
    total = float(weights(pool).sum())
    assert float(chosen.cover.coverage[-1]) == pytest.approx(value(expected) / total, abs=1e-10)
    assert chosen.cover.length == pytest.approx((length / (1 if kernel == "ball" else 2)) ** 0.5)
    assert 1 - 1 / np.e <= chosen.cover.certificate <= 1
    assert chosen.cover.random_coverage < float(chosen.cover.coverage[-1])
    assert chosen.scores.tolist() == chosen.cover.gains.tolist()
    assert (chosen.value is not None) == (strategy == "cover-balance")


def unit_rows(points, centre):
    """Rows minus a centre, each divided by its length, by plain loops."""
    found = []
    for row in points:
        moved = [float(x) - c for x, c in zip(row, centre, strict=True)]
        length = sum(x * x for x in moved) ** 0.5
        found.append([x / length for x in moved] if length else moved)
    return np.array(found)


@pytest.mark.parametrize(
    ("num_features", "metric", "is_unit"), [(3, None, False), (3, "unit", True), (40, None, True), (40, "raw", False)]
)
def test_the_metric_decides_what_is_near(num_features, metric, is_unit):
    rng = np.random.default_rng(6)
    lengths = rng.uniform(0.2, 5.0, size=(30, 1))
    points = 7.0 + lengths * rng.normal(size=(30, num_features))
    targets, labelled = points[20:] + 0.3, points[:2] * 1.1
    centre = [sum(float(row[d]) for row in points) / 30 for d in range(num_features)]
    placed = unit_rows(points, centre) if is_unit else points
    length = oracles.squared_length(placed.tolist(), 4)
    value = value_of(placed, [1.0] * 30, length)
    chosen = select(embeddings=points, batch_size=4, metric=metric, strategy="max-herding")
    assert chosen.indices.tolist() == oracles.greedy(value, range(30), 4)
    assert chosen.cover.length == pytest.approx((length / 2) ** 0.5)
    same = select(embeddings=points, batch_size=4, strategy=MaxHerding(metric="unit" if is_unit else "raw"))
    assert same.indices.tolist() == chosen.indices.tolist()

    every = [unit_rows(some, centre) if is_unit else some for some in (points, targets, labelled)]
    joined = np.concatenate(every)
    length = oracles.squared_length(every[1].tolist(), 4)
    value = value_of(joined, [1.0] * 10, length, labelled=every[2].tolist(), targets=list(range(30, 40)))
    chosen = select(
        embeddings=points,
        batch_size=4,
        metric=metric,
        strategy="max-herding",
        targets=targets,
        labelled_embeddings=labelled,
    )
    assert chosen.indices.tolist() == oracles.greedy(value, range(30), 4)


@pytest.mark.parametrize("name", ["max-herding", "coreset", "typiclust"])
def test_the_unit_metric_ignores_lengths_and_refuses_other_names(name):
    rng = np.random.default_rng(7)
    rows = rng.normal(size=(20, 5))
    rows = np.concatenate([rows, -rows])  # whose centre is 0, whatever their lengths
    longer = rows * np.tile(rng.uniform(0.1, 9.0, size=(20, 1)), (2, 1))
    how = {"batch_size": 6, "strategy": name, "metric": "unit"}
    first, second = (sorted(select(embeddings=each, **how).indices.tolist()) for each in (rows, longer))
    assert first == second  # opposite points tie
    with pytest.raises(ValueError, match="`metric` must be one of 'auto', 'raw', 'unit', got 'cosine'"):
        _ = Pool({"embeddings": rows, "metric": "cosine"}).is_unit


def test_a_metric_that_is_not_used_is_named(small):
    pool, points = small
    assert (
        "`metric` was ignored: strategy 'margin' does not use it"
        in select(pool, 2, strategy="margin", embeddings=points, metric="unit").warnings
    )


@pytest.mark.parametrize("name", [*COVER, "coreset", "typiclust"])
def test_labelled_points_cover_and_excluded_ones_do_not(small, name):
    pool, points = small
    options = {"strategy": name, "embeddings": points, "seed": 3}
    if name == "cover-balance":
        options["threshold"] = 0.05
    inside = select(pool, 4, labelled=[1, 7, 9], **options)
    outside = select(pool, 4, exclude=[1, 7, 9], labelled_embeddings=points[[1, 7, 9]], **options)
    assert inside.indices.tolist() == outside.indices.tolist()
    assert not {1, 7, 9} & set(inside.indices.tolist())
    excluded = select(pool, 4, exclude=[1, 7, 9], **options)
    assert not {1, 7, 9} & set(excluded.indices.tolist())
    rows = [i for i in range(25) if i not in (1, 7, 9)]
    alone = select(pool.subset(rows), 4, **{**options, "embeddings": points[rows]})
    if name != "cover-balance":  # draws are compared on the whole pool
        assert excluded.indices.tolist() == [rows[i] for i in alone.indices.tolist()]
    if name in COVER:
        assert (excluded.cover.labelled_coverage, excluded.cover.num_points) == (0, 22)
        assert inside.cover.labelled_coverage > 0
        both = select(pool, 4, labelled=[1, 7], exclude=[9], labelled_embeddings=points[[9]], **options)
        assert both.cover.coverage.tolist() == pytest.approx(inside.cover.coverage.tolist(), abs=1e-12)


def test_labelled_points_of_any_strategy_are_not_chosen(pool):
    assert select(pool, 3, strategy="bald", labelled=range(3, 200)).indices.sort().values.tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="`exclude` and `labelled` must leave at least one point"):
        select(pool, 3, labelled=range(100), exclude=range(100, 200))
    with pytest.raises(ValueError, match="`labelled` must be indices from 0 to 199, got 200"):
        select(pool, 3, labelled=[200])


@pytest.mark.parametrize("name", ["max-herding", "prob-cover", "typiclust", "coreset", "random"])
def test_no_predictions_are_needed(small, name):
    pool, points = small
    options = {"embeddings": points, "strategy": name, "seed": 1, "exclude": [0]}
    alone = select(batch_size=4, **options)
    assert alone.indices.tolist() == select(pool, 4, **options).indices.tolist()
    json.dumps(alone.as_dict(), allow_nan=False)
    per_draw = torch.randn(25, 6, 3, dtype=torch.float64)
    mean = select(embeddings=per_draw.mean(dim=1), batch_size=4, strategy=name).indices
    assert select(embeddings=per_draw, batch_size=4, strategy=name).indices.tolist() == mean.tolist()


def test_what_is_missing_is_named(small):
    pool, points = small
    for strategy in ("u-herding", "cover-balance", "bald", "badge"):
        with pytest.raises(ValueError, match=f"`predictions` must be given for strategy '{strategy}', got none"):
            select(embeddings=points, batch_size=2, strategy=strategy)
    with pytest.raises(ValueError, match="`predictions` or `embeddings` must be given, got neither"):
        select(batch_size=2)
    with pytest.raises(ValueError, match="`predictions` or `embeddings` must be given, got neither"):
        select(batch_size=2, strategy="random")
    with pytest.raises(ValueError, match="`batch_size` must be a whole number of at least 1, got None"):
        select(pool)
    with pytest.raises(ValueError, match="points × draws × features"):
        select(embeddings=np.zeros(5), batch_size=2)
    points[24, 1] = np.inf
    with pytest.raises(ValueError, match=r"`embeddings` must be finite, .*point 24, feature 1"):
        select(embeddings=points, batch_size=2)
    with pytest.raises(ValueError, match="`labelled_embeddings` must be finite"):
        select(embeddings=points[:24], labelled_embeddings=points[24:], batch_size=2)


def test_auto_says_what_it_chose_and_why(small):
    pool, points = small
    cases = [
        ({}, "batch-balance", "there are predictions and no embeddings"),
        ({"embeddings": points}, "u-herding", "there are predictions and embeddings"),
        ({"embeddings": points, "labelled": [3]}, "u-herding", "there are predictions and embeddings"),
        ({"embeddings": points, "labelled": []}, "max-herding", "there are no labels yet"),
        ({"embeddings": points, "labelled_embeddings": points[:0]}, "max-herding", "there are no labels yet"),
        (
            {"embeddings": points, "labelled": [], "labelled_embeddings": points[:1]},
            "u-herding",
            "there are predictions",
        ),
    ]
    for given, name, why in cases:
        chosen = select(pool, 3, **given)
        assert chosen.strategy.name == name
        assert chosen.note.startswith(f"auto chose '{name}': {why}")
        named = select(pool, 3, strategy=name, **given)
        assert (named.indices.tolist(), named.note) == (chosen.indices.tolist(), None)
        assert chosen.warnings == ()
    alone = select(embeddings=points, batch_size=3)
    assert (alone.strategy, alone.note) == (
        MaxHerding(), "auto chose 'max-herding': there are embeddings and no predictions"
    )  # fmt: skip
    assert alone.as_dict()["strategy"]["name"] == "max-herding"


def test_auto_names_arguments_that_it_has_no_use_for(small):
    pool, points = small
    given = {"embeddings": points, "threshold": 0.1, "pairs": "all", "reference": pool, "max_reference": 5}
    chosen = select(pool, 3, **given)
    assert [warning.split("`")[1] for warning in chosen.warnings] == [
        "reference",
        "threshold",
        "pairs",
        "max_reference",
    ]
    assert "`threshold` was ignored: strategy 'u-herding' does not use it" in chosen.warnings
    assert select(pool, 3, labelled_embeddings=points).warnings == (
        "`labelled_embeddings` was ignored: strategy 'batch-balance' does not use it",
    )
    named = select(pool, 3, strategy="u-herding", embeddings=points, threshold=0.1)
    assert named.warnings == ("`threshold` was ignored: strategy 'u-herding' does not use it",)


def test_a_batch_with_nothing_left_to_cover_says_so():
    points = np.repeat(np.eye(3), 10, axis=0)
    chosen = [select(embeddings=points, batch_size=6, seed=seed) for seed in range(3)]
    assert all("from pick 4 on, nothing was left to cover" in each.warnings[0] for each in chosen)
    assert len({tuple(each.indices[3:].tolist()) for each in chosen}) > 1
    assert chosen[0].cover.coverage.tolist()[2:] == [1.0] * 4


def test_targets_are_sampled_by_seed():
    points = np.random.default_rng(0).normal(size=(300, 4))
    strategy = MaxHerding(max_targets=50)
    first, again, other = (select(embeddings=points, batch_size=5, strategy=strategy, seed=s) for s in (1, 1, 2))
    assert first.indices.tolist() == again.indices.tolist() != other.indices.tolist()
    assert (first.cover.num_targets, first.cover.num_points, first.cover.is_sampled) == (50, 300, True)
    whole = select(embeddings=points, batch_size=5, strategy=MaxHerding(max_targets=300))
    assert not whole.cover.is_sampled


def test_the_radius_may_be_given(small):
    _, points = small
    chosen = select(embeddings=points, batch_size=3, strategy=ProbCover(radius=1.3))
    value = value_of(points, [1.0] * 25, 1.3**2, "ball")
    assert chosen.indices.tolist() == oracles.greedy(value, range(25), 3)
    assert chosen.cover.length == pytest.approx(1.3)


def test_embeddings_of_every_draw_are_averaged_by_weight(pool):
    weighted = pool.with_weights(torch.from_numpy(random_weights(12)))
    per_draw = torch.randn(200, 12, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    mean = torch.einsum("s,nsd->nd", weighted.draw_weights, per_draw)
    found = [select(weighted, 5, strategy="u-herding", embeddings=x).indices.tolist() for x in (per_draw, mean)]
    assert found[0] == found[1]


def test_typical_points_come_from_the_largest_clusters_without_labels():
    """Against loops over the definition, for given clusters."""
    rng = np.random.default_rng(0)
    points, clusters = rng.normal(size=(60, 2)), rng.choice(5, size=60, p=[0.35, 0.25, 0.2, 0.15, 0.05])
    counts, chosen = [2, 0, 1, 0, 0], []
    for _ in range(7):
        order = sorted(range(5), key=lambda c: (counts[c], -np.sum(clusters == c), c))
        inside = [i for i in range(60) if clusters[i] == order[0]]
        apart = {
            i: np.mean(sorted(np.linalg.norm(points[i] - points[j]) for j in inside if j != i)[:4]) for i in inside
        }
        chosen.append(min((i for i in inside if i not in chosen), key=apart.__getitem__))
        counts[order[0]] += 1
    given = torch.from_numpy(points), torch.from_numpy(clusters), torch.tensor([2, 0, 1, 0, 0])
    found = typical(*given, 7, neighbours=4)
    assert found.tolist() == chosen


def test_k_means_runs_on_one_thread(monkeypatch):
    from sklearn.cluster import KMeans
    from threadpoolctl import threadpool_info, threadpool_limits

    seen, original = [], KMeans.fit_predict

    def watched(self, x):
        seen.extend(pool["num_threads"] for pool in threadpool_info())
        return original(self, x)

    monkeypatch.setattr(KMeans, "fit_predict", watched)
    with threadpool_limits(2):
        k_means(torch.randn(30, 2, generator=torch.Generator().manual_seed(0)), 3, seed=0)
    assert set(seen) == {1}


def test_typiclust_finds_the_clusters_that_are_there():
    rng = np.random.default_rng(1)
    centres = 1000 + 50 * np.eye(4)
    sizes = [40, 30, 20, 10]
    parts = [centre + rng.normal(size=(num, 4)) for centre, num in zip(centres, sizes, strict=True)]
    points = torch.from_numpy(np.concatenate(parts))
    groups = np.repeat(range(4), sizes)
    clusters = k_means(points - points.mean(dim=0), 4, seed=0)
    assert all(len(set(clusters[groups == g].tolist())) == 1 for g in range(4))
    assert groups[typiclust(points, 4, seed=0)].tolist() == [0, 1, 2, 3]
    labelled = points[[0, 45]]
    rest = torch.arange(100)[[i for i in range(100) if i not in (0, 45)]]
    assert groups[typiclust(points, 2, seed=0, candidates=rest, labelled=labelled)].tolist() == [2, 3]
    assert len(set(typiclust(points, 100, seed=0, max_clusters=3).tolist())) == 100


@pytest.mark.slow
def test_a_mapped_pool_is_read_in_blocks(tmp_path):
    """50,000 × 512 numbers of 16 bits are 51 MB, twice that as float32."""
    stored = np.lib.format.open_memmap(tmp_path / "e.npy", mode="w+", dtype=np.float16, shape=(50_000, 512))
    rng = np.random.default_rng(0)
    for start in range(0, 50_000, 10_000):
        stored[start : start + 10_000] = rng.standard_normal((10_000, 512), dtype=np.float32)
    stored.flush()
    code = WATCHED + (
        "from batchbalance import MaxHerding, select\n"
        "strategy = MaxHerding(max_targets=256)\n"
        "select(embeddings=np.random.rand(300, 4), batch_size=2)  # what torch sets up once\n"
        "from batchbalance.batches import cover, distances, targets\n"
        "for module in (cover, distances, targets): module.BLOCK_NUMBERS = 2**18\n"
        "for mode in ('r', 'c'):\n"
        "    pool = np.load(sys.argv[1], mmap_mode=mode)\n"
        "    start = peak = anonymous()\n"
        "    select(embeddings=pool, batch_size=3, strategy=strategy, memory_budget=200 * 2**20)\n"
        "    print(peak - start)\n"
    )
    command = [sys.executable, "-W", "error", "-c", code, tmp_path / "e.npy"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    for line in result.stdout.splitlines():
        assert int(line) < 70 * 2**20, result.stdout


@pytest.mark.parametrize("gap", [50, 110, 400, 740, 1000])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("score", ["margin", "entropy", "least-confidence", "variation-ratio"])
def test_sure_predictions_keep_their_weights(gap, dtype, score):
    """However sure all predictions are, a point that is less sure by 4 logits weighs e⁴ times as much."""
    rng = np.random.default_rng(gap)
    points, logits = rng.normal(size=(40, 3)), np.zeros((40, 2, 3))
    logits[:, :, 0] = gap + rng.integers(4, size=(40, 1))
    pool = Predictions.from_logits(torch.from_numpy(logits).to(dtype))
    chosen = select(pool, 8, strategy=UHerding(score=score), embeddings=points)
    gaps = logits[:, 0, 0]
    weights = np.exp(gap - gaps)
    if score == "entropy":  # e⁻ᵍ (1 + g) for each of the other classes, as g grows
        weights *= 1 + gaps
    value = value_of(points, weights.tolist(), oracles.squared_length(points.tolist(), 8))
    assert chosen.indices.tolist() == oracles.greedy(value, range(40), 8)
    assert float(chosen.cover.coverage[-1]) == pytest.approx(value(chosen.indices.tolist()) / weights.sum(), abs=1e-4)


@pytest.mark.parametrize("gap", [45, 110, 600])
@pytest.mark.parametrize("strategy", ["cover-balance", "margin", "entropy", "least-confidence", "cluster-margin"])
def test_sure_predictions_in_float32_are_still_ranked(gap, strategy):
    if strategy == "cluster-margin" and gap > 100:
        pytest.skip("works on mean probabilities in the precision of the predictions")
    logits = torch.zeros(60, 4, 2)
    logits[:, :, 0] = gap + 10.0
    logits[40] -= torch.tensor([10.0, 0.0])
    needs = {"embeddings": np.eye(60)} if strategy.startswith("c") else {}
    if strategy == "cover-balance":
        split = torch.tensor([[9.0, 0], [9, 0], [0, 9], [0, 9]]).expand(5, 4, 2)  # draws that differ elsewhere
        needs |= {"threshold": 0.1, "reference": Predictions.from_logits(split)}
    chosen = select(Predictions.from_logits(logits), 1, strategy=strategy, **needs)
    assert chosen.indices.tolist() == [40]
    assert not chosen.warnings


def test_weights_from_predictions_of_the_pool_are_not_those_of_other_targets():
    points = torch.randn(20, 3, generator=torch.Generator().manual_seed(2))
    predictions = Predictions.from_probs(random_probs(20, 4, 3, seed=5))
    with pytest.raises(ValueError, match="`weights` must be given together with `targets` for strategy 'u-herding'"):
        select(predictions, 2, strategy="u-herding", embeddings=points, targets=points[:5])

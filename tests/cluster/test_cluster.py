import os
import signal

import numpy as np
import pytest

from batchbalance import FileFormatError, Predictions, select
from batchbalance.cluster import RayExecutor
from batchbalance.cluster.shards import RayCandidates, RayCoverCandidates
from batchbalance.predictions import load_parts
from conftest import random_probs

ray = pytest.importorskip("ray", reason="the extra 'ray' is not installed")
pytestmark = [pytest.mark.ray, pytest.mark.filterwarnings("default")]


@pytest.fixture(scope="module")
def executor(ray_cluster):
    """Three shards on a real cluster of two nodes on loopback."""
    running = RayExecutor(ray_cluster, num_shards=3)
    yield running
    running.close()


@pytest.fixture
def probs():
    part = random_probs(150, 8, 3, seed=5).astype(np.float32)
    return np.concatenate([part, part, random_probs(150, 8, 3, seed=6).astype(np.float32)])  # ties across shards


@pytest.mark.parametrize("strategy", ["greedy-balance", "stochastic-balance"])
def test_shards_give_the_batch_of_one_process(executor, probs, strategy, tmp_path):
    np.save(tmp_path / "p.npy", probs.transpose(1, 0, 2))
    options = {"strategy": strategy, "threshold": 0.02, "exclude": [3, 160, 161], "seed": 2}
    one = select(Predictions.from_probs(probs), 25, **options)
    for pool in (Predictions.load(tmp_path / "p.npy", axes="snc"), Predictions.from_probs(probs)):
        many = select(pool, 25, executor=executor, **options)
        assert many.indices.tolist() == one.indices.tolist()
        assert many.certificate == pytest.approx(one.certificate, rel=1e-5)


def test_shards_fill_a_batch_like_one_process(executor):
    votes = Predictions.from_probs(np.eye(3)[np.random.default_rng(0).integers(0, 3, size=(40, 8))])
    one, many = (select(votes, 20, threshold=0.0, executor=where) for where in (None, executor))
    assert one.choice.continuation == "power"
    assert many.indices.tolist() == one.indices.tolist()


def test_a_killed_worker_is_replaced_and_changes_nothing(executor, probs, monkeypatch):
    pool = Predictions.from_probs(probs)
    expected = select(pool, 8, threshold=0.02).indices.tolist()
    killed = []
    factors = RayCandidates.factors

    def factors_and_a_kill(self, position):
        if not killed:
            pid = ray.get(executor._workers.actors[1].__ray_call__.remote(lambda _: os.getpid()))
            os.kill(pid, signal.SIGKILL)
            killed.append(pid)
        return factors(self, position)

    monkeypatch.setattr(RayCandidates, "factors", factors_and_a_kill)
    assert select(pool, 8, threshold=0.02, executor=executor).indices.tolist() == expected
    assert killed


def test_a_lost_worker_is_replaced_where_no_cpu_is_free(executor, probs, monkeypatch):
    """As after the loss of a machine: another program has taken the CPU."""
    monkeypatch.setattr("batchbalance.cluster.workers.START_SECONDS", 1.0)
    pool, best, taken = Predictions.from_probs(probs), RayCandidates.best, []

    def best_and_a_loss(self, survival, chosen):
        if not taken:
            taken.append(ray.remote(num_cpus=1)(dict).remote())
            ray.kill(executor._workers.actors[1])
            ray.get(taken[0].__ray_ready__.remote())
        return best(self, survival, chosen)

    monkeypatch.setattr(RayCandidates, "best", best_and_a_loss)
    with pytest.warns(UserWarning, match="no CPU became free for another one within 1 s"):
        there = select(pool, 8, threshold=0.02, executor=executor)
    assert there.indices.tolist() == select(pool, 8, threshold=0.02).indices.tolist()
    ray.kill(taken[0])


@pytest.mark.parametrize("strategy", ["max-herding", "prob-cover", "u-herding", "cover-balance"])
def test_shards_cover_like_one_process(executor, strategy):
    """Index by index the same, also with copies in other shards, a labelled point, and nothing left at the end."""
    points = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    points = np.concatenate([points, points, points + 0.01])
    probs = random_probs(120, 8, 3, seed=5).astype(np.float32)
    options = {"strategy": strategy, "embeddings": points, "labelled": [3], "exclude": [50, 51], "seed": 2}
    if strategy == "cover-balance":
        options["threshold"] = 0.02
    for batch_size in (12, 100):
        one, many = (
            select(Predictions.from_probs(probs), batch_size, executor=where, **options) for where in (None, executor)
        )
        assert many.indices.tolist() == one.indices.tolist()
        assert many.cover.gains.tolist() == one.cover.gains.tolist()
        assert many.cover.certificate == pytest.approx(one.cover.certificate, rel=0.05)
    assert one.cover.filled_from is not None


def test_shards_cover_own_targets_with_own_weights(executor):
    rng = np.random.default_rng(5)
    given = {
        "embeddings": rng.normal(size=(120, 4)),
        "targets": rng.normal(size=(30, 4)) + 1,
        "weights": rng.random(30),
    }
    one, many = (select(batch_size=6, executor=each, **given) for each in (None, executor))
    assert many.indices.tolist() == one.indices.tolist()
    assert many.cover.gains.tolist() == one.cover.gains.tolist()


def test_a_killed_worker_covers_again(executor):
    points = np.random.default_rng(0).normal(size=(300, 4))
    expected = select(embeddings=points, batch_size=6).indices.tolist()
    pid = ray.get(executor._workers.actors[1].__ray_call__.remote(lambda _: os.getpid()))
    best = RayCoverCandidates.best

    def best_and_a_kill(self, covered, chosen):
        if len(chosen) == 3:
            os.kill(pid, signal.SIGKILL)
        return best(self, covered, chosen)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(RayCoverCandidates, "best", best_and_a_kill)
        assert select(embeddings=points, batch_size=6, executor=executor).indices.tolist() == expected


def test_workers_read_several_files(executor, probs, tmp_path):
    cuts = [probs[:130].transpose(1, 0, 2), probs[130:140].transpose(1, 0, 2), probs[140:].transpose(1, 0, 2)]
    paths = [tmp_path / f"part-{number}.npy" for number in range(3)]
    for path, cut in zip(paths, cuts, strict=True):
        np.save(path, cut)
    np.savez(tmp_path / "part-1.npz", probs=cuts[1])
    options = {"threshold": 0.02, "exclude": [3, 160, 161]}
    one = select(Predictions.from_probs(probs), 25, **options)
    for files in (paths, [paths[0], tmp_path / "part-1.npz", paths[2]]):
        many = select(load_parts(files, axes="snc"), 25, executor=executor, **options)
        assert many.indices.tolist() == one.indices.tolist()
    pool = load_parts(paths, axes="snc")
    os.truncate(paths[2], 1000)
    with pytest.raises(FileFormatError, match=r"part-2.npy"):
        select(pool, 5, executor=executor, reference=Predictions.from_probs(probs), threshold=0.02)


def test_a_mistake_on_a_worker_is_told_here(executor, probs, tmp_path):
    path = tmp_path / "p.npy"
    np.save(path, probs)
    pool = Predictions.load(path)
    path.unlink()
    np.save(path, probs[:100])
    with pytest.raises(FileFormatError, match=r"must hold the pool's .* on every worker"):
        select(pool, 5, threshold=0.02, executor=executor)


def test_other_strategies_refuse_an_executor(executor, pool):
    with pytest.raises(ValueError, match="`executor` is not used by strategy 'bald'"):
        select(pool, 3, strategy="bald", executor=executor)
    with pytest.raises(ValueError, match="below 50 points only, got 60"):
        select(pool, 60, threshold=0.02, executor=executor)


def test_workers_that_wait_for_cpus_are_told(executor, monkeypatch):
    monkeypatch.setattr("batchbalance.cluster.workers.START_SECONDS", 0.0)
    with pytest.warns(UserWarning, match="0 of 1 workers have started after 0 s"):
        RayExecutor(num_shards=1).close()


def test_a_worker_that_is_lost_for_good_is_an_error(executor, probs, monkeypatch):
    monkeypatch.setattr("batchbalance.cluster.workers.MAX_LOSSES", 0)
    pid = ray.get(executor._workers.actors[2].__ray_call__.remote(lambda _: os.getpid()))
    os.kill(pid, signal.SIGKILL)
    with pytest.raises(ConnectionError, match="worker 2 of the Ray cluster was lost 1 times"):
        select(Predictions.from_probs(probs), 3, threshold=0.02, executor=executor)
    monkeypatch.undo()
    assert len(select(Predictions.from_probs(probs), 3, threshold=0.02, executor=executor).indices) == 3


def test_more_shards_than_cpus_would_wait_for_ever(executor):
    with pytest.raises(ValueError, match="at most the 3 CPUs of the cluster, got 4"):
        RayExecutor(num_shards=4)

import numpy as np
import pytest
import torch

from batchbalance import FileFormatError, Predictions, select
from batchbalance.arguments.checks import check_bytes
from batchbalance.selection.budget import streaming_bytes
from batchbalance.system.memory import as_text, free_memory
from conftest import random_probs
from peaks import WATCHED


@pytest.mark.parametrize(
    ("given", "expected"),
    [(7, 7), ("7", 7), ("2GiB", 2**31), ("512 MiB", 2**29), ("1.5kb", 1500), ("3 TB", 3 * 10**12)],
)
def test_sizes_are_read(given, expected):
    assert check_bytes("memory_budget", given) == expected


@pytest.mark.parametrize("given", [0, -1, True, "", "GiB", "2 GiBs", "-2GiB", "1e9", "0.1b", "²"])
def test_other_sizes_are_refused(given):
    with pytest.raises(ValueError, match="`memory_budget` must be a positive number of bytes"):
        check_bytes("memory_budget", given)


def test_sizes_are_written_and_never_too_small():
    assert [as_text(n) for n in (1, 1024, 1025, 2**20, 3 * 2**30)] == ["1 KiB", "1 KiB", "2 KiB", "1 MiB", "3 GiB"]
    assert 0 < free_memory() < 2**50


STREAMING = ["greedy-balance", "stochastic-balance", "power-balance", "balance", "bald", "power-bald", "entropy",
             "margin", "mean-std", "variation-ratio", "least-confidence"]  # fmt: skip


@pytest.mark.parametrize("strategy", STREAMING)
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_a_small_budget_gives_the_same_batch(strategy, dtype, tmp_path, monkeypatch):
    monkeypatch.setattr("batchbalance.balance.greedy.PROBE", 16)
    monkeypatch.setattr("batchbalance.balance.closed_form.CHUNK_BYTES", 5000)
    probs = random_probs(500, 8, 3, seed=3, spread=6).astype(dtype)
    np.save(tmp_path / "p.npy", probs)
    mapped = Predictions.load(tmp_path / "p.npy")
    budget = streaming_bytes(mapped) + 90 * 8 * 3 * 8  # room for the terms of some points
    small = select(mapped, 12, strategy=strategy, memory_budget=budget, seed=4)
    whole = select(Predictions.from_probs(probs), 12, strategy=strategy, seed=4)
    assert small.indices.tolist() == whole.indices.tolist()
    if whole.certificate is not None:
        assert small.certificate == pytest.approx(whole.certificate, rel=1e-5)


def test_a_budget_below_one_chunk_is_refused(pool):
    least = streaming_bytes(pool)
    with pytest.raises(ValueError, match="must hold one chunk of predictions and 100 bytes per point"):
        select(pool, 3, memory_budget=least - 1)
    assert len(select(pool, 3, memory_budget=least).indices) == 3


@pytest.mark.parametrize(
    ("strategy", "options"),
    [
        ("cluster-balance", {}),
        ("batch-balance", {}),
        ("sampled-balance", {}),
        ("batch-bald", {}),
        ("epig", {}),
        ("coreset", {"embeddings": torch.rand(200, 4000)}),
        ("badge", {"embeddings": torch.rand(200, 4000)}),
        ("cluster-margin", {"embeddings": torch.rand(200, 4000)}),
    ],
)
def test_strategies_that_do_not_stream_say_what_they_need(pool, strategy, options):
    with pytest.raises(ValueError, match=rf"must be at least .*bytes\) for '{strategy}', which does not stream"):
        select(pool, 60, strategy=strategy, memory_budget=streaming_bytes(pool) + 1000, **options)


def test_a_file_that_shrinks_is_an_error_and_not_the_end(tmp_path, parent):
    code = (
        "import os, sys, numpy as np\n"
        "from batchbalance import Predictions, select\n"
        "path = sys.argv[1]\n"
        "np.save(path, np.full((50_000, 4, 2), 0.5))\n"
        "pool = Predictions.load(path)\n"
        "os.truncate(path, 10_000)\n"
        "select(pool, 3, strategy='bald')\n"
    )
    code, _, err = parent.run(code, tmp_path / "p.npy")
    assert code == 1  # and not a bus error
    assert "FileFormatError" in err
    assert "must not change while it is read, got 10,000 bytes instead of 3,200,128" in err


def test_a_file_that_was_replaced_or_has_grown_can_be_read_on(tmp_path):
    path = tmp_path / "p.npy"
    probs = random_probs(40, 4, 3)
    np.save(path, probs)
    mapped = Predictions.load(path)
    with path.open("ab") as file:
        file.write(b"more")
    (tmp_path / "other").write_bytes(b"short")
    (tmp_path / "other").replace(path)
    assert select(mapped, 4).indices.tolist() == select(Predictions.from_probs(probs), 4).indices.tolist()
    with pytest.raises(FileFormatError):
        Predictions.load(path)


@pytest.mark.slow
def test_peak_memory_stays_within_the_budget(tmp_path, parent):
    """30,000 points × 40 × 10 are 48 MB of numbers; the first two strategies take 70 MiB, and 48 with the budget."""
    code = WATCHED + (
        "from batchbalance import Predictions, select\n"
        "pool = Predictions.load(sys.argv[1])\n"
        "select(Predictions.from_probs(np.full((9, 4, 2), 0.5)), 2)  # what torch sets up once\n"
        "for strategy in ('greedy-balance', 'power-balance', 'bald', 'margin', 'mean-std'):\n"
        "    start = peak = anonymous()\n"
        "    select(pool, 3, strategy=strategy, memory_budget=sys.argv[2])\n"
        "    print(strategy, peak - start)\n"
    )
    stored = np.lib.format.open_memmap(tmp_path / "p.npy", mode="w+", dtype=np.float32, shape=(30_000, 40, 10))
    part = np.random.default_rng(0).dirichlet(np.ones(10), size=(3_000, 40)).astype(np.float32)
    for shift, start in enumerate(range(0, 30_000, 3_000)):
        stored[start : start + 3_000] = np.roll(part, shift, axis=2)  # other points, but quickly
    stored.flush()
    budget = 135 * 2**20
    ended, out, err = parent.run(code, tmp_path / "p.npy", budget)
    assert (ended, len(out.splitlines())) == (0, 5), err
    for line in out.splitlines():
        assert int(line.split()[1]) <= 60 * 2**20, out  # below 70, so that an ignored budget fails

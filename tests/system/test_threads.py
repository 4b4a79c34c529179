import threading
from collections import Counter
from typing import ClassVar

import numpy as np
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from batchbalance import Predictions, select
from batchbalance.balance.closed_form import BalanceModel, BalanceObjective
from batchbalance.balance.edges import connect
from batchbalance.posteriors import DeepEnsemble, MCDropout
from batchbalance.posteriors.training import Recipe, fit
from batchbalance.predictions import spans_of
from batchbalance.system import threads
from batchbalance.system.progress import Bar
from conftest import random_probs

pytestmark = pytest.mark.typed


@pytest.fixture
def two_threads():
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(1)


@pytest.mark.usefixtures("two_threads")
def test_small_work_runs_on_one_thread_and_the_setting_comes_back():
    with threads.for_work(threads.SMALL_FLOPS - 1):
        assert (torch.get_num_threads(), threads.num_workers()) == (1, 1)
    assert torch.get_num_threads() == 2
    with pytest.raises(ZeroDivisionError), threads.for_work(0.0):
        _ = 1 / 0
    assert (torch.get_num_threads(), threads.num_workers()) == (2, 2)


@pytest.mark.usefixtures("two_threads")
def test_large_work_keeps_the_threads_or_gives_them_to_pieces():
    with threads.for_work(threads.SMALL_FLOPS):
        assert torch.get_num_threads() == 2
    with threads.for_work(threads.SMALL_FLOPS, in_pieces=True):
        assert (torch.get_num_threads(), threads.num_workers()) == (1, 2)
        with threads.for_work(1.0):
            assert threads.num_workers() == 1
        assert threads.num_workers() == 2
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_pieces_run_on_one_thread_each_several_at_a_time():
    both, seen, counted = threading.Barrier(2, timeout=20), [], []

    class Counting(Bar):
        def advance(self, steps=1, note=""):  # noqa: ARG002
            counted.append(steps)

    def work(span):
        both.wait()  # would time out if pieces ran one after the other
        seen.append((span.start, torch.get_num_threads(), threading.current_thread()))

    threads.each(work, spans_of(8, 2), Counting())
    assert sorted(start for start, _, _ in seen) == [0, 2, 4, 6]
    assert {num for _, num, _ in seen} == {1}
    assert threading.main_thread() not in {thread for _, _, thread in seen}
    assert counted == [2, 2, 2, 2]
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_an_error_in_a_piece_is_told_and_the_rest_is_left():
    begun = []

    def work(span):
        begun.append(span.start)
        raise KeyError("piece")

    with pytest.raises(KeyError, match="piece"):
        threads.each(work, spans_of(1000, 1))
    assert len(begun) < 1000
    assert torch.get_num_threads() == 2


@pytest.mark.usefixtures("two_threads")
def test_the_number_of_threads_changes_no_digit(monkeypatch):
    monkeypatch.setattr("batchbalance.balance.closed_form.CHUNK_BYTES", 5000)
    pool = Predictions.from_probs(random_probs(500, 8, 3).astype(np.float32))
    model = BalanceModel(pool, connect(pool, 0.05))
    gains = {}
    for num in (1, 2, 3):
        torch.set_num_threads(num)
        gains[num] = BalanceObjective(model, torch.arange(500)).gains()
    assert torch.equal(gains[1], gains[2])
    assert torch.equal(gains[1], gains[3])


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize("small", [0, 1e30])
def test_select_gives_one_batch_and_leaves_the_setting(monkeypatch, pool, small):
    monkeypatch.setattr(threads, "SMALL_FLOPS", small)
    monkeypatch.setattr("batchbalance.balance.closed_form.CHUNK_BYTES", 5000)
    monkeypatch.setattr("batchbalance.batches.cover.BLOCK_NUMBERS", 5000)
    points = torch.randn(200, 4, generator=torch.Generator().manual_seed(0))
    found = [select(pool, 5, threshold=0.05), select(pool, 5, embeddings=points)]
    assert torch.get_num_threads() == 2
    with pytest.raises(ValueError, match="must be finite"):
        select(embeddings=points / 0, batch_size=2)
    assert torch.get_num_threads() == 2
    torch.set_num_threads(1)
    again = [select(pool, 5, threshold=0.05), select(pool, 5, embeddings=points)]
    assert [one.indices.tolist() for one in found] == [other.indices.tolist() for other in again]


@pytest.mark.usefixtures("two_threads")
def test_small_passes_run_on_one_thread():
    with threads.for_passes(threads.SMALL_PASS - 1):
        assert torch.get_num_threads() == 1
    assert torch.get_num_threads() == 2
    with threads.for_passes(threads.SMALL_PASS):
        assert torch.get_num_threads() == 2


class ThreadSpy(torch.nn.Linear):
    """Tells on how many threads it runs."""

    seen: ClassVar[set] = set()

    def forward(self, x):
        self.seen.add((self.training, torch.get_num_threads()))
        return super().forward(x)


@pytest.mark.usefixtures("two_threads")
@pytest.mark.parametrize(("small", "expected"), [(threads.SMALL_PASS, 1), (1.0, 2)])
def test_small_networks_train_and_predict_on_one_thread(small, expected, monkeypatch):
    def build():
        return torch.nn.Sequential(ThreadSpy(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))

    monkeypatch.setattr(threads, "SMALL_PASS", small)
    x, y = torch.randn(40, 4, generator=torch.Generator().manual_seed(0)), torch.arange(40) % 2
    ThreadSpy.seen.clear()
    model = fit(build, x, y, Recipe(steps=2), num_classes=2).model
    assert {num for training, num in ThreadSpy.seen if training} == {expected}
    for posterior in (MCDropout(model, 2), DeepEnsemble(build, 2, Recipe(steps=1)).fit(x, y, num_classes=2)):
        assert posterior._pass_flops(x) == 40 * 2 * (4 * 8 + 8 * 2)
        for work in (posterior.predict, posterior.embed):
            ThreadSpy.seen.clear()
            work(x)
            assert {num for _, num in ThreadSpy.seen} == {expected}
    assert torch.get_num_threads() == 2


class OperationSpy(TorchDispatchMode):
    """Tells on how many threads each operation on many numbers runs."""

    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        found = function(*args, **(kwargs or {}))
        if any(isinstance(arg, torch.Tensor) and arg.numel() > 1000 for arg in args):
            self.seen[torch.get_num_threads()] += 1
        return found


@pytest.mark.usefixtures("two_threads")
def test_all_that_a_small_prediction_does_runs_on_one_thread():
    model = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))
    posterior = MCDropout(model, 20)
    x = torch.randn(100, 4, generator=torch.Generator().manual_seed(0))
    posterior.predict(x)
    with OperationSpy() as spy:
        posterior.predict(x)
        posterior.predict_and_embed(x)
    assert set(spy.seen) == {1}
    assert spy.seen[1] > 5

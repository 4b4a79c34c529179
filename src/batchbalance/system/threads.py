"""The number of threads for a piece of work, chosen by its size and never by the load of the machine.

A torch operation on several threads ends when its slowest thread does. If another process uses a core, each of many
small operations waits for a thread that is not running, and together they take ten times as long as on one thread.
So small work runs on one thread, and larger work in pieces: each piece runs on one thread, and whichever thread is free
takes the next. The threads synchronise once, at the end, and no result depends on their number.
"""

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from contextvars import ContextVar

import torch

from batchbalance.system.progress import Bar

SMALL_FLOPS = 2e10  # some tenths of a second on one thread
SMALL_PASS = 2e8  # operations; some milliseconds on one thread

_workers: ContextVar[int | None] = ContextVar("workers", default=None)  # threads for pieces; None for torch's own


@contextmanager
def for_work(flops: float, *, in_pieces: bool = False) -> Iterator[None]:
    """Run a block on one thread or on several, depending on its size; torch's setting is restored afterwards.

    Args:
        flops: approximate number of operations.
        in_pieces: whether its long parts use ``each``, so that the rest is small.
    """
    is_small = flops < SMALL_FLOPS
    if not is_small and not in_pieces:
        yield
        return
    token = _workers.set(1 if is_small else num_workers())
    try:
        with one_thread():
            yield
    finally:
        _workers.reset(token)


@contextmanager
def for_passes(flops: float) -> Iterator[None]:
    """Run a block of passes through a network, one after the other, on one thread if each of them is small.

    Args:
        flops: approximate number of operations per pass. The threads synchronise in every pass.
    """
    if flops >= SMALL_PASS:
        yield
        return
    with one_thread():
        yield


@contextmanager
def one_thread() -> Iterator[None]:
    """Run a block on one thread; torch's setting is restored afterwards."""
    before = torch.get_num_threads()
    if before == 1:
        yield
        return
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def num_workers() -> int:
    """Return the number of threads that ``each`` may use."""
    return _workers.get() or torch.get_num_threads()


def each(work: Callable[[slice], None], spans: Sequence[slice], bar: Bar | None = None) -> None:
    """Run `work` on every span, each on one torch thread, several at a time; `bar` counts the elements of the spans."""
    shown = bar or Bar()
    num = min(num_workers(), len(spans))
    if num <= 1:
        for span in spans:
            work(span)
            shown.advance(span.stop - span.start)
        return
    with one_thread():  # threads that start now inherit it
        pool = ThreadPoolExecutor(num)
        try:
            for span, _ in zip(spans, pool.map(work, spans), strict=True):
                shown.advance(span.stop - span.start)
        finally:
            pool.shutdown(cancel_futures=True)  # after an error or an interrupt, pending spans are dropped

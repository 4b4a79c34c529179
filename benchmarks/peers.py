"""The lines of the benchmark against other libraries.

Each peer runs in a process of an environment of its own, on the same input, handed over as a .npy file. A peer that is
not there or that fails is reported absent, with the reason. This library must be installed in that environment too.
"""

import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from batchbalance.arguments.seeds import generator
from batchbalance.balance.closed_form import BalanceModel, BalanceObjective
from batchbalance.balance.edges import connect
from batchbalance.balance.greedy import GreedyOptions, greedy
from batchbalance.batches.batch_bald import batch_bald
from batchbalance.posteriors import MCDropout
from benchmarks.cases import THRESHOLD, Size
from benchmarks.inputs import random_images, random_pool
from benchmarks.measure import ChildError, Side, call_child
from benchmarks.peer_calls import CALLS
from benchmarks.posterior_cases import ROWS, network

DEFAULT_FOLDER = Path(".venv-bench")


@dataclass(frozen=True)
class PeerWork:
    """One piece of work for us and for peers.

    Attributes:
        ours: our sides.
        handed_over: the input of the peers: log-probabilities (N, S, C), or images.
        scale: a peer's time is multiplied by this, because it gets a part of the input.
        scaled: what part, in words.
    """

    ours: list[Side]
    handed_over: Tensor
    scale: float = 1.0
    scaled: str = ""


@dataclass(frozen=True)
class PeerCase:
    """Lines of ours against each peer that can do the same work; attributes as in `Case`.

    `targets` has the least ratio wanted of one of our sides against a peer.
    """

    name: str
    build: Callable[[Size, int], PeerWork]
    full: tuple[Size, ...]
    quick: tuple[Size, ...]
    targets: dict[tuple[str, str], float]

    @property
    def peers(self) -> list[str]:
        """The peers that can do it."""
        return [peer for work, peer in CALLS if work == self.name]


@dataclass(frozen=True)
class PeerResult:
    """What a peer's process found; without `seconds`, `absent` says why."""

    peer: str
    version: str = ""
    seconds: tuple[float, ...] = ()
    peak_mib: float | None = None
    indices: tuple[int, ...] = ()
    absent: str = ""


def same_batch(size: Size, seed: int) -> PeerWork:
    """Exact greedy BALanCe and our own BatchBALD; the peers' BatchBALD at the same S and M."""
    pool = random_pool(size["N"], size["S"], size["C"], seed)
    model = BalanceModel(pool, connect(pool, THRESHOLD, seed=seed))
    every = torch.arange(size["N"])

    def own_batch_bald() -> Tensor:
        stream, most = generator(seed, "benchmark"), size["M"]
        return batch_bald(pool, size["B"], generator=stream, max_configurations=most, num_samples=most)[0]

    ours = [
        Side("greedy-balance", lambda: greedy(BalanceObjective(model, every), GreedyOptions(size["B"])).positions),
        Side("batch-bald", own_batch_bald),
    ]
    return PeerWork(ours, pool.log_probs())


def same_draws(size: Size, seed: int) -> PeerWork:
    """MC-dropout prediction with masks that stay the same over the pool; the peers get a part of the images."""
    model, inputs = network(seed), random_images(size["N"], seed)
    few = max(10, size["N"] // 20)
    ours = [Side("predict", lambda: MCDropout(model, size["S"], seed).predict(inputs, batch_size=ROWS))]
    return PeerWork(ours, inputs[:few], size["N"] / few, f"{few} images of {size['N']}, scaled linearly")


def peer_python(folder: Path) -> Path:
    """The interpreter of an environment."""
    return folder / ("Scripts/python.exe" if sys.platform == "win32" else "bin/python")


def run_peer(peer: str, case: str, work: PeerWork, size: Size, *, folder: Path, repeats: int) -> PeerResult:
    """Time a peer in the environment in `folder`."""
    python = peer_python(folder)
    if not python.exists():
        return PeerResult(peer, absent=f"no environment {folder}; `make bench` makes one")
    with tempfile.TemporaryDirectory() as temporary:
        path = Path(temporary) / "input.npy"
        np.save(path, work.handed_over.numpy(), allow_pickle=False)
        request = {"peer": peer, "work": case, "size": size, "input": str(path), "repeats": repeats}
        try:
            answer = call_child(
                "benchmarks.peer_calls:child",
                {**request, "threads": torch.get_num_threads()},
                str(python.absolute()),
            )
        except ChildError as error:
            return PeerResult(peer, absent=str(error))
    seconds = tuple(work.scale * taken for taken in answer["seconds"])
    return PeerResult(peer, answer["version"], seconds, answer["peak_mib"], tuple(answer["indices"]))


PEER_CASES = [
    PeerCase(
        "peer-batch-bald",
        same_batch,
        ({"N": 2_000, "S": 100, "C": 10, "B": 10, "M": 10_000},),
        ({"N": 200, "S": 100, "C": 10, "B": 5, "M": 1_000},),
        {("greedy-balance", "batchbald_redux"): 500.0},
    ),
    PeerCase("peer-dropout", same_draws, ({"N": 2_000, "S": 200},), ({"N": 100, "S": 40},), {}),
]

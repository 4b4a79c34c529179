"""Random generators derived from (seed, purpose, round); global random state is never used."""

import hashlib
from typing import SupportsIndex

import torch
from torch import Tensor

from batchbalance.arguments.checks import check_whole


def derived_seed(seed: SupportsIndex, purpose: str, round_index: int = 0) -> int:
    """Return a 63-bit seed that is a fixed function of its arguments, on every platform and version."""
    digest = hashlib.sha256(f"{check_whole('seed', seed, 0)}/{purpose}/{round_index}".encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


def generator(seed: SupportsIndex, purpose: str, round_index: int = 0) -> torch.Generator:
    """Return a CPU generator for one purpose; the same arguments always give the same stream."""
    return torch.Generator().manual_seed(derived_seed(seed, purpose, round_index))


def gumbel(num: int, *, generator: torch.Generator) -> Tensor:
    """Return `num` independent standard Gumbel variates, (num,) float64."""
    uniform = torch.rand(num, generator=generator, dtype=torch.float64)
    # rand may return exactly 0, which would become -inf; adding the smallest step keeps the result finite.
    return -torch.log(-torch.log(uniform.clamp_min(2.0**-53)))

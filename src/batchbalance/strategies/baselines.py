"""The strategies to compare with."""

from typing import ClassVar

import torch

from batchbalance.seeds import generator
from batchbalance.strategies.contract import Choice, Problem, Strategy


class Random(Strategy):
    """Uniform sampling without replacement."""

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "uniform sampling without replacement"

    def choose(self, problem: Problem) -> Choice:
        """Sample uniformly."""
        order = torch.randperm(len(problem.candidates), generator=generator(problem.seed, "random"))
        return Choice(problem.candidates[order[: problem.batch_size]])

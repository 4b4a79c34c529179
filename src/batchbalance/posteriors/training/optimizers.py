"""Adam and SGD by the functions of `torch.optim`, because its classes import torch's compiler on first use.

That import takes a second in every process that trains a network. The weights are the same to the last digit.
"""

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim.adam import adam
from torch.optim.sgd import sgd


class Optimizer:
    """An optimiser of parameters: compute their gradients, then call `step`.

    It is Adam (Kingma and Ba 2015) with torch's default constants, or gradient descent if `momentum` is given.

    Args:
        parameters: those that need gradients are updated.
        learning_rate: constant over the run.
        weight_decay: L2 penalty.
        momentum: of stochastic gradient descent; None for Adam.
    """

    def __init__(
        self,
        parameters: Iterable[nn.Parameter],
        learning_rate: float,
        weight_decay: float,
        momentum: float | None = None,
    ) -> None:
        self._parameters: list[Tensor] = [parameter for parameter in parameters if parameter.requires_grad]
        self._learning_rate, self._weight_decay, self._momentum = learning_rate, weight_decay, momentum
        self._moving: list[Tensor | None] = [None] * len(self._parameters)  # momentum buffers of gradient descent
        if momentum is None:
            self._means = [torch.zeros_like(parameter) for parameter in self._parameters]
            self._squares = [torch.zeros_like(parameter) for parameter in self._parameters]
            self._steps = [torch.zeros((), device=parameter.device) for parameter in self._parameters]

    def clear(self) -> None:
        """Clear the gradients."""
        for parameter in self._parameters:
            parameter.grad = None

    @torch.no_grad()
    def step(self) -> None:
        """Update the parameters that have gradients."""
        found = {i: parameter.grad for i, parameter in enumerate(self._parameters) if parameter.grad is not None}
        if any(gradient.is_sparse for gradient in found.values()):
            raise ValueError("gradients must be dense, got sparse ones; build nn.Embedding with sparse=False")
        if not found:
            return
        moved, gradients = [self._parameters[i] for i in found], list(found.values())
        if self._momentum is None:
            adam(
                moved,
                gradients,
                [self._means[i] for i in found],
                [self._squares[i] for i in found],
                [],
                [self._steps[i] for i in found],
                fused=True,
                amsgrad=False,
                beta1=0.9,
                beta2=0.999,
                lr=self._learning_rate,
                weight_decay=self._weight_decay,
                eps=1e-8,
                maximize=False,
            )
            return
        moving = [self._moving[i] for i in found]
        sgd(
            moved,
            gradients,
            moving,
            weight_decay=self._weight_decay,
            momentum=self._momentum,
            lr=self._learning_rate,
            dampening=0.0,
            nesterov=False,
            maximize=False,
        )
        for i, each in zip(found, moving, strict=True):  # created in the first step
            self._moving[i] = each

"""Cyclical stochastic gradient MCMC (Zhang et al. 2020), as the paper uses it.

The step size h falls from its first value to 0 along a cosine in each cycle, and starts again. Early in a cycle the
chain explores without noise; in its last `noise_epochs` it samples:

    θ ← θ − h·(∇L̄(θ) + weight_decay·θ) + √(2hT/N)·ξ

with the mean loss L̄ over N examples, so that at T = 1 and small h it samples exp(−N·(L̄ + weight_decay·‖θ‖²/2)).
The released code of the paper has 50,000 samples in an epoch and N = 50,000, however few labels there are; here both
are the number of labels unless they are set.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Annotated, Any, ClassVar, Literal

import torch
from pydantic import model_validator
from torch import Tensor, nn

from batchbalance.arguments.checks import check_real, check_whole
from batchbalance.arguments.sections import check_keys, fields_of
from batchbalance.arguments.seeds import derived_seed, generator
from batchbalance.errors import UnknownNameError
from batchbalance.posteriors.ensemble import State, WeightDraws
from batchbalance.posteriors.kinds import FitContext, Fitted, PosteriorOptions
from batchbalance.posteriors.training.calling import (
    AUGMENTATIONS,
    Examples,
    changed,
    channels_last,
    crop_and_flip,
    padding_of,
)
from batchbalance.posteriors.training.fitting import (
    ModelFactory,
    check_dtype,
    check_labelled,
    check_several,
    class_weights,
    copied_state,
    epoch_batches,
    fresh_model,
    logits_of,
    seeded,
    set_channels_last,
)
from batchbalance.system.progress import Bar
from batchbalance.system.progress import progress as shown_progress


@dataclass(frozen=True)
class Schedule:
    """The settings of cyclical chains.

    The defaults of epochs, cycles, samples per cycle, step size and chains are from the paper (CIFAR-10). Those of
    temperature, weight decay, epochs with noise and batch size are from its released code. The others are our choice.

    Attributes:
        epochs: epochs of one chain, over all its cycles; a multiple of `cycles`.
        cycles: number of cycles of the step size.
        samples_per_cycle: snapshots, one after each of the last epochs of a cycle.
        initial_step_size: h at the start of a cycle.
        temperature: T. The released code of the paper uses 1/50,000.
        weight_decay: the Gaussian prior, a part of the mean loss.
        noise_epochs: epochs with noise at the end of a cycle, at least `samples_per_cycle`.
        batch_size: examples per step, at least 2.
        num_chains: independent chains, each from fresh weights.
        class_weighted: weight the loss of a class by the inverse of its frequency, as in the paper's text but not in
            its released code.
        samples_per_epoch: examples drawn with replacement in an epoch; "labels" for one pass over the labelled set.
        noise_examples: N in the noise √(2hT/N); "labels" for the number of labels.
        augmentation: augmentation of images, as in `training.Recipe`.
    """

    epochs: int = 400
    cycles: int = 8
    samples_per_cycle: int = 3
    initial_step_size: float = 0.5
    temperature: float = 1 / 50_000
    weight_decay: float = 5e-4
    noise_epochs: int = 5
    batch_size: int = 64
    num_chains: int = 1
    class_weighted: bool = False
    samples_per_epoch: int | Literal["labels"] = "labels"
    noise_examples: int | Literal["labels"] = "labels"
    augmentation: str = "none"

    def __post_init__(self) -> None:
        for name in ("epochs", "cycles", "samples_per_cycle", "noise_epochs", "num_chains"):
            check_whole(name, getattr(self, name))
        check_whole("batch_size", self.batch_size, 2)  # batch normalisation cannot train on one example
        check_real("initial_step_size", self.initial_step_size, above=True)
        check_real("temperature", self.temperature)
        check_real("weight_decay", self.weight_decay)
        for name in ("samples_per_epoch", "noise_examples"):
            if getattr(self, name) != "labels":
                check_whole(name, getattr(self, name))
        if self.augmentation not in AUGMENTATIONS:
            raise UnknownNameError("augmentation", self.augmentation, AUGMENTATIONS)
        if self.epochs % self.cycles:
            raise ValueError(f"`epochs` must be a multiple of the {self.cycles} cycles, got {self.epochs}")
        if not self.samples_per_cycle <= self.noise_epochs <= self.epochs // self.cycles:
            raise ValueError(
                f"a cycle of {self.epochs // self.cycles} epochs must hold `noise_epochs` ({self.noise_epochs}), and "
                f"these `samples_per_cycle` ({self.samples_per_cycle}); lower them or raise `epochs`"
            )

    @property
    def num_draws(self) -> int:
        """The number of snapshots of all chains and cycles, S."""
        return self.num_chains * self.cycles * self.samples_per_cycle


SCHEDULES: dict[str, Schedule] = {
    "cifar10": Schedule(),
    "cifar100": Schedule(epochs=200, cycles=4),
    "cifar10-multichain": Schedule(epochs=200, cycles=4, num_chains=3),
}


class CyclicalSGMCMC(WeightDraws):
    """Snapshots of cyclical SG-MCMC chains.

    Args:
        model_factory: builds the network; called once for each chain, with a separate seed.
        schedule: the settings of the chains; the defaults of `Schedule` if omitted.
        seed: for initialisation, the order of examples, noise, dropout and augmentation.
    """

    kind: ClassVar[str] = "csg-mcmc"

    def __init__(self, model_factory: ModelFactory, schedule: Schedule | None = None, *, seed: int = 0) -> None:
        super().__init__(model_factory, seed)
        self.schedule = schedule or Schedule()

    @classmethod
    def _from_options(cls, model_factory: ModelFactory, options: dict[str, Any]) -> "CyclicalSGMCMC":
        return cls(model_factory, Schedule(**options["schedule"]), seed=options["seed"])

    def _options(self) -> dict[str, Any]:
        return {"schedule": asdict(self.schedule), "seed": self._seed}

    def fit(
        self,
        inputs: Any,
        labels: Tensor,
        *,
        num_classes: int,
        device: str | torch.device = "cpu",
        progress: bool = False,
    ) -> "CyclicalSGMCMC":
        """Run the chains. An interrupted run leaves the posterior unchanged.

        Args:
            inputs: (N, ...) in the dtype of the weights, or any other inputs of `training.fit`.
            labels: (N,) classes, int64.
            num_classes: C.
            device: where to run; the tensors are copied there once.
            progress: show loss and time left.
        """
        check_several(labels, False)
        check_labelled("inputs", "labels", inputs, labels, num_classes)
        labels = labels.to(device)
        examples: Examples | None = None
        states: list[State] = []
        total = self.schedule.num_chains * self.schedule.epochs
        with shown_progress("cSG-MCMC", total, progress) as bar:
            for chain in range(self.schedule.num_chains):
                model = fresh_model(self._model_factory, derived_seed(self._seed, "init", chain), device)
                examples = examples or Examples(inputs, padding_of(model), device)
                with seeded(derived_seed(self._seed, "dropout", chain), device):
                    random = generator(self._seed, "chain", chain)
                    states += self._run_chain(model, examples, labels, num_classes, random, bar)
        self._keep(model, states)
        return self

    def _run_chain(
        self, model: nn.Module, examples: Examples, labels: Tensor, num_classes: int, random: torch.Generator, bar: Bar
    ) -> list[State]:
        """Run one chain and return its snapshots."""
        schedule, decay = self.schedule, self.schedule.weight_decay
        check_dtype(model, examples[:1])
        set_channels_last(model)
        model.train()
        parameters = [p for p in model.parameters() if p.requires_grad]
        weight = class_weights(labels, num_classes).to(parameters[0].dtype) if schedule.class_weighted else None
        loss = nn.CrossEntropyLoss(weight)
        num_labels = len(examples)
        num_noise = num_labels if schedule.noise_examples == "labels" else schedule.noise_examples
        drawn = None if schedule.samples_per_epoch == "labels" else schedule.samples_per_epoch
        steps_per_epoch = len(epoch_batches(num_labels, drawn, schedule.batch_size, torch.Generator()))
        cycle_epochs = schedule.epochs // schedule.cycles
        states: list[State] = []
        step = 0
        for epoch in range(schedule.epochs):
            left = cycle_epochs - epoch % cycle_epochs  # epochs to the end of the cycle, including this one
            noise_scale = schedule.temperature / num_noise if left <= schedule.noise_epochs else 0.0
            total = torch.zeros((), device=labels.device)
            for rows in epoch_batches(num_labels, drawn, schedule.batch_size, random):
                batch = examples[rows]
                if schedule.augmentation == "crop-flip":
                    batch = crop_and_flip(batch, generator=random)
                value = loss(logits_of(model, changed(batch, channels_last), num_classes), labels[rows])
                gradients = torch.autograd.grad(value, parameters, allow_unused=True)
                h = cosine_step_size(step, steps_per_epoch * cycle_epochs, schedule.initial_step_size)
                langevin_step(parameters, gradients, h, weight_decay=decay, noise_scale=noise_scale, generator=random)
                total += value.detach()
                step += 1
            if not bool(torch.isfinite(total)):
                raise ValueError(
                    f"the training loss must stay finite, got {float(total)} in epoch {epoch + 1}; lower "
                    f"`initial_step_size` ({schedule.initial_step_size:g})"
                )
            bar.advance(note=f"loss {float(total) / steps_per_epoch:.3f}")
            if left <= schedule.samples_per_cycle:
                states.append(copied_state(model))
        return states


class ChainOptions(PosteriorOptions):
    """Cyclical SG-MCMC. A key `preset` names one of `SCHEDULES`; keys of the schedule take precedence over it."""

    has_network: ClassVar[bool] = True

    kind: str = "csg-mcmc"
    schedule: Annotated[Schedule, fields_of("[posterior.schedule]", Schedule)] = Schedule()

    @model_validator(mode="before")
    @classmethod
    def _known_keys(cls, given: Any) -> Any:
        if not isinstance(given, dict) or "preset" not in given:
            return check_keys(cls.table, given, [*cls.model_fields, "preset"])
        preset = given["preset"]
        if preset not in SCHEDULES:
            raise UnknownNameError("preset of csg-mcmc", str(preset), SCHEDULES)
        rest = {key: value for key, value in given.items() if key != "preset"}
        return {**rest, "schedule": {**asdict(SCHEDULES[preset]), **rest.get("schedule", {})}}

    def fit(self, inputs: Tensor, labels: Tensor, context: FitContext) -> Fitted:
        """Run the chains; ε is the error of the mean prediction."""
        chains = CyclicalSGMCMC(context.factory(inputs), self.schedule, seed=context.seed)
        chains.fit(inputs, labels, num_classes=context.num_classes, device=context.device)
        return self.fitted(chains, context)


@torch.no_grad()
def langevin_step(
    parameters: Sequence[Tensor],
    gradients: Iterable[Tensor | None],
    step_size: float,
    *,
    weight_decay: float = 0.0,
    noise_scale: float = 0.0,
    generator: torch.Generator,
) -> None:
    """Move `parameters` in place: θ ← θ − h·(g + weight_decay·θ) + √(2h·noise_scale)·ξ.

    Args:
        parameters: θ.
        gradients: g, of the mean loss; None for a parameter without gradient.
        step_size: h.
        weight_decay: weight decay of the prior.
        noise_scale: T/N, the temperature over the number of examples; 0 for a step of plain gradient descent.
        generator: random generator for ξ.
    """
    for theta, gradient in zip(parameters, gradients, strict=True):
        if gradient is not None:
            drift = gradient.add(theta, alpha=weight_decay) if weight_decay else gradient
            theta.add_(drift, alpha=-step_size)
        elif weight_decay:
            theta.mul_(1 - step_size * weight_decay)
        if noise_scale:
            noise = torch.randn(theta.shape, generator=generator, dtype=theta.dtype).to(theta.device)
            theta.add_(noise, alpha=math.sqrt(2 * step_size * noise_scale))


def cosine_step_size(step: int, cycle_steps: int, initial_step_size: float) -> float:
    """Return the step size of step 0, 1, …: a half cosine from its first value to 0 over each cycle."""
    return initial_step_size / 2 * (math.cos(math.pi * (step % cycle_steps) / cycle_steps) + 1)

"""One training loop for every network, with fresh weights at each call.

A run takes a fixed number of steps on all labels, or, as in section "Experimental setup" of the paper, stops early on
validation accuracy and restores the best weights. docs/posteriors.md compares the two. All tensors stay in memory,
which is faster than loader workers for data sets of this size.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from batchbalance.arguments.checks import as_tensor, check_device, check_flag, check_real, check_whole
from batchbalance.arguments.seeds import derived_seed, generator
from batchbalance.errors import UnknownNameError, is_out_of_memory
from batchbalance.posteriors.training.calling import (
    AUGMENTATIONS,
    Batch,
    Examples,
    as_batch,
    changed,
    channels_last,
    crop_and_flip,
    described,
    logits_from,
    num_rows,
    padding_of,
    tensors_in,
)
from batchbalance.posteriors.training.networks import flops_of
from batchbalance.predictions import looks_like_probs, spans_of
from batchbalance.system import threads
from batchbalance.system.progress import progress as shown_progress

ModelFactory = Callable[[], nn.Module]
Labelled = tuple[Any, Tensor]  # inputs of `fit`, and their classes

OPTIMIZERS = ("adam", "sgd")
STEPS = 1000  # default length of a run, see docs/posteriors.md
MAX_EPOCHS, PATIENCE = 100, 3  # defaults of a run in epochs
PROBED = 8  # inputs for checking that a network returns logits
EVALUATION_BATCH = 128  # larger batches do not fit a core's cache


@dataclass(frozen=True)
class Recipe:
    """Training settings of a network: for a number of steps, or for epochs with early stopping.

    Without `samples_per_epoch`, `max_epochs` and `patience` it is trained for `steps`, whether or not there is a
    validation set. With any of them it is trained in epochs, and a validation set stops it early.

    Attributes:
        optimizer: "adam", or "sgd" with momentum.
        learning_rate: constant over the run.
        momentum: momentum of SGD.
        weight_decay: L2 penalty of the optimizer.
        batch_size: examples per step, at least 2.
        steps: number of steps, each on the next examples of a pass over the set; 1,000 if omitted.
        samples_per_epoch: examples drawn with replacement in an epoch, at least 2; if omitted, an epoch is one pass
            over the set.
        max_epochs: the maximum number of epochs; 100 if omitted.
        patience: stop after this many epochs without a better validation accuracy; 3 if omitted. The paper uses 3
            for small batches and tabular data, and 20 for large batches.
        class_weighted: weight the loss of a class by the inverse of its frequency.
        augmentation: "none", or "crop-flip" for images: a random crop after padding by 4 pixels, and a random flip.
    """

    optimizer: str = "adam"
    learning_rate: float = 1e-3
    momentum: float = 0.9
    weight_decay: float = 0.0
    batch_size: int = 64
    steps: int | None = None
    samples_per_epoch: int | None = None
    max_epochs: int | None = None
    patience: int | None = None
    class_weighted: bool = False
    augmentation: str = "none"

    def __post_init__(self) -> None:
        if self.optimizer not in OPTIMIZERS:
            raise UnknownNameError("optimizer", self.optimizer, OPTIMIZERS)
        if self.augmentation not in AUGMENTATIONS:
            raise UnknownNameError("augmentation", self.augmentation, AUGMENTATIONS)
        check_whole("batch_size", self.batch_size, 2)  # batch normalisation cannot train on one example
        least = {"steps": 1, "samples_per_epoch": 2, "max_epochs": 1, "patience": 1}
        given = [name for name in least if getattr(self, name) is not None]
        for name in given:
            check_whole(name, getattr(self, name), least[name])
        if len(given) > 1 and "steps" in given:
            raise ValueError(f"`steps` must not be given together with `{given[1]}`; omit one of them")
        missing = {"max_epochs": MAX_EPOCHS, "patience": PATIENCE} if given else {"steps": STEPS}
        for name, value in missing.items() if given != ["steps"] else ():
            if name not in given:
                object.__setattr__(self, name, value)
        check_real("learning_rate", self.learning_rate, above=True)
        if check_real("momentum", self.momentum) >= 1:
            raise ValueError(f"`momentum` must be below 1, got {self.momentum}")
        check_real("weight_decay", self.weight_decay)
        check_flag("class_weighted", self.class_weighted)


@dataclass(frozen=True)
class Epoch:
    """Mean training loss of an epoch, and the validation accuracy after it (None without early stopping)."""

    loss: float
    accuracy: float | None


@dataclass(frozen=True)
class KeptWeights:
    """The weights of a run that were kept.

    Attributes:
        epoch: their epoch, counted from 1; in a run of `Recipe.steps` an epoch is a pass over the set.
        steps: the number of steps before them.
        training_accuracy: their accuracy on the training labels, with dropout off.
    """

    epoch: int
    steps: int
    training_accuracy: float


@dataclass(frozen=True, eq=False)
class TrainedNetwork:
    """A trained network in eval mode, the history of its epochs, and the weights that were kept."""

    model: nn.Module
    history: tuple[Epoch, ...]
    kept: KeptWeights

    @property
    def best(self) -> int:
        """The index in `history` of the epoch of the weights."""
        return self.kept.epoch - 1


def fit(
    model_factory: ModelFactory,
    inputs: Any,
    labels: Tensor,
    recipe: Recipe | None = None,
    *,
    num_classes: int,
    validation: Labelled | None = None,
    seed: int = 0,
    device: str | torch.device = "cpu",
    progress: bool = False,
) -> TrainedNetwork:
    """Train a freshly initialised network.

    The result depends only on the arguments and the number of threads; the global random state is restored.

    Args:
        model_factory: builds the network; called once, with a separate seed.
        inputs: (N, ...) in the dtype of the weights; a dict or a tuple of such tensors; a Dataset, or a DataLoader, of
            which the data set and the `collate_fn` are used.
        labels: (N,) classes, int64, from 0 to num_classes − 1; or (N, num_classes) of 0 and 1 for inputs that may have
            several labels, each with a sigmoid of its own.
        recipe: optimizer, sizes, length; the defaults of `Recipe` if omitted.
        num_classes: C.
        validation: inputs and labels for early stopping, if the recipe uses epochs. If omitted, the last weights
            are kept.
        seed: seed for initialisation, the order of examples, dropout and augmentation.
        device: where to train; the tensors are copied there once.
        progress: show loss, validation accuracy and time left.
    """
    recipe = recipe or Recipe()
    check_device("device", device)
    check_labelled("inputs", "labels", inputs, labels, num_classes)
    if validation is not None:
        check_labelled("validation inputs", "validation labels", *validation, num_classes)
    model = fresh_model(model_factory, derived_seed(seed, "init"), device)
    set_channels_last(model)
    check_finite(model)
    examples, labels = Examples(inputs, padding_of(model), device), labels.to(device)
    if validation is not None:
        validation = Examples(validation[0], padding_of(model), device), validation[1].to(device)
    _check_outputs(model, examples[:PROBED], num_classes, several=labels.ndim == 2)
    # the backward pass costs about twice the forward pass
    step_flops = 3 * flops_of(model, examples[:1]) * min(recipe.batch_size, len(examples))
    optimizer = _optimizer(recipe, [each for each in model.parameters() if each.requires_grad])
    loss = _loss(model, labels, num_classes, recipe)
    order = generator(seed, "order")
    changing = generator(seed, "augmentation") if recipe.augmentation == "crop-flip" else None
    history: list[Epoch] = []
    best, best_state = 0, copied_state(model)
    steps = best_steps = 0
    watched = None if recipe.steps is not None else validation
    with (
        threads.for_passes(step_flops),
        seeded(derived_seed(seed, "dropout"), device),
        shown_progress("training", recipe.steps or recipe.max_epochs, progress) as bar,
    ):
        while steps < recipe.steps if recipe.steps is not None else len(history) < (recipe.max_epochs or MAX_EPOCHS):
            batches = epoch_batches(len(examples), recipe.samples_per_epoch, recipe.batch_size, order)
            batches = batches[: None if recipe.steps is None else recipe.steps - steps]
            model.train()
            total = torch.zeros((), device=labels.device)
            for rows in batches:
                optimizer.zero_grad()
                batch = examples[rows] if changing is None else crop_and_flip(examples[rows], generator=changing)
                value = loss(logits_of(model, changed(batch, channels_last), num_classes), labels[rows])
                value.backward()
                optimizer.step()
                total += value.detach()
            mean_loss, index = float(total) / len(batches), len(history)
            steps += len(batches)
            if mean_loss != mean_loss or mean_loss == float("inf"):
                raise ValueError(
                    f"the training loss must stay finite, got {mean_loss} in epoch {index + 1}; lower "
                    f"`learning_rate` ({recipe.learning_rate:g}) or check the scale of `inputs`"
                )
            accuracy = None if watched is None else network_accuracy(model, *watched)
            history.append(Epoch(mean_loss, accuracy))
            note = f"loss {mean_loss:.3f}" + ("" if accuracy is None else f", accuracy {accuracy:.3f}")
            bar.advance(1 if recipe.steps is None else len(batches), note=note)
            if accuracy is None or index == 0 or accuracy > (history[best].accuracy or 0):
                best, best_steps = index, steps
                best_state = best_state if accuracy is None else copied_state(model)
            if accuracy is not None and index - best >= (recipe.patience or PATIENCE):
                break
    if watched is not None:
        model.load_state_dict(best_state)
    return TrainedNetwork(
        model.eval(), tuple(history), KeptWeights(best + 1, best_steps, network_accuracy(model, examples, labels))
    )


def _loss(model: nn.Module, labels: Tensor, num_classes: int, recipe: Recipe) -> Callable[[Tensor, Tensor], Tensor]:
    if labels.ndim == 2:
        if recipe.class_weighted:
            raise ValueError("`class_weighted` must be false for several labels of each input, got true; omit it")
        return lambda logits, true: nn.functional.binary_cross_entropy_with_logits(logits, true.to(logits.dtype))
    weight = class_weights(labels, num_classes).to(next(model.parameters()).dtype)
    return nn.CrossEntropyLoss(weight if recipe.class_weighted else None)


def _optimizer(recipe: Recipe, parameters: list[nn.Parameter]) -> torch.optim.Optimizer:
    rate, decay = recipe.learning_rate, recipe.weight_decay
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(parameters, rate, recipe.momentum, weight_decay=decay)
    return torch.optim.Adam(parameters, rate, weight_decay=decay, fused=True)


@torch.inference_mode()
def network_accuracy(model: nn.Module, inputs: Any, labels: Tensor) -> float:
    """Return the accuracy of a network in eval mode (dropout off), and leave it in eval mode."""
    model.eval()
    examples = inputs if isinstance(inputs, Examples) else Examples(inputs, padding_of(model), labels.device)
    right = 0
    for rows in spans_of(len(examples), EVALUATION_BATCH):
        logits = logits_from(model, examples[rows])
        right += int(((logits.argmax(dim=-1) if labels.ndim == 1 else logits > 0) == labels[rows]).sum())
    return right / labels.numel()


@torch.no_grad()
def _check_outputs(model: nn.Module, batch: Batch, num_classes: int, *, several: bool) -> None:
    """Raise ValueError if inputs do not fit a network, or if it ends in a softmax, which the loss would apply again."""
    check_dtype(model, batch)
    if looks_like_probs(logits_of(model.eval(), batch, num_classes)) and not several:
        raise ValueError(
            "the model must return logits, got rows that are non-negative and sum to 1; remove its softmax, which the "
            "loss applies"
        )


def class_weights(labels: Tensor, num_classes: int) -> Tensor:
    """Return inverse class frequencies, (C,) float64, with mean 1 over the examples; 0 for empty classes."""
    counts = torch.bincount(labels, minlength=num_classes).double()
    present = counts > 0
    return torch.where(present, len(labels) / (counts.clamp_min(1) * present.sum()), 0.0)


def fresh_model(model_factory: Any, seed: int, device: str | torch.device) -> nn.Module:
    """Build a network whose initial weights are a function of `seed`."""
    if isinstance(model_factory, nn.Module):
        name = type(model_factory).__name__
        raise ValueError(f"`model_factory` must build a network, got a {name}; pass a function, not its result")
    with seeded(seed, device):
        model = model_factory()
    if not isinstance(model, nn.Module):
        raise ValueError(f"`model_factory` must return an nn.Module, got {type(model).__name__}")
    return model.to(device)


@contextmanager
def seeded(seed: int, device: str | torch.device = "cpu") -> Iterator[None]:
    """Seed the global generators that layers use while the block runs, then restore them."""
    device = torch.device(device)
    cuda = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices=cuda):
        torch.default_generator.manual_seed(seed)
        for each in cuda:
            with torch.cuda.device(each):
                torch.cuda.manual_seed(seed)
        yield


def set_channels_last(model: nn.Module) -> None:
    """Store the weights of 2-d convolutions channels last, which is faster on a CPU; no number changes."""
    for parameter in model.parameters():
        if parameter.ndim == 4:
            parameter.data = parameter.data.contiguous(memory_format=torch.channels_last)


def check_finite(model: nn.Module) -> None:
    """Raise ValueError if a weight is NaN or infinite, or if this is not a network."""
    if not isinstance(model, nn.Module):
        raise ValueError(f"the model must be a network, an nn.Module, got {model!r}")
    buffers = dict(model.named_buffers())
    for name, value in [*model.named_parameters(), *buffers.items()]:
        # A buffer may hold infinities on purpose, such as the mask of causal attention.
        fine = ~torch.isnan(value) if name in buffers else torch.isfinite(value)
        if value.is_floating_point() and not bool(fine.all()):
            raise ValueError(f"the model's weights must be finite, got NaN or infinity in `{name}`; train it again")


def check_dtype(model: nn.Module, inputs: Batch) -> None:
    """Raise ValueError if `inputs` are floating-point numbers of another dtype than the weights."""
    dtype = next((p.dtype for p in model.parameters() if p.is_floating_point()), None)
    for tensor in tensors_in(inputs):
        if tensor.is_floating_point() and dtype not in (None, tensor.dtype):
            raise ValueError(
                f"`inputs` must be {dtype} like the model's weights, got {tensor.dtype}; use inputs.to({dtype})"
            )


def logits_of(model: nn.Module, batch: Batch, num_classes: int) -> Tensor:
    """Return the logits (n, C) of a batch; raise ValueError if batch, model and C do not match."""
    try:
        logits = logits_from(model, batch)
    except RuntimeError as error:
        if is_out_of_memory(error):
            raise
        raise ValueError(f"`inputs` must fit the model, got {described(batch)}: {error}") from error
    if logits.shape != (num_rows(batch), num_classes):
        raise ValueError(
            f"the model must return ({num_rows(batch)}, {num_classes}) logits, got {tuple(logits.shape)}; "
            "build it for `num_classes` classes, or pass binary=True if it returns one logit for two classes"
        )
    return logits


def epoch_batches(num_examples: int, num_drawn: int | None, batch_size: int, order: torch.Generator) -> list[Tensor]:
    """Return the rows of the batches of one epoch: all rows once, or `num_drawn` with replacement."""
    if num_drawn is None:
        return split_rows(torch.randperm(num_examples, generator=order), batch_size)
    return split_rows(torch.randint(num_examples, (num_drawn,), generator=order), batch_size)


def split_rows(rows: Tensor, batch_size: int) -> list[Tensor]:
    """Split rows into batches of at least two: batch normalisation cannot train on one example.

    A single row is used twice; a last single row joins the batch before it.
    """
    if len(rows) == 1:
        rows = rows.repeat(2)
    batches = list(torch.split(rows, batch_size))
    if len(batches) > 1 and len(batches[-1]) == 1:
        batches[-2:] = [torch.cat(batches[-2:])]
    return batches


def copied_state(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights and buffers of a network, cloned."""
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def check_labelled(inputs_name: str, labels_name: str, inputs: Any, labels: Tensor, num_classes: int) -> None:
    """Raise ValueError unless these are N ≥ 1 finite inputs with N classes below `num_classes`, or (N, L) labels."""
    if not isinstance(inputs, Tensor | Mapping | tuple | Dataset | DataLoader) or not isinstance(labels, Tensor):
        got = f"{type(inputs).__name__} and {type(labels).__name__}"
        raise ValueError(f"{inputs_name} and {labels_name} must be tensors, got {got}; use torch.as_tensor")
    if labels.dtype != torch.int64 or (labels.ndim != 1 and labels.shape[1:] != (num_classes,)):
        raise ValueError(
            f"{labels_name} must be (N,) int64, or (N, {num_classes}) of 0 and 1 for several labels, got "
            f"{tuple(labels.shape)} {labels.dtype}"
        )
    held = None if isinstance(inputs, Dataset | DataLoader) else as_batch(inputs)
    num_inputs = len(Examples(inputs)) if held is None else num_rows(held)
    is_flat = isinstance(inputs, Tensor) and inputs.ndim < 2
    if is_flat or num_inputs != len(labels) or not num_inputs:
        got = f"shape {tuple(inputs.shape)}" if isinstance(inputs, Tensor) else f"{num_inputs} rows"
        raise ValueError(
            f"{inputs_name} must be one row for each of at least one {labels_name}, got {got} and {len(labels)} labels"
        )
    highest = num_classes - 1 if labels.ndim == 1 else 1
    if int(labels.min()) < 0 or int(labels.max()) > highest:
        raise ValueError(
            f"{labels_name} must be classes from 0 to {highest}, got {int(labels.min())} to {int(labels.max())}"
        )
    tensors = [] if held is None else tensors_in(held)
    if not all(bool(torch.isfinite(each).all()) for each in tensors if each.is_floating_point()):
        raise ValueError(f"{inputs_name} must be finite, got NaN or infinity; drop or fill those rows")


def check_several(labels: Any, multi_label: bool) -> None:
    """Raise ValueError unless labels are (N, L) for a model of several labels, and (N,) for another one."""
    ndim = getattr(labels, "ndim", 1)
    if multi_label != (ndim == 2):
        raise ValueError(
            f"labels must be {'(N, L) of 0 and 1' if multi_label else '(N,) classes'} for this model, got {ndim} axes; "
            "for several labels of each input, use MCDropout or DeepEnsemble with multi_label=True, BayesianHead or "
            "Committee"
        )


def label_matrix(name: str, labels: Any) -> Tensor:
    """Return labels (N, L), one column of 0 and 1 for each label, as int64."""
    given = as_tensor(labels, name)
    if given.ndim != 2 or 0 in given.shape or not bool(((given == 0) | (given == 1)).all()):
        raise ValueError(
            f"{name} must be (N, L) of 0 and 1, one column for each label, got {tuple(given.shape)} {given.dtype}"
        )
    return given.to(torch.int64)

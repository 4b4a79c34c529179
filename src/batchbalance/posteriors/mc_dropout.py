"""Monte Carlo dropout (Gal and Ghahramani 2016) with draws that are fixed networks.

A draw is a network with one mask per dropout layer, derived from (seed, layer, draw). Other layers are in eval mode,
so batch normalisation uses its running statistics.

Supported: all `nn.Dropout`, `Dropout1d/2d/3d`, `AlphaDropout` and `FeatureAlphaDropout` modules at any depth, including
those of `nn.TransformerEncoderLayer`; dropout of attention weights, and between the layers of recurrent networks; and
stochastic depth, where a draw drops a residual branch for every input. Not supported, and off as in eval mode, with a
warning: dropout called as a function elsewhere, and other modules that drop units in training.
"""

import copy
import os
import warnings
from collections.abc import Iterator
from functools import partial
from typing import Any, ClassVar

import torch
from pydantic import model_validator
from torch import Tensor, nn

from batchbalance.arguments.checks import check_whole
from batchbalance.arguments.sections import MAX_DRAWS, NumDraws, Whole
from batchbalance.arguments.seeds import derived_seed
from batchbalance.posteriors.contract import Posterior, last_hidden
from batchbalance.posteriors.kinds import FitContext, Fitted, PosteriorOptions
from batchbalance.posteriors.masks import (
    CHANNELWISE,
    ELEMENTWISE,
    AttentionDropout,
    Mask,
    RecurrentDropout,
    is_path,
    is_plain,
    training_noise,
)
from batchbalance.posteriors.outputs import check_logits, is_multi_label, network_of, with_outputs
from batchbalance.posteriors.replay import Replay, replayable
from batchbalance.posteriors.saved import as_network, fingerprint, load_weights, read_saved, structure_of
from batchbalance.posteriors.sliced import Chain
from batchbalance.posteriors.training.calling import (
    Batch,
    logits_from,
    num_rows,
    placed,
    some_rows,
)
from batchbalance.posteriors.training.fitting import (
    KeptWeights,
    Labelled,
    check_finite,
    fit,
    fresh_model,
    network_accuracy,
    set_channels_last,
)
from batchbalance.posteriors.training.networks import flops_of

PROBED = 8  # inputs of the first batch that are compared with the general path
STACKED_ROWS, STACKED_FLOPS = 1024, 2e8  # maximum for a forward pass of a small batch under several draws


class MCDropout(Posterior):
    """Draws of a trained network with dropout.

    Args:
        model: any module with dropout layers that returns logits (N, C); it is copied.
        num_draws: S.
        seed: seed of the masks. Draw 7 is the same network for every `num_draws`.
        fast: run chains of layers as smaller networks, and in other networks run the part before the first dropout
            only once (same numbers to about 1e-6); False for one plain forward pass per draw. The first batch is
            compared with that. Only layers that are exactly of a known type are made smaller.
        outputs: what the model returns: "logits" (or log-probabilities), or "probs" if it ends in a softmax.
        binary: the model returns one output, the logit (or probability) of the second of two classes.
        multi_label: the model returns one output for each of L labels, of which an input may have several: log-odds, or
            with outputs="probs" probabilities, as after a sigmoid. If omitted, a Hugging Face model knows it by its
            `problem_type`, and other models predict one class.
    """

    kind: ClassVar[str] = "mc-dropout"
    takes_structures: ClassVar[bool] = True

    def __init__(
        self,
        model: nn.Module,
        num_draws: int = 100,
        seed: int = 0,
        *,
        fast: bool = True,
        outputs: str = "logits",
        binary: bool = False,
        multi_label: bool | None = None,
    ) -> None:
        num_draws = check_whole("num_draws", num_draws, 1, MAX_DRAWS)
        model = network_of(model)
        multi_label = is_multi_label(model) if multi_label is None else multi_label
        check_finite(model)
        self._network: nn.Module = copy.deepcopy(model).eval().requires_grad_(False)
        self._reading: dict[str, Any] = {"outputs": outputs, "binary": binary, "multi_label": multi_label}
        self._values = "label-logits" if multi_label else "log-probs"
        structure = structure_of(with_outputs(self._network, **self._reading))
        self._model = with_outputs(copy.deepcopy(self._network), **self._reading).eval()  # with masks for dropout
        set_channels_last(self._model)
        self._seed = seed
        self._masks = _fix_masks(self._model, seed)
        self._chain = Chain.of(self._model) if fast else None
        self._replay: Replay | None = None
        self._stacks = False  # whether one forward pass may hold several draws
        self._fast = fast
        rates = [mask.rate for mask in self._masks]
        digest = fingerprint(self._network.state_dict(), self.kind, seed, rates, structure)
        self._draw_ids = tuple(f"{digest}-{draw}" for draw in range(num_draws))
        self._checked = False

    @classmethod
    def load(cls, directory: str | os.PathLike[str], network: Any = None, *, fast: bool = True) -> "MCDropout":
        """Read a saved posterior, given a network of the same architecture or a function that builds one."""
        tensors, options = read_saved(directory, cls.kind)
        model = copy.deepcopy(as_network(network, directory))
        load_weights(model, tensors, directory)
        return cls(model, **options, fast=fast)

    def first(self, num_draws: int) -> "MCDropout":
        """Return a posterior of the first `num_draws` draws that shares the weights."""
        num_draws = check_whole("num_draws", num_draws, 1, self.num_draws, limit="the number of draws")
        fewer = copy.copy(self)
        fewer._draw_ids = self._draw_ids[:num_draws]
        return fewer

    def accuracy(self, inputs: Tensor, labels: Tensor) -> float:
        """Return the accuracy of the network with dropout off on inputs (N, ...) and their classes (N,).

        For labels (N, L) of 0 and 1 it is the share of right ones.
        """
        parameter = next(self._network.parameters(), None)
        device = inputs.device if parameter is None else parameter.device
        network = with_outputs(self._network, **self._reading)
        return network_accuracy(network, placed(inputs, device), labels.to(device))

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        options = {"num_draws": self.num_draws, "seed": self._seed, **self._reading}
        return self._network.state_dict(), options

    def _logits(self, batch: Batch) -> Tensor:
        batch = self._placed(batch)
        if self._checked:
            return self._all_draws(batch)
        self._warn_and_plan(some_rows(batch, slice(PROBED)))
        logits = self._all_draws(batch)
        check_logits(logits[:, 0], multi_label=self._reading["multi_label"])
        logits = self._compared(batch, logits)
        self._checked = True
        return logits

    def _all_draws(self, batch: Batch) -> Tensor:
        if self._chain is not None and isinstance(batch, Tensor):
            return torch.cat([_stacked(runs) for runs in self._chain.runs(batch, self.num_draws)])
        at_once = 1
        if self._stacks:
            # Several draws share a pass, so that its fixed costs are paid once. Their number depends only on sizes, not
            # on measured time, because a sum over more rows may be rounded differently.
            most = min(STACKED_ROWS / num_rows(batch), STACKED_FLOPS / max(self._pass_flops(batch), 1.0))
            at_once = min(self.num_draws, max(1, int(most)))
        return _stacked(self._runs(batch, at_once))

    def _hidden_runs(self, batch: Batch) -> Iterator[Iterator[Tensor]]:
        """Yield, for each block of a batch, its last hidden layer under each draw."""
        batch = self._ready(batch)
        if self._chain is not None and self._chain.last_linear is not None and isinstance(batch, Tensor):
            yield from self._chain.runs(batch, self.num_draws, self._chain.last_linear)
            return
        with last_hidden(self._model) as hidden:
            yield (hidden(logits) for logits in self._runs(batch))

    def _hidden(self, batch: Batch) -> Tensor:
        return torch.cat([sum(runs) / self.num_draws for runs in self._hidden_runs(batch)])  # type: ignore[misc]

    def _hidden_of_draws(self, batch: Batch) -> Tensor:
        return torch.cat([torch.stack(list(runs), dim=1) for runs in self._hidden_runs(batch)])

    def _logits_and_hidden(self, batch: Batch) -> tuple[Tensor, Tensor]:
        batch, chain = self._ready(batch), self._chain
        if chain is None or chain.head is None or not isinstance(batch, Tensor):
            return super()._logits_and_hidden(batch)
        logits, hidden = [], []
        for runs in chain.runs(batch, self.num_draws, chain.last_linear):
            inputs = batch.new_zeros(())
            outputs = []
            for now in runs:
                inputs = inputs + now
                outputs.append(chain.head(now))
            logits.append(_stacked(iter(outputs)))
            hidden.append(inputs / self.num_draws)
        return torch.cat(logits), torch.cat(hidden)

    def _runs(self, batch: Batch, at_once: int = 1) -> Iterator[Tensor]:
        """Yield the logits of a batch under each draw; the part that draws share runs once where possible."""
        if at_once > 1:
            rows = torch.arange(num_rows(batch)).repeat(at_once)
            for first in range(0, self.num_draws, at_once):
                num_draws = min(at_once, self.num_draws - first)
                many = some_rows(batch, rows[: num_draws * num_rows(batch)])
                yield from self._forward(many, first, num_draws).chunk(num_draws)
            return
        if self._replay is None:
            yield from (self._forward(batch, draw) for draw in range(self.num_draws))
            return
        with self._replay.batch(num_rows(batch)):
            for draw in range(self.num_draws):
                yield self._replay.draw(draw, partial(self._forward, batch, draw))

    def _forward(self, batch: Batch, draw: int, num_draws: int = 1) -> Tensor:
        """Return the logits of a batch under a draw, or of one that holds its inputs once for each of several draws."""
        for mask in self._masks:
            mask.begin(draw, num_rows(batch) // num_draws, num_draws)
        return logits_from(self._model, batch)

    def _ready(self, batch: Batch) -> Batch:
        """Return a batch on the device of the model, after comparing the model with the plain network."""
        if not self._checked:
            self._logits(some_rows(batch, slice(PROBED)))
        return self._placed(batch)

    def _placed(self, batch: Batch) -> Batch:
        """Return a batch on the device of the model; raise ValueError if the model cannot take it.

        Masks depend on the position of a token, which padding in front would shift.
        """
        shown = batch.get("attention_mask") if isinstance(batch, dict) else None
        if shown is not None and shown.ndim == 2 and not bool(shown[:, 0].bool().all()):
            raise ValueError(
                "`inputs` must be padded on the right, got padding on the left; use padding_side='right' in "
                "the tokenizer"
            )
        placed_batch: Batch = super()._placed(batch)
        return placed_batch

    def _warn_and_plan(self, few: Batch) -> None:
        """Warn about dropout that stays off; find the modules before the first mask, unless two equal passes differ."""
        once = self._forward(few, 0)
        ran = [mask.name for mask in self._masks if mask.calls]
        idle = [mask.name for mask in self._masks if isinstance(mask, Mask) and mask.rate > 0 and not mask.calls]
        if idle and not ran:
            raise ValueError(
                "the model must run one of its dropout layers, got a forward pass that runs none of "
                f"{', '.join(idle)}; call them in `forward`, or use DeepEnsemble"
            )
        for name in idle:
            # Attention may read the rate of a dropout layer inside it without running the layer. It issues its own
            # warning if it cannot be masked.
            if not any(name.startswith(f"{other}.") for other in ran):
                warnings.warn(f"dropout layer {name!r} is not run by the model and has no effect", stacklevel=3)
        for layer in training_noise(self._model, lambda: self._forward(few, 0)):
            warnings.warn(
                f"random dropping in {layer} stays off: use nn.Dropout instead of dropout called as a function, or a "
                "class named *DropPath or *Attention*",
                stacklevel=2,
            )
        if self._chain is None and self._fast and self.num_draws > 1:
            found = replayable(self._model, self._masks, lambda: self._forward(few, 0))
            self._stacks = self._may_stack(few, found)
            if found and torch.equal(once, self._forward(few, 0)):
                self._replay = Replay(found, self._masks)

    def _may_stack(self, few: Batch, shared: list[nn.Module]) -> bool:
        """Return whether most work is not shared by the draws, and two draws in one pass give the same as alone.

        They do not if the batch is not the first axis inside the network.
        """
        if any(isinstance(vars(part).get("forward"), RecurrentDropout) for part in self._model.modules()):
            return False
        self._forward(few, 0)  # sets the masks that `flops_of` runs with
        if 2 * flops_of(self._model, few, shared) >= self._pass_flops(few) / num_rows(few):
            return False
        try:
            both = self._forward(some_rows(few, torch.arange(num_rows(few)).repeat(2)), 0, 2).chunk(2)
        except (ValueError, RuntimeError):
            return False
        alone = [self._forward(few, draw) for draw in (0, 1)]
        return all(
            torch.allclose(one, other, rtol=1e-3, atol=1e-4, equal_nan=True)
            for one, other in zip(both, alone, strict=True)
        )

    def _compared(self, batch: Batch, logits: Tensor) -> Tensor:
        """Return the logits of the first batch, after comparing them with those of the plain network.

        A model that mixes examples, or is not batch first, would give draws that depend on the chunks. If the fast path
        differs from the plain network, the general path is used from then on.
        """
        few = some_rows(batch, slice(PROBED))
        if self._chain is not None or self._replay is not None or self._stacks:
            for draw in {0, min(1, self.num_draws - 1), self.num_draws - 1}:  # the second is always replayed
                if not torch.allclose(
                    self._forward(few, draw), logits[:PROBED, draw], rtol=1e-3, atol=1e-4, equal_nan=True
                ):
                    warnings.warn(
                        "the fast path of MC dropout differs from the model; the general path is used",
                        stacklevel=2,
                    )
                    self._chain, self._replay, self._stacks = None, None, False
                    logits = self._all_draws(batch)
                    break
        alone = self._forward(some_rows(batch, slice(1)), 0)[0]
        if not torch.allclose(alone, logits[0, 0], rtol=1e-2, atol=1e-3, equal_nan=True):
            raise ValueError(
                "the model must process each input independently, got other logits for the first input alone than in "
                f"its batch of {num_rows(batch)}; build the model batch first and do not mix examples"
            )
        return logits


class MCDropoutOptions(PosteriorOptions):
    """Monte Carlo dropout of a trained network.

    Attributes:
        num_draws: S.
        test_draws: test metrics use the mean of this many first draws; of all draws if omitted.
    """

    has_network: ClassVar[bool] = True
    uses_recipe: ClassVar[bool] = True

    kind: str = "mc-dropout"
    num_draws: NumDraws = 100
    test_draws: Whole | None = None

    @model_validator(mode="after")
    def _enough_draws(self) -> "MCDropoutOptions":
        if self.test_draws is not None and self.test_draws > self.num_draws:
            raise ValueError(f"`test_draws` must be at most the {self.num_draws} draws, got {self.test_draws}")
        return self

    def fit(self, inputs: Tensor, labels: Tensor, context: FitContext) -> Fitted:
        """Train one network; ε is its error with dropout off."""
        trained = fit(
            context.factory(inputs),
            inputs,
            labels,
            context.recipe,
            num_classes=context.num_classes,
            validation=context.validation,
            seed=context.seed,
            device=context.device,
        )
        return self._draws(trained.model, context, (trained.kept,), multi_label=labels.ndim == 2)

    def untrained(self, inputs: Tensor, context: FitContext) -> Fitted:
        """Return draws of the network before any training."""
        return self._draws(fresh_model(context.factory(inputs), context.seed, context.device), context)

    def for_metrics(self, posterior: Posterior) -> Posterior:
        """Return the first `test_draws` draws."""
        return posterior.first(self.test_draws or self.num_draws) if isinstance(posterior, MCDropout) else posterior

    def error(self, posterior: Posterior, labelled: Labelled) -> float:
        """Return the error of the network with dropout off."""
        if not isinstance(posterior, MCDropout):
            return super().error(posterior, labelled)
        return 1 - posterior.accuracy(*labelled)

    def _draws(
        self, model: nn.Module, context: FitContext, kept: tuple[KeptWeights, ...] = (), multi_label: bool | None = None
    ) -> Fitted:
        seed = derived_seed(context.seed, "masks")
        return self.fitted(MCDropout(model, self.num_draws, seed, multi_label=multi_label), context, kept)


def _stacked(runs: Iterator[Tensor]) -> Tensor:
    """Stack S outputs (n, C) into (n, S, C)."""
    outputs = list(runs)
    if outputs[0].ndim != 2:
        raise ValueError(f"the model must return logits (N, C), got shape {tuple(outputs[0].shape)}")
    return torch.stack(outputs, dim=1)


def _fix_masks(model: nn.Module, seed: int) -> list[Mask | AttentionDropout]:
    """Replace each dropout layer by a `Mask`, and disable the fused paths that would bypass the masks.

    Layers that cannot be masked are named in a warning: their dropout stays off, as in eval mode.
    """
    masks: dict[nn.Module, Mask | AttentionDropout] = {}
    off: list[str] = []
    for name, module in list(model.named_modules(remove_duplicate=False)):
        if name and (isinstance(module, (*ELEMENTWISE, *CHANNELWISE)) or is_path(module)):
            kinds = (*ELEMENTWISE, *CHANNELWISE, *((type(module),) if is_path(module) else ()))
            if not is_plain(module, kinds):
                if Mask(module, name, seed).rate > 0:
                    off.append(f"{name!r} ({type(module).__name__} with a custom forward or hooks)")
                continue
            parent, _, child = name.rpartition(".")
            mask = masks.setdefault(module, Mask(module, name, seed))
            setattr(model.get_submodule(parent), child, mask)
        elif module in masks:
            continue
        elif RecurrentDropout.fits(module):
            layered = RecurrentDropout(module, name, seed)
            module.forward, masks[module] = layered, layered.mask
        elif isinstance(module, nn.RNNBase) and module.dropout > 0 and module.num_layers > 1:
            off.append(f"{name!r} (between the layers of {type(module).__name__})")
        elif AttentionDropout.fits(module):
            masks[module] = module.forward = AttentionDropout(module, name, seed)
        elif isinstance(module, nn.TransformerEncoderLayer):
            module.activation_relu_or_gelu = 0
        elif isinstance(module, nn.TransformerEncoder):
            module.use_nested_tensor = False
    if not any(mask.rate > 0 for mask in masks.values()):
        found = f"; not supported: {', '.join(off)}" if off else ""
        raise ValueError(
            "the model must have dropout layers with a rate above 0, got none; add nn.Dropout, or use DeepEnsemble "
            f"(dropout called as a function is not a module and does not count){found}"
        )
    if off:
        warnings.warn(f"dropout stays off, as in eval mode, in: {', '.join(off)}", stacklevel=3)
    return list(masks.values())

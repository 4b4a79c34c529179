"""A posterior from plain functions that return class predictions of a batch under several draws."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, SupportsIndex

import numpy as np
import torch
from torch import Tensor, nn

from batchbalance.arguments.checks import as_tensor, check_whole, compute_dtype
from batchbalance.arguments.sections import MAX_DRAWS
from batchbalance.arguments.seeds import derived_seed
from batchbalance.errors import UnknownNameError
from batchbalance.posteriors.bootstrap import seeded
from batchbalance.posteriors.contract import Posterior
from batchbalance.posteriors.inputs import height, num_points, row_batches, take
from batchbalance.posteriors.outputs import OUTPUTS, network_of
from batchbalance.posteriors.training.calling import logits_in
from batchbalance.predictions import Predictions, as_nsc, check_classes, check_weights, looks_like_probs
from batchbalance.system.progress import Bar

SAME = 1e-3  # tolerance for probabilities of the same point in two calls


class FunctionPosterior(Posterior):
    """Functions as draws.

    A function takes a batch of n inputs and returns (n, S, C), or (n, C) for one draw; the draws of several functions
    are concatenated. Draw 7 must be the same hypothesis in every call. This is checked once: a part of the first
    batch is predicted twice.

    Args:
        functions: one function, or a list of them. They get batches of the inputs of `predict`: tensors, arrays,
            DataFrames, sparse matrices, lists of texts.
        outputs: what they return, "logits" (or log-probabilities) or "probs".
        multi_label: they return log-odds, or probabilities, of labels of which an input may have several, (n, S, L).
        name: the name of the draws, to distinguish them from those of another model; the names of the functions if
            omitted.
        classes: the C labels, in the order of the class axis.
        weights: (S,) draw weights that sum to 1; equal weights if omitted.
        embedding: returns the features (n, D) of a batch, for `embed`.
    """

    kind: ClassVar[str] = "function"

    def __init__(
        self,
        functions: Callable[[Any], Any] | Sequence[Callable[[Any], Any]],
        outputs: str = "logits",
        *,
        multi_label: bool = False,
        name: str | None = None,
        classes: Any = None,
        weights: Any = None,
        embedding: Callable[[Any], Any] | None = None,
    ) -> None:
        self._functions = [functions] if callable(functions) else list(functions)
        wrong = next((each for each in self._functions if not callable(each)), None)
        if not self._functions or wrong is not None:
            got = "an empty list" if wrong is None else repr(wrong)
            raise ValueError(f"`functions` must be a function or a list of functions, got {got}")
        if outputs not in OUTPUTS:
            raise UnknownNameError("kind of outputs", str(outputs), OUTPUTS)
        self._outputs, self._embedding = outputs, embedding
        if multi_label:
            self._values = "label-probs" if outputs == "probs" else "label-logits"
        self._name = name or "+".join(getattr(each, "__qualname__", type(each).__name__) for each in self._functions)
        self.classes = None if classes is None else list(check_classes(classes, len(classes)) or ())
        self.weights = weights
        self._num_draws: int | None = None

    @classmethod
    def from_sampler(
        cls,
        sample: Callable[[], Any] | None,
        model: Callable[[Any], Any],
        num_draws: SupportsIndex = 20,
        outputs: str = "logits",
        *,
        seed: SupportsIndex = 0,
        name: str | None = None,
        **options: Any,
    ) -> "FunctionPosterior":
        """Return draws of a model whose weights another library samples.

        A draw is fixed, passes over all inputs, and then the next one is taken. The random states of torch, NumPy and
        Python are set for each draw and restored afterwards, so that the same draw can be taken again. That is checked.

        Args:
            sample: fixes the weights of one draw: it changes `model` in place, or returns the function that predicts
                with them. None for a model that samples its weights at every call.
            model: returns (n, C) of a batch, or an object with `logits`. A network is in eval mode while it predicts.
            num_draws: S.
            outputs: as in ``FunctionPosterior``.
            seed: seed of the draws.
            name: as in ``FunctionPosterior``; the name of the model and the seed if omitted.
            **options: `multi_label`, `classes` and `embedding`, as in ``FunctionPosterior``.
        """
        return _Sampled(sample, network_of(model), num_draws, outputs, seed, name, options)

    @property
    def draw_ids(self) -> tuple[str, ...]:
        """The name and the number of each draw; known after the first prediction."""
        if self._num_draws is None:
            raise ValueError("the number of draws is not known yet; predict something first")
        return tuple(f"{self._name}-{draw}" for draw in range(self._num_draws))

    @classmethod
    def load(cls, directory: str | os.PathLike[str], network: Any = None) -> "Posterior":  # noqa: ARG003
        """Raise ValueError: functions are not saved."""
        raise ValueError(f"{directory} cannot be loaded: functions are not saved; make the posterior again from them")

    def _batches(self, inputs: Any, batch_size: int | None) -> Iterator[Any]:
        return row_batches(inputs, self.batch_size if batch_size is None else batch_size)

    def _logits(self, batch: Any) -> Tensor:
        logits = self._called(batch)
        if self._num_draws is None:
            start = height(batch) // 2
            again = self._probs(self._called(take(batch, slice(start, None))))
            before = self._probs(logits[start:])
            apart = (again - before).abs().max() if again.shape == before.shape else torch.inf
            if not apart <= SAME:
                raise ValueError(
                    "functions must predict a point the same in every call, because a draw is one hypothesis "
                    f"on all points, got probabilities that differ by {float(apart):.2g} in a second call; fix the "
                    "seed of each draw, and switch dropout and batch statistics off"
                )
            self.weights = check_weights(self.weights, logits.shape[1])
            self._num_draws = logits.shape[1]
        if logits.shape[1] != self._num_draws:
            raise ValueError(f"functions must return {self._num_draws} draws of every batch, got {logits.shape[1]}")
        if self.classes is not None and logits.shape[2] != len(self.classes):
            raise ValueError(f"functions must return the {len(self.classes)} `classes`, got {logits.shape[2]}")
        return logits

    def _probs(self, logits: Tensor) -> Tensor:
        """Return the probabilities that `_called` stands for."""
        if self._values == "label-probs":
            return logits
        return logits.sigmoid() if self._values == "label-logits" else logits.softmax(dim=-1)

    def _called(self, batch: Any) -> Tensor:
        """Return the logits of all functions, (n, S, C)."""
        num, found = height(batch), []
        for function in self._functions:
            given = as_tensor(function(batch), "the output of a function").cpu()
            of_labels = self._values != "log-probs"
            axes = ("nsl" if of_labels else "nsc") if given.ndim == 3 else "nl" if of_labels else "nc"
            given, _ = as_nsc(given.to(compute_dtype(given.dtype)), axes, of_labels=of_labels)
            if len(given) != num:
                raise ValueError(
                    f"functions must return one row for each of {num} inputs, got shape {tuple(given.shape)}"
                )
            if of_labels:
                found.append(given)
                continue
            is_probs = looks_like_probs(given)
            if is_probs != (self._outputs == "probs"):
                other = "probs" if is_probs else "logits"
                raise ValueError(
                    f"functions must return {self._outputs}, as in `outputs`, got {given[0, 0].tolist()}, which are "
                    f"{'non-negative and sum to 1' if is_probs else 'not a distribution'}; pass outputs={other!r}"
                )
            found.append(given.log() if is_probs else given)
        if len({given.shape[2] for given in found}) > 1:
            raise ValueError(f"functions must have the same classes, got {[given.shape[2] for given in found]} of them")
        return torch.cat(found, dim=1)

    def _hidden(self, batch: Any) -> Tensor:
        if self._embedding is None:
            raise ValueError("`embedding`, a function that returns the features of a batch, must be given for `embed`")
        return as_tensor(self._embedding(batch), "the output of `embedding`").flatten(1)

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        raise ValueError("functions cannot be saved; save their predictions, `posterior.predict(inputs).save(path)`")


class _Sampled(FunctionPosterior):
    """Draws of ``FunctionPosterior.from_sampler``: one function, whose draw changes."""

    def __init__(
        self,
        sample: Callable[[], Any] | None,
        model: Callable[[Any], Any],
        num_draws: SupportsIndex,
        outputs: str,
        seed: SupportsIndex,
        name: str | None,
        options: dict[str, Any],
    ) -> None:
        super().__init__(self._predicted, outputs, name=name or f"{type(model).__name__}-{seed}", **options)
        self._sample, self._model, self._seed = sample, model, check_whole("seed", seed, 0)
        self._total = check_whole("num_draws", num_draws, 1, MAX_DRAWS)
        self._draw_seed, self._fixed, self._is_checked = 0, model, False

    @property
    def draw_ids(self) -> tuple[str, ...]:
        return tuple(f"{self._name}-{draw}" for draw in range(self._total))

    def predict_and_embed(self, inputs: Any, **options: Any) -> tuple[Predictions, Tensor]:
        return self.predict(inputs, **options), self.embed(inputs, **options)

    def _take(self, draw: int) -> None:
        """Fix a draw."""
        self._draw_seed = derived_seed(self._seed, "sampler", draw) % 2**32
        with seeded(self._draw_seed):
            found = None if self._sample is None else self._sample()
        self._fixed = found if callable(found) else self._model
        self._num_draws = None  # so that the first batch is predicted twice

    def _predicted(self, batch: Any) -> Any:
        """Return the outputs of the current draw; a model that samples at every call gets the same weights again."""
        modules = list(self._fixed.modules()) if isinstance(self._fixed, nn.Module) else []
        before = [module.training for module in modules]
        try:
            for module in modules:
                module.training = False
            with seeded(self._draw_seed):
                found = self._fixed(batch)
        finally:
            for module, mode in zip(modules, before, strict=True):
                module.training = mode
        return found if isinstance(found, np.ndarray) else logits_in(found)

    def _chunks(
        self, inputs: Any, batch_size: int | None, bar: Bar, logits_of: Callable[[Any], Tensor]
    ) -> Iterator[Tensor]:
        if num_points(inputs) is None:
            raise ValueError("`inputs` must have a length, because every draw passes over them; pass a data set")
        parts = []
        for draw in range(self._total):
            self._take(draw)
            shown = bar if draw == self._total - 1 else Bar()
            parts.append(torch.cat(list(super()._chunks(inputs, batch_size, shown, logits_of))))
        if not self._is_checked:
            batch = next(self._batches(inputs, batch_size))
            self._take(0)
            again, first = self._logits(batch), parts[0][: height(batch)]
            same = torch.log_softmax(again, dim=-1) if self._values == "log-probs" else again
            if not torch.allclose(same.exp(), first.exp(), rtol=SAME, atol=SAME):
                raise ValueError(
                    "`sample` must fix the same weights again under the same random state, got other predictions of "
                    "draw 0 in a second call; let it draw from torch's, NumPy's or Python's global generator"
                )
            self._is_checked = True
        yield torch.cat(parts, dim=1)

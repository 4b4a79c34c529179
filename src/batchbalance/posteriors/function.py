"""A posterior from plain functions that return class predictions of a batch under several draws."""

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import torch
from torch import Tensor

from batchbalance.arguments.checks import as_tensor, compute_dtype
from batchbalance.errors import UnknownNameError
from batchbalance.posteriors.contract import Posterior
from batchbalance.posteriors.inputs import height, row_batches, take
from batchbalance.posteriors.outputs import OUTPUTS
from batchbalance.predictions import as_nsc, check_classes, check_weights, looks_like_probs

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
        self._name = name or "+".join(getattr(each, "__qualname__", type(each).__name__) for each in self._functions)
        self.classes = None if classes is None else list(check_classes(classes, len(classes)) or ())
        self.weights = weights
        self._num_draws: int | None = None

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
            again = self._called(take(batch, slice(start, None))).softmax(dim=-1)
            before = logits[start:].softmax(dim=-1)
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

    def _called(self, batch: Any) -> Tensor:
        """Return the logits of all functions, (n, S, C)."""
        num, found = height(batch), []
        for function in self._functions:
            given = as_tensor(function(batch), "the output of a function").cpu()
            given = as_nsc(given.to(compute_dtype(given.dtype)), "nsc" if given.ndim == 3 else "nc")[0]
            if len(given) != num:
                raise ValueError(
                    f"functions must return one row for each of {num} inputs, got shape {tuple(given.shape)}"
                )
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

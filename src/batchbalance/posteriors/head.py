"""A Bayesian head on frozen embeddings: a cheap posterior for features of a foundation model.

"bootstrap" is a softmax regression on rows that are centred with the pool and scaled to unit length, once for each
resample of the labels. Its bias follows the class frequencies as far as the labels determine them. "laplace" is that
regression once, and a Gaussian around its maximum, shrunk by a temperature: in an embedding, labels determine few
directions, and in all others the variance of the prior would dominate every prediction. Precision, bias and temperature
are chosen on the labels.

The packages laplace-torch and posteriors are not used. They do more than this and add dependencies. For a linear head
the Hessian is known in closed form, and draws must follow our seeds and be saved without pickle.
"""

import copy
import os
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from batchbalance.arguments.checks import as_tensor, check_real, check_whole, compute_dtype, unmasked
from batchbalance.arguments.sections import MAX_DRAWS, NumDraws
from batchbalance.batches.distances import directions
from batchbalance.errors import UnknownNameError
from batchbalance.posteriors.contract import Posterior
from batchbalance.posteriors.kinds import FitContext, Fitted, PosteriorOptions
from batchbalance.posteriors.linear import bootstrap_draws, laplace_draws, linear_logits, refitted
from batchbalance.posteriors.saved import fingerprint, read_saved, refuse_network
from batchbalance.posteriors.training.fitting import Labelled, check_labelled, check_several, label_matrix
from batchbalance.posteriors.tuning import NUM_FOLDS, Tuned
from batchbalance.system.threads import for_work

METHODS = ("bootstrap", "laplace")
BLOCK = 4096  # rows of the pool read at a time
STEPS = 20.0  # factor for the cost of a pass, which is one matrix product


class BayesianHead(Posterior):
    """Draws of a classifier on embeddings.

    Args:
        method: "bootstrap" or "laplace".
        num_draws: S.
        prior_precision: of the Gaussian prior on the weights; chosen on the labels if omitted.
        temperature: factor of the covariance (laplace); chosen on the labels if omitted.
        bias: width of the prior of the bias, relative to that of the weights; chosen on the labels if omitted. 0 for no
            bias: every class is then equally likely at the centre of the pool.
        seed: for the draws and for cross-validation.

    Attributes:
        classes: the labels in the order of the class axis, if they were not numbers; else None.
        tuned: precision, temperature and their cross-validation results; None before a fit.
        covariance: "exact", or "kronecker" for large heads (laplace); else None.
        never_seen: of several labels, those that no row of the fit has. They get the probability of a rare label.
        always_seen: those that every row of the fit has.
    """

    kind: ClassVar[str] = "bayesian-head"

    def __init__(
        self,
        method: str = "bootstrap",
        num_draws: int = 100,
        *,
        prior_precision: float | None = None,
        temperature: float | None = None,
        bias: float | None = None,
        seed: int = 0,
    ) -> None:
        if method not in METHODS:
            raise UnknownNameError("head", method, METHODS)
        if temperature is not None and method != "laplace":
            raise ValueError(f"`temperature` is not used by method {method!r}; omit it")
        self._options: dict[str, Any] = {
            "method": method,
            "num_draws": check_whole("num_draws", num_draws, 1, MAX_DRAWS),
            "prior_precision": prior_precision,
            "temperature": temperature,
            "bias": bias,
            "seed": seed,
        }
        for name in ("prior_precision", "temperature", "bias"):
            if self._options[name] is not None:
                self._options[name] = check_real(name, self._options[name], above=name != "bias")
        self._tensors: dict[str, Tensor] = {}  # `mean`, `best` (D + 1, C) and `draws` (D + 1, S, C)
        self.classes: list[Any] | None = None
        self.tuned: Tuned | None = None
        self.covariance: str | None = None
        self.never_seen: list[Any] = []
        self.always_seen: list[Any] = []

    def __repr__(self) -> str:
        parts = [f"{type(self).__name__}({self._options['method']!r}, {self._options['num_draws']} draws"]
        parts += [] if self.tuned is None else [str(self.tuned)]
        parts += [] if self.covariance is None else [f"{self.covariance} covariance"]
        for which, names in (("never", self.never_seen), ("always", self.always_seen)):
            parts += [f"{len(names)} labels were {which} seen"] if names else []
        return "; ".join(parts) + ")"

    @property
    def most_probable(self) -> "BayesianHead":
        """A head with one draw at the most probable weights, for predictions to report."""
        self._check_fitted()
        return self._single(self._tensors["best"])

    def fit(
        self,
        embeddings: Any,
        labels: Any,
        *,
        num_classes: int | None = None,
        classes: Sequence[Any] | None = None,
        unlabelled: Any = None,
    ) -> "BayesianHead":
        """Fit the head.

        Args:
            embeddings: (N, D) features, a tensor or an array.
            labels: (N,) classes: whole numbers from 0, or texts. For items that may have several labels, or none,
                (N, L) of 0 and 1, one column for each label.
            num_classes: C, if labels are numbers; one more than the largest if omitted.
            classes: all possible labels, in the order of the class axis; if omitted and labels are texts, the sorted
                distinct labels. Names of the columns for several labels.
            unlabelled: (U, D) features of the pool. They and the labelled ones determine the centre.
        """
        given = as_embeddings("embeddings", embeddings)
        x = given.to(compute_dtype(given.dtype))
        codes, self.classes, num_classes = _encoded(labels, num_classes, classes)
        codes = codes.to(x.device)
        check_labelled("embeddings", "labels", x, codes, num_classes)
        self._read_kinds(codes)
        num_classes = num_classes if codes.ndim == 1 else 2
        pool = [x] if unlabelled is None else [x, as_embeddings("unlabelled", unlabelled, x)]
        mean = mean_of(pool)
        rows = directions(x, mean)
        options = self._options
        wanted = {"seed": options["seed"], "precision": options["prior_precision"], "bias": options["bias"]}
        regressions = NUM_FOLDS if options["method"] == "laplace" else options["num_draws"]
        with for_work(STEPS * min(x.shape) * codes.numel() * num_classes * regressions):
            if options["method"] == "laplace":
                temperature = options["temperature"]
                found = laplace_draws(rows, codes, num_classes, options["num_draws"], temperature=temperature, **wanted)
            else:
                found = bootstrap_draws(rows, codes, num_classes, options["num_draws"], **wanted)
        self.tuned, self.covariance = found.tuned, found.covariance
        self._hold({"mean": mean, "best": found.best, "draws": found.draws})
        return self

    def _read_kinds(self, codes: Tensor) -> None:
        """Note whether rows have several labels, and which of them were never or always seen."""
        several = codes.ndim == 2
        self._values = "label-logits" if several else "log-probs"
        names = self.classes or list(range(codes.shape[-1]))
        seen = codes.sum(dim=0).tolist() if several else []
        self.never_seen = [name for name, count in zip(names, seen, strict=False) if count == 0]
        self.always_seen = [name for name, count in zip(names, seen, strict=False) if count == len(codes)]

    def refitted(self, embeddings: Any, labels: Any) -> "BayesianHead":
        """Return one draw at the most probable weights given other labels, with the centre and prior of this head.

        Args:
            embeddings: (N, D) features.
            labels: (N,) classes as whole numbers, among those of this head; (N, L) of 0 and 1 for several labels.
        """
        x = self._rows(as_embeddings("embeddings", embeddings))
        codes = as_tensor(labels, "`labels`").to(x.device)
        assert self.tuned is not None  # after a fit
        several = self._values == "label-logits"
        check_several(codes, several)
        return self._single(refitted(x, codes, 2 if several else self._tensors["best"].shape[1], self.tuned))

    def _single(self, weights: Tensor) -> "BayesianHead":
        """Return a head of one draw, at (D + 1, C) weights."""
        single = copy.copy(self)
        single._options = {**self._options, "num_draws": 1}
        single._hold({**self._tensors, "best": weights, "draws": weights[:, None]})
        return single

    @classmethod
    def load(cls, directory: str | os.PathLike[str], network: Any = None) -> "BayesianHead":
        """Read a saved head; `network` must be None."""
        refuse_network(network, cls.kind)
        tensors, options = read_saved(directory, cls.kind)
        facts = options.pop("fitted")
        loaded = cls(**options)
        loaded.classes, loaded.covariance, loaded.tuned = facts["classes"], facts["covariance"], Tuned(**facts["tuned"])
        loaded._values, loaded.never_seen, loaded.always_seen = (
            facts[k] for k in ("values", "never_seen", "always_seen")
        )
        loaded._hold(tensors)
        return loaded

    def _hold(self, tensors: dict[str, Tensor]) -> None:
        """Store the tensors of the draws, and name the draws by a hash of them."""
        self._tensors = tensors
        digest = fingerprint(tensors, self.kind)
        self._draw_ids = tuple(f"{digest}-{draw}" for draw in range(tensors["draws"].shape[1]))

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        self._check_fitted()
        assert self.tuned is not None
        facts = {"classes": self.classes, "covariance": self.covariance, "tuned": asdict(self.tuned)}
        facts |= {"values": self._values, "never_seen": self.never_seen, "always_seen": self.always_seen}
        return self._tensors, {**self._options, "fitted": facts}

    def _logits(self, batch: Tensor) -> Tensor:
        return linear_logits(self._rows(batch), self._tensors["draws"])

    def _pass_flops(self, batch: Any) -> float:
        self._check_fitted()
        return 2.0 * self._tensors["draws"].numel() * len(batch)

    def _hidden(self, batch: Tensor) -> Tensor:
        return batch

    def _rows(self, batch: Tensor) -> Tensor:
        """Return the rows that the head is computed on, which have unit length."""
        self._check_fitted()
        mean = self._tensors["mean"]
        if batch.shape[1:] != mean.shape or batch.is_complex():
            raise ValueError(
                f"`inputs` must be (N, {len(mean)}) like the embeddings of the fit, "
                f"got {tuple(batch.shape)} {batch.dtype}"
            )
        return directions(batch.to(mean), mean)


class HeadOptions(PosteriorOptions):
    """A Bayesian classifier on the inputs, for example embeddings of a pretrained network.

    Attributes:
        method: see `BayesianHead`.
        num_draws: S.
        prior_precision: of the Gaussian prior; chosen on the labels if omitted.
        temperature: of the draws (laplace); chosen on the labels if omitted.
        bias: width of the prior of the bias, relative to the weights; chosen on the labels if omitted.
    """

    flat_inputs: ClassVar[bool] = True
    uses_unlabelled: ClassVar[bool] = True

    kind: str = "bayesian-head"
    method: Literal["bootstrap", "laplace"] = "bootstrap"
    num_draws: NumDraws = 100
    prior_precision: Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)] | None = None
    temperature: Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)] | None = None
    bias: Annotated[float, Field(ge=0, strict=True, allow_inf_nan=False)] | None = None

    def fit(self, inputs: Tensor, labels: Tensor, context: FitContext) -> Fitted:
        """Fit the head; ε is the error of the most probable weights."""
        head = BayesianHead(**self.model_dump(exclude={"kind"}), seed=context.seed)
        head.fit(inputs, labels, num_classes=context.num_classes, unlabelled=context.unlabelled)
        fitted = self.fitted(head, context)
        error = None if head.tuned is None else head.tuned.error
        return fitted if error is None else replace(fitted, cross_validation=lambda: error)

    def error(self, posterior: Posterior, labelled: Labelled) -> float:
        """Return the error of the most probable weights."""
        return super().error(self.for_metrics(posterior), labelled)

    def for_metrics(self, posterior: Posterior) -> Posterior:
        """Return the most probable weights, for predictions to report."""
        return posterior.most_probable if isinstance(posterior, BayesianHead) else posterior


def as_embeddings(name: str, given: Any, like: Tensor | None = None) -> Tensor:
    """Return (N, D) features as a tensor that shares their memory, with as many features as `like`."""
    tensor = as_tensor(given, f"`{name}`")
    wanted = "D" if like is None else str(like.shape[1])
    if tensor.ndim != 2 or (like is not None and tensor.shape[1] != like.shape[1]):
        raise ValueError(f"`{name}` must be (N, {wanted}) floats, got {tuple(tensor.shape)} {tensor.dtype}")
    return tensor


def mean_of(parts: Sequence[Tensor]) -> Tensor:
    """Return the mean of all rows, (D,), read block by block."""
    total = torch.zeros(parts[0].shape[1], dtype=torch.float64)
    for part in parts:
        for block in torch.split(part, BLOCK):
            total += block.sum(dim=0, dtype=torch.float64).cpu()
    mean = (total / sum(map(len, parts))).to(parts[0])
    if not bool(torch.isfinite(mean).all()):
        raise ValueError("`unlabelled` must be finite, got NaN or infinity; drop or fill those rows")
    return mean


def _encoded(
    labels: Any, num_classes: int | None, classes: Sequence[Any] | None
) -> tuple[Tensor, list[Any] | None, int]:
    """Return the class numbers of labels, the names of the classes if they have any, and C; L for several labels."""
    array = labels.cpu().numpy() if isinstance(labels, Tensor) else np.asarray(unmasked("`labels`", labels))
    if array.ndim == 2:
        codes, names = label_matrix("`labels`", array), None if classes is None else list(classes)
        if names is not None and (len(set(names)) < len(names) or len(names) != codes.shape[1]):
            raise ValueError(f"`classes` must be {codes.shape[1]} distinct names, one for each column, got {names}")
        return codes, names, codes.shape[1]
    if array.ndim != 1 or array.dtype.kind not in "iuUO":
        raise ValueError(f"`labels` must be (N,) whole numbers or texts, got shape {array.shape}, {array.dtype}")
    listed = None
    if classes is None and array.dtype.kind in "iu":
        num_classes = num_classes or (int(array.max()) + 1 if len(array) else 0)
        codes = torch.from_numpy(array.astype(np.int64))
    else:
        listed = sorted(set(array.tolist())) if classes is None else list(classes)
        position = {name: index for index, name in enumerate(listed)}
        if len(position) < len(listed) or num_classes not in (None, len(listed)):
            raise ValueError(f"`classes` must be distinct, and as many as `num_classes` if that is given, got {listed}")
        unknown = next((name for name in array.tolist() if name not in position), None)
        if unknown is not None:
            raise ValueError(f"`labels` must be among `classes`, got {unknown!r}")
        num_classes, codes = len(listed), torch.tensor([position[name] for name in array.tolist()], dtype=torch.long)
    if num_classes < 2:
        seen = f"only {array.tolist()[0]!r}" if len(array) else "no label"
        raise ValueError(f"`labels` must be of at least two classes, got {seen}; name the others in `classes`")
    return codes, listed, num_classes

"""A Bayesian head on frozen embeddings: the cheap posterior for features of a foundation model.

"laplace" is a softmax regression with a Gaussian prior and a Gaussian around its maximum (MacKay 1992); the curvature
is exact up to `FULL_CURVATURE` weights and a Kronecker product (Ritter et al. 2018) above. "dropout" is a small MLP
with MC dropout. Embeddings are standardised first.

laplace-torch and posteriors do more than this and bring their own dependencies; for a linear head the Hessian is known
in closed form, and draws have to be tied to our seeds and saved without pickle, so neither is used.
"""

import os
from functools import partial
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float, Int
from pydantic import Field
from torch import Tensor

from batchbalance.checks import check_whole
from batchbalance.errors import UnknownNameError
from batchbalance.networks import tabular_mlp
from batchbalance.posteriors.contract import Posterior, fingerprint, load_weights, read_saved
from batchbalance.posteriors.kinds import FitContext, Fitted, PosteriorOptions
from batchbalance.posteriors.mc_dropout import MCDropout
from batchbalance.sections import NumDraws, Whole
from batchbalance.seeds import generator
from batchbalance.training import Kept, Labelled, Recipe, check_labelled, fit

METHODS = ("laplace", "dropout")

FULL_CURVATURE = 2048  # weights; the exact Hessian of so many takes 32 MiB


class BayesianHead(Posterior):
    """Draws of a classifier on embeddings.

    Args:
        method: "laplace", or "dropout" for an MLP.
        num_draws: S.
        prior_precision: of the Gaussian prior on the weights (laplace).
        hidden: units of the MLP's hidden layers (dropout).
        dropout: rate of the MLP (dropout).
        recipe: how the MLP is trained (dropout).
        seed: for the draws, and for training the MLP.

    Attributes:
        kept: which weights of the MLP were kept; empty before a fit, without an MLP, or of a head that was loaded.
    """

    kind: ClassVar[str] = "bayesian-head"

    def __init__(
        self,
        method: str = "laplace",
        num_draws: int = 100,
        *,
        prior_precision: float = 1.0,
        hidden: tuple[int, ...] = (128,),
        dropout: float = 0.5,
        recipe: Recipe | None = None,
        seed: int = 0,
    ) -> None:
        if method not in METHODS:
            raise UnknownNameError("head", method, METHODS)
        check_whole("num_draws", num_draws)
        if not 0 < prior_precision < float("inf"):
            raise ValueError(f"`prior_precision` must be above 0, got {prior_precision}")
        self._options: dict[str, Any] = {
            "method": method,
            "num_draws": num_draws,
            "prior_precision": prior_precision,
            "hidden": list(hidden),
            "dropout": dropout,
            "seed": seed,
        }
        self._recipe = recipe
        self.kept: tuple[Kept, ...] = ()
        self._standard: tuple[Tensor, Tensor] | None = None  # mean and standard deviation, (D,) each
        self._heads: Tensor | MCDropout | None = None  # (S, D + 1, C), the last row is the bias; or the MLP

    @property
    def draw_ids(self) -> tuple[str, ...]:
        """Names made of the weights and the number of the draw."""
        _, _, heads = self._fitted()
        if isinstance(heads, MCDropout):
            return heads.draw_ids
        digest = fingerprint({"heads": heads}, self.kind)
        return tuple(f"{digest}-{draw}" for draw in range(len(heads)))

    def fit(
        self, embeddings: Tensor, labels: Tensor, *, num_classes: int, validation: Labelled | None = None
    ) -> "BayesianHead":
        """Fit the head.

        Args:
            embeddings: (N, D) features, float32 or float64.
            labels: (N,) classes, int64.
            num_classes: C.
            validation: embeddings and labels for early stopping (dropout only).
        """
        check_labelled("embeddings", "labels", embeddings, labels, num_classes)
        if embeddings.ndim != 2 or not embeddings.is_floating_point():
            raise ValueError(f"`embeddings` must be (N, D) floats, got {tuple(embeddings.shape)} {embeddings.dtype}")
        mean, std = embeddings.mean(dim=0), embeddings.std(dim=0, correction=0)
        std = torch.where(std > 0, std, 1.0)
        x = (embeddings - mean) / std
        options = self._options
        if options["method"] == "laplace":
            random = generator(options["seed"], "laplace")
            precision = options["prior_precision"]
            heads: Tensor | MCDropout = laplace_draws(
                x.double(), labels, num_classes, options["num_draws"], precision, generator=random
            ).to(embeddings.dtype)
        else:
            if validation is not None:
                validation = ((validation[0] - mean) / std, validation[1])
            build = self._mlp(x.shape[1], num_classes, x.dtype)
            trained = fit(
                build, x, labels, self._recipe, num_classes=num_classes, validation=validation, seed=options["seed"]
            )
            heads = MCDropout(trained.model, options["num_draws"], options["seed"])
            self.kept = (trained.kept,)
        self._standard, self._heads = (mean, std), heads
        return self

    @classmethod
    def loaded(cls, directory: str | os.PathLike[str], network: Any) -> "Posterior":
        """Read what ``save`` wrote; there is no network to give."""
        if network is not None:
            raise ValueError(f"`network` is not used by posteriors of kind {cls.kind!r}; leave it out")
        return cls.load(directory)

    @classmethod
    def load(cls, directory: str | os.PathLike[str]) -> "BayesianHead":
        """Read what ``save`` wrote."""
        tensors, options = read_saved(directory, cls.kind)
        num_classes = options.pop("num_classes")
        loaded = cls(**{**options, "hidden": tuple(options["hidden"])})
        mean, std = tensors.pop("standard/mean"), tensors.pop("standard/std")
        loaded._standard = (mean, std)
        if options["method"] == "laplace":
            loaded._heads = tensors["heads"]
        else:
            model = loaded._mlp(len(mean), num_classes, mean.dtype)()
            load_weights(model, tensors, directory)
            loaded._heads = MCDropout(model, options["num_draws"], options["seed"])
        return loaded

    def _mlp(self, num_features: int, num_classes: int, dtype: torch.dtype) -> partial[Any]:
        hidden, dropout = self._options["hidden"], self._options["dropout"]
        return partial(_typed_mlp, num_classes, num_features, hidden, dropout, dtype)

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        mean, std, heads = self._fitted()
        if isinstance(heads, MCDropout):
            tensors, _ = heads._state()
            num_classes = len(tensors["head.bias"])
        else:
            tensors, num_classes = {"heads": heads}, heads.shape[2]
        return {**tensors, "standard/mean": mean, "standard/std": std}, {**self._options, "num_classes": num_classes}

    def _logits(self, batch: Tensor) -> Tensor:
        mean, std, heads = self._fitted()
        if batch.dtype != mean.dtype or batch.shape[1:] != mean.shape:
            raise ValueError(
                f"`inputs` must be (N, {len(mean)}) {mean.dtype} like the embeddings of the fit, "
                f"got {tuple(batch.shape)} {batch.dtype}"
            )
        x = (batch - mean) / std
        if isinstance(heads, MCDropout):
            return heads._logits(x)
        return torch.einsum("nd,sdc->nsc", x, heads[:, :-1]) + heads[:, -1]

    def _pass_flops(self, batch: Tensor) -> float:
        _, _, heads = self._fitted()
        return heads._pass_flops(batch) if isinstance(heads, MCDropout) else 2.0 * heads.numel() * len(batch)

    def _hidden(self, batch: Tensor) -> Tensor:
        mean, std, heads = self._fitted()
        return heads._hidden((batch - mean) / std) if isinstance(heads, MCDropout) else batch

    def _hidden_of_draws(self, batch: Tensor) -> Tensor:
        mean, std, heads = self._fitted()
        if isinstance(heads, MCDropout):
            return heads._hidden_of_draws((batch - mean) / std)
        return super()._hidden_of_draws(batch)

    def _fitted(self) -> tuple[Tensor, Tensor, Tensor | MCDropout]:
        if self._standard is None or self._heads is None:
            raise ValueError("BayesianHead must be fitted first, got one without draws; call `fit`")
        return *self._standard, self._heads


class HeadOptions(PosteriorOptions):
    """A Bayesian classifier on the inputs as they are, embeddings of a pretrained network say.

    Attributes:
        method: as the others, see `BayesianHead`.
        num_draws: S.
        prior_precision: of the Gaussian prior (laplace).
        hidden: units of the hidden layers (dropout).
        dropout: rate of the MLP (dropout).
    """

    flat_inputs: ClassVar[bool] = True

    kind: str = "bayesian-head"
    method: Literal["laplace", "dropout"] = "laplace"
    num_draws: NumDraws = 100
    prior_precision: Annotated[float, Field(gt=0, strict=True, allow_inf_nan=False)] = 1.0
    hidden: tuple[Whole, ...] = (128,)
    dropout: Annotated[float, Field(ge=0, lt=1, strict=True)] = 0.5

    @property
    def uses_recipe(self) -> bool:
        """Whether the head is an MLP."""
        return self.method == "dropout"

    def fit(self, inputs: Tensor, labels: Tensor, context: FitContext) -> Fitted:
        """Fit the head; ε is the error of the mean prediction."""
        head = BayesianHead(
            self.method,
            self.num_draws,
            prior_precision=self.prior_precision,
            hidden=self.hidden,
            dropout=self.dropout,
            recipe=context.recipe,
            seed=context.seed,
        )
        head.fit(inputs, labels, num_classes=context.num_classes, validation=context.validation)
        return self.fitted(head, context, head.kept)


def laplace_draws(
    x: Float[Tensor, "N D"],
    labels: Int[Tensor, " N"],
    num_classes: int,
    num_draws: int,
    prior_precision: float,
    *,
    generator: torch.Generator,
) -> Float[Tensor, "S D1 C"]:
    """Draws from the Laplace approximation of a softmax regression; the last of the D + 1 rows is the bias."""
    x = torch.cat([x, x.new_ones(len(x), 1)], dim=1)
    best = _most_probable(x, labels, num_classes, prior_precision)
    noise = torch.randn((num_draws, *best.shape), generator=generator, dtype=x.dtype)
    probs = torch.softmax(x @ best, dim=-1)
    if best.numel() <= FULL_CURVATURE:
        precision = _curvature(x, probs) + prior_precision * torch.eye(best.numel(), dtype=x.dtype)
        factor = torch.linalg.cholesky(precision)
        steps: Tensor = torch.linalg.solve_triangular(factor.T, noise.flatten(1).T, upper=True).T
        return best + steps.reshape(noise.shape)
    inputs_eigen, inputs_basis = torch.linalg.eigh(x.T @ x)
    spread_eigen, spread_basis = torch.linalg.eigh(probs.mean(dim=0).diag() - probs.T @ probs / len(probs))
    curvature = inputs_eigen.clamp_min(0)[:, None] * spread_eigen.clamp_min(0)
    steps = inputs_basis @ (noise / (curvature + prior_precision).sqrt()) @ spread_basis.T
    return best + steps


def _curvature(x: Tensor, probs: Tensor) -> Tensor:
    """The Hessian of the summed loss, a square matrix over the (D + 1)·C weights: Σ_n x xᵀ ⊗ (diag p − p pᵀ)."""
    num_inputs, num_classes = x.shape[1], probs.shape[1]
    hessian = x.new_empty(num_inputs, num_classes, num_inputs, num_classes)
    for c, unit in enumerate(torch.eye(num_classes, dtype=x.dtype)):
        spread = probs[:, c, None] * (unit - probs)  # (N, C)
        hessian[:, c] = (x.T @ (x[:, :, None] * spread[:, None, :]).flatten(1)).reshape(num_inputs, num_inputs, -1)
    return hessian.reshape(num_inputs * num_classes, -1)


def _most_probable(x: Tensor, labels: Tensor, num_classes: int, prior_precision: float) -> Tensor:
    """The (D + 1, C) weights that maximise the posterior density."""
    weights = torch.zeros(x.shape[1], num_classes, dtype=x.dtype, requires_grad=True)
    optimizer = torch.optim.LBFGS(
        [weights], max_iter=500, tolerance_grad=1e-8, tolerance_change=1e-12, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(x @ weights, labels, reduction="sum")
        loss = loss + prior_precision / 2 * weights.square().sum()
        loss.backward()
        return loss

    with torch.enable_grad():
        optimizer.step(closure)
    return weights.detach()


def _typed_mlp(num_classes: int, num_features: int, hidden: list[int], dropout: float, dtype: torch.dtype) -> Any:
    return tabular_mlp(num_classes, (num_features,), hidden=hidden, dropout=dropout).to(dtype)

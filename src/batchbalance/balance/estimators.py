"""The estimators of Δ in the paper's text, kept for comparison with the closed form.

The code behind the paper's figures samples differently, see docs/paper.md.

Both score a candidate x given a batch A of b − 1 points through label configurations ŷ of A: all C^(b−1) of them
(appendix, "Efficient implementation for greedy selection"), or M samples with importance weights (eq. 6).
With L_jm and Λ_jm the products over A of the likelihoods and of the likelihood ratios λ of configuration m,

    Δ(A ∪ x) ≈ Σ_m u_m Σ_y [Σ_j w_j L_jm p_j(y | x)] · Σ_k v_k (1 − Λ_am Λ_bm λ_a(y) λ_b(y))

where u_m = 1 for enumeration and 1 / (M · Σ_j w_j L_jm) for samples of p(ŷ).
The closed form is the exact value of both.
"""

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.balance.closed_form import BalanceModel
from batchbalance.predictions import Predictions, spans_of

MAX_CONFIGURATIONS = 1_000_000
ENUMERATE_BELOW = 4  # the paper enumerates for b < 4
CHUNK_NUMBERS = 2**24  # points × classes × configurations in memory at a time


def check_enumerable(num_answers: int, batch_size: int) -> None:
    """Raise if the last pick of a batch would need too many configurations of the points before it."""
    if num_answers ** (batch_size - 1) > MAX_CONFIGURATIONS:
        raise ValueError(
            f"enumeration must stay within {MAX_CONFIGURATIONS:,} label configurations, got "
            f"{num_answers}^{batch_size - 1}; use 'greedy-balance', exact at any size"
        )


def estimator_bytes(predictions: Predictions, num_configurations: int) -> int:
    """Return the memory of the estimator besides the predictions: its tables of draws, and one block."""
    tables = 6 * predictions.num_draws * num_configurations
    block = 4 * max(CHUNK_NUMBERS, predictions.num_answers * min(num_configurations, CHUNK_NUMBERS))
    return (tables + block) * predictions.dtype.itemsize


class ConfigurationEstimator:
    """Estimator of Δ of a growing batch plus one point, by label configurations.

    Args:
        model: predictions and edges.
        num_samples: M; None always enumerates every configuration.
        generator: for the sampled configurations.
        dtype: precision of the estimate; the predictions' if omitted.
    """

    def __init__(
        self,
        model: BalanceModel,
        *,
        num_samples: int | None,
        generator: torch.Generator,
        dtype: torch.dtype | None = None,
    ):
        self.model = model
        self.num_samples = num_samples
        self.generator = generator
        self.dtype = dtype or model.predictions.dtype
        self.chosen: list[int] = []
        self._sampled_draws: Tensor | None = None
        empty = torch.zeros(model.predictions.num_draws, 1, dtype=self.dtype, device=model.device)
        self.log_likelihoods = empty  # (S, M)
        self.log_ratios = empty  # (S, M)

    def add(self, index: int) -> None:
        """Add a point to the batch: extend every configuration by its label."""
        self.chosen.append(index)
        if self.num_samples is None or len(self.chosen) + 1 < ENUMERATE_BELOW:
            self._extend_enumerated(index)
            return
        pending = [index]
        if self._sampled_draws is None:
            # One draw per configuration, and all labels of the configuration from that draw: a sample of p(ŷ).
            self._sampled_draws = torch.multinomial(
                self.model.predictions.draw_weights, self.num_samples, replacement=True, generator=self.generator
            )
            num_draws = self.model.predictions.num_draws
            self.log_likelihoods = torch.zeros(num_draws, self.num_samples, dtype=self.dtype, device=self.model.device)
            self.log_ratios = self.log_likelihoods
            pending = self.chosen
        for earlier in pending:
            self._extend_sampled(earlier, self._sampled_draws)

    def _point(self, index: int) -> tuple[Float[Tensor, "S C"], Float[Tensor, "S C"]]:
        log_probs, ratios = self.model.answers(torch.tensor([index]), self.dtype)
        return log_probs[0].T, ratios[0].T

    def _extend_enumerated(self, index: int) -> None:
        log_probs, ratios = self._point(index)
        self.log_likelihoods = (self.log_likelihoods.unsqueeze(2) + log_probs.unsqueeze(1)).flatten(start_dim=1)
        self.log_ratios = (self.log_ratios.unsqueeze(2) + ratios.unsqueeze(1)).flatten(start_dim=1)

    def _extend_sampled(self, index: int, sampled_draws: Int[Tensor, " M"]) -> None:
        log_probs, ratios = self._point(index)
        labels = torch.multinomial(log_probs.exp().cpu()[sampled_draws], 1, generator=self.generator).flatten()
        labels = labels.to(self.model.device)
        self.log_likelihoods = self.log_likelihoods + log_probs[:, labels]
        self.log_ratios = self.log_ratios + ratios[:, labels]

    def scores(self, indices: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Return the estimate of Δ(A ∪ x) for each candidate x."""
        model = self.model
        draw_weights = model.draw_weights.to(self.dtype).unsqueeze(1)
        likelihoods = self.log_likelihoods.exp() * draw_weights  # (S, M)
        if self._sampled_draws is not None:
            # Shifted in log space: all likelihoods of a configuration may underflow, but their ratios do not.
            logs = self.log_likelihoods + draw_weights.log()
            likelihoods = torch.softmax(logs, dim=0) / logs.shape[1]
        ends = model.edges.ends.to(model.device)
        edge_weights = model.edge_weights.to(self.dtype).unsqueeze(1)
        survival = (self.log_ratios[ends[:, 0]] + self.log_ratios[ends[:, 1]]).exp() * edge_weights  # (E, M)
        total = edge_weights.sum()
        configurations = spans_of(likelihoods.shape[1], CHUNK_NUMBERS // model.predictions.num_answers)
        step = CHUNK_NUMBERS // (model.predictions.num_answers * min(likelihoods.shape[1], CHUNK_NUMBERS))
        out = torch.zeros(len(indices), dtype=self.dtype, device=model.device)
        for span in spans_of(len(indices), step):
            log_probs, ratios = model.answers(indices[span], self.dtype)  # (n, C, S)
            kept = (ratios.index_select(2, ends[:, 0]) + ratios.index_select(2, ends[:, 1])).exp()  # (n, C, E)
            probs = log_probs.exp()
            for part in configurations:
                weights = probs @ likelihoods[:, part]  # (n, C, m)
                out[span] += (weights * (total - kept @ survival[:, part])).sum(dim=(1, 2))
        return out.cpu()

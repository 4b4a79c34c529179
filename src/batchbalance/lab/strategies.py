"""Strategies for reproductions of the paper, available by name in configs and experiments but not in `select`.

The released scripts of the paper estimate Δ, and the information of BatchBALD, from M sampled label configurations ŷ of
the points already chosen. They draw each label independently from the mean prediction of its point, so ŷ is a sample of
Π_i p(ŷ_i). But they weight it by p(ŷ | ω_j) / Σ_j w_j p(ŷ | ω_j), which is correct only for samples of the joint p(ŷ).
With one chosen point the two are equal; from the third pick on the estimate is biased. `ReleasedBalance` and
`ReleasedBatchBald` are written from this description.

With U_jm the weight of draw j given configuration m and V_km the survival of edge k, the estimate of Δ(A ∪ x) is

    Σ_k v_k − Σ_y Σ_jk p_j(y | x) λ_a(y) λ_b(y) · (1/M) Σ_m U_jm V_km

so the configurations enter through one (S, E) matrix, and the cost of a point does not depend on their number.
"""

from typing import Any, ClassVar

import torch
from jaxtyping import Float, Int
from pydantic import PositiveInt
from torch import Tensor

from batchbalance.arguments.registry import Registry
from batchbalance.balance.closed_form import BalanceModel, log_ratios
from batchbalance.batches.batch_bald import FIRST_BLOCK, MERGED, Configurations
from batchbalance.predictions import Predictions, spans_of
from batchbalance.scores import entropies
from batchbalance.scores.ranking import LazyBounds
from batchbalance.strategies import OWN, STRATEGIES, Strategy
from batchbalance.strategies.connected import BalanceStrategy, GreedyBalance
from batchbalance.strategies.contract import Choice
from batchbalance.strategies.pool import Pool

CHUNK_NUMBERS = 2**22  # numbers (points × classes × draws) in memory at a time


class MarginalConfigurations:
    """M label configurations of a growing batch, each label drawn from the mean prediction of its own point.

    Attributes:
        log_likelihoods: (S, M) log p(ŷ_m | ω_j), float64.
    """

    def __init__(self, predictions: Predictions, num_samples: int, generator: torch.Generator) -> None:
        self.draw_weights = predictions.draw_weights
        self.log_likelihoods = torch.zeros(predictions.num_draws, num_samples, dtype=torch.float64)
        self._generator = generator

    def extend(self, log_probs: Float[Tensor, "S C"]) -> Int[Tensor, " M"]:
        """Draw the labels of one more point and return them."""
        mean = self.draw_weights @ log_probs.exp()
        num_samples = self.log_likelihoods.shape[1]
        labels = torch.multinomial(mean, num_samples, replacement=True, generator=self._generator)
        self.log_likelihoods = self.log_likelihoods + log_probs[:, labels]
        return labels

    @property
    def posteriors(self) -> Float[Tensor, "S M"]:
        """U: the weights of the draws given each configuration."""
        return torch.softmax(self.log_likelihoods + self.draw_weights.log().unsqueeze(1), dim=0)


class ReleasedEstimator:
    """Δ of a growing batch plus one point: exact for the first picks, then as the released scripts estimate it.

    Args:
        model: predictions and edges.
        exact: the number of picks for which all label configurations are enumerated.
        num_samples: M, the sampled configurations after that.
        generator: the generator for sampling them.
    """

    def __init__(self, model: BalanceModel, *, exact: int, num_samples: int, generator: torch.Generator) -> None:
        self._model, self._exact = model, exact
        self._ends = model.edges.ends
        self._configurations = MarginalConfigurations(model.predictions, num_samples, generator)
        self._log_survival = torch.zeros(len(self._ends), num_samples, dtype=torch.float64)
        self._survival = torch.outer(model.draw_weights, model.edge_weights)  # (S, E), of the batch so far
        self._num_chosen = 0

    def add(self, index: int) -> None:
        """Add a point to the batch."""
        log_probs, log_kept = self._point(torch.tensor([index]), torch.float64)
        self._survival = self._survival * (log_probs[0].exp().T @ log_kept[0].exp())
        labels = self._configurations.extend(log_probs[0].T)
        self._log_survival = self._log_survival + log_kept[0].T[:, labels]
        self._num_chosen += 1

    def scores(self, indices: Int[Tensor, " n"]) -> Float[Tensor, " n"]:
        """Return the estimate of Δ(A ∪ x) for each x, in float32 precision."""
        matrix = self._survival
        if self._num_chosen >= self._exact:
            survival = self._log_survival.exp() * self._model.edge_weights.unsqueeze(1)
            matrix = self._configurations.posteriors @ survival.T / survival.shape[1]
        kept = torch.empty(len(indices), dtype=torch.float64)
        predictions = self._model.predictions
        for span in spans_of(len(indices), CHUNK_NUMBERS // (predictions.num_classes * predictions.num_draws)):
            log_probs, log_kept = self._point(indices[span], predictions.dtype)
            weighted = log_probs.exp() @ matrix.to(predictions.dtype)  # (n, C, E)
            kept[span] = (weighted * log_kept.exp()).sum(dim=(1, 2)).double()
        return (self._model.edges.total_weight - kept).float()

    def _point(self, rows: Tensor, dtype: torch.dtype) -> tuple[Float[Tensor, "n C S"], Float[Tensor, "n C E"]]:
        """Return log-probabilities, and the log of λ_a λ_b of each edge."""
        log_probs, _ = self._model.answers(rows, dtype)
        ratios = log_ratios(log_probs, offset=False)
        return log_probs, ratios[:, :, self._ends[:, 0]] + ratios[:, :, self._ends[:, 1]]


class ReleasedBalance(BalanceStrategy):
    """Greedy on Δ as the paper's released scripts estimate it: biased from the third pick on; ties go to the first.

    Scores are compared in float32, where they tie once little of the edge weight survives. `continued_from` of the
    choice is the first pick that such a tie decided.

    Attributes:
        exact: the number of picks for which all label configurations are enumerated.
        num_samples: M, the sampled configurations after that.
    """

    name: ClassVar[str] = "released-balance"
    summary: ClassVar[str] = "greedy as the released scripts of the paper estimate Δ: labels drawn independently"

    exact: PositiveInt = 2
    num_samples: PositiveInt = 10_000

    def in_pieces(self, pool: Pool) -> bool:  # noqa: ARG002
        """Return False: the products are large."""
        return False

    def choose(self, pool: Pool) -> Choice:
        """Maximise the estimate one point at a time."""
        estimator = ReleasedEstimator(
            self.joint_model(pool), exact=self.exact, num_samples=self.num_samples,
            generator=pool.generator("configurations"),
        )  # fmt: skip
        left = pool.candidates
        chosen: list[int] = []
        values: list[float] = []
        first_tie = None
        for pick in range(pool.batch_size):
            if chosen:
                estimator.add(chosen[-1])
            scores = estimator.scores(left)
            tied = (scores == scores.max()).nonzero().flatten()
            if len(tied) > 1 and first_tie is None:
                first_tie = pick
            best = int(tied[0])
            values.append(float(scores[best]))
            chosen.append(int(left[best]))
            left = torch.cat([left[:best], left[best + 1 :]])
        scored = torch.tensor(values, dtype=torch.float64)
        return Choice(torch.tensor(chosen), scores=scored, continued_from=first_tie)


class ReleasedBatchBald(Strategy):
    """BatchBALD as the released scripts of the paper estimate it: labels drawn independently of each other.

    The gain of x is the mean over configurations of the entropy of its label given them, minus its mean entropy under
    the draws' own weights. From the third pick on the two terms use inconsistent weights.

    Attributes:
        exact: the number of picks for which all label configurations are enumerated.
        num_samples: M, the sampled configurations after that.
    """

    name: ClassVar[str] = "released-batch-bald"
    summary: ClassVar[str] = "BatchBALD as the released scripts of the paper estimate it: labels drawn independently"

    exact: PositiveInt = 2
    num_samples: PositiveInt = 10_000

    def choose(self, pool: Pool) -> Choice:
        """Maximise the estimated information one point at a time."""
        predictions, rows = pool.predictions, pool.candidates
        samples = MarginalConfigurations(predictions, self.num_samples, pool.generator("configurations"))
        table = Configurations.empty(predictions)
        prior = table.posteriors[0]
        by_draw = torch.cat([_draw_entropies(predictions, part) for part in rows.split(512)])  # (n, S)
        bounds = LazyBounds(len(rows))
        picks: list[int] = []
        values: list[float] = []
        for pick in range(pool.batch_size):
            if picks:
                log_probs = predictions.log_probs(rows[picks[-1:]])[0].double()
                samples.extend(log_probs)
                if pick < self.exact:
                    table = table.extended(log_probs.exp(), 10**9, 1, torch.Generator())
                else:
                    weights = torch.full((self.num_samples,), 1 / self.num_samples, dtype=torch.float64)
                    table = Configurations(weights, samples.posteriors.T.contiguous(), exact=False)
            added = by_draw @ (table.weights @ table.posteriors - prior)  # 0 if the configurations are exact

            def information(positions: Tensor, table: Configurations = table, added: Tensor = added) -> Tensor:
                return table.gains(predictions.log_probs(rows[positions])) + added[positions]

            bounds.forget()
            if len(table.weights) > 2 * MERGED:
                merged = table.merged()
                for part in bounds.is_open.nonzero().flatten().split(512):
                    bounds.lower(information(part, merged), part)
            bounds.settle(information, margin=0.0, block=FIRST_BLOCK, growth=2, largest_block=512)
            best = int((bounds.values == bounds.values.max()).nonzero()[0])
            picks.append(best)
            values.append(float(bounds.values[best]))
            bounds.close(torch.tensor([best]))
        return Choice(rows[picks], scores=torch.tensor(values, dtype=torch.float64))


def _draw_entropies(predictions: Predictions, rows: Tensor) -> Float[Tensor, "n S"]:
    log_probs = predictions.log_probs(rows).double()
    return entropies(log_probs.exp(), log_probs)


class ExactThenRandom(BalanceStrategy):
    """Exact greedy for the first picks of a batch, and random points for the others.

    Attributes:
        exact: the number of picks by the joint Δ.
    """

    name: ClassVar[str] = "exact-then-random"
    summary: ClassVar[str] = "exact greedy on Δ for the first picks of a batch, the others at random"

    exact: PositiveInt = 5

    def choose(self, pool: Pool) -> Choice:
        """Maximise Δ for the first picks, then draw without replacement."""
        greedy = GreedyBalance(offset=self.offset)
        chosen = greedy.choose(pool).indices[: self.exact]
        left = pool.candidates[~torch.isin(pool.candidates, chosen)]
        order = torch.randperm(len(left), generator=pool.generator("random picks"))
        return Choice(torch.cat([chosen, left[order[: pool.batch_size - len(chosen)]]]))


LAB_STRATEGIES: Registry[type[Strategy]] = Registry(
    STRATEGIES.kind,
    STRATEGIES.group,
    {**OWN, **{each.name: each for each in (ReleasedBalance, ReleasedBatchBald, ExactThenRandom)}},
    lambda found: isinstance(found, type) and issubclass(found, Strategy),
    "a subclass of batchbalance.Strategy",
)


def lab_strategy(name: str, options: dict[str, Any] | None = None) -> Strategy:
    """Return the strategy with this name and these options, including those of this module."""
    return LAB_STRATEGIES.named(name).with_options(options or {})

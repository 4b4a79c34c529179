"""BatchBALD: the information that the labels of a batch give about the draws (appendix, preliminary works).

Its increment is I(y_x; ω | y_A), the information that the label of x gives about the draw once the
labels of the chosen points A are known. Its state is a table of label configurations of A: row m holds
the probability a_m of the configuration and the posterior π_m over draws given it, and

    gain(x | A) = Σ_m a_m [ H(Σ_s π_ms p(y | ω_s, x)) − Σ_s π_ms H(p(y | ω_s, x)) ]

is a matrix product and a logarithm. The rows are normalised at every step, so nothing underflows. While the
table fits `max_configurations` it holds every configuration and the gain is exact; after that it is resampled
to `num_samples` rows at each pick, which does not change its mean. Two bounds avoid most of the work: a gain
never grows as points are added, and merging rows of a table never lowers a gain (entropy is concave).
"""

from dataclasses import dataclass
from functools import partial

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.arguments.checks import check_whole
from batchbalance.predictions import Predictions
from batchbalance.scores import CACHED_NUMBERS, MEMORY_BUDGET, above_rounding, bald, entropies, points_within
from batchbalance.scores.ranking import LazyBounds

TIE = 1e-13  # nats; gains are differences of sums of about 1, so closer ones differ only by rounding
FIRST_BLOCK = 32  # candidates evaluated before the first check whether a bound already decides the pick
MERGED = 256  # rows of the small table that gives bounds


@dataclass(frozen=True)
class Configurations:
    """Label configurations of the points chosen so far.

    Attributes:
        weights: (M,) probabilities of the configurations, sum 1.
        posteriors: (M, S) probabilities of the draws given each configuration.
        exact: whether these are all configurations of positive probability.
    """

    weights: Float[Tensor, " M"]
    posteriors: Float[Tensor, "M S"]
    exact: bool = True

    @classmethod
    def empty(cls, predictions: Predictions) -> "Configurations":
        """Return the single configuration of no points: the prior over draws."""
        weights = predictions.draw_weights.to(predictions.device)
        return cls(torch.ones(1, dtype=torch.float64, device=weights.device), weights.unsqueeze(0))

    def gains(self, log_probs: Float[Tensor, "n S C"], numbers: int = CACHED_NUMBERS) -> Float[Tensor, " n"]:
        """Return the information of each point given the chosen ones, in nats; `numbers` limits the size of a block."""
        log_probs = log_probs.double()
        probs = log_probs.exp()
        num_points, num_draws, num_classes = probs.shape
        given_draw = entropies(probs, log_probs) @ (self.weights @ self.posteriors)
        given_labels = torch.zeros_like(given_draw)
        by_draw = probs.transpose(0, 1).reshape(num_draws, num_points * num_classes)
        step = max(1, numbers // (num_points * num_classes))
        for start in range(0, len(self.weights), step):
            rows = slice(start, start + step)
            predictive = self.posteriors[rows] @ by_draw  # (m, n·C)
            summed = self.weights[rows] @ torch.special.entr(predictive)
            given_labels += summed.view(num_points, num_classes).sum(dim=-1)
        return above_rounding(given_labels - given_draw, given_labels)

    def extended(
        self, probs: Float[Tensor, "S C"], max_configurations: int, num_samples: int, generator: torch.Generator
    ) -> "Configurations":
        """Return the configurations with one more point, sampled if there are more than `max_configurations`."""
        weights = self.weights.unsqueeze(1) * (self.posteriors @ probs)  # (M, C)
        exact = self.exact
        if int((weights > 0).sum()) > max_configurations:
            weights = _systematic_sample(weights.flatten(), num_samples, generator).view_as(weights)
            exact = False
        rows, labels = weights.nonzero(as_tuple=True)
        posteriors = self.posteriors[rows] * probs.T[labels]
        posteriors /= posteriors.sum(dim=1, keepdim=True)
        kept = weights[rows, labels]
        return Configurations(kept / kept.sum(), posteriors, exact)

    def merged(self, num_rows: int = MERGED) -> "Configurations":
        """Return a smaller table whose gains are upper bounds: each row joins the most similar of `num_rows` rows."""
        spread = torch.linspace(0, len(self.weights) - 1, num_rows, device=self.weights.device).long()
        roots = self.posteriors.sqrt()
        nearest = (roots @ roots[spread].T).argmax(dim=1)
        weights = self.weights.new_zeros(num_rows).index_add_(0, nearest, self.weights)
        posteriors = self.posteriors.new_zeros(num_rows, self.posteriors.shape[1])
        posteriors.index_add_(0, nearest, self.weights.unsqueeze(1) * self.posteriors)
        used = weights > 0
        return Configurations(weights[used], posteriors[used] / weights[used].unsqueeze(1), self.exact)


def _systematic_sample(
    weights: Float[Tensor, " M"], num_samples: int, generator: torch.Generator
) -> Float[Tensor, " M"]:
    """Return the share of `num_samples` that each entry is drawn; its mean is the weight, with low variance."""
    ends = weights.cumsum(0)
    offset = torch.rand((), generator=generator, dtype=torch.float64).to(weights.device)
    places = (torch.arange(num_samples, device=weights.device) + offset) / num_samples * ends[-1]
    # An entry of weight 0 has an empty interval and is never drawn, except by rounding at the end.
    drawn = torch.searchsorted(ends, places, right=True).clamp_max(int(weights.nonzero()[-1]))
    return torch.bincount(drawn, minlength=len(weights)).double() / num_samples


def batch_bald(
    predictions: Predictions,
    batch_size: int,
    *,
    generator: torch.Generator,
    candidates: Tensor | None = None,
    max_configurations: int = 10_000,
    num_samples: int = 10_000,
    memory_budget: int = MEMORY_BUDGET,
) -> tuple[Int[Tensor, " B"], Float[Tensor, " B"]]:
    """Greedily maximise the information of a batch about the draws (Kirsch et al. 2019).

    Args:
        predictions: predictions of the pool; with several labels, of at most 10 labels.
        batch_size: B, the number of points to choose.
        generator: random generator for the configurations; not used while they are exact.
        candidates: (n,) ascending indices of the points that may be chosen; all if omitted.
        max_configurations: largest number of label configurations of positive probability that is kept exactly.
        num_samples: M, the configurations kept after that.
        memory_budget: bytes to use besides the input and the table of configurations.

    Returns:
        (B,) indices in the order chosen, ties to the lowest; (B,) information that each adds, in nats.
    """
    candidates = torch.arange(predictions.num_points) if candidates is None else candidates
    check_whole("max_configurations", max_configurations)
    check_whole("num_samples", num_samples)
    predictions = predictions.joint()
    block = points_within(memory_budget, predictions.num_draws * predictions.num_classes)
    numbers = min(CACHED_NUMBERS, max(1, memory_budget // 32))
    configurations = Configurations.empty(predictions)
    bounds = LazyBounds(len(candidates))
    bounds.set(bald(predictions).cpu()[candidates])
    chosen: list[int] = []
    gains: list[float] = []

    def gains_of(table: Configurations, positions: Tensor) -> Tensor:
        return table.gains(predictions.log_probs(candidates[positions]), numbers).cpu()

    for _ in range(batch_size):
        if chosen:
            probs = predictions.log_probs(chosen[-1:])[0].double().exp()
            configurations = configurations.extended(probs, max_configurations, num_samples, generator)
            if not configurations.exact:  # a gain from other samples is not a bound
                bounds.forget()
            worth_a_look = (bounds.values > TIE).nonzero().flatten()
            if len(configurations.weights) > 2 * MERGED and len(worth_a_look):
                merged = configurations.merged()
                for positions in worth_a_look.split(block):
                    bounds.lower(gains_of(merged, positions), positions)
        bounds.settle(
            partial(gains_of, configurations), margin=TIE, floor=TIE, block=FIRST_BLOCK, growth=2, largest_block=block
        )
        pick = int((bounds.values >= max(float(bounds.values.max()) - TIE, 0)).nonzero()[0])
        chosen.append(int(candidates[pick]))
        gains.append(float(bounds.values[pick]))
        bounds.close(torch.tensor([pick]))
    return torch.tensor(chosen), torch.tensor(gains, dtype=torch.float64)

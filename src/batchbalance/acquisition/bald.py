"""Information about the draws: BALD, BatchBALD, and EPIG towards a target set (appendix, preliminary works).

BatchBALD's increment is I(y_x; ω | y_A), the information that the label of x gives about the draw once the
labels of the chosen points A are known. A table of label configurations of A is its whole state: a row m holds
the probability a_m of the configuration and the posterior π_m over draws given it, and

    gain(x | A) = Σ_m a_m [ H(Σ_s π_ms p(y | ω_s, x)) − Σ_s π_ms H(p(y | ω_s, x)) ]

is a matrix product and a logarithm. The rows are normalised at every step, so nothing underflows. While the
table fits `max_configurations` it holds every configuration and the gain is exact; after that it is resampled
to `num_samples` rows at each pick, which leaves its mean where it was. Two bounds spare most of the work: a gain
never grows as points are added, and merging rows of a table never lowers a gain (entropy is concave).
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.acquisition.candidates import check_candidates
from batchbalance.acquisition.uncertainty import above_rounding
from batchbalance.predictions import Predictions
from batchbalance.progress import Bar

MEMORY_BUDGET = 2**28
TIE = 1e-13  # nats; gains are differences of sums of about 1, so that closer ones differ by rounding alone
FIRST_BLOCK = 32  # candidates looked at before the first check whether a bound already settles the pick
MERGED = 256  # rows of the small table that gives bounds
CACHED_NUMBERS = 2**20  # numbers of a block that stay in the cache: larger ones are slower, not faster


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
        """The one configuration of no points: the prior over draws."""
        weights = predictions.draw_weights.to(predictions.stored.device)
        return cls(torch.ones(1, dtype=torch.float64, device=weights.device), weights.unsqueeze(0))

    def gains(self, log_probs: Float[Tensor, "n S C"], numbers: int = CACHED_NUMBERS) -> Float[Tensor, " n"]:
        """Information of each point given the chosen ones, in nats; `numbers` bounds what is held at a time."""
        log_probs = log_probs.double()
        probs = log_probs.exp()
        num_points, num_draws, num_classes = probs.shape
        given_draw = _entropies(probs, log_probs) @ (self.weights @ self.posteriors)
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
        """The configurations with one more point; sampled if they become more than `max_configurations`."""
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
        """A smaller table whose gains are upper bounds: each row joins the most similar of `num_rows` rows."""
        spread = torch.linspace(0, len(self.weights) - 1, num_rows, device=self.weights.device).long()
        roots = self.posteriors.sqrt()
        nearest = (roots @ roots[spread].T).argmax(dim=1)
        weights = self.weights.new_zeros(num_rows).index_add_(0, nearest, self.weights)
        posteriors = self.posteriors.new_zeros(num_rows, self.posteriors.shape[1])
        posteriors.index_add_(0, nearest, self.weights.unsqueeze(1) * self.posteriors)
        used = weights > 0
        return Configurations(weights[used], posteriors[used] / weights[used].unsqueeze(1), self.exact)


def _entropies(probs: Float[Tensor, "n S C"], log_probs: Float[Tensor, "n S C"]) -> Float[Tensor, "n S"]:
    # 0 · log 0 is 0: the clamp makes -inf a number, which 0 takes to 0.
    return -(log_probs.clamp_min(-1e300).mul_(probs)).sum(dim=-1)


def _systematic_sample(
    weights: Float[Tensor, " M"], num_samples: int, generator: torch.Generator
) -> Float[Tensor, " M"]:
    """How often each entry is drawn among `num_samples`, as a share; its mean is the weight (low variance)."""
    ends = weights.cumsum(0)
    offset = torch.rand((), generator=generator, dtype=torch.float64).to(weights.device)
    places = (torch.arange(num_samples, device=weights.device) + offset) / num_samples * ends[-1]
    # A place never lands in an entry of weight 0, whose interval is empty, except by rounding at the very end.
    drawn = torch.searchsorted(ends, places, right=True).clamp_max(int(weights.nonzero()[-1]))
    return torch.bincount(drawn, minlength=len(weights)).double() / num_samples


def bald(predictions: Predictions, *, bar: Bar | None = None) -> Float[Tensor, " N"]:
    """Mutual information between the label of a point and the draw, from 0 to log min(C, S) nats, float64."""
    weights = predictions.draw_weights.to(predictions.stored.device)
    scores = torch.empty(predictions.num_points, dtype=torch.float64, device=weights.device)
    for rows, chunk in predictions.chunks(CACHED_NUMBERS, bar):
        log_probs = chunk.double()
        probs = log_probs.exp()
        mean = torch.einsum("s,nsc->nc", weights, probs)
        given_draw = _entropies(probs, log_probs) @ weights
        entropy = torch.special.entr(mean).sum(dim=-1)
        scores[rows] = above_rounding(entropy - given_draw, entropy)
    return scores


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
        predictions: of the pool.
        batch_size: B.
        generator: draws the configurations; not touched while they are exact.
        candidates: (n,) ascending indices of the points that may be chosen; all if left out.
        max_configurations: largest number of label configurations of positive probability that is kept exactly.
        num_samples: M, the configurations kept after that.
        memory_budget: bytes to use above the input and the table of configurations.

    Returns:
        (B,) indices in the order chosen, a tie to the lowest; (B,) information that each adds, in nats.
    """
    candidates = check_candidates(candidates, predictions.num_points, batch_size)
    for name, value in (("max_configurations", max_configurations), ("num_samples", num_samples)):
        if value < 1:
            raise ValueError(f"`{name}` must be at least 1, got {value}")
    block = _points_within(memory_budget, predictions.num_draws * predictions.num_classes)
    numbers = min(CACHED_NUMBERS, max(1, memory_budget // 32))
    configurations = Configurations.empty(predictions)
    bounds = bald(predictions).cpu()[candidates]
    chosen: list[int] = []
    gains: list[float] = []
    for _ in range(batch_size):
        if chosen:
            probs = predictions.log_probs(chosen[-1:])[0].double().exp()
            configurations = configurations.extended(probs, max_configurations, num_samples, generator)
            _sharpen(bounds, configurations, predictions, candidates, block, numbers)
        pick = _settle(bounds, configurations, predictions, candidates, block, numbers)
        chosen.append(int(candidates[pick]))
        gains.append(float(bounds[pick]))
        bounds[pick] = -torch.inf
    return torch.tensor(chosen), torch.tensor(gains, dtype=torch.float64)


def _sharpen(
    bounds: Tensor,
    configurations: Configurations,
    predictions: Predictions,
    candidates: Tensor,
    block: int,
    numbers: int,
) -> None:
    """Make `bounds` (n,) hold for the gains of a new table; -inf marks the points already chosen."""
    if not configurations.exact:  # a gain from other samples bounds nothing
        bounds[bounds >= 0] = torch.inf
    open_rows = (bounds > TIE).nonzero().flatten()
    if len(configurations.weights) <= 2 * MERGED or len(open_rows) == 0:
        return
    merged = configurations.merged()
    for rows in open_rows.split(block):
        gains = merged.gains(predictions.log_probs(candidates[rows]), numbers).cpu()
        bounds[rows] = torch.minimum(bounds[rows], gains)


def _settle(
    bounds: Tensor,
    configurations: Configurations,
    predictions: Predictions,
    candidates: Tensor,
    block: int,
    numbers: int,
) -> int:
    """Replace bounds by gains, highest first, until no bound exceeds the best gain; its position, lowest in a tie."""
    best, start, size = 0.0, 0, FIRST_BLOCK
    order = bounds.argsort(descending=True, stable=True)
    while start < len(order) and bounds[order[start]] > max(best - TIE, TIE):
        rows = order[start : start + min(size, block)]
        rows = rows[bounds[rows] > TIE]
        bounds[rows] = configurations.gains(predictions.log_probs(candidates[rows]), numbers).cpu()
        best = max(best, float(bounds[rows].max()))
        start, size = start + len(rows), size * 2
    return int((bounds >= max(best - TIE, 0)).nonzero()[0])


def epig(predictions: Predictions, targets: Predictions, *, memory_budget: int = MEMORY_BUDGET) -> Float[Tensor, " N"]:
    """Expected predictive information gain (Bickford Smith et al. 2023), in nats, float64.

    The mutual information between the label of a point and the label of a target, averaged over the targets:
    what is learned about the predictions that matter, not about the draw. Costs N·T·S·C² for T targets.

    Args:
        predictions: of the points to score.
        targets: the same draws on points like those to be predicted later.
        memory_budget: bytes to use above the input.
    """
    predictions.check_same_draws(targets, "targets")
    num_draws, num_classes = predictions.num_draws, predictions.num_classes
    step = _points_within(memory_budget, num_draws * num_classes)
    numbers = min(CACHED_NUMBERS, max(1, memory_budget // 32))
    weights = predictions.draw_weights.to(predictions.stored.device)
    scores = []
    for _, chunk in predictions.chunks(min(numbers, step * num_draws * num_classes)):
        num_points = len(chunk)
        weighted = (chunk.double().exp() * weights.unsqueeze(1)).transpose(1, 2)  # (n, C, S)
        marginal = torch.special.entr(weighted.sum(dim=-1)).sum(dim=-1)
        flat = weighted.reshape(num_points * num_classes, num_draws)
        total = torch.zeros_like(marginal)
        for _, target in targets.chunks(max(1, numbers // len(flat)) * num_draws):
            probs = target.double().exp().transpose(0, 1).reshape(num_draws, -1)  # (S, t·C)
            joint = torch.special.entr(flat @ probs).sum(dim=1).view(num_points, num_classes).sum(dim=1)
            total += len(target) * marginal + torch.special.entr(weights @ probs).sum() - joint
        scores.append(above_rounding(total / targets.num_points, marginal))
    return torch.cat(scores)


def _points_within(memory_budget: int, point_numbers: int) -> int:
    """How many points' predictions fit half of the budget: the input's copy and three float64 arrays of its size."""
    if memory_budget < 1:
        raise ValueError(f"`memory_budget` must be a positive number of bytes, got {memory_budget}")
    return max(1, min(memory_budget // 2 // (32 * point_numbers), CACHED_NUMBERS // point_numbers))

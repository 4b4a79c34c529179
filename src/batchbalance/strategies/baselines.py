"""Baseline strategies: those of the paper's experiments and more recent ones."""

from collections.abc import Callable
from dataclasses import replace
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Float
from pydantic import Field, PositiveInt
from torch import Tensor

from batchbalance import scores
from batchbalance.balance.edges import subsample
from batchbalance.balance.finite import ec2, eced
from batchbalance.batches import badge, cluster_margin, k_center
from batchbalance.batches.batch_bald import batch_bald
from batchbalance.scores import MEMORY_BUDGET, Combine, bald, epig
from batchbalance.scores.ranking import power_sample, top_k
from batchbalance.strategies.contract import (
    Choice,
    Coldness,
    ConnectedStrategy,
    Strategy,
    candidate_scores,
    filled,
)
from batchbalance.strategies.pool import Pool
from batchbalance.system.progress import Bar, progress

SCORES: dict[str, Callable[..., Float[Tensor, " N"]]] = {
    "bald": bald,
    "entropy": scores.entropy,
    "least-confidence": scores.least_confidence,
    "margin": scores.margin,
    "mean-std": scores.mean_std,
    "variation-ratio": scores.variation_ratio,
}
IN_LOGS = ("entropy", "least-confidence", "margin", "variation-ratio")  # finite logs where the score underflows to 0
ScoreName = Literal["bald", "entropy", "least-confidence", "margin", "mean-std", "variation-ratio"]


class Random(Strategy):
    """Uniform sampling without replacement."""

    name: ClassVar[str] = "random"
    summary: ClassVar[str] = "uniform sampling without replacement"

    def choose(self, pool: Pool) -> Choice:
        """Sample uniformly."""
        order = torch.randperm(len(pool.candidates), generator=pool.generator("random"))
        return Choice(pool.candidates[order[: pool.batch_size]])


def best_scores(pool: Pool, scores: Float[Tensor, " N"]) -> Choice:
    """Return the candidates of highest score."""
    own = candidate_scores(pool, scores)
    best = top_k(own, min(pool.batch_size, int((own > 0).sum())))
    return filled(pool, pool.candidates[best], own[best])


class PredictionStrategy(Strategy):
    """A strategy whose cost is dominated by the predictions."""

    passes: ClassVar[tuple[str, ...]] = ("predictions",)


class ScoreStrategy(PredictionStrategy):
    """A strategy that chooses the points of highest score, each scored on its own.

    Attributes:
        combine: for several labels, whether an item is ranked by the "mean" or the "max" of the scores of its labels;
            if omitted, by the largest, and for "bald" by the score of the whole set of labels.
    """

    combine: Combine | None = None

    def score(self, pool: Pool, bar: Bar) -> Float[Tensor, " N"]:
        """Return the non-negative score of each point of the pool, by default the one that the strategy is named after.

        `bar` counts points.
        """
        return SCORES[self.name](pool.predictions, combine=self.combine, bar=bar)

    def choose(self, pool: Pool) -> Choice:
        """Choose the points of highest score."""
        with progress("scoring points", pool.predictions.num_points, pool.progress) as bar:
            scores = self.score(pool, bar)
        return best_scores(pool, scores)


class Bald(ScoreStrategy):
    """BALD: mutual information between a label and the draw (Houlsby et al. 2011)."""

    name: ClassVar[str] = "bald"
    summary: ClassVar[str] = "top points by the information of their label about the draw"


class BatchBald(PredictionStrategy):
    """BatchBALD: information of the labels of a whole batch about the draw (Kirsch et al. 2019).

    Attributes:
        max_configurations: the largest number of label configurations that are kept exactly.
        num_samples: the number of configurations to sample once there are more.
        memory_budget: bytes to use besides the predictions.
    """

    name: ClassVar[str] = "batch-bald"
    summary: ClassVar[str] = "greedy on the joint information of a batch; exact, then sampled configurations"

    max_configurations: PositiveInt = 10_000
    num_samples: PositiveInt = 10_000
    memory_budget: PositiveInt = MEMORY_BUDGET

    def memory_needed(self, pool: Pool) -> int:
        """Return its own budget and the bytes of the table of configurations before and after a pick."""
        num_rows = max(self.max_configurations, self.num_samples)
        return self.memory_budget + 3 * 8 * num_rows * pool.predictions.num_draws

    def choose(self, pool: Pool) -> Choice:
        """Maximise the joint information one point at a time."""
        indices, gains = batch_bald(
            pool.predictions,
            pool.batch_size,
            candidates=pool.candidates,
            generator=pool.generator("configurations"),
            max_configurations=self.max_configurations,
            num_samples=self.num_samples,
            memory_budget=self.memory_budget,
        )
        num_informed = int((gains > 0).long().cumprod(0).sum())
        return filled(pool, indices[:num_informed], gains[:num_informed])


class PowerSampling(PredictionStrategy):
    """Sampling without replacement with p(x) ∝ score(x)^β (Kirsch et al. 2021).

    Attributes:
        score: the score to sample by.
        beta: coldness β; 0 is uniform sampling.
        combine: for several labels, as in the strategy named after the score.
    """

    name: ClassVar[str] = "power-sampling"
    summary: ClassVar[str] = "sampling without replacement with p ∝ score^β, for any score of a single point"

    score: ScoreName = "bald"
    beta: Coldness = 1.0
    combine: Combine | None = None

    def choose(self, pool: Pool) -> Choice:
        """Sample by power."""
        with progress("scoring points", pool.num_points, pool.progress) as bar:
            scores = candidate_scores(pool, SCORES[self.score](pool.predictions, combine=self.combine, bar=bar))
        picks = power_sample(scores, pool.batch_size, self.beta, generator=pool.generator("power"))
        return Choice(pool.candidates[picks], scores=scores[picks])


class PowerBald(PredictionStrategy):
    """PowerBALD, an alias of "power-sampling" by BALD: p(x) ∝ BALD(x)^β (Kirsch et al. 2021).

    Attributes:
        beta: coldness β; 0 is uniform sampling.
    """

    name: ClassVar[str] = "power-bald"
    summary: ClassVar[str] = "sampling without replacement with p ∝ BALD^β"

    beta: Coldness = 1.0

    def choose(self, pool: Pool) -> Choice:
        """Sample by power of BALD."""
        return PowerSampling(beta=self.beta).choose(pool)


class VariationRatio(ScoreStrategy):
    """Variation ratio: the mean probability outside the most probable class (Freeman 1965, Gal et al. 2017).

    Attributes:
        votes: count each draw as one vote for its most probable class.
    """

    name: ClassVar[str] = "variation-ratio"
    summary: ClassVar[str] = "top points by the mean probability outside the most probable class"

    votes: bool = False

    def score(self, pool: Pool, bar: Bar) -> Float[Tensor, " N"]:
        """Return the variation ratio."""
        return scores.variation_ratio(pool.predictions, votes=self.votes, combine=self.combine, bar=bar)


class MeanStd(ScoreStrategy):
    """Mean STD: standard deviation over draws, averaged over classes (Kendall et al. 2015)."""

    name: ClassVar[str] = "mean-std"
    summary: ClassVar[str] = "top points by the spread of class probabilities over draws"


class Entropy(ScoreStrategy):
    """Entropy of the mean prediction."""

    name: ClassVar[str] = "entropy"
    summary: ClassVar[str] = "top points by the entropy of the mean prediction"


class Margin(ScoreStrategy):
    """Margin sampling: the smallest difference between the two most probable classes."""

    name: ClassVar[str] = "margin"
    summary: ClassVar[str] = "top points by how close the two most probable classes are"


class LeastConfidence(ScoreStrategy):
    """Least confidence: the smallest probability of the most probable class."""

    name: ClassVar[str] = "least-confidence"
    summary: ClassVar[str] = "top points by one minus the highest mean probability"


class Epig(PredictionStrategy):
    """EPIG: information about the labels of the reference set, not about the draw (Bickford Smith et al. 2023).

    Attributes:
        max_targets: a larger reference set is subsampled to this size; the cost is linear in it.
    """

    name: ClassVar[str] = "epig"
    summary: ClassVar[str] = "top points by the information of their label about labels of the reference set"

    max_targets: PositiveInt = 500

    def memory_needed(self, pool: Pool) -> int:
        """Return the bytes of a block of joint probabilities, and of the targets."""
        return MEMORY_BUDGET + 8 * self.max_targets * pool.predictions.num_draws * pool.predictions.num_classes

    def choose(self, pool: Pool) -> Choice:
        """Choose the points of highest expected predictive information gain."""
        given = pool.reference
        if pool.has("reference"):
            given = subsample(given, pool.max_reference, pool.seed)
        targets = subsample(given, self.max_targets, pool.seed)
        choice = best_scores(pool, epig(pool.predictions, targets))
        if targets.num_points == given.num_points:
            return choice
        seen = f"{targets.num_points:,} of {given.num_points:,} reference points"
        return replace(choice, notes=(f"information was measured on {seen}; raise max_targets to use more",))


class EmbeddingStrategy(Strategy):
    """A strategy whose cost is dominated by the embeddings."""

    passes: ClassVar[tuple[str, ...]] = ("embeddings",)


class CoreSet(EmbeddingStrategy):
    """CoreSet: k-center greedy from the labelled embeddings, a 2-approximation (Sener & Savarese 2018)."""

    name: ClassVar[str] = "coreset"
    summary: ClassVar[str] = "repeatedly the point farthest from all labelled and chosen ones (k-center greedy)"
    copies: ClassVar[int] = 2

    def choose(self, pool: Pool) -> Choice:
        """Cover the candidates."""
        indices, _ = k_center(
            pool.mean_embeddings,
            pool.batch_size,
            candidates=pool.candidates,
            labelled=pool.labelled_embeddings,
        )
        return Choice(indices)


class Badge(Strategy):
    """BADGE: k-means++ seeding on gradients of the last layer (Ash et al. 2020).

    Attributes:
        mean_gradients: average the gradients of the draws instead of their factors; needs embeddings of every draw.
    """

    name: ClassVar[str] = "badge"
    summary: ClassVar[str] = "k-means++ seeding on the gradients of the last layer"
    passes: ClassVar[tuple[str, ...]] = ("predictions",)
    copies: ClassVar[int] = 2

    mean_gradients: bool = False

    def _features(self, pool: Pool) -> Tensor:
        return pool.draw_embeddings if self.mean_gradients else pool.features

    def memory_needed(self, pool: Pool) -> int:
        """Return the bytes of the embeddings and predictions that it keeps, of every draw for mean gradients."""
        return super().memory_needed(pool) * (pool.predictions.num_draws if self.mean_gradients else 1)

    def choose(self, pool: Pool) -> Choice:
        """Sample points with diverse gradients."""
        features, predictions = self._features(pool), pool.predictions
        of_labels = predictions.num_labels is not None
        if self.mean_gradients:
            probs = predictions.questions.log_probs().exp()
            probs = probs[..., 1].unflatten(0, (-1, predictions.num_classes)).transpose(1, 2) if of_labels else probs
        else:
            probs = predictions.label_probs() if of_labels else predictions.mean_probs()
        indices, distances = badge(
            probs,
            features,
            pool.batch_size,
            candidates=pool.candidates,
            generator=pool.generator("k-means++"),
            weights=predictions.weights if self.mean_gradients else None,
            of_labels=of_labels,
        )
        return Choice(indices, scores=distances)


class ClusterMargin(EmbeddingStrategy):
    """Cluster-Margin: points of small margin from hierarchical clusters, in turn (Citovsky et al. 2021).

    Attributes:
        margin_factor: number of points of small margin to cluster, as a multiple of the batch size.
        num_clusters: number of clusters; the batch size if omitted.
    """

    name: ClassVar[str] = "cluster-margin"
    summary: ClassVar[str] = "points of small margin, in turn from hierarchical clusters of embeddings"
    copies: ClassVar[int] = 2

    margin_factor: Annotated[float, Field(ge=1, allow_inf_nan=False)] = 10.0
    num_clusters: PositiveInt | None = None

    def choose(self, pool: Pool) -> Choice:
        """Cluster the points of smallest margin, and choose from the clusters in turn, the smallest first."""
        embeddings = pool.mean_embeddings
        indices, found = cluster_margin(
            scores.margin(pool.predictions),
            embeddings,
            pool.batch_size,
            candidates=pool.candidates,
            margin_factor=self.margin_factor,
            num_clusters=self.num_clusters,
        )
        return Choice(indices, scores=found)


class Ec2(ConnectedStrategy):
    """EC² over draws, on their hard predictions (Golovin et al. 2010)."""

    name: ClassVar[str] = "ec2"
    summary: ClassVar[str] = "top points by the expected weight of edges cut, on hard predictions"

    def choose(self, pool: Pool) -> Choice:
        """Choose the points of highest score."""
        return best_scores(pool, ec2(pool.predictions, self.edges(pool)))


class Eced(ConnectedStrategy):
    """ECED over draws: BALanCe with its offset for noise (Chen et al. 2017)."""

    name: ClassVar[str] = "eced"
    summary: ClassVar[str] = "top points by the expected edge weight discounted beyond what noise discounts"

    def choose(self, pool: Pool) -> Choice:
        """Choose the points of highest score."""
        return best_scores(pool, eced(pool.predictions, self.edges(pool)))

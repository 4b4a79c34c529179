"""BALanCe in closed form: the paper's eq. 2 for a batch of any size, without enumerating label configurations.

For a point x, a draw j and an edge k = (a, b), with the likelihood ratio λ_h(y) = p(y | h, x) / max_y' p(y' | h, x):

    Q_x[k, y] = λ_a(y) λ_b(y)                         (E, C), in [0, 1]
    G_x[j, k] = Σ_y p(y | j, x) Q_x[k, y]             (S, E), in [0, 1]
    Δ(A) = Σ_jk w_j v_k (1 − Π_{x∈A} G_x[j, k])

Given draw j, the labels of different points are independent, so the sum over configurations becomes a product.
With μ_h = 1 − λ_h, 1 − Q = μ_a + μ_b − μ_a μ_b: sums of non-negative terms, so that no digits are lost
in float32 for confident predictions.

An item with several labels is several questions q, each with a G of its own. Given draw j their answers are independent
too, so G_x = Π_q G_q, and all of the above holds. 1 − G_x is accumulated as 1 − G·G_q = (1 − G) + G (1 − G_q).
"""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.arguments.checks import Indices, check_indices
from batchbalance.balance.edges import Edges
from batchbalance.predictions import Predictions, over_answers, spans_of
from batchbalance.system import threads
from batchbalance.system.progress import Bar

DENSE_EDGES_PER_DRAW = 4  # above this many edges per draw, single scores use an (S, S) matrix
CHUNK_BYTES = 2**21  # terms computed at a time, small enough for the CPU cache
FACTOR_BYTES = 2**24  # float64 (S, E) matrices in memory at a time
CACHE_BYTES = 2**30
LEAST_DRAWS = 4  # the fewest draws for a standard error over draws


def log_ratios(log_probs: Float[Tensor, "n C S"], offset: bool) -> Float[Tensor, "n C S"]:
    """Return log λ_h(y), at most 0; with `offset`, divided by the largest λ of any draw (a form of ECED's offset)."""
    ratios = log_probs - log_probs.amax(dim=1, keepdim=True)
    if offset:
        largest = ratios.amax(dim=2, keepdim=True)
        # For a class that every draw rules out, the ratio is 0/0. Its probability is 0, so any finite value will do.
        ratios = torch.where(largest == -torch.inf, ratios, ratios - largest)
    return ratios


@dataclass(frozen=True)
class PointTerms:
    """Terms of points: `probs` (n, L, C, S), draws in the model's order, and `deficits` 1 − Q (n, L, C, E).

    L is the number of questions of a point: 1 unless items have several labels.
    """

    probs: Float[Tensor, "n L C S"]
    deficits: Float[Tensor, "n L C E"]

    def __getitem__(self, rows: slice | Tensor) -> "PointTerms":
        return PointTerms(self.probs[rows], self.deficits[rows])

    def discounts(self) -> Float[Tensor, "n S E"]:
        """Return 1 − G, draws in the model's order."""
        total = self.probs[:, 0].transpose(1, 2) @ self.deficits[:, 0]
        for question in range(1, self.probs.shape[1]):
            own = self.probs[:, question].transpose(1, 2) @ self.deficits[:, question]
            total = total + own.mul_(1 - total)
        return total

    def weighted(self, weights: Float[Tensor, "S E"]) -> Float[Tensor, " n"]:
        """Return Σ_jk weights[j, k] (1 − G[j, k]), with draws in the model's order."""
        if self.probs.shape[1] > 1:
            return self.discounts().flatten(start_dim=1) @ weights.flatten()
        products = self.probs.flatten(end_dim=2) @ weights  # (n·C, E): one product, because Σ_y p Q is linear in p
        products *= self.deficits.flatten(end_dim=2)
        return products.view(len(self.probs), -1).sum(dim=1)


class BalanceModel:
    """The closed form for one set of predictions and edges.

    Args:
        predictions: predictions of the pool.
        edges: pairs of draws to distinguish.
        offset: divide likelihood ratios by the largest of any draw, so that label noise alone discounts nothing.
        cache_bytes: memory for the terms of points while a batch grows.
    """

    def __init__(
        self,
        predictions: Predictions,
        edges: Edges,
        *,
        offset: bool = False,
        cache_bytes: int = CACHE_BYTES,
    ):
        predictions.draws.check_same(edges.draws, "edges")
        self.cache_bytes = cache_bytes
        self.predictions = predictions
        self.num_questions = predictions.num_labels or 1
        self.edges = edges
        self.offset = offset
        self.device = predictions.device
        self.draw_weights = predictions.draw_weights.to(self.device)
        self.edge_weights = edges.edge_weights.to(self.device)
        self._ends = edges.ends.to(self.device)
        # Disjoint pairs: all first ends are placed before all second ends, so two slices replace two gathers.
        self.order = torch.arange(predictions.num_draws, device=self.device)
        ends = self._ends.T.flatten()
        self._in_slices = len(ends.unique()) == len(ends)
        if self._in_slices:
            self.order = torch.cat([ends, self.order[~torch.isin(self.order, ends)]])

    @property
    def bytes_per_point(self) -> int:
        """The memory for the terms of one point in the dtype of the predictions."""
        num_classes = self.num_questions * self.predictions.source.shape[2]
        return num_classes * (self.predictions.num_draws + len(self._ends)) * self.predictions.dtype.itemsize

    def answers(
        self, rows: slice | Tensor, dtype: torch.dtype | None = None
    ) -> tuple[Float[Tensor, "n A S"], Float[Tensor, "n A S"]]:
        """Return log-probabilities and log λ of all A answers for some points: the classes, or all sets of labels."""
        log_probs = self._read(rows, dtype).transpose(1, 2)
        logs = (log_probs, log_ratios(log_probs, self.offset))
        found = [over_answers(each.transpose(1, 2), self.num_questions).transpose(1, 2).contiguous() for each in logs]
        return found[0], found[1]

    def _read(self, rows: slice | Tensor, dtype: torch.dtype | None) -> Float[Tensor, "q S C"]:
        """Return the log-probabilities of the questions of some points."""
        predictions = self.predictions
        log_probs = predictions.source.log_probs(predictions.question_rows(rows)).to(dtype or predictions.dtype)
        # Rows in float32 sum to 1 only up to rounding; exact results need rows that sum to 1 in float64.
        return torch.log_softmax(log_probs, dim=2) if dtype == torch.float64 else log_probs

    def terms(self, rows: slice | Tensor, dtype: torch.dtype | None = None) -> PointTerms:
        """Return probabilities and edge deficits of some points."""
        probs, deficits = self._distributions(rows, dtype)
        shape = (-1, self.num_questions)
        return PointTerms(probs.unflatten(0, shape), self._edge_deficits(deficits).unflatten(0, shape))

    def _distributions(
        self, rows: slice | Tensor, dtype: torch.dtype | None
    ) -> tuple[Float[Tensor, "q C S"], Float[Tensor, "q C S"]]:
        """Return probabilities and deficits μ = 1 − λ of the questions of some points, draws in `order`."""
        predictions = self.predictions
        if predictions.source.holds_probs and not self.offset and dtype in (None, predictions.dtype):
            probs = self._laid_out(predictions.source.probs(predictions.question_rows(rows)))
            largest = probs.amax(dim=1, keepdim=True)
            return probs, (largest - probs) / largest
        log_probs = self._laid_out(self._read(rows, dtype))
        return log_probs.exp(), -torch.expm1(log_ratios(log_probs, self.offset))

    def _laid_out(self, numbers: Float[Tensor, "n S C"]) -> Float[Tensor, "n C S"]:
        return numbers.index_select(1, self.order).transpose(1, 2).contiguous()

    def _edge_deficits(self, deficits: Float[Tensor, "n C S"]) -> Float[Tensor, "n C E"]:
        num = len(self._ends)
        if self._in_slices:
            first, second = deficits[:, :, :num], deficits[:, :, num : 2 * num]
        else:
            first, second = (deficits.index_select(2, ends) for ends in self._ends.T)
        return first + second - first * second

    def scores(self, rows: slice | Tensor, dtype: torch.dtype | None = None) -> Float[Tensor, " n"]:
        """Return Δ of each single point."""
        if self.num_questions > 1:
            terms = self.terms(rows, dtype)
            weights = torch.outer(self.draw_weights[self.order], self.edge_weights)
            return terms.weighted(weights.to(terms.probs.dtype))
        probs, deficits = self._distributions(rows, dtype)
        mean_probs = probs @ self.draw_weights[self.order].to(probs.dtype)  # (n, C)
        if len(self._ends) <= DENSE_EDGES_PER_DRAW * self.predictions.num_draws:
            weights = self.edge_weights.to(probs.dtype)
            discounted = (self._edge_deficits(deficits) * weights).sum(dim=2)
        else:
            discounted = self._dense_discounts(deficits)
        return (mean_probs * discounted).sum(dim=1)

    def _dense_discounts(self, deficits: Float[Tensor, "n C S"]) -> Float[Tensor, "n C"]:
        """Return Σ_k v_k (1 − Q_k) with one (S, S) matrix product: Σ_ab V_ab (μ_a + μ_b − μ_a μ_b) / 2.

        Used only with more edges than disjoint pairs have, so draws are in their original order.
        """
        num_draws = self.predictions.num_draws
        matrix = torch.zeros(num_draws, num_draws, dtype=torch.float64, device=self.device)
        matrix[self._ends[:, 0], self._ends[:, 1]] = self.edge_weights
        matrix = (matrix + matrix.T).to(deficits.dtype)
        linear = deficits @ matrix.sum(dim=1)
        quadratic = ((deficits @ matrix) * deficits).sum(dim=2)
        return linear - quadratic / 2

    def factors(self, rows: slice | Tensor) -> tuple[Float[Tensor, "n S E"], Float[Tensor, "n S E"]]:
        """Return (1 − G, G) of some points in float64, each computed without cancellation."""
        every = self._read(rows, torch.float64)
        shape = (len(every) // self.num_questions, every.shape[1], len(self._ends))
        discounts, survives = every.new_zeros(shape), every.new_ones(shape)
        for question in range(self.num_questions):
            log_probs = every[question :: self.num_questions]  # (n, S, C)
            ratios = log_ratios(log_probs.transpose(1, 2), self.offset)
            pairs = ratios.index_select(2, self._ends[:, 0]) + ratios.index_select(2, self._ends[:, 1])
            own, kept = log_probs.exp() @ -torch.expm1(pairs), log_probs.exp() @ pairs.exp()
            discounts, survives = discounts + survives * own, survives * kept
        return discounts, survives

    def features(self, rows: slice | Tensor) -> Float[Tensor, "n F"]:
        """Return φ_x = √(w_j v_k) (1 − G_x[j, k]), flattened to F = S·E: for x ≠ y, I(x, y) = ⟨φ_x, φ_y⟩."""
        discounts = self.terms(rows).discounts()
        root = torch.outer(self.draw_weights[self.order], self.edge_weights).sqrt().to(discounts.dtype)
        return (discounts * root).flatten(start_dim=1)

    def spans(self, num_points: int) -> list[slice]:
        """Return consecutive slices of `num_points` points whose terms fit in the CPU cache."""
        each = self.bytes_per_point
        if self.num_questions > 1:  # G of every draw and edge, before and after each question
            each += 3 * self.predictions.num_draws * len(self._ends) * self.predictions.dtype.itemsize
        return spans_of(num_points, CHUNK_BYTES // max(1, each))

    def each(self, work: Callable[[slice], None], num_points: int, bar: Bar | None = None) -> None:
        """Run `work` on every span of `num_points` points, in parallel unless predictions are computed on demand."""
        spans = self.spans(num_points)
        if self.device.type == "cpu" and not self.predictions.source.is_made_on_demand:
            threads.each(work, spans, bar)
            return
        for span in spans:
            work(span)
            if bar is not None:
                bar.advance(span.stop - span.start)

    def factor_spans(self, num_points: int) -> list[slice]:
        """Return consecutive slices of `num_points` points whose factors, and a few copies of them, fit in memory."""
        return spans_of(num_points, FACTOR_BYTES // max(1, 8 * len(self.draw_weights) * len(self.edge_weights)))


class Survival:
    """R̃[j, k] = w_j v_k Π_{x∈A} G_x[j, k] of a growing batch A: the remaining weight of edge k if draw j is the truth.

    It is stored as ``scaled · exp(log_scale)`` with the largest entry of `scaled` at 1, in float64, so that it does
    not underflow however many points are added.
    """

    def __init__(self, draw_weights: Float[Tensor, " S"], edge_weights: Float[Tensor, " E"]):
        self.scaled = torch.outer(draw_weights, edge_weights)
        self.log_scale = 0.0
        self._rescale()

    def copy(self) -> "Survival":
        """Return an independent copy."""
        return copy.copy(self)  # a shallow copy, because `multiply` never modifies a tensor in place

    @property
    def log_total(self) -> float:
        """The value of log Σ R̃; -inf once nothing survives."""
        total = float(self.scaled.sum())
        return math.log(total) + self.log_scale if total > 0 else -math.inf

    def multiply(self, factor: Float[Tensor, "S E"]) -> None:
        """Multiply by G of a point that joins the batch."""
        self.scaled = self.scaled * factor
        self._rescale()

    def _rescale(self) -> None:
        largest = self.scaled.amax() if self.scaled.numel() else torch.zeros(())
        if largest > 0:
            self.scaled = self.scaled / largest
            self.log_scale += math.log(float(largest))


class BalanceObjective:
    """Marginal gains of a growing batch: the objective that greedy selection maximises.

    gain(x | A) = Σ_{k,y} (1 − Q_x[k, y]) · (R̃ᵀ P_x)[k, y]: one matrix product over all candidates.

    Positions index the `candidates`, not the pool. The terms of all candidates are cached if they fit the model's
    `cache_bytes`.
    """

    def __init__(self, model: BalanceModel, candidates: Int[Tensor, " n"]):
        self.model = model
        self.candidates = candidates
        self.survival = Survival(model.draw_weights, model.edge_weights)
        fits = len(candidates) * model.bytes_per_point <= model.cache_bytes
        self._cache = self._filled(candidates) if fits else None

    @property
    def num_candidates(self) -> int:
        """The number of candidates."""
        return len(self.candidates)

    @property
    def log_scale(self) -> float:
        """The log of the factor by which gains must be multiplied."""
        return self.survival.log_scale

    def _filled(self, rows: Int[Tensor, " n"]) -> PointTerms:
        predictions, dtype = self.model.predictions, self.model.predictions.dtype
        lead = (len(rows), self.model.num_questions, predictions.source.shape[2])
        probs = torch.empty(*lead, predictions.num_draws, dtype=dtype, device=self.model.device)
        deficits = torch.empty(*lead, len(self.model.edge_weights), dtype=dtype, device=self.model.device)

        def fill(span: slice) -> None:
            terms = self.model.terms(rows[span])
            probs[span], deficits[span] = terms.probs, terms.deficits

        self.model.each(fill, len(rows))
        return PointTerms(probs, deficits)

    def gains(self, positions: Int[Tensor, " p"] | None = None, bar: Bar | None = None) -> Float[Tensor, " p"]:
        """Return gains of some positions (all if omitted), computed in working precision, without the scale."""
        num = self.num_candidates if positions is None else len(positions)
        survival = self.survival.scaled[self.model.order].to(self.model.predictions.dtype)
        out = torch.empty(num, dtype=torch.float64)

        def fill(span: slice) -> None:
            rows = span if positions is None else positions[span]
            terms = self.model.terms(self.candidates[rows]) if self._cache is None else self._cache[rows]
            out[span] = terms.weighted(survival).double().cpu()

        self.model.each(fill, num, bar)
        return out

    def exact_gains(self, positions: Int[Tensor, " p"]) -> Float[Tensor, " p"]:
        """Return gains of some positions, computed in float64, without the scale; used to decide near-ties."""
        out = torch.empty(len(positions), dtype=torch.float64)
        for span in self.model.spans(len(positions)):
            terms = self.model.terms(self.candidates[positions[span]], torch.float64)
            out[span] = terms.weighted(self.survival.scaled[self.model.order]).cpu()
        return out

    def factors(self, position: int) -> tuple[Float[Tensor, "S E"], Float[Tensor, "S E"]]:
        """Return (1 − G, G) of a point."""
        discounts, kept = self.model.factors(self.candidates[position : position + 1])
        return discounts[0], kept[0]

    def add(self, position: int) -> None:
        """Add a point to the batch."""
        self.survival.multiply(self.factors(position)[1])


def balance_scores(predictions: Predictions, edges: Edges, *, offset: bool = False) -> Float[Tensor, " N"]:
    """Return Δ of each point: the expected edge weight that its label discounts, in [0, Δ_max]; larger is better."""
    model = BalanceModel(predictions, edges, offset=offset)
    return torch.cat([model.scores(span).cpu() for span in model.spans(predictions.num_points)])


@dataclass(frozen=True)
class BalancePath:
    """Δ along an ordered batch, float64: the `gains` of its points and their Monte-Carlo standard `errors`.

    With fewer than LEAST_DRAWS draws, which make at most one disjoint pair, `errors` is always None.
    """

    gains: Float[Tensor, " B"]
    errors: Float[Tensor, " B"] | None


def balance_path(model: BalanceModel, indices: Int[Tensor, " B"]) -> BalancePath:
    """Return the exact gain of each point of a batch given those before it."""
    survival = torch.ones(len(model.draw_weights), len(model.edge_weights), dtype=torch.float64, device=model.device)
    gains, errors = [], []
    for span in model.factor_spans(len(indices)):
        discounts, kept = model.factors(indices[span])
        before = torch.cat([survival.unsqueeze(0), kept[:-1]]).cumprod(dim=0)  # (n, S, E)
        survival = before[-1] * kept[-1]
        contributions = before * discounts
        gains.append(torch.einsum("nse,s,e->n", contributions, model.draw_weights, model.edge_weights))
        errors.append(_standard_errors(contributions, model))
    few = model.predictions.num_draws < LEAST_DRAWS
    return BalancePath(torch.cat(gains).cpu(), None if few else torch.cat(errors).cpu())


def _standard_errors(contributions: Float[Tensor, "n S E"], model: BalanceModel) -> Float[Tensor, " n"]:
    """Return standard errors over draws of Σ_jk w_j v_k F[j, k].

    Each draw enters twice: as the truth j, and as an end of its pairs k. Its influence is the sum of both deviations
    from the mean. Disjoint pairs are the independent units of the paper's design, so their two draws count as one.
    """
    edges, draw_weights = model.edges, model.draw_weights
    pair_weights = edges.pair_weights.to(model.device)
    as_truth = contributions @ model.edge_weights  # (n, S)
    as_pair = torch.zeros(len(contributions), edges.num_pairs, dtype=torch.float64, device=model.device)
    as_pair[:, edges.connected.to(model.device)] = torch.einsum("nse,s->ne", contributions, draw_weights)
    mean = as_truth @ draw_weights
    truth_parts = (as_truth - mean.unsqueeze(1)) * draw_weights
    pair_parts = (as_pair - mean.unsqueeze(1)) * pair_weights

    pairs = edges.pairs.to(model.device)
    unit = torch.arange(edges.num_draws, device=model.device)
    if edges.design == "disjoint":
        unit[pairs[:, 1]] = pairs[:, 0]
    influence = torch.zeros(len(contributions), edges.num_draws, dtype=torch.float64, device=model.device)
    influence.index_add_(1, unit, truth_parts)
    influence.index_add_(1, unit[pairs[:, 0]], pair_parts)
    if edges.design != "disjoint":
        influence.index_add_(1, unit[pairs[:, 1]], pair_parts)
    num_units = max(2, len(unit.unique()))  # avoids a division by 0; with one unit the result is not used
    return (influence.square().sum(dim=1) * num_units / (num_units - 1)).sqrt()


def joint_balance(predictions: Predictions, edges: Edges, indices: Indices, *, offset: bool = False) -> float:
    """Return Δ of a set of points, exact for any size: the expected edge weight that their labels jointly discount."""
    rows = check_indices("indices", indices, predictions.num_points)
    if not len(rows):
        return 0.0
    return float(balance_path(BalanceModel(predictions, edges, offset=offset), rows).gains.sum())


def information(
    predictions: Predictions, edges: Edges, rows: Indices, cols: Indices, *, offset: bool = False
) -> Float[Tensor, "r c"]:
    """Return the overlap I(x, y) = Δ(x) + Δ(y) − Δ({x, y}) of x in `rows` and y in `cols` (eq. 3); I(x, x) = Δ(x)."""
    model = BalanceModel(predictions, edges, offset=offset)
    first = check_indices("rows", rows, predictions.num_points)
    second = check_indices("cols", cols, predictions.num_points)
    matrix = model.features(first) @ model.features(second).T
    same = first.unsqueeze(1) == second.unsqueeze(0)
    return torch.where(same.to(model.device), model.scores(first).unsqueeze(1), matrix).cpu()


def null_path(predictions: Predictions, indices: Int[Tensor, " B"], *, offset: bool = False) -> Float[Tensor, " B"]:
    """Return the coverage after each point due to label noise alone: as if every draw were the mean prediction."""
    questions, kept = predictions.questions, []
    per_point = math.prod(predictions.source.shape[1:]) * (predictions.num_labels or 1)
    for span in spans_of(len(indices), CHUNK_BYTES // per_point):
        rows = predictions.question_rows(indices[span])
        log_probs = torch.log_softmax(questions.log_probs(rows).double().cpu(), dim=2)
        mean = torch.einsum("nsc,s->nc", log_probs.exp(), predictions.draw_weights).log()
        ratios = log_ratios(mean.unsqueeze(2), offset).squeeze(2)
        survives = 1 - (mean.exp() * -torch.expm1(2 * ratios)).sum(dim=1)
        kept.append(survives.view(span.stop - span.start, -1).prod(dim=1))
    return 1 - torch.cat(kept).cumprod(dim=0)

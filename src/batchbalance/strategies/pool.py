"""`Pool`: the data about the points that a batch is chosen from. A strategy reads only the parts that it needs."""

from collections.abc import Callable, Mapping
from copy import copy
from typing import Any, Literal, SupportsFloat, SupportsIndex, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.arguments import seeds
from batchbalance.arguments.checks import as_tensor, check_device, check_embeddings, check_unit, compute_dtype
from batchbalance.balance.closed_form import CACHE_BYTES
from batchbalance.balance.edges import DEFAULT_RATIO, Edges, MaxReference, Pairs, annealed_threshold
from batchbalance.balance.evaluation import remaining_candidates
from batchbalance.balance.greedy import Executor
from batchbalance.batches.distances import BLOCK_NUMBERS, directions
from batchbalance.errors import MissingPartError
from batchbalance.predictions import Predictions
from batchbalance.scores import unsureness

Metric = Literal["auto", "raw", "unit"]
UNIT_FEATURES = 32  # with at least this many features, "auto" treats rows as embeddings, not as a table

HOW_TO_GET = {  # remedies for a part that a strategy reads and that was not given
    "predictions": "predict the pool with a model (Predictions.from_probs), or choose a strategy that needs none",
    "embeddings": "give the features of a network or an encoder (batchbalance embed)",
    "weights": "give one weight for each point that is covered",
}


class Pool:
    """The data about N points, and how many of which are to be chosen.

    A part is checked, or computed, when a strategy first reads it, and at most once. A missing part raises
    `MissingPartError`, which names the argument and how to get it.

    Args:
        given: parts as passed to ``select``; those that are None count as not given.
        made: functions that compute parts when they are read, for the pool of a model. They may return None
            for an unknown number, such as an error that cannot be estimated.
        num_points: N; if omitted, that of the given predictions or embeddings.
        device: where to compute; the device of the predictions if omitted.

    Attributes:
        num_points: N.
        candidates: (n,) the points that may be chosen, in ascending order.
        labelled: (l,) points of the pool that have labels; they are not candidates.
        batch_size: B, at most n.
        seed: seed of the random parts.
        read: the names of the parts that were read so far.
        progress: show progress.
        cache_bytes: the bytes of memory that caches may use.
        executor: runs the shards of a greedy run; None for this process.
    """

    def __init__(
        self,
        given: Mapping[str, Any] | None = None,
        made: Mapping[str, Callable[[], Any]] | None = None,
        *,
        num_points: int | None = None,
        device: str | None = None,
    ) -> None:
        self.given = {name: value for name, value in (given or {}).items() if value is not None}
        self._made = dict(made or {})
        self._values: dict[str, Any] = {}
        self._device = None if device is None else check_device("device", device)
        self._factor = 1.0
        self.read: set[str] = set()
        self.num_points = self._counted() if num_points is None else num_points
        self.candidates = torch.arange(self.num_points)
        self.labelled = self.candidates[:0]
        self.batch_size, self.seed = 1, 0
        self.progress, self.cache_bytes = False, CACHE_BYTES
        self.executor: Executor | None = None
        self.threshold_source: str | None = None

    def _counted(self) -> int:
        for name in ("predictions", "embeddings"):
            if name in self.given:
                found: Predictions | Tensor = self._value(name)
                return found.num_points if isinstance(found, Predictions) else len(found)
        raise ValueError("`predictions` or `embeddings` must be given, got neither")

    def to_choose(self, **changes: Any) -> "Pool":
        """Return a view of this pool with other candidates, batch size, seed, labelled points and so on.

        The parts, and the record of which were read, are shared.
        """
        other = copy(self)
        for name, value in changes.items():
            setattr(other, name, value)
        return other

    def without(self, *names: str) -> "Pool":
        """Return a view of this pool in which some parts are missing."""
        other = copy(self)
        other.given = {name: value for name, value in self.given.items() if name not in names}
        other._made = {name: make for name, make in self._made.items() if name not in names}
        other._values = {name: value for name, value in self._values.items() if name not in names}
        return other

    def scaled(self, factor: float) -> "Pool":
        """Return a view of this pool with all embeddings times `factor`."""
        return self.to_choose(_factor=self._factor * factor)

    def measured_by(self, metric: Metric) -> "Pool":
        """Return a view of this pool whose distances are measured by another metric."""
        other = self.without("metric")
        other.given["metric"] = metric
        return other

    def has(self, name: str) -> bool:
        """Return whether a part was given or can be computed."""
        return name in self.given or name in self._made

    def at_hand(self, name: str) -> Any:
        """Return a part that was given or already computed, else None; does not count as reading it."""
        return self._value(name) if name in self.given or name in self._values else None

    def unread(self) -> list[str]:
        """Return the names of given parts that were never read; a part that determines N counts as read."""
        read = self.read | ({"predictions", "embeddings"} if not {"predictions", "embeddings"} & self.read else set())
        return [name for name in self.given if name not in read]

    def generator(self, purpose: str) -> torch.Generator:
        """Return a random generator for one purpose of this choice; all randomness of a strategy comes from here."""
        return seeds.generator(self.seed, purpose)

    # --- predictions

    @property
    def predictions(self) -> Predictions:
        """Predictions of the whole pool."""
        return self._read("predictions")  # type: ignore[no-any-return]

    @property
    def reference(self) -> Predictions:
        """Predictions of the same draws on the reference set; those of the pool if none is given."""
        return self._read("reference") if self.has("reference") else self.predictions

    @property
    def threshold(self) -> float:
        """The threshold τ: as given, or ratio · ε; ε is estimated from the pool if unknown. See `threshold_source`."""
        if self.has("threshold"):
            self.threshold_source = "given"
            return float(self._read("threshold"))
        ratio = self._read("ratio") if self.has("ratio") else DEFAULT_RATIO
        error = self.validation_error
        if error is not None:
            self.threshold_source = f"{float(ratio):g} × validation error {float(error):.4g}"
            return annealed_threshold(error, ratio)
        error = self._estimated_error()
        self.threshold_source = (
            f"{float(ratio):g} × estimated error {error:.4g}, the mean of 1 − (largest mean probability) over the pool"
        )
        return annealed_threshold(error, ratio)

    @property
    def validation_error(self) -> SupportsFloat | None:
        """The validation error ε of the model; None if unknown."""
        return self._read("validation_error") if self.has("validation_error") else None

    @property
    def pairs(self) -> Pairs | SupportsIndex:
        """Which pairs of draws are compared."""
        return self._read("pairs") if self.has("pairs") else "disjoint"

    @property
    def max_reference(self) -> MaxReference | None:
        """The size to which a larger reference set is subsampled."""
        return self._read("max_reference") if self.has("max_reference") else None

    def edges(self, connect: Callable[["Pool"], Edges]) -> Edges:
        """Return the edges between draws that a strategy's `connect` returns for this pool; computed once."""
        if "edges" not in self._values:
            self._values["edges"] = connect(self)
        return self._values["edges"]  # type: ignore[no-any-return]

    def _estimated_error(self) -> float:
        predictions, executor = self.predictions, self.executor
        if executor is not None and predictions.source.is_made_on_demand:
            raise ValueError(
                "`threshold` or `validation_error` must be given for predictions that are computed when read, got "
                "neither: estimating them would predict the pool twice"
            )
        total = unsureness(predictions) if executor is None else executor.unsureness(predictions)
        return min(1.0, max(0.0, total / predictions.num_points))

    # --- embeddings

    @property
    def embeddings(self) -> Tensor:
        """The embeddings of the pool as given, (N, D), or (N, S, D) for every draw."""
        return self._scaled(self._read("embeddings"))

    @property
    def is_unit(self) -> bool:
        """Whether distances are measured between rows that are centred with the pool and scaled to unit length."""
        return is_unit(self._read("metric") if self.has("metric") else "auto", self.num_features)

    @property
    def centre(self) -> Float[Tensor, " D"]:
        """The mean of the embeddings of the pool, read in blocks."""
        if "centre" not in self._values:
            found = self._read("embeddings")
            total = torch.zeros(self.num_features, dtype=torch.float64)
            for block in found.split(max(1, BLOCK_NUMBERS // found[0].numel())):
                total += self._mean(block).sum(dim=0, dtype=torch.float64).cpu()
            self._values["centre"] = total / len(found)
        return self._values["centre"]  # type: ignore[no-any-return]

    @property
    def num_features(self) -> int:
        """The number of features of an embedding, D."""
        return int(self._read("embeddings").shape[-1])

    @property
    def draw_embeddings(self) -> Float[Tensor, "N S D"]:
        """The embeddings under every draw."""
        found = self._read("draw_embeddings" if "draw_embeddings" in self._made else "embeddings")
        if found.ndim == 2:
            raise ValueError(
                f"`embeddings` must be those of every draw (N, S, D) for this strategy, got shape {tuple(found.shape)}"
            )
        return self._scaled(found)

    @property
    def features(self) -> Float[Tensor, "N D"]:
        """The embeddings of the pool as given, averaged over draws by their weights."""
        return self._mean(self.embeddings)

    @property
    def mean_embeddings(self) -> Float[Tensor, "N D"]:
        """The embeddings in the space where distances are measured, averaged over draws by their weights."""
        return self._placed_rows(self._read("embeddings"))

    def embedding_rows(self, rows: Int[Tensor, " p"]) -> Float[Tensor, "p D"]:
        """Return `mean_embeddings` of some points; a mapped file is never read into memory as a whole."""
        found = self._read("embeddings")
        return self._placed_rows(found[rows.to(found.device)])

    @property
    def labelled_embeddings(self) -> Float[Tensor, "L D"] | None:
        """The mean embeddings of all labelled points, those of the pool first; None if there are none."""
        found = []
        if len(self.labelled):
            found.append(self.embedding_rows(self.labelled))
        others = self._read("labelled_embeddings") if self.has("labelled_embeddings") else None
        if others is not None and len(others):
            if others.shape[-1] != self.num_features:
                raise ValueError(
                    f"`labelled_embeddings` must have the {self.num_features} features of `embeddings`, got "
                    f"{others.shape[-1]}; embed both with one network"
                )
            found.append(self._placed_rows(others).to(self._read("embeddings").device))
        return torch.cat(found) if found else None

    @property
    def targets(self) -> Float[Tensor, "M D"]:
        """The points to cover instead of the pool."""
        found: Tensor = self._read("targets")
        if found.ndim != 2 or found.shape[-1] != self.num_features or not len(found):
            raise ValueError(
                f"`targets` must be points × the {self.num_features} features of `embeddings`, at least one point, "
                f"got shape {tuple(found.shape)}"
            )
        return self._placed_rows(found)

    @property
    def weights(self) -> Float[Tensor, " N"]:
        """The weight of each covered point: those of the pool, or `targets` if given."""
        found: Tensor = self._read("weights")
        count, what = (len(self.targets), "targets") if self.has("targets") else (self.num_points, "points")
        if found.shape != (count,):
            raise ValueError(f"`weights` must be one number for each of {count} {what}, got shape {tuple(found.shape)}")
        if not bool(((found >= 0) & (found < torch.inf)).all()):
            wrong = int((~((found >= 0) & (found < torch.inf))).nonzero()[0])
            raise ValueError(
                f"`weights` must be finite and non-negative, got {float(found[wrong]):g} at position {wrong}"
            )
        return found

    def _placed_rows(self, embeddings: Tensor) -> Float[Tensor, "p D"]:
        """Return embeddings in the space where distances are measured, averaged over draws."""
        if not self.is_unit:
            return self._mean(self._scaled(embeddings))
        rows = self._mean(embeddings)
        return directions(rows, self.centre.to(rows))

    def _scaled(self, embeddings: Tensor) -> Tensor:
        return embeddings if self._factor == 1 else _as_floats(embeddings) * self._factor

    def _mean(self, embeddings: Tensor) -> Tensor:
        numbers = _as_floats(embeddings)
        if numbers.ndim == 2:
            return numbers
        if not self.has("predictions"):
            return numbers.mean(dim=1)
        return torch.einsum("s,nsd->nd", self.predictions.draw_weights.to(numbers), numbers)

    # --- parts

    def _read(self, name: str) -> Any:
        self.read.add(name)
        return self._value(name)

    def _value(self, name: str) -> Any:
        if name not in self._values:
            if not self.has(name):
                raise MissingPartError(name, HOW_TO_GET.get(name, "give it"))
            raw = self.given[name] if name in self.given else self._made[name]()
            self._values[name] = None if raw is None else self._checked(name, raw)
        return self._values[name]

    def _checked(self, name: str, raw: Any) -> Any:
        if name == "predictions":
            return self._placed(name, raw)
        if name == "reference":
            return self._same_draws(self._placed(name, raw))
        if name in ("embeddings", "draw_embeddings", "labelled_embeddings", "targets"):
            predictions = self.at_hand("predictions")
            num_points = None if name in ("labelled_embeddings", "targets") else getattr(self, "num_points", None)
            num_draws = None if predictions is None else predictions.num_draws
            found = check_embeddings(name, raw, num_draws, num_points)
            where = self._device or (None if predictions is None else predictions.device)
            return found if found is None else found.to(where or (found.device if name in self._made else "cpu"))
        if name == "metric" and raw not in get_args(Metric):
            raise ValueError(f"`metric` must be one of {', '.join(map(repr, get_args(Metric)))}, got {raw!r}")
        if name == "weights":
            return as_tensor(raw, "`weights`").to("cpu", torch.float64)
        return check_unit(name, raw) if name == "threshold" else raw

    def _placed(self, name: str, given: Any) -> Predictions:
        if not isinstance(given, Predictions):
            raise TypeError(f"`{name}` must be Predictions, got {type(given).__name__}; see Predictions.from_probs")
        return given if self._device is None else given.to(self._device)

    def _same_draws(self, found: Predictions) -> Predictions:
        own = self._value("predictions")
        if found.weights is None and own.weights is not None and found.num_draws == own.num_draws:
            found = found.with_weights(own.weights)  # weights belong to draws, not to points
        own.check_same_draws(found)
        return found


def is_unit(metric: Metric, num_features: int) -> bool:
    """Return whether a metric uses rows of unit length.

    The norm of an embedding says little about its class, and linear heads ignore it. Columns of a table are used
    unchanged. "auto" distinguishes the two by the number of features.
    """
    return num_features >= UNIT_FEATURES if metric == "auto" else metric == "unit"


def _as_floats(embeddings: Tensor) -> Tensor:
    if embeddings.dtype in (torch.float32, torch.float64):
        return embeddings
    return embeddings.to(compute_dtype(embeddings.dtype))


def open_candidates(num_points: int, excluded: Int[Tensor, " e"], labelled: Int[Tensor, " l"]) -> Int[Tensor, " n"]:
    """Return the points that may be chosen."""
    candidates = remaining_candidates(num_points, torch.cat([excluded, labelled]))
    if not len(candidates):
        names = "`exclude` and `labelled`" if len(labelled) else "`exclude`"
        raise ValueError(f"{names} must leave at least one point to choose from, got all of them")
    return candidates

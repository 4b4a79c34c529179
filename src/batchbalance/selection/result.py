"""The result of `select`: a batch, its value and its edges."""

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any

from jaxtyping import Float, Int
from torch import Tensor

from batchbalance.balance.edges import Edges
from batchbalance.balance.evaluation import BatchEvaluation
from batchbalance.batches.cover import Cover
from batchbalance.errors import MissingExtraError
from batchbalance.predictions import Label
from batchbalance.strategies import Choice, Strategy

if TYPE_CHECKING:
    import pandas


@dataclass(frozen=True, eq=False, repr=False)
class Selection:
    """A chosen batch and its properties.

    Attributes:
        strategy: the strategy with its options.
        seed: the seed it ran with.
        choice: the choice of the strategy.
        value: the value of the batch; None for strategies that do not join draws by edges.
        edges: the pairs of draws that differ enough, for ``evaluate_batch`` on other batches; None like `value`.
        threshold_source: how τ was determined; None like `value`.
        warnings: warnings to read before the batch is labelled.
        note: why `auto` chose this strategy; None if it was named.
        predicted: the most probable label of each chosen point, by the mean of draws; None if classes have no names.
        names: the chosen points in the index of the DataFrame that was given as `pool`; None without one.
    """

    strategy: Strategy
    seed: int
    choice: Choice
    value: BatchEvaluation | None = None
    edges: Edges | None = None
    threshold_source: str | None = None
    warnings: tuple[str, ...] = ()
    note: str | None = None
    predicted: tuple[Label, ...] | None = None
    names: tuple[Any, ...] | None = None

    @property
    def indices(self) -> Int[Tensor, " B"]:
        """The chosen points of the pool, (B,), in the order they were chosen."""
        return self.choice.indices

    @property
    def scores(self) -> Float[Tensor, " B"] | None:
        """The numbers by which the strategy ranked or sampled the points, (B,), if any."""
        return self.choice.scores

    @property
    def gains(self) -> Float[Tensor, " B"] | None:
        """The gain in Δ of each point given those before it, (B,) float64."""
        return None if self.value is None else self.value.gains

    @property
    def gain_errors(self) -> Float[Tensor, " B"] | None:
        """The Monte-Carlo standard error of each gain over draws, (B,); None with fewer than four draws."""
        return None if self.value is None else self.value.gain_errors

    @property
    def coverage(self) -> Float[Tensor, " B"] | None:
        """The coverage Δ / Δ_max after each pick, (B,): the expected share of edge weight discounted.

        Compare it with `random_coverage` and `null_coverage`: label noise and random batches discount as well.
        """
        return None if self.value is None else self.value.coverage

    @property
    def random_coverage(self) -> float | None:
        """The mean coverage of 20 random batches of this size."""
        return None if self.value is None else self.value.random_coverage

    @property
    def null_coverage(self) -> Float[Tensor, " B"] | None:
        """The coverage after each pick if every draw were the mean prediction, (B,)."""
        return None if self.value is None else self.value.null_coverage

    @property
    def certificate(self) -> float | None:
        """The batch is worth at least this share of the best batch under these draws and pairs."""
        return None if self.value is None else self.value.certificate

    @property
    def cover(self) -> Cover | None:
        """The coverage of the batch in the space of embeddings, for coverage strategies.

        Its gains, coverage and certificate are shares of the weighted pool, those of `Selection` of edge weight.
        """
        return self.choice.cover

    def as_dict(self) -> dict[str, Any]:
        """Return plain numbers, lists and strings, ready for JSON."""
        holders: dict[str, Any] = {"value": self.value, "edges": self.edges, "choice": self.choice}
        return {
            "strategy": {"name": self.strategy.name, **self.strategy.model_dump()},
            "seed": self.seed,
            "threshold_source": self.threshold_source,
            **{name: _plain(getattr(holders[where], name, None)) for where, names in PLAIN.items() for name in names},
            "cover": self.cover and {each.name: _plain(getattr(self.cover, each.name)) for each in fields(self.cover)},
            "warnings": list(self.warnings),
            "note": self.note,
            "predicted": self.predicted and list(self.predicted),
        }

    def to_frame(self) -> "pandas.DataFrame":
        """Return the batch as a pandas DataFrame: a row for each point, a column for each known property.

        Its index is that of the DataFrame given as `pool`, so that `df.loc[frame.index]` are the chosen rows.
        """
        try:
            import pandas
        except ImportError as error:
            raise MissingExtraError("a selection as a DataFrame", "pandas") from error
        columns: dict[str, Any] = {name: getattr(self, name) for name in COLUMNS}
        if self.cover is not None:
            columns |= {"cover_gain": self.cover.gains, "cover": self.cover.coverage}
        known = {COLUMNS.get(name, name): _plain(each) for name, each in columns.items() if each is not None}
        if self.predicted is not None:
            known["predicted"] = list(self.predicted)
        return pandas.DataFrame(known, index=None if self.names is None else list(self.names))

    def __repr__(self) -> str:
        first = ", ".join(map(str, self.indices[:3].tolist())) + (", …" if len(self.indices) > 3 else "")
        found = next((each for each in (self.value, self.cover) if each is not None), None)
        certified = "" if found is None or found.certificate is None else f", certificate {found.certificate:.2f}"
        warned = f", {len(self.warnings)} warnings" if self.warnings else ""
        return f"Selection({len(self.indices)} points by {self.strategy.name!r}: {first}{certified}{warned})"


# Properties of each point, and their columns in ``to_frame``.
COLUMNS = {
    "indices": "index", "scores": "score", "gains": "gain", "gain_errors": "gain_error", "coverage": "coverage",
    "null_coverage": "null_coverage",
}  # fmt: skip


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


PLAIN = {  # the plain parts of a selection, by the object that holds them
    "choice": ("indices", "scores", "continued_from", "continuation", "clustering_rounds"),
    "value": ("gains", "gain_errors", "coverage", "random_coverage", "null_coverage", "certificate"),
    "edges": ("num_edges", "num_pairs", "num_reference", "threshold"),
}

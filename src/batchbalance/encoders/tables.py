"""Rows of a table as vectors: numbers are standardised, categories become indicators, all columns weigh the same."""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np

from batchbalance.encoders.contract import Kind, Vectors
from batchbalance.encoders.rows import Row
from batchbalance.errors import FileFormatError

MAX_CATEGORIES = 100  # per column; rarer ones share one indicator
NO_NUMBER = {"", "na", "n/a", "nan", "null", "none"}  # missing values in a column of numbers
OTHER, GAP = "other", "gap"


@dataclass(frozen=True)
class Numbers:
    """A column of numbers: (value − mean) / deviation, 0 if missing; an indicator of missing values if any."""

    name: str
    mean: float
    deviation: float
    gap_share: float

    def features(self, cell: Any) -> list[float]:
        """Return the features of one cell."""
        number = as_number(cell)
        if number is None:
            raise FileFormatError(f"column {self.name!r} must hold numbers, as it did in `fit`, got {cell!r}")
        is_gap = math.isnan(number)
        scaled = 0.0 if is_gap else (number - self.mean) / self.deviation
        if not self.gap_share:
            return [scaled]
        return [scaled, (is_gap - self.gap_share) / math.sqrt(self.gap_share * (1 - self.gap_share) or 1)]


@dataclass(frozen=True)
class Categories:
    """A column of categories: an indicator for each, centred; the variances of a column sum to 1.

    Attributes:
        name: the name of the column.
        shares: the frequency of each category, the largest first. Keys are ["is", category], ["other"], ["gap"].
    """

    name: str
    shares: list[tuple[list[str], float]]

    def features(self, cell: Any) -> list[float]:
        """Return the features of one cell; a category that was not seen in `fit` is "other"."""
        positions, scale, absent = self._scaled
        position = positions.get(tuple(category(cell)), positions.get((OTHER,)))
        features = absent.copy()
        if position is not None:
            features[position] += 1 / scale
        return features

    @cached_property
    def _scaled(self) -> tuple[dict[tuple[str, ...], int], float, list[float]]:
        """Positions of the categories, the deviation of the column, and the features of a cell without a category."""
        scale = math.sqrt(sum(share * (1 - share) for _, share in self.shares)) or 1.0
        positions = {tuple(key): i for i, (key, _) in enumerate(self.shares)}
        return positions, scale, [-share / scale for _, share in self.shares]


class TableEncoder:
    """The rows of a table as vectors; fitted on all rows first."""

    name = "table"
    kind: Kind = "rows"

    def __init__(self) -> None:
        self.columns: list[Numbers | Categories] = []

    @property
    def dim(self) -> int | None:
        """The number of features of all columns; None before `fit`."""
        return sum(len(column.features(None)) for column in self.columns) or None

    @property
    def fingerprint(self) -> str:
        """A hash of the fitted state."""
        content = json.dumps([[type(column).__name__, asdict(column)] for column in self.columns])
        return f"table/{hashlib.sha256(content.encode()).hexdigest()[:16]}"

    def fit(self, inputs: Iterable[Row]) -> None:
        """Learn the columns, their kinds, means, deviations and categories; iterates twice over the rows."""
        kinds: dict[str, bool] = {}
        for row in inputs:
            for name, cell in row.items():
                kinds[name] = kinds.get(name, True) and as_number(cell) is not None
        learned: dict[str, _Moments | Counter[str]] = {
            name: _Moments(name) if is_number else Counter() for name, is_number in kinds.items()
        }
        for row in inputs:
            for name, cell in row.items():
                column = learned[name]
                if isinstance(column, _Moments):
                    column.add(cell)
                else:
                    column[json.dumps(category(cell))] += 1
        self.columns = [
            found.column() if isinstance(found, _Moments) else _categories(name, found)
            for name, found in learned.items()
        ]

    def encode(self, batch: Sequence[Row]) -> Vectors:
        """Return the features of some rows."""
        rows = [[x for column in self.columns for x in column.features(row.get(column.name))] for row in batch]
        return np.array(rows, dtype=np.float32)


class _Moments:
    """Mean and deviation of the numbers of a column, by Welford's algorithm."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows = self.numbers = 0
        self.mean = self.squares = 0.0

    def add(self, cell: Any) -> None:
        number = as_number(cell)
        self.rows += 1
        if number is None or math.isnan(number):
            return
        if math.isinf(number):
            raise FileFormatError(f"column {self.name!r} must hold finite numbers, got {cell!r}; edit or --drop it")
        self.numbers += 1
        step = number - self.mean
        self.mean += step / self.numbers
        self.squares += step * (number - self.mean)

    def column(self) -> Numbers:
        deviation = math.sqrt(self.squares / self.numbers) if self.numbers else 0.0
        # The deviation of a constant column is only rounding error.
        constant = deviation <= 1e-12 * abs(self.mean)
        return Numbers(self.name, self.mean, 1.0 if constant else deviation, 1 - self.numbers / self.rows)


def as_number(cell: Any) -> float | None:
    """Return the number of a cell, NaN for a missing value, None for anything else."""
    if cell is None:
        return math.nan
    if isinstance(cell, str):
        if cell.strip().lower() in NO_NUMBER:
            return math.nan
        if "_" in cell:  # Python would parse 1_000 as a number
            return None
    try:
        return float(cell)
    except (TypeError, ValueError):
        return None


def category(cell: Any) -> list[str]:
    """Return the key of a cell of a categorical column."""
    return [GAP] if cell is None or not str(cell).strip() else ["is", str(cell).strip()]


def _categories(name: str, counts: Counter[str]) -> Categories:
    total = sum(counts.values())
    gaps = counts.pop(json.dumps([GAP]), 0)
    ranked = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    shares = [(json.loads(key), count / total) for key, count in ranked[:MAX_CATEGORIES]]
    rest = sum(count for _, count in ranked[MAX_CATEGORIES:])
    shares += [([OTHER], rest / total)] if rest else []
    shares += [([GAP], gaps / total)] if gaps else []
    return Categories(name, shares)

"""The encoder of tables, against a plain loop over columns."""

import math
import statistics

import numpy as np
import pytest

from batchbalance.encoders import embed, encoder
from batchbalance.errors import FileFormatError


def oracle(rows, names, most=100):
    """Features of every row, column by column, with the standard library only."""
    result = [[] for _ in rows]
    for name in names:
        cells = [row.get(name) for row in rows]

        def number(cell):
            if cell is None or (
                isinstance(cell, str) and cell.strip().lower() in ("", "na", "nan", "n/a", "null", "none")
            ):
                return None
            if "_" in str(cell):
                raise ValueError
            return float(cell)

        try:
            numbers = [number(cell) for cell in cells]
        except ValueError:
            texts = ["" if cell is None else str(cell).strip() for cell in cells]
            common = sorted({text for text in texts if text}, key=lambda text: (-texts.count(text), text))[:most]
            groups = [[text == wanted for text in texts] for wanted in common]
            rare = [bool(text) and text not in common for text in texts]
            gaps = [not text for text in texts]
            groups += [group for group in (rare, gaps) if any(group)]
            spread = math.sqrt(sum(statistics.pvariance(map(float, group)) for group in groups)) or 1
            columns = [[(x - statistics.fmean(group)) / spread for x in group] for group in groups]
        else:
            there = [x for x in numbers if x is not None]
            mean, spread = (statistics.fmean(there), statistics.pstdev(there) or 1) if there else (0, 1)
            columns = [[0 if x is None else (x - mean) / spread for x in numbers]]
            gaps = [float(x is None) for x in numbers]
            if any(gaps):
                spread = statistics.pstdev(gaps) or 1
                columns.append([(gap - statistics.fmean(gaps)) / spread for gap in gaps])
        for values, *features in zip(result, *columns, strict=True):
            values += features
    return np.array(result)


ROWS = [
    {"size": "3", "colour": "red", "code": "1_0", "grade": 2.5, "flag": True, "same": "7", "empty": None},
    {"size": "5.5", "colour": "blue", "code": "20", "grade": None, "flag": False, "same": "7", "empty": None},
    {"size": "NA", "colour": "", "code": "20", "grade": -1, "flag": True, "same": "7", "empty": None},
    {"size": "1e2", "colour": " red ", "code": "30", "grade": 0, "flag": True, "same": "7", "empty": None},
]


def test_every_kind_of_column_against_the_oracle():
    made = embed(ROWS, "table").vectors
    expected = oracle(ROWS, list(ROWS[0]))
    assert made.shape == expected.shape
    np.testing.assert_allclose(made, expected, atol=1e-6)
    assert np.ptp(made[:, 0]) > 1  # not all zero


def test_every_column_weighs_the_same():
    rng = np.random.default_rng(0)
    rows = [
        {"n": float(rng.normal(50, 9)), "c": str(rng.choice(["a", "b", "c"], p=[0.7, 0.2, 0.1]))} for _ in range(99)
    ]
    vectors = embed(rows, "table").vectors.astype(float)
    np.testing.assert_allclose(vectors.mean(axis=0), 0, atol=1e-6)
    np.testing.assert_allclose([vectors[:, 0].var(), vectors[:, 1:].var(axis=0).sum()], 1, atol=1e-5)


def test_rare_categories_share_an_indicator():
    rows = [{"c": f"kind {i:03d}"} for i in range(130)] + [{"c": "kind 129"}]
    made = embed(rows, "table").vectors
    assert made.shape == (131, 101)
    np.testing.assert_allclose(made, oracle(rows, ["c"]), atol=1e-6)


def test_a_fitted_encoder_stays_as_it_is():
    using = encoder("table")
    assert using.dim is None
    first = embed(ROWS, using).vectors
    print_of_fit = using.fingerprint
    again = embed(ROWS[1:2], using).vectors
    np.testing.assert_array_equal(again, first[1:2])
    assert using.fingerprint == print_of_fit != encoder("table").fingerprint
    new = embed([{**ROWS[0], "colour": "green"}], using).vectors  # a category that was not there
    assert new.shape == (1, using.dim)
    with pytest.raises(FileFormatError, match="column 'size' must hold numbers, as it did in `fit`, got 'large'"):
        embed([{**ROWS[0], "size": "large"}], using)


def test_infinite_numbers_are_refused():
    with pytest.raises(FileFormatError, match="column 'a' must hold finite numbers, got 'inf'"):
        embed([{"a": "1"}, {"a": "inf"}], "table")


def test_constant_columns_are_zero():
    made = embed([{"a": "0.1", "b": "x"} for _ in range(7)], "table").vectors
    np.testing.assert_array_equal(made, np.zeros((7, 2)))

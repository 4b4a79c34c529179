"""Layouts of the map against plain linear algebra, and what they must keep."""

import numpy as np
import pytest

from batchbalance.project import mapping
from batchbalance.project.mapping import LARGEST, Space, as_bytes, neighbour_plane, principal_plane


def clusters(num=90, dim=5, seed=0):
    rng = np.random.default_rng(seed)
    y = np.arange(num) % 3
    return (rng.normal(size=(num, dim)) * 0.3 + 4 * np.eye(dim)[y]).astype(np.float32), y


def apart(plane):
    return np.sqrt(((plane[:, None] - plane[None]) ** 2).sum(axis=2))


def test_principal_components_are_those_of_an_eigendecomposition():
    vectors, _ = clusters()
    rows = []
    for vector in vectors.astype(np.float64):
        centred = vector - vectors.astype(np.float64).mean(axis=0)
        rows.append(centred / np.sqrt((centred**2).sum()))
    rows = np.array(rows) - np.mean(rows, axis=0)
    _, axes = np.linalg.eigh(rows.T @ rows)
    wanted = rows @ axes[:, [-1, -2]]
    found = principal_plane(Space(vectors, metric="unit", seed=0))
    np.testing.assert_allclose(apart(found), apart(wanted), atol=1e-3)


def test_a_table_is_not_scaled_to_unit_length():
    vectors = np.array([[0, 0], [1, 0], [0, 5], [1, 5]], dtype=np.float32)
    found = principal_plane(Space(vectors, metric="raw", seed=0))
    np.testing.assert_allclose(apart(found), apart(vectors), atol=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize("num_laid_out", [200, 30])
def test_neighbours_stay_together(monkeypatch, num_laid_out):
    monkeypatch.setattr(mapping, "NUM_LAID_OUT", num_laid_out)
    vectors, y = clusters()
    plane = neighbour_plane(Space(vectors, metric="unit", seed=0), seed=0)
    between = apart(plane) + np.diag(np.full(len(y), np.inf))
    assert (y[between.argmin(axis=1)] == y).mean() > 0.95


def test_places_are_16_bits_with_one_scale_for_both_axes():
    plane = np.array([[0.0, 0.0], [10.0, 0.0], [0.0, 5.0], [10.0, 5.0]])
    found = np.frombuffer(as_bytes(plane), dtype="<u2").reshape(-1, 2).astype(np.float64)
    np.testing.assert_allclose(found.mean(axis=0), [LARGEST / 2, LARGEST / 2], atol=1)
    across, up = found[1, 0] - found[0, 0], found[2, 1] - found[0, 1]
    assert across / up == pytest.approx(2, abs=1e-3)
    assert np.frombuffer(as_bytes(np.zeros((3, 2))), dtype="<u2").tolist() == [32768] * 6


def test_one_item_in_one_dimension():
    assert principal_plane(Space(np.ones((1, 1), dtype=np.float32), metric="unit", seed=0)).shape == (1, 2)

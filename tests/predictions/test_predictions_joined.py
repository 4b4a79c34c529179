import os

import numpy as np
import pytest
import torch

from batchbalance import DrawMismatchError, FileFormatError, Predictions, select
from batchbalance.predictions import join, load_parts
from conftest import random_probs, random_weights

pytestmark = pytest.mark.typed

SIZES = (7, 1, 30, 12)
PROBS = random_probs(sum(SIZES), 6, 3, seed=3)
CUTS = np.split(PROBS, np.cumsum(SIZES)[:-1])


@pytest.fixture
def paths(tmp_path):
    files = [tmp_path / f"part-{number}.npy" for number in range(len(SIZES))]
    for path, part in zip(files, CUTS, strict=True):
        np.save(path, part)
    return files


@pytest.mark.parametrize(
    "rows",
    [
        slice(None), slice(3, 5), slice(6, 9), slice(7, 8), slice(0, 50, 7), slice(8, 38), slice(5, 5),
        [49, 0, 7, 7, 8, 37], torch.tensor([20]), [],
    ],
)  # fmt: skip
def test_a_joined_pool_reads_like_one_array(paths, rows):
    whole = np.log(PROBS)[rows if isinstance(rows, slice) else np.array(list(rows), dtype=int)]
    for pool in (load_parts(paths), join([Predictions.from_probs(part) for part in CUTS])):
        assert pool.log_probs(rows).dtype == torch.float64
        np.testing.assert_allclose(pool.log_probs(rows).numpy(), whole, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("strategy", ["greedy-balance", "power-balance", "bald", "mean-std", "cluster-balance"])
def test_strategies_choose_the_same_from_pieces(paths, strategy):
    one = select(Predictions.from_probs(PROBS), 6, strategy=strategy, exclude=[2, 40])
    assert select(load_parts(paths), 6, strategy=strategy, exclude=[2, 40]).indices.tolist() == one.indices.tolist()


def test_pieces_keep_draw_ids_weights_and_names():
    weights = random_weights(6)
    named = Predictions.from_probs(CUTS[0], draw_ids=[*"abcdef"], weights=weights)
    others = [Predictions.from_probs(part, weights=weights) for part in CUTS[1:3]]
    pool = join([*others, named])
    assert pool.draw_ids == tuple("abcdef")
    np.testing.assert_allclose(pool.draw_weights, weights)
    assert pool.num_points == 38
    expected = np.concatenate([CUTS[1], CUTS[2], CUTS[0]])
    np.testing.assert_allclose(pool.mean_probs(), np.einsum("s,nsc->nc", weights, expected), atol=1e-12)
    np.testing.assert_allclose(pool.subset([0, 37]).log_probs().exp(), expected[[0, 37]], atol=1e-12)


def test_pieces_that_do_not_fit_are_refused(tmp_path, paths):
    with pytest.raises(ValueError, match="at least one piece, got none"):
        join([])
    with pytest.raises(ValueError, match="at least one file, got none"):
        load_parts([])
    np.save(tmp_path / "draws.npy", random_probs(4, 5, 3))
    with pytest.raises(DrawMismatchError, match=r"draws.npy` must hold the same draws as the pool: 6 draws, got 5"):
        load_parts([*paths, tmp_path / "draws.npy"])
    np.save(tmp_path / "classes.npy", random_probs(4, 6, 4))
    with pytest.raises(DrawMismatchError, match=r"classes.npy` must have the pool's 3 classes, got 4"):
        load_parts([*paths, tmp_path / "classes.npy"])
    a, b = Predictions.from_probs(CUTS[0], draw_ids=[*"abcdef"]), Predictions.from_probs(CUTS[1], draw_ids=[*"abcdeg"])
    with pytest.raises(DrawMismatchError, match="got draw 'g' where the pool has 'f'"):
        join([a, b])
    with pytest.raises(FileNotFoundError, match=r"none.npy"):
        load_parts([*paths, tmp_path / "none.npy"])


def test_the_same_points_twice_are_refused(tmp_path, paths):
    with pytest.raises(FileFormatError, match="the same file"):
        load_parts([*paths, paths[0].parent / "." / paths[0].name])
    (tmp_path / "link.npy").symlink_to(paths[2])
    with pytest.raises(FileFormatError, match=r"link.npy, the same file"):
        load_parts([*paths, tmp_path / "link.npy"])


def test_a_piece_that_shrinks_is_an_error(paths):
    pool = load_parts(paths)
    os.truncate(paths[2], 500)
    with pytest.raises(FileFormatError, match=r"part-2.npy must not change while it is read"):
        select(pool, 3)

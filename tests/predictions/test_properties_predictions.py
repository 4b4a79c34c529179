"""Any numbers, in any order of axes, of any type and in any file, are the same predictions; pieces are one pool."""

import itertools
import json
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from safetensors.torch import save_file

from batchbalance import Predictions
from batchbalance.predictions import Draws, OnDemand, join, stored_predictions
from conftest import fresh, random_weights

KINDS = ["probs", "logits", "log-probs"]
FILES = [".npy", ".npz", ".safetensors"]
AXES = ["".join(order) for order in itertools.permutations("nsc")]
DTYPES = [np.float16, np.float32, np.float64]


@contextmanager
def looking_like_anything():
    """Logits such as 0 and 1 look like probabilities, which is told and no mistake here."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="logits lie in")
        yield


@st.composite
def numbers(draw, kind, dtype, shape=None):
    """(N, S, C) of a kind; some classes may be impossible."""
    shape = shape or draw(st.tuples(st.integers(1, 4), st.integers(1, 4), st.integers(2, 4)))
    logits = draw(arrays(np.float64, shape, elements=st.floats(-20, 20, width=16)))
    impossible = draw(arrays(np.bool_, shape))
    np.put_along_axis(impossible, logits.argmax(axis=2)[..., None], False, axis=2)
    logits[impossible] = -np.inf
    if kind == "logits":
        return logits.astype(dtype)
    probs = np.exp(logits) / np.exp(logits).sum(axis=2, keepdims=True)
    with np.errstate(divide="ignore"):
        return (probs if kind == "probs" else np.log(probs)).astype(dtype)


def expected_probs(array, kind):
    """Probabilities by plain loops over the rows."""
    wide = array.astype(np.float64)
    out = np.empty_like(wide)
    for n, s in np.ndindex(wide.shape[:2]):
        row = wide[n, s] if kind == "probs" else [np.exp(each - max(wide[n, s])) for each in wide[n, s]]
        out[n, s] = [each / sum(row) for each in row]
    return out


def tolerance(dtype):
    return {"rtol": 1e-10, "atol": 1e-12} if dtype == np.float64 else {"rtol": 2e-5, "atol": 1e-6}


def write(path, array, kind, draw_ids, weights):
    """A file as a stranger would write it."""
    name = kind.replace("-", "_")
    if path.suffix == ".npy":
        np.save(path, array)
    elif path.suffix == ".npz":
        named = {"draw_ids": np.array(draw_ids)} if draw_ids else {}
        np.savez(path, **{name: array}, **named, **({} if weights is None else {"weights": weights}))
    else:
        tensors = {name: torch.from_numpy(np.ascontiguousarray(array))}
        if weights is not None:
            tensors["weights"] = torch.from_numpy(weights)
        save_file(tensors, path, metadata={"draw_ids": json.dumps(draw_ids)} if draw_ids else None)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("ending", [*FILES, "memory"])
@settings(fresh, max_examples=10)
@given(st.sampled_from(AXES), st.sampled_from(DTYPES), st.booleans(), st.data())
def test_round_trips(tmp_path_factory, kind, ending, axes, dtype, named, data):
    array = data.draw(numbers(kind, dtype))
    num_draws = array.shape[1]
    ids = tuple(f"draw {i}" for i in range(num_draws)) if named else None
    weights = random_weights(num_draws, seed=num_draws) if named else None
    folder = tmp_path_factory.getbasetemp()
    turned = array.transpose(*("nsc".index(axis) for axis in axes))
    with looking_like_anything():
        if ending == "memory":
            make = {"probs": Predictions.from_probs, "logits": Predictions.from_logits}
            found = make.get(kind, Predictions.from_log_probs)(turned, axes, draw_ids=ids, weights=weights)
        else:
            write(folder / f"given{ending}", turned, kind, ids, weights)
            given_here = {"draw_ids": ids, "weights": weights} if ending == ".npy" else {}
            found = Predictions.load(folder / f"given{ending}", kind if ending == ".npy" else None, axes, **given_here)
    assert found.shape == array.shape
    assert found.dtype == (torch.float64 if dtype == np.float64 else torch.float32)
    expected = expected_probs(array, kind)
    np.testing.assert_allclose(found.probs().numpy(), expected, **tolerance(dtype))
    np.testing.assert_allclose(found.log_probs().exp().numpy(), expected, **tolerance(dtype))
    for kept in FILES:
        if kept == ".npy" and named:
            continue  # it has no place for names and weights, and saving says so
        found.save(folder / f"kept{kept}")
        again = Predictions.load(folder / f"kept{kept}", "log-probs" if kept == ".npy" else None)
        assert torch.equal(again.log_probs(), found.log_probs())
        assert (again.dtype, again.draw_ids) == (found.dtype, ids)
        np.testing.assert_allclose(again.draw_weights, found.draw_weights, rtol=1e-15)
        if named:
            np.testing.assert_allclose(again.draw_weights, weights, rtol=1e-12)


some_piece = st.tuples(st.sampled_from([*KINDS, "made"]), st.sampled_from(DTYPES))


@pytest.mark.typed
@fresh
@given(st.lists(some_piece, min_size=1, max_size=4), st.data())
def test_a_joined_pool_is_its_pieces_concatenated(tmp_path_factory, pieces, data):
    num_draws, num_classes = data.draw(st.integers(1, 3)), data.draw(st.integers(2, 3))
    folder = tmp_path_factory.getbasetemp()
    made, expected = [], []
    for number, (kind, dtype) in enumerate(pieces):
        stored = kind if kind in KINDS else "probs"
        array = data.draw(numbers(stored, dtype, (data.draw(st.integers(1, 4)), num_draws, num_classes)))
        np.save(folder / f"piece-{number}.npy", array)
        with looking_like_anything():
            piece = Predictions.load(folder / f"piece-{number}.npy", stored)
        if kind == "made":
            source = OnDemand(piece.shape, piece.dtype, piece.log_probs)
            piece = Predictions(source, Draws(num_draws))
        np.testing.assert_allclose(piece.probs().numpy(), expected_probs(array, stored), **tolerance(dtype))
        np.testing.assert_allclose(piece.log_probs().exp().numpy(), expected_probs(array, stored), **tolerance(dtype))
        made.append(piece)
        expected.append(piece.log_probs().numpy())
    pool, whole = join(made), np.concatenate(expected).astype(np.result_type(*expected))
    assert pool.shape == whole.shape
    assert pool.dtype == torch.from_numpy(whole).dtype
    count = len(whole)
    start, stop = sorted((data.draw(st.integers(0, count)), data.draw(st.integers(0, count))))
    picked = data.draw(st.lists(st.integers(0, count - 1), max_size=6))
    as_tensor = torch.tensor(picked, dtype=torch.long)
    for rows in (slice(None), slice(start, stop), slice(start, stop, 2), picked, as_tensor):
        at = rows if isinstance(rows, slice) else picked
        np.testing.assert_array_equal(pool.log_probs(rows).numpy(), whole[at])
        np.testing.assert_allclose(pool.probs(rows).numpy(), np.exp(whole[at]), rtol=1e-6)
        np.testing.assert_array_equal(pool.hard_labels(rows).numpy(), whole[at].argmax(axis=-1))
        np.testing.assert_array_equal(pool.subset(rows).log_probs().numpy(), whole[at])
    read = [(rows.start, chunk.numpy()) for rows, chunk in pool.chunks(data.draw(st.integers(1, 40)))]
    assert [start for start, _ in read] == np.cumsum([0, *(len(chunk) for _, chunk in read)])[:-1].tolist()
    np.testing.assert_array_equal(np.concatenate([chunk for _, chunk in read]), whole)
    np.testing.assert_allclose(pool.mean_probs().numpy(), np.exp(whole).mean(axis=1), rtol=1e-5, atol=1e-7)
    copied = stored_predictions(torch.from_numpy(whole))
    assert torch.equal(copied.log_probs(), pool.log_probs())

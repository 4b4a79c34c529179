"""Classes with names: checked where they are given, kept by every step, and back in the results."""

import csv
import json

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from batchbalance import DrawMismatchError, FileFormatError, Predictions, select
from batchbalance.cli import app
from batchbalance.predictions import join
from conftest import random_probs

NAMES = ("ant", "bee", "cat")


def named(num=8, seed=0, **options):
    return Predictions.from_probs(random_probs(num, 4, 3, seed=seed), classes=NAMES, **options)


def test_names_are_kept_by_every_step():
    pool = named()
    assert pool.classes == NAMES
    for made in (
        pool.subset([3, 1]),
        pool.subset(slice(2, 5)),
        pool.with_weights([0.1, 0.2, 0.3, 0.4]),
        pool.to("meta"),
        join([pool, named(5, seed=1)]),
        join([Predictions.from_probs(random_probs(5, 4, 3, seed=1)), pool]),
        Predictions.from_logits(torch.randn(2, 4, 3), classes=list(NAMES)),
        Predictions.from_log_probs(pool.log_probs(), classes=np.array(NAMES)),
        Predictions.from_log_probs(pool.log_probs()).with_classes(NAMES),
    ):
        assert made.classes == NAMES
    assert Predictions.from_probs(random_probs(8, 4, 3, seed=0)).classes is None


@pytest.mark.parametrize("suffix", ["npy", "npz", "safetensors"])
@pytest.mark.parametrize("classes", [NAMES, (10, 20, 30), ("1", 1, 2.5), ("no", True, 'naïve, "x"')])
def test_names_are_kept_in_files(suffix, classes, tmp_path):
    pool = Predictions.from_probs(random_probs(8, 4, 3, seed=0), classes=classes, draw_ids=range(4))
    path = tmp_path / f"pool.{suffix}"
    pool.save(path)
    loaded = Predictions.load(path)
    assert loaded.classes == classes
    assert [type(label) for label in loaded.classes] == [type(label) for label in classes]
    assert torch.equal(loaded.log_probs(), pool.log_probs())
    assert Predictions.load(path, classes=["x", "y", "z"]).classes == ("x", "y", "z")
    with pytest.raises(FileFormatError, match="`classes` must be 3 distinct labels, got 2"):
        Predictions.load(path, classes=["x", "y"])


def test_an_npz_file_of_others_may_name_its_classes(tmp_path):
    np.savez(tmp_path / "pool.npz", probs=random_probs(8, 4, 3, seed=0), classes=np.array(NAMES))
    assert Predictions.load(tmp_path / "pool.npz").classes == NAMES


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_a_name_changed_in_a_file_is_noticed(suffix, tmp_path):
    path = tmp_path / f"pool.{suffix}"
    named().save(path)
    if suffix == "npz":
        arrays = dict(np.load(path))
        arrays["classes"] = np.array(json.dumps(["ant", "bee", "cow"]))
        np.savez(path, **arrays)
    else:
        path.write_bytes(path.read_bytes().replace(b"cat", b"cow"))
    with pytest.raises(FileFormatError, match="does not match its checksum"):
        Predictions.load(path)


def test_other_classes_do_not_mix():
    other = Predictions.from_probs(random_probs(8, 4, 3, seed=1), classes=["ant", "cat", "bee"])
    message = "in the same order, got 'cat' where the pool has 'bee'"
    with pytest.raises(DrawMismatchError, match=message):
        named().check_same_draws(other)
    with pytest.raises(DrawMismatchError, match=message):
        join([named(), other])
    unnamed = Predictions.from_probs(random_probs(3, 4, 3, seed=1), draw_ids=range(4))
    with pytest.raises(DrawMismatchError, match=message):  # the piece that knows its draws names no class
        join([unnamed, named(), other])
    with pytest.raises(DrawMismatchError, match=message):
        select(named(), 2, reference=other, strategy="greedy-balance")


@pytest.mark.parametrize(
    ("classes", "message"),
    [
        (["a", "b"], "must be 3 distinct labels, got 2 with 2 distinct"),
        (["a", "b", "a"], "got 3 with 2 distinct"),
        (["a", "b", None], "must be labels of text or finite numbers, got None"),
        ([0.0, 1.0, float("nan")], "finite numbers, got nan"),
        ("abc", "must be a list of 3 labels, got 'abc'"),
        (3, "must be a list of 3 labels, got 3"),
    ],
)
def test_names_that_are_refused(classes, message):
    with pytest.raises(ValueError, match=f"`classes` .*{message}"):
        Predictions.from_probs(random_probs(8, 4, 3, seed=0), classes=classes)


def test_the_most_probable_label_is_that_of_a_plain_loop():
    weights = [0.4, 0.3, 0.2, 0.1]
    probs = random_probs(8, 4, 3, seed=3)
    pool = Predictions.from_probs(probs, classes=NAMES, weights=weights)
    expected = []
    for point in np.asarray(probs):
        means = [sum(w * draw[c] for w, draw in zip(weights, point, strict=True)) for c in range(3)]
        expected.append(means.index(max(means)))
    assert pool.most_probable() == [NAMES[c] for c in expected]
    assert pool.most_probable([5, 2]) == [NAMES[expected[5]], NAMES[expected[2]]]
    assert Predictions.from_probs(probs, weights=weights).most_probable() == expected


def test_labels_come_back_in_a_selection(tmp_path):
    pool = named(20)
    chosen = select(pool, 3, seed=1)
    assert list(chosen.predicted) == pool.most_probable(chosen.indices)
    assert json.loads(json.dumps(chosen.as_dict()))["predicted"] == list(chosen.predicted)
    assert select(Predictions.from_probs(random_probs(20, 4, 3, seed=0)), 3).predicted is None
    pool.save(tmp_path / "pool.npy")
    output = tmp_path / "batch.csv"
    ran = CliRunner().invoke(
        app, ["select", str(tmp_path / "pool.npy"), "-b", "3", "--seed", "1", "--output", str(output)]
    )
    assert ran.exit_code == 0, ran.output
    with output.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["predicted"] for row in rows] == list(chosen.predicted)

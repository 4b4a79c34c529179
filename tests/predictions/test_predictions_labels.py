import itertools
import math

import numpy as np
import pytest
import torch

from batchbalance import Predictions, select
from batchbalance.errors import DrawMismatchError, FileFormatError
from batchbalance.predictions import join, load_parts
from batchbalance.scores import bald, entropy, epig, least_confidence, margin, mean_std, unsureness
from batchbalance.strategies import OWN
from support import oracles

pytestmark = pytest.mark.typed

PROBS = np.random.default_rng(0).beta(0.6, 0.6, size=(9, 5, 3))


def made(probs=PROBS, **options):
    return Predictions.from_label_probs(probs, **options)


def test_shapes_and_probabilities():
    predictions = made(classes=["a", "b", "c"], weights=[0.1, 0.2, 0.3, 0.2, 0.2])
    assert (predictions.shape, predictions.num_labels, predictions.num_answers) == ((9, 5, 3), 3, 8)
    assert repr(predictions) == "Predictions(9 points, 5 draws, 3 labels, float64)"
    expected = np.einsum("s,nsl->nl", [0.1, 0.2, 0.3, 0.2, 0.2], PROBS)
    np.testing.assert_allclose(predictions.label_probs(), expected, atol=1e-12)
    questions = predictions.questions
    for n, label in itertools.product(range(9), range(3)):
        np.testing.assert_allclose(questions.probs([3 * n + label])[0, :, 1], PROBS[n, :, label], atol=1e-12)
    np.testing.assert_allclose(predictions.joint().probs(), oracles.over_sets(PROBS), atol=1e-12)
    assert predictions.joint().questions.num_classes == 8
    assert torch.equal(made(PROBS.transpose(2, 0, 1), axes="lns").questions.log_probs(), made().questions.log_probs())
    assert made(PROBS[:, 0], axes="nl").shape == (9, 1, 3)


def test_logits_and_probabilities_agree():
    logits = np.log(PROBS) - np.log1p(-PROBS)
    found = Predictions.from_label_logits(logits).questions.log_probs()
    np.testing.assert_allclose(found, made().questions.log_probs(), atol=1e-10)
    extreme = Predictions.from_label_logits(torch.tensor([[[200.0, -200.0]]]))
    assert extreme.questions.log_probs().tolist() == [[[-200, 0]], [[0, -200]]]


@pytest.mark.parametrize(
    ("probs", "message"),
    [
        (PROBS + 1, r"probabilities in \[0, 1\]"),
        (np.where(PROBS > 0.9, np.nan, PROBS), "finite"),
        (PROBS[0], "3 axes"),
        (PROBS[:0], "0 points, 5 draws, 3 labels"),
    ],
)
def test_wrong_probabilities_are_refused(probs, message):
    with pytest.raises(ValueError, match=message):
        made(probs)


def test_wrong_logits_and_names_are_refused():
    with pytest.raises(ValueError, match="finite"):
        Predictions.from_label_logits(np.full((2, 2, 2), -np.inf))
    with pytest.raises(ValueError, match="3 distinct labels"):
        made(classes=["a", "b"])
    with pytest.raises(DrawMismatchError, match="3 labels, got 3 classes"):
        made().check_same_draws(Predictions.from_probs(PROBS / PROBS.sum(axis=2, keepdims=True)))


@pytest.mark.parametrize("name", ["log_probs", "probs", "mean_probs", "hard_labels", "most_probable"])
def test_readers_of_classes_refuse(name):
    with pytest.raises(ValueError, match=r"one class for each point here, got 3 labels.*label_probs"):
        getattr(made(), name)()
    with pytest.raises(ValueError, match="use `mean_probs`"):
        Predictions.from_probs([[0.5, 0.5]], "nc").label_probs()


@pytest.mark.parametrize("suffix", ["npy", "npz", "safetensors"])
@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_files_hold_the_labels(tmp_path, suffix, dtype):
    predictions = made(PROBS.astype(dtype), classes=["a", "b", "c"], draw_ids=list("vwxyz"))
    predictions.save(tmp_path / f"pool.{suffix}")
    loaded = Predictions.load(tmp_path / f"pool.{suffix}")
    assert torch.equal(loaded.questions.log_probs(), predictions.questions.log_probs())
    assert (loaded.classes, loaded.draw_ids, loaded.num_labels) == (("a", "b", "c"), tuple("vwxyz"), 3)
    assert select(loaded, 3).indices.tolist() == select(predictions, 3).indices.tolist()


def test_files_of_label_probabilities(tmp_path):
    np.save(tmp_path / "a.npy", PROBS)
    mapped = Predictions.load(tmp_path / "a.npy", "label-probs")
    assert mapped.source.file is not None
    assert torch.equal(mapped.questions.log_probs(), made().questions.log_probs())
    assert torch.equal(mapped.subset([4, 1]).label_probs(), made().label_probs()[[4, 1]])
    np.savez(tmp_path / "a.npz", label_probs=PROBS)
    assert Predictions.load(tmp_path / "a.npz").num_labels == 3
    np.save(tmp_path / "b.npy", PROBS[:4])
    parts = load_parts([tmp_path / "a.npy", tmp_path / "b.npy"], "label-probs")
    assert parts.check() == 0
    assert parts.num_points == 13
    assert select(parts, 4).indices.tolist() == select(made(np.concatenate([PROBS, PROBS[:4]])), 4).indices.tolist()
    np.save(tmp_path / "bad.npy", PROBS * 2)
    with pytest.raises(FileFormatError, match=r"bad.npy: predictions must be probabilities"):
        Predictions.load(tmp_path / "bad.npy", "label-probs")


def test_subsets_and_joins():
    whole = made(draw_ids=range(5))
    again = join([whole.subset(slice(0, 4)), whole.subset(torch.arange(4, 9))])
    assert torch.equal(again.questions.log_probs(), whole.questions.log_probs())
    assert torch.equal(whole.subset(slice(8, None, -2)).label_probs(), whole.label_probs()[[8, 6, 4, 2, 0]])
    with pytest.raises(DrawMismatchError, match="labels"):
        join([whole, made(PROBS[:, :, :2])])


def binary_entropy(p):
    return -sum(each * math.log(each) for each in (p, 1 - p) if each > 0)


def test_scores_by_loops():
    predictions, mean = made(), PROBS.mean(axis=1)
    by_label = {
        entropy: [[binary_entropy(p) for p in row] for row in mean],
        margin: [[1 - abs(2 * p - 1) for p in row] for row in mean],
        least_confidence: [[min(p, 1 - p) for p in row] for row in mean],
        mean_std: [[PROBS[n, :, label].std() for label in range(3)] for n in range(9)],
        bald: [
            [binary_entropy(mean[n, i]) - np.mean([binary_entropy(p) for p in PROBS[n, :, i]]) for i in range(3)]
            for n in range(9)
        ],
    }
    for score, expected in by_label.items():
        np.testing.assert_allclose(score(predictions, combine="mean"), np.mean(expected, axis=1), atol=1e-10)
        np.testing.assert_allclose(score(predictions, combine="max"), np.max(expected, axis=1), atol=1e-10)
    np.testing.assert_allclose(margin(predictions, combine="mean", log=True).exp(), margin(predictions, combine="mean"))
    expected = sum(min(p, 1 - p) for row in mean for p in row) / 3
    assert unsureness(predictions) == pytest.approx(expected, abs=1e-10)


def test_information_of_a_set_of_labels():
    predictions, sets = made(), oracles.over_sets(PROBS)
    whole = bald(predictions)
    for n in range(9):
        marginal = -sum(p * math.log(p) for p in sets[n].mean(axis=0))
        given_draw = np.mean([-sum(p * math.log(p) for p in row) for row in sets[n]])
        assert float(whole[n]) == pytest.approx(marginal - given_draw, abs=1e-10)
    assert bool((whole <= 3 * bald(predictions, combine="mean") + 1e-12).all())
    np.testing.assert_allclose(epig(predictions, predictions), epig(predictions.joint(), predictions.joint()))
    many = made(np.full((2, 3, 11), 0.5))
    with pytest.raises(ValueError, match=r"at most 10 labels, got 11; use 'greedy-balance'.*combine='mean'"):
        bald(many)
    assert bald(many, combine="mean").tolist() == [0, 0]


REFUSED = {"bait", "drop-query", "falcun", "refine"}


@pytest.mark.parametrize("name", sorted(OWN))
def test_every_strategy_chooses_or_refuses(name):
    probs = np.random.default_rng(1).beta(0.6, 0.6, size=(40, 6, 3))
    embeddings = np.random.default_rng(2).normal(size=(40, 4))
    given = {"strategy": name, "embeddings": embeddings, "threshold": 0.2}
    if name in REFUSED:
        with pytest.raises(ValueError, match="one class for each point here, got 3 labels for each item"):
            select(made(probs), 5, **given)
        return
    chosen = select(made(probs), 5, **given).indices.tolist()
    assert len(set(chosen)) == 5
    assert select(made(probs), 5, **given).indices.tolist() == chosen
    if name not in ("ec2", "random"):
        order = np.random.default_rng(3).permutation(3)
        relabelled = select(made(probs[:, :, order]), 5, **given).indices.tolist()
        assert relabelled == chosen or name == "seek", "the order of the labels must not matter"


def test_select_by_default():
    assert len(select(made(), 5).indices) == 5
    found = select(made(), 5, embeddings=np.random.default_rng(0).normal(size=(9, 4)), labelled=[0])
    assert found.strategy.name == "u-herding"
    assert (
        select(made(classes=["a", "b", "c"]), 2, validation_error=0.6)
        .warnings[0]
        .startswith("a validation error of 0.6 is worse than guessing among 2 classes")
    )

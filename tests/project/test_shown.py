"""How things show in a notebook and in a console: short, and with what one wants to know first."""

import builtins

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier

from batchbalance import Learner, MissingExtraError, Predictions, select
from batchbalance.posteriors import BayesianHead, Committee, HeadOptions, Posterior
from conftest import random_probs


def test_predictions():
    assert repr(Predictions.from_probs(random_probs(50, 4, 3))) == "Predictions(50 points, 4 draws, 3 classes, float64)"


def test_a_selection(pool):
    chosen = select(pool, 5, strategy="batch-balance", threshold=0.05)
    first = ", ".join(str(int(each)) for each in chosen.indices[:3])
    expected = f"Selection(5 points by 'batch-balance': {first}, …, certificate {chosen.certificate:.2f})"
    assert repr(chosen) == expected
    few = select(pool, 2, strategy="random")
    assert repr(few) == f"Selection(2 points by 'random': {few.indices[0]}, {few.indices[1]})"
    assert repr(select(batch_size=2, embeddings=np.eye(9))).startswith("Selection(2 points by 'max-herding': ")


@pytest.mark.typed
def test_a_selection_as_a_frame(pool):
    chosen = select(pool, 5, strategy="batch-balance", threshold=0.05)
    frame = chosen.to_frame()
    assert list(frame.columns) == ["index", "score", "gain", "gain_error", "coverage", "null_coverage"]
    assert frame["index"].tolist() == chosen.indices.tolist()
    assert frame["gain"].tolist() == chosen.gains.tolist()
    assert list(select(pool, 2, strategy="random").to_frame().columns) == ["index"]
    assert list(select(pool, 2, strategy="entropy").to_frame().columns) == ["index", "score"]
    covered = select(batch_size=2, embeddings=np.random.default_rng(0).normal(size=(20, 3)))
    assert covered.to_frame()["cover"].tolist() == covered.cover.coverage.tolist()


def test_without_pandas_the_extra_is_named(pool, monkeypatch):
    true_import = builtins.__import__

    def without(name, *args, **kwargs):
        if name == "pandas":
            raise ImportError(name)
        return true_import(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(MissingExtraError, match=r"pip install 'batchbalance\[pandas\]'"):
        select(pool, 2, strategy="random").to_frame()


def test_a_posterior():
    forest = RandomForestClassifier(7, random_state=0).fit(np.eye(4), [0, 1, 0, 1])
    assert repr(Committee.from_sklearn(forest, range(2))) == "Committee(7 draws)"
    head = BayesianHead(num_draws=7).fit(torch.eye(4), torch.tensor([0, 1, 0, 1]), num_classes=2)
    assert repr(head).startswith("BayesianHead('bootstrap', 7 draws; precision ")


class Unfitted(BayesianHead):
    """Shows as any other posterior."""

    kind = "unfitted"  # so that saved heads are not taken for it
    __repr__ = Posterior.__repr__


def test_a_posterior_that_is_not_fitted():
    assert repr(Unfitted()) == "Unfitted(not fitted)"


def test_a_learner():
    learner = Learner(torch.eye(4).repeat(3, 1), ["cat", "dog"], HeadOptions(num_draws=4), strategy="random")
    learner.tell(learner.ask(3)[:1], ["cat"])
    assert repr(learner) == "Learner(12 points, 1 labels, 2 open questions, 'random')"

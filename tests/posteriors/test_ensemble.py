"""Deep ensembles and committees against their members."""

import numpy as np
import pytest
import torch
from sklearn.ensemble import (
    BaggingClassifier,
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    RandomForestClassifier,
    VotingClassifier,
)
from sklearn.linear_model import LogisticRegression
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from batchbalance.posteriors import Committee, DeepEnsemble
from batchbalance.posteriors.training import Recipe

RNG = np.random.default_rng(0)
X = RNG.normal(size=(80, 5)).astype(np.float32)
Y = np.array(["ant", "bee", "cat"])[np.digitize(X[:, 0] + 0.5 * X[:, 1], [-0.5, 0.7])]
NEW = torch.from_numpy(RNG.normal(size=(11, 5)).astype(np.float32))


def test_a_deep_ensemble_is_its_members():
    x, y = torch.from_numpy(X), torch.from_numpy(np.unique(Y, return_inverse=True)[1])
    ensemble = DeepEnsemble(lambda: nn.Linear(5, 3), 3, Recipe(max_epochs=3), seed=1).fit(x, y, num_classes=3)
    got = ensemble.predict(NEW).log_probs()
    for member, state in enumerate(ensemble._states):
        expected = torch.log_softmax(NEW @ state["weight"].T + state["bias"], dim=-1)
        torch.testing.assert_close(got[:, member], expected)
    torch.testing.assert_close(ensemble.embed(NEW), NEW)
    assert not torch.equal(got[:, 0], got[:, 1])


def test_ensembles_must_have_members_and_be_fitted():
    with pytest.raises(ValueError, match="`size`"):
        DeepEnsemble(lambda: nn.Linear(5, 3), 0)
    with pytest.raises(ValueError, match="must be fitted first"):
        DeepEnsemble(lambda: nn.Linear(5, 3), 2).predict(NEW)


FITTED = {
    "forest": RandomForestClassifier(5, random_state=0),
    "extra trees": ExtraTreesClassifier(5, random_state=0, max_depth=3),
    "bagging": BaggingClassifier(n_estimators=5, max_features=3, max_samples=6, random_state=2),
    "bagging of regressions": BaggingClassifier(LogisticRegression(), n_estimators=4, random_state=0),
    "voting": VotingClassifier(
        [("a", LogisticRegression()), ("b", DecisionTreeClassifier(max_depth=2))], voting="soft", weights=[3, 1]
    ),
}


@pytest.mark.parametrize("name", FITTED)
def test_the_weighted_mean_of_a_committee_is_the_ensembles_prediction(name):
    fitted = FITTED[name].fit(X, Y)
    committee = Committee.from_sklearn(fitted)
    assert committee.classes == ["ant", "bee", "cat"]
    mean = committee.predict(NEW).mean_probs()
    np.testing.assert_allclose(mean.numpy(), fitted.predict_proba(NEW.numpy()), rtol=0, atol=1e-6)


def test_classes_of_list_members_are_aligned_by_label():
    two = LogisticRegression().fit(X[Y != "bee"], Y[Y != "bee"])
    three = DecisionTreeClassifier(max_depth=3, random_state=0).fit(X, Y)
    committee = Committee.from_sklearn([two, three], classes=["cat", "dog", "ant", "bee"])
    probs = committee.predict(NEW).log_probs().exp().numpy()
    np.testing.assert_allclose(probs[:, 0, [2, 0]], two.predict_proba(NEW.numpy()), rtol=0, atol=1e-6)
    assert (probs[:, 0, [1, 3]] == 0).all()
    np.testing.assert_allclose(probs[:, 1, [2, 3, 0]], three.predict_proba(NEW.numpy()), rtol=0, atol=1e-6)
    assert Committee.from_sklearn([two, three]).classes == ["ant", "bee", "cat"]


def test_votes_count_where_there_are_no_probabilities():
    svm = LinearSVC(dual=True).fit(X, Y)
    committee = Committee.from_sklearn([svm])
    labels = [committee.classes[c] for c in committee.predict(NEW).hard_labels()[:, 0]]
    assert labels == svm.predict(NEW.numpy()).tolist()
    assert set(committee.predict(NEW).log_probs().exp().unique().tolist()) == {0.0, 1.0}


@pytest.mark.parametrize("name", ["forest", "extra trees", "bagging"])
def test_saved_trees_predict_the_same(name, tmp_path):
    committee = Committee.from_sklearn(FITTED[name].fit(X, Y))
    committee.save(tmp_path / "saved")
    loaded = Committee.load(tmp_path / "saved")
    assert loaded.classes == committee.classes
    assert loaded.draw_ids == committee.draw_ids
    assert torch.equal(loaded.predict(NEW).log_probs(), committee.predict(NEW).log_probs())
    loaded.save(tmp_path / "again")
    assert torch.equal(Committee.load(tmp_path / "again").predict(NEW).log_probs(), committee.predict(NEW).log_probs())


def test_saved_trees_send_missing_values_the_same_way(tmp_path):
    holes = X.copy()
    holes[RNG.random(X.shape) < 0.3] = np.nan
    committee = Committee.from_sklearn(RandomForestClassifier(5, random_state=0).fit(holes, Y))
    committee.save(tmp_path / "saved")
    new = NEW.clone()
    new[::2, 1] = float("nan")
    loaded = Committee.load(tmp_path / "saved")
    assert torch.equal(loaded.predict(new).log_probs(), committee.predict(new).log_probs())


def test_what_is_no_committee():
    with pytest.raises(ValueError, match="must be fitted first"):
        Committee.from_sklearn(RandomForestClassifier())
    with pytest.raises(ValueError, match="empty list"):
        Committee.from_sklearn([])
    with pytest.raises(ValueError, match="got GradientBoostingClassifier; pass a list"):
        Committee.from_sklearn(GradientBoostingClassifier(n_estimators=2).fit(X, Y))
    with pytest.raises(ValueError, match="without `classes_`"):
        Committee.from_sklearn([LogisticRegression()])
    with pytest.raises(ValueError, match=r"without \['cat'\]"):
        Committee.from_sklearn([LogisticRegression().fit(X, Y)], classes=["ant", "bee"])
    two_outputs = RandomForestClassifier(2).fit(X, np.stack([Y, Y], axis=1))
    with pytest.raises(ValueError, match="2 outputs"):
        Committee.from_sklearn(two_outputs)
    with pytest.raises(ValueError, match=r"\(N, features\)"):
        Committee.from_sklearn(FITTED["forest"].fit(X, Y)).predict(torch.zeros(2, 5, 1))

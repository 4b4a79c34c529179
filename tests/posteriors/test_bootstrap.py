"""A bootstrap of any classifier, against plain loops."""

import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.calibration import CalibratedClassifierCV
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import (
    AdaBoostClassifier,
    BaggingClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
    RandomForestRegressor,
    StackingClassifier,
    VotingClassifier,
)
from sklearn.gaussian_process import GaussianProcessClassifier
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.naive_bayes import GaussianNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer
from sklearn.svm import SVC, LinearSVC
from torch import nn

from batchbalance.posteriors import Committee, bootstrap
from batchbalance.posteriors.bootstrap import as_new, resampled, seeded

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 4)).astype(np.float32)
Y = np.array(["ant", "bee", "cat"])[np.digitize(X[:, 0] + 0.5 * X[:, 1], [-0.5, 0.9])]
NEW = RNG.normal(size=(9, 4)).astype(np.float32)


class Remembering(ClassifierMixin, BaseEstimator):
    """Predicts the shares of the labels that it was fitted on, and keeps what it got."""

    def fit(self, x, y):
        self.rows_, self.labels_ = x, y
        self.classes_, counts = np.unique(y, return_counts=True)
        self.shares_ = counts / counts.sum()
        return self

    def predict_proba(self, x):
        return np.tile(self.shares_, (len(x), 1))


def members(committee):
    return [member.classifier for member in committee._members]


def test_rows_are_drawn_as_a_plain_loop_draws_them():
    codes = np.array([0, 0, 0, 1, 2, 2, 0, 0])
    for seed in range(20):
        stream = np.random.default_rng(seed)
        expected = [int(row) for row in stream.integers(8, size=8)]
        for code in range(3):
            own = [row for row in range(8) if codes[row] == code]
            lacking = len(own) - sum(codes[row] == code for row in expected[:8])
            if lacking > 0:
                expected += [own[place] for place in stream.integers(len(own), size=lacking)]
        assert resampled(codes, np.random.default_rng(seed)).tolist() == expected


def test_every_class_keeps_at_least_its_count_and_every_row_its_chance():
    codes = np.array([0] * 30 + [1] * 9 + [2])
    stream = np.random.default_rng(1)
    repeats, seen = 2000, np.zeros(40)
    for _ in range(repeats):
        rows = resampled(codes, stream)
        assert (np.bincount(codes[rows], minlength=3) >= [30, 9, 1]).all()
        seen += np.bincount(rows, minlength=40)
    for code in (0, 1):  # rows of a class are drawn equally often: within four standard errors
        own = seen[codes == code] / repeats
        assert np.abs(own - own.mean()).max() < 4 * np.sqrt(own.mean() / repeats) * 1.1
    assert seen[codes == 2] > repeats  # a single row is still drawn more than once at times, so that draws differ


def test_members_are_fitted_on_resamples_of_rows_and_labels_together():
    numbered = np.arange(60.0)[:, None]
    committee = Committee.bootstrap(Remembering(), numbered, Y, 3, seed=5)
    assert committee.classes == ["ant", "bee", "cat"]
    got = committee.predict(NEW).probs()
    for draw, member in enumerate(members(committee)):
        rows = member.rows_[:, 0].astype(int)
        assert member.labels_.tolist() == Y[rows].tolist()
        shares = [sum(Y[row] == name for row in rows) / len(rows) for name in committee.classes]
        np.testing.assert_allclose(got[:, draw].numpy(), np.tile(shares, (9, 1)), rtol=0, atol=1e-6)
    assert members(committee)[0].rows_.tolist() != members(committee)[1].rows_.tolist()


def test_the_same_seed_gives_the_same_members_and_another_others():
    before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    first, again, other = (Committee.bootstrap(RandomForestClassifier(3), X, Y, 3, seed=seed) for seed in (1, 1, 2))
    assert torch.equal(first.predict(NEW).log_probs(), again.predict(NEW).log_probs())
    assert first.draw_ids == again.draw_ids
    assert not torch.equal(first.predict(NEW).log_probs(), other.predict(NEW).log_probs())
    assert set(first.draw_ids).isdisjoint(other.draw_ids)
    assert (np.random.get_state()[1] == before[0]).all()  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[1])


@pytest.mark.slow
def test_processes_change_nothing(capsys):
    estimator = make_pipeline(FunctionTransformer(), RandomForestClassifier(3, n_jobs=2))
    here = Committee.bootstrap(estimator, X, Y, 4, seed=1, jobs=1)
    there = Committee.bootstrap(estimator, X, Y, 4, seed=1, jobs=2, progress=True)
    assert torch.equal(here.predict(NEW).log_probs(), there.predict(NEW).log_probs())
    assert here.draw_ids == there.draw_ids
    assert [member[-1].n_jobs for member in members(here)] == [2] * 4
    assert [member[-1].n_jobs for member in members(there)] == [1] * 4  # processes on all cores need no threads
    assert "fitting members: 4 of 4" in capsys.readouterr().err


class Refusing:
    """Stands for processes that fail."""

    def __init__(self, *_, **__):
        pass

    def __call__(self, tasks):
        yield from (function.function(*args) for function, args, _ in list(tasks)[:1])
        raise RuntimeError("cannot be sent")


def test_what_cannot_be_sent_to_processes_is_fitted_here(monkeypatch):
    expected = Committee.bootstrap(LogisticRegression(), X, Y, 5, jobs=1)
    monkeypatch.setattr("sklearn.utils.parallel.Parallel", Refusing)
    with pytest.warns(UserWarning, match="fitted in this process alone, because another one failed: cannot be sent"):
        found = Committee.bootstrap(LogisticRegression(), X, Y, 5, jobs=2)
    assert torch.equal(found.predict(NEW).log_probs(), expected.predict(NEW).log_probs())


def test_processes_are_used_once_they_are_worth_it(monkeypatch):
    used = []
    monkeypatch.setattr(
        bootstrap, "_in_processes", lambda task, draws, _: used.append(draws) or map(task.member, draws)
    )
    monkeypatch.setattr("joblib.cpu_count", lambda: 2)
    Committee.bootstrap(GaussianNB(), X, Y, 5)
    assert used == []
    monkeypatch.setattr(bootstrap, "WORTH_PROCESSES", 0.0)
    assert Committee.bootstrap(GaussianNB(), X, Y, 5).num_draws == 5
    assert used == [[2, 3, 4]]


NATURAL = {
    "hist gradient boosting": HistGradientBoostingClassifier(max_iter=3),
    "gradient boosting": GradientBoostingClassifier(n_estimators=3),
    "ada boost": AdaBoostClassifier(n_estimators=3),
    "neighbours": KNeighborsClassifier(),
    "network": MLPClassifier((4,), max_iter=5, early_stopping=True, n_iter_no_change=2),
    "naive Bayes": GaussianNB(),
    "calibrated": CalibratedClassifierCV(LinearSVC(dual=True)),
    "calibrated machine": CalibratedClassifierCV(SVC(), ensemble=False),
    "voting": VotingClassifier([("a", LogisticRegression()), ("b", GaussianNB())], voting="soft"),
    "bagging": BaggingClassifier(n_estimators=3),
    "stacking": StackingClassifier([("a", LogisticRegression()), ("b", GaussianNB())]),
    "search": GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2),
    "one against the rest": OneVsRestClassifier(LogisticRegression()),
    "discriminant": LinearDiscriminantAnalysis(),
    "process": GaussianProcessClassifier(optimizer=None),
    "descent": SGDClassifier(loss="log_loss"),
    "labels as they are": LogisticRegression(class_weight={"ant": 1, "bee": 2, "cat": 3}),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", NATURAL)
@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning", "ignore:The SAMME.R algorithm")
def test_natural_calls_work(name):
    frame = pd.DataFrame(X, columns=["a", "b", "c", "d"])
    committee = Committee.bootstrap(NATURAL[name], frame, pd.Series(Y), 3, seed=1)
    predictions = committee.predict(frame)
    assert predictions.classes == ("ant", "bee", "cat")
    assert predictions.shape == (60, 3, 3)
    for draw, member in enumerate(members(committee)):
        assert member.classes_.tolist() == ["ant", "bee", "cat"]
        np.testing.assert_allclose(predictions.probs()[:, draw].numpy(), member.predict_proba(frame), rtol=0, atol=1e-5)
    again = Committee.bootstrap(NATURAL[name], frame, pd.Series(Y), 3, seed=1)
    assert again.draw_ids == committee.draw_ids
    assert torch.equal(again.predict(frame).log_probs(), predictions.log_probs())
    assert not hasattr(NATURAL[name], "classes_")


def test_random_states_are_set_at_every_depth_and_differ():
    voting = VotingClassifier([("a", MLPClassifier(random_state=3)), ("b", RandomForestClassifier(n_jobs=4))])
    made = as_new(make_pipeline(FunctionTransformer(), voting), 1, one_job=True)
    states = [made[-1].estimators[0][1].random_state, made[-1].estimators[1][1].random_state]
    assert len({*states, 3}) == 3
    assert made[-1].estimators[1][1].n_jobs == 1
    assert (voting.estimators[0][1].random_state, voting.estimators[1][1].n_jobs) == (3, 4)


def test_seeding_leaves_no_trace():
    before = torch.get_rng_state()
    with seeded(1):
        first = np.random.rand(), torch.rand(1)  # noqa: NPY002
    with seeded(1):
        assert first == (np.random.rand(), torch.rand(1))  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before)


class Boosting:
    """As XGBoost's: labels 0, 1, 2, … only, no base class, parameters by `get_params`."""

    def __init__(self, n_estimators=3, random_state=None, n_jobs=-1):
        self.n_estimators, self.random_state, self.n_jobs = n_estimators, random_state, n_jobs

    def get_params(self, deep=True):  # noqa: ARG002
        return {name: getattr(self, name) for name in ("n_estimators", "random_state", "n_jobs")}

    def set_params(self, **params):
        vars(self).update(params)
        return self

    def fit(self, x, y):
        found = np.unique(y)
        if not np.array_equal(found, np.arange(len(found))):
            raise ValueError(f"Invalid classes inferred from unique values of `y`, got {found}")
        self.inner_ = GaussianNB().fit(x, y)
        return self

    def predict_proba(self, x):
        return self.inner_.predict_proba(x)


@pytest.mark.parametrize("labels", [Y, np.unique(Y, return_inverse=True)[1] * 10 + 5])
def test_estimators_that_take_only_numbers_from_zero_get_them(labels):
    committee = Committee.bootstrap(Boosting(), X, labels, 3, seed=2)
    plain = Committee.bootstrap(GaussianNB(), X, labels, 3, seed=2)
    assert committee.classes == plain.classes == np.unique(labels).tolist()
    torch.testing.assert_close(committee.predict(NEW).probs(), plain.predict(NEW).probs())


def test_an_error_of_the_estimator_is_its_own():
    with pytest.raises(ValueError, match="Input X contains NaN"):
        Committee.bootstrap(LogisticRegression(), np.where(X > 1, np.nan, X), Y, 3)


def test_classes_not_seen_yet_have_probability_zero():
    committee = Committee.bootstrap(GaussianNB(), X, Y, 2, classes=["dog", "cat", "bee", "ant"])
    plain = Committee.bootstrap(GaussianNB(), X, Y, 2)
    probs = committee.predict(NEW).probs()
    assert (probs[:, :, 0] == 0).all()
    torch.testing.assert_close(probs[:, :, [3, 2, 1]], plain.predict(NEW).probs())
    with pytest.raises(ValueError, match=r"hold every member's labels, got \['dog', 'cat'\] without \['ant', 'bee'\]"):
        Committee.bootstrap(GaussianNB(), X, Y, 2, classes=["dog", "cat"])


def test_a_search_that_is_done_gives_its_best_estimator():
    search = GridSearchCV(LogisticRegression(), {"C": [1e-4, 1.0]}, cv=3).fit(X, Y)
    committee = Committee.bootstrap(search, X, Y, 2)
    assert [type(member) for member in members(committee)] == [LogisticRegression] * 2
    assert [member.C for member in members(committee)] == [search.best_params_["C"]] * 2


def test_estimators_that_need_rows_of_each_class_find_them():
    few = np.concatenate([np.flatnonzero(name == Y)[:5] for name in ("ant", "bee", "cat")])
    committee = Committee.bootstrap(CalibratedClassifierCV(LinearSVC(dual=True), cv=5), X[few], Y[few], 4)
    assert committee.num_draws == 4
    stacked = StackingClassifier([("a", GaussianNB()), ("b", LogisticRegression())], cv=3)
    assert Committee.bootstrap(stacked, X, Y, 2).classes == ["ant", "bee", "cat"]


def test_functions_without_a_name_are_told_apart_by_data_and_seed():
    made = [
        Committee.bootstrap(make_pipeline(FunctionTransformer(lambda x: x * 2), GaussianNB()), x, Y, 2, seed=seed)
        for x, seed in ((X, 0), (X, 0), (X, 1), (X + 1, 0))
    ]
    assert made[0].draw_ids == made[1].draw_ids
    assert len({committee.draw_ids for committee in made}) == 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(4, 3)

    def forward(self, x):
        return torch.softmax(self.layer(x), dim=-1)


@pytest.mark.slow
def test_a_skorch_classifier_works_like_an_estimator():
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of its imports
        from skorch import NeuralNetClassifier
    net = NeuralNetClassifier(Net, max_epochs=3, verbose=0, lr=0.5, iterator_train__shuffle=True)
    committee = Committee.bootstrap(net, X, Y, 3, seed=4, jobs=1)
    again = Committee.bootstrap(net, X, Y, 3, seed=4, jobs=1)
    assert committee.classes == ["ant", "bee", "cat"]
    got = committee.predict(torch.from_numpy(NEW))
    assert torch.equal(got.log_probs(), again.predict(NEW).log_probs())
    for draw, member in enumerate(members(committee)):
        layer = member.module_.layer
        expected = torch.softmax(torch.from_numpy(NEW) @ layer.weight.T + layer.bias, dim=-1)
        torch.testing.assert_close(got.probs()[:, draw], expected.detach())
    assert not torch.equal(got.probs()[:, 0], got.probs()[:, 1])
    fitted = Committee.from_sklearn(members(committee), classes=[0, 1, 2])
    assert torch.equal(fitted.predict(NEW).log_probs(), got.log_probs())


@pytest.mark.parametrize(
    "labels",
    [list(Y), tuple(Y), pd.Series(Y), pd.Series(Y, dtype="category"), pd.Series(Y, dtype="string"), Y.astype(object)],
    ids=["list", "tuple", "series", "category", "string", "object"],
)
def test_labels_of_any_type_are_the_same(labels):
    expected = Committee.bootstrap(GaussianNB(), X, Y, 2)
    found = Committee.bootstrap(GaussianNB(), X, labels, 2)
    assert found.classes == ["ant", "bee", "cat"]
    assert found.draw_ids == expected.draw_ids
    assert torch.equal(found.predict(NEW).log_probs(), expected.predict(NEW).log_probs())


def test_numbers_and_truth_values_are_labels_too():
    codes = np.unique(Y, return_inverse=True)[1]
    for labels, classes in (
        (torch.from_numpy(codes), [0, 1, 2]),
        (codes * 2.0, [0.0, 2.0, 4.0]),
        (list(codes), [0, 1, 2]),
        (list(torch.from_numpy(codes)), [0, 1, 2]),
        (codes > 0, [False, True]),
        (codes.astype(np.int8), [0, 1, 2]),
    ):
        committee = Committee.bootstrap(GaussianNB(), torch.from_numpy(X), labels, 2)
        assert committee.classes == classes
        assert [type(label) for label in committee.predict(NEW).classes] == [type(label) for label in classes]


GAPS = [None, *Y[1:]]


@pytest.mark.parametrize(
    ("estimator", "x", "y", "options", "message"),
    [
        (GaussianNB(), X, Y[:-1], {}, "`y` must be one label for each of 60 rows of `X`, got 59"),
        (GaussianNB(), X, Y[:, None], {}, r"`y` must be one label for each row, got shape \(60, 1\); pass one"),
        (GaussianNB(), X, ["ant"] * 60, {}, "`y` must hold at least two classes, got only ant"),
        (GaussianNB(), X, GAPS, {}, "`y` must not have missing labels, got None in row 0; omit rows without a label"),
        (GaussianNB(), X, np.where(X[:, 0] > 0, 1, np.nan), {}, "`y` must not have missing labels, got nan in row"),
        (GaussianNB(), X, pd.Series(GAPS, dtype="string"), {}, "`y` must not have missing labels, got <NA> in row 0"),
        (GaussianNB(), X, [1, *Y[1:]], {}, "`y` must be all text or all numbers, got int and str"),
        (GaussianNB(), X, pd.Series(pd.to_datetime(["2020-01-01"] * 60)), {}, "all numbers, got datetime64"),
        (GaussianNB(), X, X[:, 0], {}, "`y` must be labels, text or whole numbers, got .*; name the classes"),
        (GaussianNB(), X[:0], Y[:0], {}, "`X` must hold at least one row, got none"),
        (GaussianNB(), X[:, 0], Y, {}, r"`X` must be \(N, ...\), one row for each point, got shape \(60,\)"),
        (GaussianNB(), {"a": X}, Y, {}, "`X` must be an array, a DataFrame, a sparse matrix or a list .*, got dict"),
        (GaussianNB(), torch.from_numpy(X).to_sparse(), Y, {}, "`X` must be dense"),
        (GaussianNB(), X, Y, {"size": 0}, "`size` must be a whole number of at least 1, got 0"),
        (GaussianNB(), X, Y, {"jobs": 0}, "`jobs` must be a whole number of at least 1, got 0"),
        (GaussianNB(), X, Y, {"seed": -1}, "`seed` must be a whole number of at least 0, got -1"),
        (GaussianNB, X, Y, {}, "must be a classifier with `fit` .*, got the class GaussianNB; pass an instance"),
        ("forest", X, Y, {}, "must be a classifier with `fit` and `predict_proba`, got 'forest'"),
        (LinearSVC(dual=True), X, Y, {}, r"got LinearSVC without it; wrap it: CalibratedClassifierCV\(LinearSVC"),
        (VotingClassifier([("a", GaussianNB())]), X, Y, {}, "got VotingClassifier without it; use voting='soft'"),
        (RandomForestRegressor(2), X, Y, {}, "got RandomForestRegressor without it; take a classifier"),
    ],
)  # fmt: skip
def test_what_is_refused(estimator, x, y, options, message):
    with pytest.raises(ValueError, match=message):
        Committee.bootstrap(estimator, x, y, **{"size": 2, **options})


def test_probabilities_of_another_width_are_refused():
    class Wrong(Remembering):
        def predict_proba(self, x):
            return np.full((len(x), 2), 0.5)

    with pytest.raises(ValueError, match=r"`predict_proba` of a Wrong must be \(n, 3\), .* got shape \(9, 2\)"):
        Committee.bootstrap(Wrong(), X, Y, 2).predict(NEW)


def test_sparse_rows_stay_sparse():
    committee = Committee.bootstrap(Remembering(), sparse.coo_matrix(np.maximum(X, 0)), Y, 2)
    assert all(sparse.issparse(member.rows_) for member in members(committee))

"""Committees on DataFrames, sparse matrices and texts: what estimators get, what they say, and what is saved."""

import io
import json
import sys
import zipfile

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import sparse
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.compose import ColumnTransformer
from sklearn.ensemble import BaggingClassifier, ExtraTreesClassifier, RandomForestClassifier, VotingClassifier
from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.naive_bayes import GaussianNB, MultinomialNB
from sklearn.neighbors import KNeighborsClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from torch.utils.data import TensorDataset

from batchbalance import Learner, MissingExtraError, Predictions, select
from batchbalance.errors import FileFormatError
from batchbalance.posteriors import Committee, CommitteeOptions, EstimatorFit, load_posterior
from batchbalance.posteriors.committee import _as_skops, _from_skops
from batchbalance.posteriors.inputs import IndexedRows, is_table, row_batches

RNG = np.random.default_rng(0)
NUMBERS = RNG.normal(size=(60, 2))
Y = np.array(["ant", "bee", "cat"])[np.digitize(NUMBERS[:, 0], [-0.5, 0.6])]
TEXTS = [f"{word} {RNG.choice(['runs', 'sleeps', 'eats'])}" for word in np.where(Y == "ant", "small", "large")]
FRAME = pd.DataFrame(
    {
        "size": NUMBERS[:, 0],
        "place": pd.Categorical(RNG.choice(["north", "south"], 60)),
        "weight": NUMBERS[:, 1],
        "text": TEXTS,
    },
    index=[f"row {row}" for row in range(60)],
)
COUNTS = sparse.csr_matrix(np.maximum(np.hstack([NUMBERS, -NUMBERS]), 0))
TRUSTED = [
    "sklearn.tree._tree.Tree",
    "sklearn.neighbors._kd_tree.KDTree",
    "sklearn.metrics._dist_metrics.EuclideanDistance64",
    "scipy.sparse._csr.csr_matrix",  # which later versions of skops trust by themselves
]


def columns():
    return ColumnTransformer(
        [
            ("numbers", StandardScaler(), ["size", "weight"]),
            ("place", OneHotEncoder(handle_unknown="ignore"), ["place"]),
            ("text", TfidfVectorizer(), "text"),
        ]
    )


FITTED = {
    "forest on a frame": (make_pipeline(columns(), RandomForestClassifier(4, random_state=0)), FRAME),
    "bagging on a frame": (
        make_pipeline(columns(), BaggingClassifier(n_estimators=4, max_features=0.5, random_state=0)),
        FRAME,
    ),
    "voting on a frame": (
        make_pipeline(
            columns(), VotingClassifier([("a", LogisticRegression()), ("b", KNeighborsClassifier())], voting="soft")
        ),
        FRAME,
    ),
    "pipeline in a pipeline": (
        make_pipeline(columns(), make_pipeline(FunctionTransformer(np.abs), ExtraTreesClassifier(4, random_state=0))),
        FRAME,
    ),
    "pipeline of one step": (make_pipeline(RandomForestClassifier(4, random_state=0)), NUMBERS),
    "search over a pipeline": (
        GridSearchCV(make_pipeline(columns(), RandomForestClassifier(4, random_state=0)),
                     {"randomforestclassifier__max_depth": [2, 3]}, cv=2),
        FRAME,
    ),
    "forest on texts": (make_pipeline(TfidfVectorizer(), RandomForestClassifier(4, random_state=0)), TEXTS),
    "forest on a frame of numbers": (RandomForestClassifier(4, random_state=0), FRAME[["size", "weight"]]),
    "bagging on a frame of numbers": (
        BaggingClassifier(n_estimators=4, max_features=1, random_state=0),
        FRAME[["size", "weight"]],
    ),
    "voting on a frame of numbers": (
        VotingClassifier([("a", LogisticRegression()), ("b", GaussianNB())], voting="soft", weights=[3, 1]),
        FRAME[["size", "weight"]],
    ),
    "forest on a sparse matrix": (RandomForestClassifier(4, random_state=0), COUNTS),
    "bagging on a sparse matrix": (BaggingClassifier(MultinomialNB(), 4, max_features=2, random_state=0), COUNTS),
    "frame out of transformers": (
        make_pipeline(StandardScaler().set_output(transform="pandas"), RandomForestClassifier(4, random_state=0)),
        FRAME[["size", "weight"]],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", FITTED)
def test_the_weighted_mean_of_a_committee_is_the_prediction_of_the_whole(name, tmp_path):
    estimator, x = FITTED[name]
    fitted = estimator.fit(x, Y)
    committee = Committee.from_sklearn(fitted)
    predictions = committee.predict(x)
    assert predictions.classes == ("ant", "bee", "cat")
    np.testing.assert_allclose(predictions.mean_probs().numpy(), fitted.predict_proba(x), rtol=0, atol=1e-6)
    torch.testing.assert_close(
        committee.predict(x, batch_size=7).log_probs(), predictions.log_probs(), rtol=0, atol=1e-6
    )
    committee.save(tmp_path / "saved")
    loaded = Committee.load(tmp_path / "saved", trusted=TRUSTED)
    assert torch.equal(loaded.predict(x).log_probs(), predictions.log_probs())
    assert (loaded.draw_ids, loaded.classes) == (committee.draw_ids, committee.classes)


class Watching(ClassifierMixin, BaseEstimator):
    """Keeps what it is given, and knows the classes only."""

    def fit(self, x, y):
        self.fitted_on_, self.classes_, self.seen_ = x, np.unique(y), []
        return self

    def predict_proba(self, x):
        self.seen_.append(x)
        num = x.shape[0] if hasattr(x, "shape") else len(x)
        return np.full((num, len(self.classes_)), 1 / len(self.classes_))


@pytest.mark.parametrize(
    "x",
    [FRAME, FRAME["text"], COUNTS, TEXTS, np.array(TEXTS), [{"a": 1}] * 60, FRAME.to_numpy(), NUMBERS,
     NUMBERS.tolist()],
    ids=["frame", "series", "sparse", "texts", "array of texts", "dicts", "mixed array", "array", "lists"],
)  # fmt: skip
def test_tables_go_through_untouched(x):
    committee = Committee.bootstrap(Watching(), x, Y, 1)
    assert committee.predict(x, batch_size=25).shape == (60, 1, 3)
    member = committee._members[0].classifier
    assert type(member.fitted_on_) is type(x)
    assert [type(batch) for batch in member.seen_] == [type(x)] * 3
    if isinstance(x, pd.DataFrame | pd.Series):
        together = pd.concat(member.seen_)
        assert together.equals(x)
        assert (together.dtypes == x.dtypes).all() if x.ndim == 2 else together.dtype == x.dtype
    elif sparse.issparse(x):
        assert (sparse.vstack(member.seen_) != x).nnz == 0
    else:
        np.testing.assert_array_equal(np.concatenate([np.asarray(batch) for batch in member.seen_]), np.asarray(x))


def test_tensors_and_data_sets_are_arrays_to_an_estimator():
    committee = Committee.bootstrap(GaussianNB(), NUMBERS, Y, 2)
    expected = committee.predict(NUMBERS).log_probs()
    for inputs in (torch.from_numpy(NUMBERS), TensorDataset(torch.from_numpy(NUMBERS))):
        assert torch.equal(committee.predict(inputs).log_probs(), expected)


def test_predictions_of_a_frame_are_those_of_each_member_on_each_row():
    committee = Committee.bootstrap(make_pipeline(columns(), LogisticRegression()), FRAME, Y, 3, seed=1)
    got = committee.predict(FRAME.iloc[:6]).probs().numpy()
    for draw, member in enumerate(committee._members):
        for row in range(6):
            expected = member.classifier.predict_proba(FRAME.iloc[[row]])[0]
            np.testing.assert_allclose(got[row, draw], expected, rtol=0, atol=1e-6)


def test_batches_are_as_large_as_a_chunk_of_predictions(monkeypatch):
    committee = Committee.bootstrap(Watching(), NUMBERS, Y, 2)
    assert committee.batch_size == 2**22 // 6
    monkeypatch.setattr("batchbalance.posteriors.committee.CHUNK_NUMBERS", 6)
    assert committee.batch_size == 64


def test_columns_of_a_forest_are_checked_by_name():
    forest = RandomForestClassifier(2).fit(FRAME[["size", "weight"]], Y)
    message = r"columns of the fit, \['size', 'weight'\], got \['weight', 'size'\]"
    with pytest.raises(ValueError, match=message):
        Committee.from_sklearn(forest).predict(FRAME[["weight", "size"]])


def test_streaming_into_a_file_keeps_the_names(tmp_path):
    committee = Committee.bootstrap(make_pipeline(TfidfVectorizer(), MultinomialNB()), TEXTS, Y, 2)
    mapped = committee.predict(TEXTS, path=tmp_path / "pool.npy")
    loaded = Predictions.load(tmp_path / "pool.npy")
    assert mapped.classes == loaded.classes == ("ant", "bee", "cat")
    assert select(loaded, 2, seed=0).predicted == tuple(
        committee.predict(TEXTS).most_probable(select(loaded, 2).indices)
    )


def test_embeddings_are_the_features_behind_the_transformers():
    fitted = make_pipeline(columns(), RandomForestClassifier(2, random_state=0)).fit(FRAME, Y)
    embedded = Committee.from_sklearn(fitted).embed(FRAME, batch_size=11)
    expected = fitted[:-1].transform(FRAME)
    np.testing.assert_allclose(embedded.numpy(), expected.toarray() if sparse.issparse(expected) else expected)
    bootstrapped = Committee.bootstrap(LogisticRegression(), COUNTS, Y, 2)
    np.testing.assert_array_equal(bootstrapped.embed(COUNTS).numpy(), COUNTS.toarray())
    numbers = FRAME[["size", "weight"]]
    np.testing.assert_array_equal(Committee.bootstrap(GaussianNB(), numbers, Y, 2).embed(numbers).numpy(), NUMBERS)
    piped = Committee.bootstrap(make_pipeline(columns(), GaussianNB()), FRAME, Y, 2)
    first = piped._members[0].classifier[:-1].transform(FRAME)
    np.testing.assert_allclose(piped.embed(FRAME).numpy(), first.toarray() if sparse.issparse(first) else first)

    class BySize(GaussianNB):
        """A classifier that takes the whole table, and looks at one column."""

        def fit(self, X, y):
            return super().fit(X[["size"]], y)

        def predict_proba(self, X):
            return super().predict_proba(X[["size"]])

    with pytest.raises(ValueError, match=r"a committee embeds numbers, got shape \(60, 4\) in a DataFrame; choose"):
        Committee.bootstrap(BySize(), FRAME, Y, 2).embed(FRAME)


def test_embeddings_that_do_not_fit_in_memory_are_refused(monkeypatch):
    committee = Committee.bootstrap(LogisticRegression(), COUNTS, Y, 2)
    monkeypatch.setattr("batchbalance.posteriors.contract.free_memory", lambda: 60 * 4 * 8 - 1)
    with pytest.raises(ValueError, match=r"60 points × 4 features must fit in memory, .* strategy without embeddings"):
        committee.embed(COUNTS, batch_size=10)
    monkeypatch.setattr("batchbalance.posteriors.contract.free_memory", lambda: 60 * 4 * 8)
    assert committee.embed(COUNTS, batch_size=10).shape == (60, 4)


def test_members_with_labels_of_two_types_are_refused():
    x = np.arange(20.0).reshape(10, 2)
    members = [LogisticRegression().fit(x, labels) for labels in (np.arange(10) % 2, np.array(["0", "1"] * 5))]
    for classes in (None, [0, 1, "0", "1"]):
        with pytest.raises(
            ValueError, match=r"labels of one type, got text \('1'\) and numbers \(1\); fit them on the same"
        ):
            Committee.from_sklearn(members, classes)
    members[1].classes_ = np.array([False, True])
    assert Committee.from_sklearn(members).classes == [0, 1]


def test_what_is_no_committee_in_a_pipeline():
    single = make_pipeline(columns(), LogisticRegression()).fit(FRAME, Y)
    message = r"got LogisticRegression at the end of the Pipeline; .*`Committee.bootstrap\(estimator, X, y\)`"
    with pytest.raises(ValueError, match=message):
        Committee.from_sklearn(single)
    with pytest.raises(ValueError, match="the RandomForestClassifier must be fitted first; call `fit`"):
        Committee.from_sklearn(make_pipeline(columns(), RandomForestClassifier()))


def test_inputs_that_are_no_rows():
    committee = Committee.bootstrap(GaussianNB(), NUMBERS, Y, 2)
    for inputs, message in (
        (3, "must be an array, a DataFrame, a sparse matrix or a list of rows, got int"),
        ([], "must hold at least one row, got none"),
        (FRAME.iloc[:0], "must hold at least one row, got none"),
        (NUMBERS[:, 0], "one row for each point, got shape"),
    ):
        with pytest.raises(ValueError, match=message):
            committee.predict(inputs)
    with pytest.raises(ValueError, match="batch_size"):
        list(row_batches(FRAME, 0))


# Saving.


def test_any_classifier_is_saved_with_skops_and_types_are_trusted_by_name(tmp_path):
    committee = Committee.bootstrap(make_pipeline(StandardScaler(), KNeighborsClassifier()), NUMBERS, Y, 3)
    committee.save(tmp_path / "saved")
    with pytest.raises(FileFormatError, match=r"types that must be trusted first; .*trusted=") as caught:
        Committee.load(tmp_path / "saved")
    listed = json.loads(str(caught.value).partition("trusted=")[2].removesuffix(")").replace("'", '"'))
    assert listed == ["sklearn.metrics._dist_metrics.EuclideanDistance64", "sklearn.neighbors._kd_tree.KDTree"]
    with pytest.raises(FileFormatError, match="trusted first"):
        Committee.load(tmp_path / "saved", trusted=listed[:1])
    with pytest.raises(FileFormatError, match="trusted first"):
        load_posterior(tmp_path / "saved")
    loaded = Committee.load(tmp_path / "saved", trusted=listed)
    assert torch.equal(loaded.predict(NUMBERS).log_probs(), committee.predict(NUMBERS).log_probs())
    loaded.save(tmp_path / "again")
    assert Committee.load(tmp_path / "again", trusted=listed).draw_ids == committee.draw_ids


def test_trees_of_a_bootstrap_are_saved_as_arrays_and_still_take_frames(tmp_path, monkeypatch):
    frame = FRAME[["size", "weight"]]
    committee = Committee.bootstrap(DecisionTreeClassifier(), frame, Y, 3)
    monkeypatch.setitem(sys.modules, "skops", None)
    committee.save(tmp_path)
    loaded = Committee.load(tmp_path)
    assert torch.equal(loaded.predict(frame).log_probs(), committee.predict(frame).log_probs())
    with pytest.raises(ValueError, match="columns of the fit"):
        loaded.predict(frame[["weight", "size"]])


@pytest.mark.parametrize("change", [("ObjectNode", "MethodNode"), ("ObjectNode", "Nothing"), ("schema", "skema")])
def test_what_skops_did_not_write_is_one_sentence(change):
    committee = Committee.bootstrap(make_pipeline(StandardScaler(), LogisticRegression()), NUMBERS, Y, 2)
    written = _as_skops([member.classifier for member in committee._members], [])
    changed = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(written)) as old, zipfile.ZipFile(changed, "w") as new:
        for name in old.namelist():
            content = old.read(name)
            is_schema = name == "schema.json"
            new.writestr(name.replace(*change), content.decode().replace(*change) if is_schema else content)
    with pytest.raises(FileFormatError, match="cannot read the committee in there: "):
        _from_skops(changed.getvalue(), (), "there")


def test_types_that_skops_knows_need_no_trust(tmp_path):
    committee = Committee.bootstrap(make_pipeline(StandardScaler(), LogisticRegression()), NUMBERS, Y, 2)
    committee.save(tmp_path)
    assert torch.equal(load_posterior(tmp_path).predict(NUMBERS).log_probs(), committee.predict(NUMBERS).log_probs())


def test_without_skops_the_advice_is_to_install_it(tmp_path, monkeypatch):
    committee = Committee.bootstrap(LogisticRegression(), NUMBERS, Y, 2)
    committee.save(tmp_path / "saved")
    monkeypatch.setitem(sys.modules, "skops", None)
    monkeypatch.setitem(sys.modules, "skops.io", None)
    install = r"install it with: pip install 'batchbalance\[skops\]'"
    with pytest.raises(MissingExtraError, match=f"saving a committee of LogisticRegression without pickle .*{install}"):
        committee.save(tmp_path / "other")
    assert not (tmp_path / "other").exists()
    with pytest.raises(MissingExtraError, match=f"loading the committee in .*{install}"):
        Committee.load(tmp_path / "saved")
    forest = Committee.from_sklearn(RandomForestClassifier(2).fit(NUMBERS, Y))
    forest.save(tmp_path / "forest")  # trees need no skops
    assert torch.equal(
        Committee.load(tmp_path / "forest").predict(NUMBERS).log_probs(), forest.predict(NUMBERS).log_probs()
    )


def test_what_skops_cannot_read_again_is_refused_when_it_is_saved(tmp_path):
    committee = Committee.bootstrap(make_pipeline(FunctionTransformer(lambda x: x), GaussianNB()), NUMBERS, Y, 2)
    with pytest.raises(ValueError, match="of Pipeline must be of types that skops can write and read, got: "):
        committee.save(tmp_path / "saved")
    assert not (tmp_path / "saved").exists()


class Gone(GaussianNB):
    pass


def test_a_type_that_is_not_defined_here_is_one_sentence(tmp_path, monkeypatch):
    Committee.bootstrap(Gone(), NUMBERS, Y, 2).save(tmp_path)
    monkeypatch.delattr(sys.modules[__name__], "Gone")
    with pytest.raises(FileFormatError, match="define or import its types first"):
        Committee.load(tmp_path, trusted=[f"{__name__}.Gone"])


# Learners.


@pytest.mark.slow
@pytest.mark.parametrize(
    ("inputs", "model"),
    [
        (FRAME, make_pipeline(columns(), RandomForestClassifier(8))),
        (FRAME, make_pipeline(columns(), LogisticRegression())),
        (TEXTS, make_pipeline(TfidfVectorizer(), MultinomialNB())),
        (COUNTS, MultinomialNB()),
        (FRAME["text"], make_pipeline(TfidfVectorizer(), MultinomialNB())),
        (NUMBERS, GaussianNB()),
    ],
    ids=["forest on a frame", "regression on a frame", "texts", "sparse", "series", "array"],
)
def test_a_learner_takes_a_table_and_an_estimator(inputs, model):
    def asked(seed):
        learner = Learner(inputs, ["ant", "bee", "cat"], model, seed=seed)
        first = learner.ask(12)  # without labels they are random
        learner.tell(first, Y[first])
        second = learner.ask(3)
        return learner, first, second

    learner, first, second = asked(0)
    assert not set(first) & set(second)
    assert asked(0)[2] == second
    posterior = learner.fitted().posterior
    assert posterior.classes == ["ant", "bee", "cat"]
    table = IndexedRows(inputs) if is_table(inputs) else torch.from_numpy(inputs)
    predictions = posterior.predict(table[torch.tensor(second)])
    assert learner.selection.predicted == tuple(predictions.most_probable())


@pytest.mark.slow
def test_a_learner_asks_at_random_until_there_are_two_classes():
    learner = Learner(FRAME, ["ant", "bee", "cat"], make_pipeline(columns(), LogisticRegression()))
    learner.tell([0, 1], ["ant", "ant"])
    assert learner.fitted() is None
    assert len(learner.ask(4)) == 4
    assert learner.selection.strategy.name == "random"
    learner.tell([5], ["bee"])
    assert learner.fitted().posterior.num_draws == 20
    learner.ask(6)
    assert learner.selection.strategy.name == "batch-balance"


def test_labels_of_numbers_are_named_as_they_were_told():
    codes = np.unique(Y, return_inverse=True)[1]
    for classes in ([2, 1, 0], [10, 20, 30]):
        learner = Learner(NUMBERS, classes, GaussianNB())
        learner.tell(range(40), np.array(classes)[codes[:40]])
        learner.ask(3)
        rows = learner.selection.indices
        probs = learner.fitted().posterior.predict(NUMBERS).mean_probs()[rows]
        assert learner.fitted().posterior.classes == classes
        assert learner.selection.predicted == tuple(classes[c] for c in probs.argmax(dim=1))


def test_a_fit_of_ones_own_on_numbers_is_named_too():
    def fit(inputs, labels, seed):
        return Committee.bootstrap(GaussianNB(), inputs, labels, 4, seed=seed)

    learner = Learner(NUMBERS, ["none", "ant", "bee", "cat"], fit)
    learner.tell(range(40), Y[:40])
    learner.ask(2)
    assert learner.fitted().posterior.classes == [1, 2, 3]
    assert set(learner.selection.predicted) <= {"ant", "bee", "cat"}


def test_inputs_unlike_those_of_the_fit_are_one_sentence():
    texts = Committee.bootstrap(make_pipeline(TfidfVectorizer(), MultinomialNB()), TEXTS, Y, 2)
    with pytest.raises(ValueError, match=r"like those of the fit, got shape \(60, 2\) and float64: .*'lower'"):
        texts.predict(NUMBERS)
    frames = Committee.from_sklearn(make_pipeline(columns(), RandomForestClassifier(2)).fit(FRAME, Y))
    with pytest.raises(ValueError, match="columns are missing"):
        frames.predict(FRAME.drop(columns="place"))


def test_a_table_for_a_network_is_refused():
    for inputs, kind in ((TEXTS, "list"), (FRAME, "DataFrame")):
        for model in (CommitteeOptions(size=3), lambda: torch.nn.Linear(2, 3)):
            with pytest.raises(ValueError, match=f"array of numbers for this model, got a {kind}; pass a classifier"):
                Learner(inputs, ["ant", "bee", "cat"], model)


def test_a_class_in_place_of_a_classifier_is_refused():
    with pytest.raises(ValueError, match="`model` must be a classifier, got the class GaussianNB; pass an instance"):
        Learner(NUMBERS, ["ant", "bee", "cat"], GaussianNB)


def test_an_estimator_fit_keeps_size_and_jobs():
    fit = EstimatorFit(GaussianNB(), ["ant", "bee", "cat"], size=3, jobs=1)
    committee = fit(FRAME[["size", "weight"]], torch.from_numpy(np.unique(Y, return_inverse=True)[1]), 7)
    assert committee.num_draws == 3
    assert fit(NUMBERS, torch.zeros(60, dtype=torch.long), 7) is None

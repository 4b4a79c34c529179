"""What `select` takes for predictions: a posterior and its pool, `predict_proba` of one model, rows of a DataFrame."""

import numpy as np
import pandas as pd
import pytest
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from batchbalance import Predictions, select
from batchbalance.posteriors import BayesianHead, Committee


@pytest.fixture
def frame():
    random = np.random.default_rng(0)
    values = random.normal(size=(60, 3)) * [1, 10, 100]
    return pd.DataFrame(values, columns=list("abc"), index=[f"row {i}" for i in range(60)])


@pytest.fixture
def labels(frame):
    return np.where(frame["a"] > 0, "up", "down")


@pytest.fixture
def committee(frame, labels):
    pipeline = make_pipeline(StandardScaler(), LogisticRegression())
    return Committee.bootstrap(pipeline, frame[:20], labels[:20], 4)


def test_a_posterior_predicts_and_embeds_its_pool(frame, committee):
    labelled = frame.index[:20]
    chosen = select(committee, 5, pool=frame, labelled=labelled)
    scaled = committee.embed(frame)  # after the scaler of the pipeline
    assert not np.allclose(scaled, frame.to_numpy())
    same = select(committee.predict(frame), 5, embeddings=scaled, labelled=range(20))
    assert chosen.strategy.name == same.strategy.name == "u-herding"
    assert chosen.indices.tolist() == same.indices.tolist()
    assert select(committee, 5, pool=frame, embeddings=frame, labelled=labelled).indices.tolist() == (
        select(committee.predict(frame), 5, embeddings=frame, labelled=range(20)).indices.tolist()
    )


def test_a_table_has_the_index_of_the_pool_and_the_predicted_labels(frame, committee):
    shown = select(committee, 5, pool=frame, labelled=frame.index[:20]).to_frame()
    assert frame.index.get_indexer(shown.index).tolist() == shown["index"].tolist()
    mean = committee.predict(frame).mean_probs().numpy()
    assert shown["predicted"].tolist() == [committee.classes[mean[i].argmax()] for i in shown["index"]]
    plain = select(committee.predict(frame), 5).to_frame()
    assert plain.index.tolist() == [0, 1, 2, 3, 4]


def test_predict_proba_is_one_model(frame, labels):
    probs = LogisticRegression().fit(frame, labels).predict_proba(frame)
    chosen = select(probs, 5)
    assert chosen.strategy.name == "margin"
    gaps = np.abs(probs[:, 0] - probs[:, 1])
    assert sorted(chosen.indices.tolist()) == sorted(np.argsort(gaps)[:5].tolist())
    assert select(Predictions.from_probs(probs, "nc"), 5).indices.tolist() == chosen.indices.tolist()
    with pytest.raises(ValueError, match="sum"):
        select(np.full((4, 3), 0.5), 1)


def test_mistakes_say_what_to_do(frame, labels, committee):
    with pytest.raises(TypeError, match=r"got a Committee; give it the pool: .*pool=X\), or Committee.predict\(X\)"):
        select(committee, 5)
    with pytest.raises(TypeError, match=r"LogisticRegression.predict_proba\(X\)"):
        select(LogisticRegression().fit(frame, labels), 5)
    with pytest.raises(TypeError, match=r"df.index.get_indexer\(labelled\)"):
        select(committee.predict(frame), 5, labelled=frame.index[:20])
    with pytest.raises(ValueError, match="must be in the index of `pool`, got 'row 99'"):
        select(committee, 5, pool=frame, exclude=pd.Index(["row 99"]))
    with pytest.raises(TypeError, match="`pool` must be given together with a posterior, got ndarray"):
        select(np.full((60, 2), 0.5), 5, pool=frame)


def test_a_head_takes_its_pool(frame, labels):
    values = frame.to_numpy(dtype=np.float32)
    head = BayesianHead().fit(values[:20], (labels[:20] == "up").astype(int), num_classes=2)
    chosen = select(head, 4, pool=values, labelled=range(20))
    same = select(head.predict(values), 4, embeddings=head.embed(values), labelled=range(20))
    assert chosen.indices.tolist() == same.indices.tolist()

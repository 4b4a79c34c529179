import json

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier

from batchbalance import STRATEGIES, Badge, FileFormatError, PowerBalance, UnknownNameError, select
from batchbalance.arguments.seeds import derived_seed
from batchbalance.balance.edges import EdgeSettings
from batchbalance.learner import Learner, engine
from batchbalance.posteriors import (
    BayesianHead,
    Committee,
    CommitteeOptions,
    Fitted,
    FunctionPosterior,
    HeadOptions,
    MCDropout,
    MCDropoutOptions,
    PosteriorFit,
)
from batchbalance.posteriors.training.fitting import Recipe, fresh_model
from batchbalance.posteriors.training.networks import tabular_mlp

NAMES = [f"img-{i}" for i in range(60)]
CLASSES = ["cat", "dog", "owl"]


def data():
    rng = np.random.default_rng(0)
    y = rng.integers(3, size=60)
    return (rng.normal(size=(60, 4)) + 1.5 * np.eye(4)[y]).astype(np.float32), y


def forest(x, y, seed):
    model = RandomForestClassifier(12, max_depth=3, random_state=seed % 2**32).fit(x.numpy(), y.numpy())
    return Fitted(Committee.from_sklearn(model, range(3)), 0.2)


def learner(directory=None, **options):
    options = {"strategy": "batch-balance", "ids": NAMES, "model": forest, **options}
    return Learner(data()[0], CLASSES, directory=directory, **options)


def answer(names):
    return [CLASSES[data()[1][NAMES.index(name)]] for name in names]


def started(directory=None, **options):
    new = learner(directory, **options)
    new.tell(NAMES[:9], answer(NAMES[:9]))
    return new


def test_a_round_is_what_select_chooses_from_the_rest():
    asked = started(edges=EdgeSettings(ratio=0.5, pairs="all")).ask(4)
    x, y = torch.from_numpy(data()[0]), torch.from_numpy(data()[1])
    posterior = forest(x[:9], y[:9], derived_seed(0, "fit", 0)).posterior
    chosen = select(
        posterior.predict(x[9:]),
        4,
        strategy="batch-balance",
        validation_error=0.2,
        ratio=0.5,
        pairs="all",
        seed=derived_seed(0, "select", 0),
    )
    assert asked == [NAMES[9 + row] for row in chosen.indices.tolist()]


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_strategy_gets_what_it_needs(name):
    new = started(strategy=name, reference=data()[0][:20], candidates=30)
    asked = new.ask(3)
    assert len(set(asked)) == 3
    assert not set(asked) & set(NAMES[:9])
    assert new.selection.strategy.name == name
    assert ("predict" in new.seconds) == (name != "random")


def test_badge_with_mean_gradients_sees_every_draw():
    def masked(x, y, seed):
        return MCDropout(fresh_model(lambda: tabular_mlp(3, (4,), hidden=(8,)), seed, "cpu"), 6, seed)

    asked = started(strategy=Badge(mean_gradients=True), model=masked).ask(3)
    posterior = masked(None, None, derived_seed(0, "fit", 0))
    pool = torch.from_numpy(data()[0][9:])
    hidden = posterior.embed(pool, every_draw=True)
    assert hidden.shape == (51, 6, 8)
    chosen = select(
        posterior.predict(pool),
        3,
        strategy=Badge(mean_gradients=True),
        embeddings=hidden,
        seed=derived_seed(0, "select", 0),
    )
    assert asked == [NAMES[9 + row] for row in chosen.indices.tolist()]


def test_telling_in_parts_and_in_any_order_leads_to_the_same_question(tmp_path):
    whole = started(tmp_path / "a")
    asked = whole.ask(6)
    whole.tell(asked, answer(asked))
    parts = started(tmp_path / "b")
    assert parts.ask(6) == asked
    for part in (asked[4:], asked[:1], asked[3:0:-1]):
        parts = learner(tmp_path / "b")  # as after a restart
        parts.tell(part, answer(part))
    assert parts.labels == whole.labels
    assert learner(tmp_path / "b").ask(5) == whole.ask(5)


def test_open_questions_come_first(tmp_path):
    new = started(tmp_path)
    asked = new.ask(4)
    assert new.ask(4) == asked
    assert new.ask(2) == asked[:2]
    more = learner(tmp_path).ask(6)
    assert more[:4] == asked
    assert len(set(more)) == 6
    assert new.open_questions == more
    new.tell(asked[1:3], answer(asked[1:3]))
    assert new.open_questions == [asked[0], asked[3], *more[4:]]
    assert new.ask(4) == new.open_questions


def test_without_labels_a_strategy_that_needs_a_model_leaves_it_to_auto():
    first, again = learner(), learner(strategy="entropy")
    assert first.ask(5) == again.ask(5) == Learner(data()[0], CLASSES, forest, ids=NAMES).ask(5)
    assert first.selection.strategy.name == "max-herding"
    assert again.selection.note.startswith("there is no model yet for 'entropy', so auto chose 'max-herding'")
    assert learner(seed=1, strategy="random").ask(5) != learner(strategy="random").ask(5)


@pytest.mark.parametrize("strategy", [None, "max-herding"])
def test_without_labels_auto_covers_the_inputs_and_never_asks_an_untrained_network(strategy):
    """The same as `select` on the flattened inputs, whether or not there is a network; open questions cover."""
    x = torch.from_numpy(data()[0])
    chosen = select(embeddings=x, batch_size=4, strategy="max-herding", seed=derived_seed(0, "select", 0))
    named = {} if strategy is None else {"strategy": strategy}
    for model in (forest, lambda num_classes: tabular_mlp(num_classes, (4,), hidden=(8,))):
        new = Learner(x.reshape(60, 2, 2) if model is forest else x, CLASSES, model, ids=NAMES, **named)
        assert new.ask(4) == [NAMES[row] for row in chosen.indices.tolist()]
        assert new.selection.strategy.name == "max-herding"
        assert (new.selection.note or "").startswith("auto chose 'max-herding'") == (strategy is None)
        assert len(new.ask(6)) == 6
        rest = [row for row in range(60) if row not in chosen.indices.tolist()]
        expected = select(
            embeddings=x[rest],
            batch_size=2,
            strategy="max-herding",
            labelled_embeddings=x[chosen.indices],
            seed=derived_seed(0, "select", 1),
        )
        assert new.selection.indices.tolist() == [rest[i] for i in expected.indices.tolist()]


def test_auto_weights_by_margin_once_there_are_labels():
    new = Learner(data()[0], CLASSES, forest, ids=NAMES)
    new.tell(NAMES[:9], answer(NAMES[:9]))
    named = started(strategy="u-herding")
    assert new.ask(4) == named.ask(4)
    assert new.selection.strategy.name == "u-herding"
    assert new.selection.note == "auto chose 'u-herding': there are predictions and embeddings"
    assert named.selection.note is None


def test_a_cold_start_chooses_for_as_long_as_there_is_no_label():
    covering = Learner(data()[0], CLASSES, forest, ids=NAMES, strategy="max-herding")
    new = Learner(data()[0], CLASSES, forest, ids=NAMES, strategy="margin", cold_start="max-herding")
    assert new.ask(4) == covering.ask(4)
    assert new.selection.strategy.name == "max-herding"
    new.tell(NAMES[:9], answer(NAMES[:9]))
    new.ask(7)
    assert new.selection.strategy.name == "margin"


def test_auto_is_random_where_inputs_have_no_distances():
    new = Learner(torch.arange(40).reshape(20, 2), 2, forest)
    assert len(new.ask(3)) == 3
    assert new.selection.strategy.name == "random"
    assert "neither predictions nor embeddings" in new.selection.note


def test_all_points_can_be_asked_and_no_more():
    new = started()
    with pytest.raises(ValueError, match=r"`n` must be at most 51, .* got 52"):
        new.ask(52)
    assert new.open_questions == []
    assert sorted(new.ask(51)) == sorted(NAMES[9:])
    with pytest.raises(ValueError, match="at most 51"):
        new.ask(52)


def test_a_sample_of_candidates_bounds_the_work_and_changes_with_the_round():
    seen = []

    class Spy:
        def __len__(self):
            return 60

        def __getitem__(self, rows):
            seen.append(rows.tolist())
            return torch.from_numpy(data()[0])[rows]

    new = Learner(Spy(), CLASSES, forest, ids=NAMES, candidates=10, strategy="batch-balance")
    new.tell(NAMES[:9], answer(NAMES[:9]))
    for _ in range(2):
        asked = new.ask(3)
        new.tell(asked, answer(asked))
    assert [len(rows) for rows in seen] == [9, 10, 12, 10]
    assert seen[1] != seen[3]
    assert seen[1] == sorted(seen[1])


def test_strategies_choose_from_the_same_sample_of_candidates():
    samples = []
    for first in (NAMES[:9], NAMES[51:]):
        seen = []

        class Spy:
            def __len__(self):
                return 60

            def __getitem__(self, rows, seen=seen):
                seen.append(rows.tolist())
                return torch.from_numpy(data()[0])[rows]

        new = Learner(Spy(), CLASSES, forest, ids=NAMES, candidates=30, strategy="batch-balance")
        new.tell(first, answer(first))
        new.ask(3)
        samples.append(set(seen[1]))
    one, other = (sample - {*range(9), *range(51, 60)} for sample in samples)
    assert one <= other or other <= one  # they differ only where one of them has labels
    assert len(one & other) > 15


def test_labels_can_be_repeated_and_corrected_only_on_request():
    new = started()
    new.tell(["img-0"], answer(["img-0"]))
    wrong = next(label for label in CLASSES if label != new.labels["img-0"])
    with pytest.raises(ValueError, match=r"'img-0' must keep its label .* use correct=True"):
        new.tell(["img-20", "img-0"], ["cat", wrong])
    assert "img-20" not in new.labels
    with pytest.raises(ValueError, match="must keep its label"):
        new.tell(["img-20", "img-20"], ["cat", "dog"])
    new.tell(["img-0"], [wrong], correct=True)
    assert new.labels["img-0"] == wrong


def test_numpy_and_torch_scalars_are_plain_ids_and_labels(tmp_path):
    new = Learner(data()[0], 3, forest, directory=tmp_path)
    new.tell(np.arange(9), torch.from_numpy(data()[1])[:9])
    assert new.labels == dict(enumerate(data()[1][:9].tolist()))
    assert all(type(name) is int for name in new.ask(2))


def test_processes_take_turns(tmp_path, parent):
    asked = started(tmp_path).ask(5)
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1])\n"
        "from test_learner import answer, learner\n"
        "new = learner(sys.argv[2]); names = new.open_questions\n"
        "new.tell(names[::-2], answer(names[::-2])); print(json.dumps(names))\n"
    )
    tests = str(__file__).rpartition("/")[0]
    _, out, err = parent.run(code, tests, tmp_path)
    assert json.loads(out or "null") == asked, err
    here = learner(tmp_path)
    assert here.open_questions == asked[1::2]
    here.tell(asked[1::2], answer(asked[1::2]))
    undisturbed = started()
    undisturbed.tell(undisturbed.ask(5), answer(asked))
    assert here.ask(3) == undisturbed.ask(3)


def test_an_own_fit_may_give_a_posterior_or_a_fitted_one():
    plain = started(model=lambda x, y, seed: forest(x, y, seed).posterior)
    plain.ask(2)
    assert "estimated error" in plain.selection.threshold_source
    known = started(model=PosteriorFit(CommitteeOptions(size=5), 3, validation=None))
    assert len(known.ask(2)) == 2
    with pytest.raises(TypeError, match="`model` must return a Posterior or a Fitted, got float"):
        started(model=lambda *_: 0.5).ask(1)
    assert learner().fitted() is None


def test_a_fit_is_done_once_for_the_same_labels():
    calls = []

    def counted(x, y, seed):
        calls.append(len(y))
        return forest(x, y, seed)

    new = started(model=counted, strategy=PowerBalance(beta=2))
    assert new.fitted().validation_error == 0.2
    asked = new.ask(2)
    new.tell(asked, answer(asked))
    new.fitted()
    assert calls == [9, 11]


def test_a_directory_is_for_one_data_set(tmp_path):
    started(tmp_path)
    with pytest.raises(FileFormatError, match="must be about this data, got other ids"):
        Learner(data()[0], CLASSES, forest, directory=tmp_path)
    with pytest.raises(FileFormatError, match="got other classes"):
        Learner(data()[0], CLASSES[:2], forest, ids=NAMES, directory=tmp_path)
    with pytest.raises(FileFormatError, match="got other num_points"):
        Learner(data()[0][:5], CLASSES, forest, ids=NAMES[:5], directory=tmp_path)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda new: new.ask(0), ValueError, "`n` must be a whole number of at least 1, got 0"),
        (lambda new: new.ask(True), ValueError, "`n` must be"),
        (lambda new: new.tell(["img-0"], []), ValueError, "one for each of 1 ids, got 0"),
        (lambda new: new.tell(["img-99"], ["cat"]), ValueError, "ids of this learner's points, got 'img-99'"),
        (lambda new: new.tell(["img-0"], ["cta"]), UnknownNameError, "'cta'; did you mean 'cat'"),
        (lambda new: new.tell(["img-0"], [0.5]), ValueError, "whole numbers or text, got 0.5"),
    ],
)
def test_wrong_calls_change_nothing(call, error, message):
    new = learner()
    with pytest.raises(error, match=message):
        call(new)
    assert new.labels == {}
    assert new.open_questions == []


def test_wrong_data():
    with pytest.raises(ValueError, match="`inputs` must be"):
        Learner(np.zeros(4), 2, forest)
    with pytest.raises(ValueError, match="at least one point"):
        Learner(np.zeros((0, 4)), 2, forest)
    with pytest.raises(ValueError, match="`ids` must be 4 distinct names"):
        Learner(np.zeros((4, 1)), 2, forest, ids=["a", "b", "c", "a"])
    with pytest.raises(ValueError, match="`classes` must be distinct"):
        Learner(np.zeros((4, 1)), ["a", "a"], forest)


def test_asking_then_looking_at_the_posterior_trains_once():
    calls = []

    def counted(x, y, seed):
        calls.append(seed)
        return forest(x, y, seed)

    new = started(model=counted)
    first = new.ask(3)
    again = new.fitted()
    new.ask(5)
    assert len(calls) == 1
    assert again is new.fitted()
    new.tell(first, answer(first))
    new.fitted()
    assert len(calls) == 2


def test_indices_are_rows_of_the_pool_also_with_candidates():
    new = started(candidates=10)
    asked = new.ask(4)
    assert [NAMES[row] for row in new.selection.indices.tolist()] == asked


def test_asking_holds_no_lock_and_chooses_again_if_more_is_known(tmp_path):
    """Another process tells and asks while this one trains."""
    other = learner(tmp_path)
    seen = []

    def slow(x, y, seed):
        if not seen:
            other.tell([NAMES[20]], answer([NAMES[20]]))  # would wait for ever if the lock were held
            seen.append(other.ask(2))
        return forest(x, y, seed)

    new = started(tmp_path, model=slow)
    asked = new.ask(4)
    assert asked[:2] == seen[0]
    assert len(set(asked)) == 4
    assert NAMES[20] not in asked
    assert new.open_questions == asked


class Net(torch.nn.Module):
    def __init__(self, num_classes):
        super().__init__()
        self.layers = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, num_classes))

    def forward(self, x):
        return self.layers(x)


@pytest.mark.parametrize("model", [Net, lambda: Net(3), CommitteeOptions(size=5), forest])
def test_the_model_is_options_or_a_builder_or_a_fit(model):
    new = started(model=model)
    assert len(new.ask(2)) == 2
    assert new.fitted().posterior.predict(torch.from_numpy(data()[0])).num_classes == 3


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"model": Net(3)}, "got a built Net; pass a function"),
        ({"model": 3}, "`model` must be options of a posterior"),
        ({"model": BayesianHead()}, r"got a BayesianHead; pass posterior_options\('bayesian-head'\)"),
        ({"model": FunctionPosterior(np.asarray, name="f")}, "got a FunctionPosterior; pass a function that fits"),
        ({"model": MCDropoutOptions()}, "`network` must be given for posterior 'mc-dropout'"),
        ({"model": forest, "network": "tabular-mlp"}, "omit one of them"),
        ({"model": forest, "recipe": Recipe()}, "`recipe` is not used"),
        ({"candidates": 0}, "`candidates` must be a whole number of at least 1"),
    ],
)
def test_models_that_cannot_be(options, message):
    with pytest.raises((ValueError, TypeError), match=message):
        learner(**options)


def test_numpy_numbers_are_taken():
    assert len(started(seed=np.int64(3), candidates=np.int32(30)).ask(np.int64(2))) == 2


def test_text_stands_for_whole_numbers_as_in_csv_files(tmp_path):
    new = Learner(data()[0], 3, model=forest, directory=tmp_path)
    new.tell(["3", 4], ["2", 1])
    assert new.labels == {3: 2, 4: 1}
    new.tell([3], [2])
    named = Learner(data()[0], ["1", "2", "3"], model=forest, ids=[str(i) for i in range(60)])
    named.tell([7], [3])
    assert named.labels == {"7": "3"}
    for label in ("02", "2.0", " ", "-", "²"):
        with pytest.raises(UnknownNameError, match="unknown label"):
            new.tell([5], [label])


def test_a_fit_that_looks_at_unlabelled_inputs_is_given_them(monkeypatch):
    given = []

    class Fit:
        uses_unlabelled = True

        def __call__(self, x, y, seed, unlabelled=None):
            given.append(unlabelled)
            return Fitted(forest(x, y, seed).posterior, cross_validation=lambda: 0.4)

    new = started(model=Fit())
    new.ask(1)
    x = torch.from_numpy(data()[0])
    assert torch.equal(given[0], x[9:])
    assert new.selection.edges.threshold == pytest.approx(0.25 * 0.4)  # ε is the cross-validated error
    monkeypatch.setattr(engine, "MAX_UNLABELLED", 10)
    started(model=Fit()).ask(1)
    rows = [int((x == row).all(dim=1).nonzero()) for row in given[1]]
    assert len(rows) == 10
    assert min(rows) >= 9
    assert rows == sorted(set(rows))


def test_a_head_is_centred_with_the_pool():
    new = started(model=HeadOptions(num_draws=4))
    centre = torch.from_numpy(data()[0]).mean(dim=0)
    torch.testing.assert_close(new.fitted().posterior._tensors["mean"], centre)

import json

import pytest
import torch

from batchbalance import DrawMismatchError, FileFormatError, UnknownNameError, select
from batchbalance.arguments.seeds import derived_seed, generator
from batchbalance.posteriors import (
    ChainOptions,
    CommitteeOptions,
    EnsembleOptions,
    Fitted,
    HeadOptions,
    MCDropout,
    MCDropoutOptions,
    PosteriorFit,
    PosteriorOptions,
    load_posterior,
    posterior_options,
)
from batchbalance.posteriors.training import Recipe
from batchbalance.posteriors.training.networks import network_named
from batchbalance.posteriors.tuning import stratified_folds

MODEL = {"hidden": [8]}
RECIPE = Recipe(max_epochs=3)
SCHEDULE = {"epochs": 4, "cycles": 2, "samples_per_cycle": 1, "noise_epochs": 1, "initial_step_size": 0.05}
KINDS = [
    (MCDropoutOptions(num_draws=6), MODEL, 6),
    (ChainOptions(schedule=SCHEDULE), MODEL, 2),
    (EnsembleOptions(size=3), MODEL, 3),
    (CommitteeOptions(size=7), None, 7),
    (CommitteeOptions(classifier="extra-trees", size=4, max_depth=2), None, 4),
    (HeadOptions(num_draws=5), None, 5),
]


def points(number, seed):
    draws = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (number,), generator=draws)
    return torch.randn(number, 5, generator=draws) + 2 * torch.nn.functional.one_hot(y, 5), y


def fitter(settings, model, validation):
    return PosteriorFit(settings, 3, None if model is None else "tabular-mlp", model, RECIPE, validation)


@pytest.mark.parametrize(("settings", "model", "num_draws"), KINDS)
def test_every_kind_fits_and_is_a_function_of_the_seed(settings, model, num_draws):
    (x, y), validation = points(30, 0), points(40, 1)
    before = torch.get_rng_state()
    fit = fitter(settings, model, validation)
    fitted = fit(x, y, 3)
    assert torch.equal(torch.get_rng_state(), before)
    predictions = fitted.posterior.predict(validation[0])
    assert predictions.shape == (40, num_draws, 3)
    assert torch.equal(fit(x, y, 3).posterior.predict(validation[0]).log_probs(), predictions.log_probs())
    assert not torch.equal(fit(x, y, 4).posterior.predict(validation[0]).log_probs(), predictions.log_probs())
    if model is None or isinstance(settings, ChainOptions | EnsembleOptions):
        reported = settings.for_metrics(fitted.posterior).predict(validation[0])
        wrong = sum(
            int(reported.log_probs()[row].exp().mean(dim=0).argmax()) != int(validation[1][row]) for row in range(40)
        )
        assert fitted.validation_error == pytest.approx(wrong / 40, abs=1e-12)
    assert fitter(settings, model, None)(x, y, 3).validation_error is None


def test_the_error_of_mc_dropout_is_that_of_the_network_with_dropout_off():
    (x, y), validation = points(30, 0), points(40, 1)
    fitted = fitter(MCDropoutOptions(num_draws=2), {**MODEL, "dropout": 0.9}, validation)(x, y, 0)
    weights = fitted.posterior._state()[0]
    hidden = torch.relu(validation[0] @ weights["features.0.weight"].T + weights["features.0.bias"])
    predicted = (hidden @ weights["head.weight"].T + weights["head.bias"]).argmax(dim=1)
    assert fitted.validation_error == pytest.approx(float((predicted != validation[1]).double().mean()), abs=1e-12)


def test_validation_may_depend_on_the_number_of_labels():
    asked = []

    def validation(num_labels):
        asked.append(num_labels)
        return points(4, 1)

    error = fitter(CommitteeOptions(size=3), None, validation)(*points(12, 0), 0).validation_error
    assert asked == [12]
    assert error in (0, 0.25, 0.5, 0.75, 1)


@pytest.mark.parametrize("most", [2, 3, 5])
def test_folds_share_rows_and_classes_out_evenly(most):
    labels = torch.tensor([0] * 10 + [1] * 2 + [2] * 7 + [3])
    labels = labels[torch.randperm(20, generator=torch.Generator().manual_seed(0))]
    found = stratified_folds(labels, most, torch.Generator().manual_seed(1), singles=False)
    assert sorted(row for fold in found for row in fold.tolist()) == [i for i in range(20) if labels[i] != 3]
    assert len(found) == most
    sizes = [len(fold) for fold in found]
    assert max(sizes) - min(sizes) <= 1
    for label in range(3):
        counts = [sum(int(labels[row]) == label for row in fold.tolist()) for fold in found]
        assert max(counts) - min(counts) <= 1
    assert not torch.equal(found[0], stratified_folds(labels, most, torch.Generator().manual_seed(2), singles=False)[0])
    assert [len(fold) for fold in stratified_folds(torch.tensor([1, 0, 1]), 5, torch.Generator(), singles=False)] == [
        1,
        1,
    ]


def test_without_validation_the_error_is_that_of_labels_left_out():
    """With one-hot inputs a tree is right about what it has seen, and can only guess what it has not."""
    x, y = torch.eye(8), torch.tensor([0, 1, 2, 0, 1, 2, 0, 1])
    fit = fitter(CommitteeOptions(size=9), None, None)
    fitted = fit(x, y, 0)
    assert fitted.validation_error is None
    assert fitted.error > 0.4
    assert fitted.error * 8 == pytest.approx(round(fitted.error * 8), abs=1e-9)
    assert fit(x[:3], y[:3], 0).error is None  # no class has two labels
    assert Fitted(fitted.posterior, 0.3).error == 0.3


@pytest.mark.parametrize(
    ("settings", "model"), [(CommitteeOptions(size=5), None), (MCDropoutOptions(num_draws=2), MODEL)]
)
def test_the_cross_validated_error_follows_a_plain_loop(settings, model):
    x, y = points(23, 0)
    wrong = 0
    for number, fold in enumerate(stratified_folds(y, 5, generator(4, "folds"), singles=False)):
        left = [row for row in range(23) if row not in fold.tolist()]
        part = fitter(settings, model, None)(x[left], y[left], derived_seed(4, "fold", number)).posterior
        for row in fold.tolist():
            alone = x[row : row + 1]
            outputs = part._network(alone) if isinstance(part, MCDropout) else part.predict(alone).mean_probs()
            wrong += int(outputs.argmax()) != int(y[row])
    assert 0 < wrong < 23
    assert fitter(settings, model, None)(x, y, 4).error == pytest.approx(wrong / 23, abs=1e-12)


@pytest.mark.parametrize(
    ("settings", "model", "num"),
    [
        (MCDropoutOptions(num_draws=2), MODEL, 1),
        (EnsembleOptions(size=3), MODEL, 3),
        (CommitteeOptions(size=2), None, 0),
    ],
)
def test_kinds_with_networks_say_which_weights_were_kept(settings, model, num):
    kept = fitter(settings, model, None)(*points(30, 0), 0).kept
    assert [(each.epoch, each.steps) for each in kept] == [(3, 3)] * num


def test_a_network_is_needed():
    with pytest.raises(ValueError, match="`network` must be given for posterior 'mc-dropout'"):
        fitter(MCDropoutOptions(), None, None)
    with pytest.raises(TypeError, match="options"):
        PosteriorFit("mc-dropout", 3)


class OwnNetwork(torch.nn.Module):
    def __init__(self, num_classes, units=4):
        super().__init__()
        self.layers = torch.nn.Sequential(
            torch.nn.Linear(5, units), torch.nn.ReLU(), torch.nn.Dropout(0.5), torch.nn.Linear(units, num_classes)
        )

    def forward(self, inputs):
        return self.layers(inputs)


@pytest.mark.parametrize(
    ("network", "options"),
    [
        (OwnNetwork, {"units": 6}),
        (lambda: OwnNetwork(3), {}),
        ("test_posteriors_kinds:OwnNetwork", {}),
        ("tabular-mlp", MODEL),
    ],
)
def test_a_network_is_a_name_a_path_or_any_builder(network, options):
    (x, y), validation = points(30, 0), points(40, 1)
    fitted = PosteriorFit(MCDropoutOptions(num_draws=3), 3, network, options, RECIPE, validation)(x, y, 1)
    assert fitted.posterior.predict(x).shape == (30, 3, 3)


@pytest.mark.parametrize(("settings", "model", "num_draws"), KINDS)
def test_any_kind_is_loaded_by_one_function(settings, model, num_draws, tmp_path):
    x, y = points(30, 0)
    posterior = fitter(settings, model, None)(x, y, 3).posterior
    posterior.save(tmp_path / "saved")
    network = None if model is None else network_named("tabular-mlp")(3, (5,), **model)
    again = load_posterior(tmp_path / "saved", network)
    assert type(again) is type(posterior)
    assert again.draw_ids == posterior.draw_ids
    assert torch.equal(again.predict(x).log_probs(), posterior.predict(x).log_probs())
    wrong = "is not used by posteriors of kind" if model is None else "`network` must be a network like the one saved"
    with pytest.raises(ValueError, match=wrong):
        load_posterior(tmp_path / "saved", 3)
    if model is not None:
        assert load_posterior(tmp_path / "saved", lambda: network).draw_ids == posterior.draw_ids


def test_folders_that_hold_no_posterior_are_refused(tmp_path):
    with pytest.raises(FileFormatError, match="got a folder without"):
        load_posterior(tmp_path)
    for text, message in (
        ("[" * 20_000, "cannot read"),
        ("{}", "something else"),
        (json.dumps({"format": "batchbalance posterior", "version": 1, "options": {}, "weights": "w"}), "without kind"),
        (
            json.dumps({"format": "batchbalance posterior", "version": 9, "kind": "x", "options": {}, "weights": "w"}),
            "9",
        ),
        (
            json.dumps({"format": "batchbalance posterior", "version": 1, "kind": "x", "options": {}, "weights": "w"}),
            "'x'",
        ),
    ):
        (tmp_path / "posterior.json").write_text(text)
        with pytest.raises(FileFormatError, match=message):
            load_posterior(tmp_path)


def test_draws_of_networks_that_differ_in_structure_alone_are_not_the_same():
    """Same weights, another activation: the ids differ, and the sets do not combine."""

    def network(activation):
        torch.manual_seed(0)
        return torch.nn.Sequential(torch.nn.Linear(5, 4), activation, torch.nn.Dropout(0.5), torch.nn.Linear(4, 3))

    x, _ = points(9, 0)
    first, second = (MCDropout(network(layer), 4) for layer in (torch.nn.ReLU(), torch.nn.Tanh()))
    assert set(first.draw_ids).isdisjoint(second.draw_ids)
    with pytest.raises(DrawMismatchError, match="same draws"):
        select(first.predict(x), 2, reference=second.predict(x), threshold=0.1)
    assert MCDropout(network(torch.nn.ReLU()), 4).draw_ids == first.draw_ids


class OwnOptions(PosteriorOptions):
    """A kind of a user's own: draws that do not look at the inputs."""

    flat_inputs = True
    kind: str = "own"
    num_draws: int = 2

    def fit(self, inputs, labels, context):
        return CommitteeOptions(size=self.num_draws, max_depth=1).fit(inputs, labels, context)


def test_a_kind_of_ones_own_is_named_by_its_path():
    path = "test_posteriors_kinds:OwnOptions"
    options = posterior_options(path, num_draws=5)
    assert (options.kind, options.num_draws) == (path, 5)
    fitted = PosteriorFit(options, 3)(*points(12, 0), 0)
    assert fitted.posterior.num_draws == 5
    with pytest.raises(ValueError, match="must be a subclass of"):
        posterior_options("test_posteriors_kinds:OwnNetwork")
    with pytest.raises(UnknownNameError, match="did you mean 'mc-dropout'"):
        posterior_options("mc-droput")

import pytest
import torch

from batchbalance.posteriors.fitting import PosteriorFit, takes_features
from batchbalance.posteriors.settings import (
    ChainSettings,
    CommitteeSettings,
    EnsembleSettings,
    HeadSettings,
    MCDropoutSettings,
)
from batchbalance.training import Recipe

MODEL = {"name": "tabular-mlp", "hidden": [8]}
RECIPE = Recipe(max_epochs=3)
SCHEDULE = {"epochs": 4, "cycles": 2, "samples_per_cycle": 1, "noise_epochs": 1, "initial_step_size": 0.05}
KINDS = [
    (MCDropoutSettings(num_draws=6), MODEL, 6),
    (ChainSettings(kind="csg-mcmc", schedule=SCHEDULE), MODEL, 2),
    (EnsembleSettings(kind="deep-ensemble", size=3), MODEL, 3),
    (CommitteeSettings(kind="committee", size=7), None, 7),
    (CommitteeSettings(kind="committee", classifier="extra-trees", size=4, max_depth=2), None, 4),
    (HeadSettings(kind="bayesian-head", num_draws=5), None, 5),
    (HeadSettings(kind="bayesian-head", method="dropout", num_draws=4, hidden=(8,)), None, 4),
]


def points(number, seed):
    draws = torch.Generator().manual_seed(seed)
    y = torch.randint(3, (number,), generator=draws)
    return torch.randn(number, 5, generator=draws) + 2 * torch.nn.functional.one_hot(y, 5), y


def fitter(settings, model, validation):
    return PosteriorFit(settings, 3, model, RECIPE, validation)


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
    if model is None or isinstance(settings, ChainSettings | EnsembleSettings):
        wrong = sum(
            int(predictions.log_probs()[row].exp().mean(dim=0).argmax()) != int(validation[1][row]) for row in range(40)
        )
        assert fitted.validation_error == pytest.approx(wrong / 40, abs=1e-12)
    assert fitter(settings, model, None)(x, y, 3).validation_error is None


def test_the_error_of_mc_dropout_is_that_of_the_network_with_dropout_off():
    (x, y), validation = points(30, 0), points(40, 1)
    fitted = fitter(MCDropoutSettings(num_draws=2), {**MODEL, "dropout": 0.9}, validation)(x, y, 0)
    weights = fitted.posterior._state()[0]
    hidden = torch.relu(validation[0] @ weights["features.0.weight"].T + weights["features.0.bias"])
    predicted = (hidden @ weights["head.weight"].T + weights["head.bias"]).argmax(dim=1)
    assert fitted.validation_error == pytest.approx(float((predicted != validation[1]).double().mean()), abs=1e-12)


def test_validation_may_depend_on_the_number_of_labels():
    asked = []

    def validation(num_labels):
        asked.append(num_labels)
        return points(4, 1)

    error = fitter(CommitteeSettings(kind="committee", size=3), None, validation)(*points(12, 0), 0).validation_error
    assert asked == [12]
    assert error in (0, 0.25, 0.5, 0.75, 1)


def test_a_network_is_needed_and_features_are_flattened_where_they_must_be():
    with pytest.raises(ValueError, match="`model` must be given for posterior 'mc-dropout'"):
        fitter(MCDropoutSettings(), None, None)(*points(9, 0), 0)
    assert takes_features(MCDropoutSettings(), MODEL)
    assert takes_features(CommitteeSettings(kind="committee"), None)
    assert not takes_features(MCDropoutSettings(), {"name": "mnist-cnn"})

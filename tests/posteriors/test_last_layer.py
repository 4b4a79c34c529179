"""The last layer of a trained network: its own predictions at the centre, draws around them, refusals."""

import copy

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from batchbalance.posteriors import LastLayer, load_posterior


def data(num, seed):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 4, generator=g)
    return x, (x[:, 0] + 0.3 * torch.randn(num, generator=g) > 0).long() + (x[:, 1] > 0.5).long()


class Net(nn.Module):
    """Not a chain: the layer that runs last is not the one that is declared last."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(16, 3)
        self.backbone = nn.Linear(4, 16)
        self.drop = nn.Dropout(0.5)

    def forward(self, x):
        return self.head(self.drop(torch.relu(self.backbone(x))))


@pytest.fixture(scope="module")
def trained():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = Net()
    weights, (x, y) = list(model.eval().parameters()), data(150, 0)
    for _ in range(60):
        loss = torch.nn.functional.cross_entropy(model(x), y)
        for weight, slope in zip(weights, torch.autograd.grad(loss, weights), strict=True):
            weight.data -= 0.5 * slope
    return model.train()


@pytest.fixture(scope="module")
def posterior(trained):
    return LastLayer.from_model(trained, DataLoader(TensorDataset(*data(120, 1)), batch_size=50), 40)


def test_the_centre_is_the_network_and_the_draws_are_around_it(trained, posterior):
    x, y = data(300, 2)
    model = copy.deepcopy(trained).eval()
    expected = torch.log_softmax(model(x), dim=1).detach()
    torch.testing.assert_close(posterior.most_probable.predict(x).log_probs()[:, 0], expected, rtol=0, atol=1e-5)
    predictions = posterior.predict(x)
    assert predictions.shape == (300, 40, 3)
    nll, at_centre = (
        float(torch.nn.functional.nll_loss(logs, y)) for logs in (predictions.mean_probs().log(), expected)
    )
    assert nll < 1.1 * at_centre
    assert float(predictions.log_probs().std(dim=1).max()) > 0.01
    hidden = torch.relu(trained.backbone(x)).detach()
    torch.testing.assert_close(posterior.embed(x), hidden, rtol=0, atol=1e-6)


def test_a_draw_is_a_layer_of_its_own(posterior, trained):
    """Each draw, as a matrix and a bias, on features by hand."""
    x, _ = data(5, 3)
    weights = posterior._found.draws[:-1] / posterior._scale  # (16, S, 3)
    hidden = torch.relu(trained.backbone(x)).detach()
    predicted = posterior.predict(x).log_probs()
    for draw in (0, 17, 39):
        logits = hidden @ weights[:, draw] + posterior._found.draws[-1, draw]
        torch.testing.assert_close(predicted[:, draw], torch.log_softmax(logits, dim=1), rtol=0, atol=1e-5)


def test_saved_and_loaded(posterior, tmp_path):
    posterior.save(tmp_path)
    again = load_posterior(tmp_path, Net)
    assert isinstance(again, LastLayer)
    assert (again.draw_ids, repr(again)) == (posterior.draw_ids, repr(posterior))
    x, _ = data(7, 3)
    assert torch.equal(again.predict(x).log_probs(), posterior.predict(x).log_probs())
    assert "temperature" in repr(again)


def test_the_seed_and_given_values(trained, posterior):
    batches = [data(60, 1)]
    given = LastLayer.from_model(trained, batches, 3, prior_precision=0.5, temperature=0.2, seed=1)
    assert (given.tuned.precision, given.tuned.temperature) == (0.5, 0.2)
    same = LastLayer.from_model(trained, batches, 3, prior_precision=0.5, temperature=0.2, seed=1)
    assert same.draw_ids == given.draw_ids
    assert LastLayer.from_model(trained, batches, 3, seed=2).draw_ids != given.draw_ids
    assert posterior.tuned.precision == 1 / 64


def test_refusals(trained):
    x, y = data(40, 1)
    with pytest.raises(ValueError, match="must end in a linear layer"):
        LastLayer.from_model(nn.Sequential(trained, nn.Softmax(dim=1)), [(x, y)])
    with pytest.raises(ValueError, match="batches of inputs and labels, got Tensor without labels"):
        LastLayer.from_model(trained, [x])
    with pytest.raises(ValueError, match="at least one batch"):
        LastLayer.from_model(trained, [])
    with pytest.raises(ValueError, match="its labels must be classes from 0 to 2"):
        LastLayer.from_model(trained, [(x, y + 1)])
    with pytest.raises(ValueError, match="`temperature` must be a finite number above 0"):
        LastLayer.from_model(trained, [(x, y)], temperature=0)

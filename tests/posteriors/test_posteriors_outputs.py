"""What networks that the tests of the family do not have must not do: be read as something else without a word."""

import math

import numpy as np
import pytest
import torch
from torch import nn
from torch.utils.data import (
    BatchSampler,
    DataLoader,
    RandomSampler,
    SequentialSampler,
    SubsetRandomSampler,
    TensorDataset,
    WeightedRandomSampler,
)

from batchbalance import Predictions
from batchbalance.posteriors import DeepEnsemble, MCDropout, sliced
from batchbalance.posteriors.training import Recipe, fit
from batchbalance.predictions import join
from conftest import random_probs


def inputs(num=12, features=4, dtype=torch.float32):
    return torch.randn(num, features, generator=torch.Generator().manual_seed(1), dtype=dtype)


def net(*last, hidden=None):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), hidden or nn.ReLU(), nn.Dropout(0.5), *last)


def masked(model, x, draw, seed=0):
    """The network under one draw, layer by layer, with the mask made by hand; `model` is a Sequential."""
    from batchbalance.arguments.seeds import generator

    for name, layer in model.named_children():
        if isinstance(layer, nn.Dropout):
            kept = torch.rand(x.shape[1], generator=generator(seed, f"mask/{name}", draw)) >= layer.p
            x = x * kept / (1 - layer.p)
        else:
            x = layer(x)
    return x


def test_one_output_is_refused_unless_it_is_said_to_be_binary():
    torch.manual_seed(0)  # the last layer is built before `net` sets the seed
    model, x = net(nn.Linear(8, 1)), inputs()
    with pytest.raises(
        ValueError, match="got one output; if it is the logit of the second of two classes, pass binary"
    ):
        MCDropout(model, 3).predict(x)
    got = MCDropout(model, 3, binary=True).predict(x)
    assert got.num_classes == 2
    for draw in range(3):
        hidden = torch.relu(model[0](x))
        mask = MCDropout(model, 3, binary=True)._masks[0].keep(draw, (8,))
        z = ((hidden * mask * 2) @ model[3].weight[0] + model[3].bias[0]).detach()
        for row in range(len(x)):
            expected = 1 / (1 + math.exp(-float(z[row])))
            assert float(got.probs()[row, draw, 1]) == pytest.approx(expected, abs=1e-6)
    with pytest.raises(ValueError, match="for binary=True"):
        MCDropout(net(nn.Linear(8, 3)), 3, binary=True).predict(x)


def test_predictions_of_one_class_are_refused_everywhere(tmp_path):
    for values in ("from_probs", "from_logits", "from_log_probs"):
        with pytest.raises(ValueError, match="at least two classes, got one"):
            getattr(Predictions, values)(np.full((5, 3, 1), 1.0 if values == "from_probs" else 0.0))
    np.save(tmp_path / "one.npy", np.ones((5, 3, 1)))
    with pytest.raises(ValueError, match="at least two classes, got one"):
        Predictions.load(tmp_path / "one.npy")


def test_a_softmax_is_not_softmaxed_again():
    model, x = net(nn.Linear(8, 3), nn.Softmax(dim=-1)), inputs()
    with pytest.raises(ValueError, match="as after a softmax; pass outputs='probs'"):
        MCDropout(model, 3).predict(x)
    plain = MCDropout(net(nn.Linear(8, 3)), 3).predict(x)
    told = MCDropout(model, 3, outputs="probs")
    logs = MCDropout(net(nn.Linear(8, 3), nn.LogSoftmax(dim=-1)), 3).predict(x)
    torch.testing.assert_close(logs.log_probs(), plain.log_probs(), rtol=0, atol=1e-6)
    for draw in range(3):
        mask = told._masks[0].keep(draw, (8,))
        expected = torch.softmax(model[3](torch.relu(model[0](x)) * mask * 2), dim=-1)
        torch.testing.assert_close(told.predict(x).probs()[:, draw], expected.detach(), rtol=0, atol=1e-6)
    with pytest.raises(ValueError, match="must return probabilities"):
        MCDropout(net(nn.Linear(8, 3)), 3, outputs="probs").predict(x)
    with pytest.raises(ValueError, match="unknown kind of outputs"):
        MCDropout(model, 3, outputs="prob")


def test_ways_of_reading_survive_saving(tmp_path):
    model, x = net(nn.Linear(8, 1), nn.Sigmoid()), inputs()
    posterior = MCDropout(model, 3, outputs="probs", binary=True)
    posterior.save(tmp_path / "saved")
    again = MCDropout.load(tmp_path / "saved", net(nn.Linear(8, 1), nn.Sigmoid()))
    assert again.draw_ids == posterior.draw_ids
    assert torch.equal(again.predict(x).log_probs(), posterior.predict(x).log_probs())


def test_ensembles_of_one_logit(tmp_path):
    def one():
        return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 1))

    x = inputs(60)
    y = (x[:, 0] > 0).long()
    with pytest.raises(ValueError, match="binary=True"):
        DeepEnsemble(one, 2, Recipe(max_epochs=1)).fit(x, y, num_classes=2)
    ensemble = DeepEnsemble(one, 2, Recipe(max_epochs=60, learning_rate=0.02), binary=True).fit(x, y, num_classes=2)
    assert float((ensemble.predict(x).mean_probs().argmax(dim=1) == y).float().mean()) > 0.9
    ensemble.save(tmp_path / "saved")
    again = DeepEnsemble.load(tmp_path / "saved", one)
    assert torch.equal(again.predict(x).log_probs(), ensemble.predict(x).log_probs())


def test_training_refuses_a_softmax():
    with pytest.raises(ValueError, match="remove its softmax"):
        fit(lambda: net(nn.Linear(8, 3), nn.Softmax(dim=-1)), inputs(), torch.arange(12) % 3, num_classes=3)


class Clip(nn.ReLU):
    def forward(self, x):
        return x.clamp(0, 0.1)


class Lora(nn.Linear):
    def __init__(self, *sizes):
        super().__init__(*sizes)
        self.low = nn.Parameter(0.3 * torch.randn(sizes[1], sizes[0]))

    def forward(self, x):
        return super().forward(x) + x @ self.low.T


def patched():
    layer = nn.ReLU()
    layer.forward = lambda x: x.clamp(0, 0.1)
    return layer


def hooked():
    layer = nn.ReLU()
    layer.register_forward_hook(lambda *given: given[-1].clamp(max=0.1))
    return layer


def pre_hooked():
    layer = nn.Linear(8, 8)
    layer.register_forward_pre_hook(lambda _, given: (given[0] * 2,))
    return layer


@pytest.mark.parametrize(
    "layer", [Clip, patched, hooked, pre_hooked, lambda: Lora(8, 8)], ids=["subclass", "patched", "hook", "pre", "lora"]
)
@pytest.mark.parametrize(("num_draws", "least"), [(3, 0), (20, 0), (3, 2**60)])
def test_layers_that_are_not_what_their_type_says_run_in_full(layer, num_draws, least, monkeypatch):
    monkeypatch.setattr(sliced, "LEAST_PRODUCTS", least)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(4, 8), nn.Dropout(0.5), layer(), nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3)
    )
    x = inputs(101)
    fast, general = (MCDropout(model, num_draws, fast=fast).predict(x).log_probs() for fast in (True, False))
    torch.testing.assert_close(fast, general, rtol=0, atol=1e-5)
    for draw in (0, num_draws - 1):
        expected = torch.log_softmax(masked(model, x, draw), dim=-1).detach()
        torch.testing.assert_close(fast[:, draw], expected, rtol=0, atol=1e-5)


def test_a_fast_path_that_differs_is_left(monkeypatch):
    monkeypatch.setattr(sliced, "LEAST_PRODUCTS", 0)
    plain = sliced._product
    monkeypatch.setattr(sliced, "_product", lambda *given: sliced.replace(plain(*given), scale=1.5))
    model, x = net(nn.Linear(8, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)), inputs()
    posterior = MCDropout(model, 4)
    with pytest.warns(UserWarning, match="differs from the model; the general path is used"):
        got = posterior.predict(x)
    torch.testing.assert_close(got.log_probs(), MCDropout(model, 4, fast=False).predict(x).log_probs())


class Named(nn.Dropout):
    def forward(self, x):
        return super().forward(x) * 1.0


class Functional(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.drop, self.last = nn.Linear(4, 8), nn.Dropout(0.2), Tail()

    def forward(self, x):
        return self.last(self.drop(torch.relu(self.first(x))))


class Tail(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(nn.functional.dropout(x, 0.5, training=self.training))


def test_dropout_that_is_not_run_is_named():
    with pytest.warns(UserWarning, match=r"in: '0' \(Named with a custom forward or hooks\)"):
        MCDropout(nn.Sequential(Named(0.5), nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)), 3)
    with pytest.warns(UserWarning, match="random dropping in module 'last' stays off"):
        MCDropout(Functional(), 3).predict(inputs())

    class OwnLSTM(nn.LSTM):
        pass

    with pytest.warns(UserWarning, match=r"in: '0' \(between the layers of OwnLSTM\)"):
        MCDropout(nn.Sequential(OwnLSTM(4, 5, num_layers=2, dropout=0.3), nn.Dropout(0.5)), 3)


class Forgetful(nn.Module):
    """Has two dropout layers, and runs as many as it is told."""

    def __init__(self, num_run):
        super().__init__()
        self.first, self.used, self.forgotten = nn.Linear(4, 3), nn.Dropout(0.5), nn.Dropout(0.5)
        self.num_run = num_run

    def forward(self, x):
        return self.first(self.used(x) if self.num_run else x)


def test_dropout_layers_that_forward_forgets():
    with pytest.warns(UserWarning, match="dropout layer 'forgotten' is not run by the model and has no effect"):
        assert MCDropout(Forgetful(1), 3).predict(inputs()).num_draws == 3
    with pytest.raises(ValueError, match="runs none of used, forgotten; call them in `forward`"):
        MCDropout(Forgetful(0), 3).predict(inputs())


def test_a_sigmoid_is_not_read_as_a_logit_without_a_word():
    last = nn.Linear(8, 1)
    model = net(last, nn.Sigmoid())
    with pytest.warns(UserWarning, match="is between 0 and 1 for all inputs, and is used as a logit"):
        MCDropout(model, 3, binary=True).predict(inputs())
    got = MCDropout(model, 3, binary=True, outputs="probs").predict(inputs())
    same = MCDropout(net(last), 3, binary=True).predict(inputs())
    torch.testing.assert_close(got.probs(), same.probs())


def test_buffers_may_be_infinite():
    class Causal(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("mask", torch.full((4, 4), -torch.inf).triu(1))
            self.drop, self.head = nn.Dropout(0.5), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.drop(x @ torch.softmax(self.mask, dim=-1)))

    assert MCDropout(Causal(), 3).predict(inputs()).num_draws == 3
    broken = Causal()
    broken.mask[0, 0] = torch.nan
    with pytest.raises(ValueError, match="NaN or infinity in `mask`"):
        MCDropout(broken, 3)
    weight = Causal()
    weight.head.weight.data[0, 0] = torch.inf
    with pytest.raises(ValueError, match=r"in `head.weight`"):
        MCDropout(weight, 3)


DATA = TensorDataset(inputs())


class Odd(SequentialSampler):
    def __iter__(self):
        return iter(range(len(self.data_source) - 1, -1, -1))


@pytest.mark.parametrize(
    ("loader", "name"),
    [
        (DataLoader(DATA, shuffle=True), "RandomSampler"),
        (DataLoader(DATA, sampler=SubsetRandomSampler(range(12))), "SubsetRandomSampler"),
        (DataLoader(DATA, sampler=WeightedRandomSampler(torch.ones(12), 12)), "WeightedRandomSampler"),
        (DataLoader(DATA, batch_sampler=BatchSampler(RandomSampler(DATA), 4, False)), "RandomSampler"),
        (DataLoader(DATA, batch_sampler=[[3, 1], [0]]), "list"),
        (DataLoader(DATA, sampler=Odd(DATA)), "Odd"),
        (DataLoader(DATA, sampler=[3, 2, 1]), "list"),
    ],
)
def test_loaders_that_may_change_the_order_are_refused_by_name(loader, name):
    with pytest.raises(ValueError, match=f"with {name}, which may change it"):
        MCDropout(net(nn.Linear(8, 3)), 3).predict(loader)


def test_loaders_in_order_are_taken():
    posterior = MCDropout(net(nn.Linear(8, 3)), 3)
    expected = posterior.predict(inputs()).log_probs()
    for loader in (
        DataLoader(DATA, batch_size=5),
        DataLoader(DATA, batch_sampler=BatchSampler(SequentialSampler(DATA), 4, False)),
    ):
        torch.testing.assert_close(posterior.predict(loader).log_probs(), expected, rtol=0, atol=1e-6)


def test_a_joined_pool_can_be_checked():
    parts = [Predictions.from_probs(random_probs(n, 3, 4, seed=n)) for n in (5, 7)]
    assert join(parts).check() == pytest.approx(0, abs=1e-6)
    assert join(parts).check(slice(3, 9)) == pytest.approx(0, abs=1e-6)

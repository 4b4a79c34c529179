"""Plain functions as posteriors."""

import numpy as np
import pandas as pd
import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from batchbalance import DrawMismatchError, UnknownNameError, select
from batchbalance.arguments.seeds import derived_seed
from batchbalance.posteriors import FunctionPosterior, MCDropout, load_posterior
from batchbalance.posteriors.saved import FORMAT, VERSION

W = torch.randn(4, 3, 2, generator=torch.Generator().manual_seed(0))  # features, draws, classes
X = torch.randn(11, 4, generator=torch.Generator().manual_seed(1))


def logits(batch):
    return torch.einsum("nf,fsc->nsc", batch, W)


def probs(batch):
    return logits(batch).softmax(dim=-1)


def test_a_function_is_asked_batch_by_batch():
    posterior = FunctionPosterior(logits, classes=["no", "yes"])
    predictions = posterior.predict(X, batch_size=4)
    for row in range(11):
        for draw in range(3):
            scores = [sum(float(X[row, f]) * float(W[f, draw, c]) for f in range(4)) for c in range(2)]
            expected = np.log(np.exp(scores) / np.exp(scores).sum())
            np.testing.assert_allclose(predictions.log_probs()[row, draw].numpy(), expected, rtol=0, atol=1e-5)
    assert predictions.classes == ("no", "yes")
    assert predictions.draw_ids == posterior.draw_ids == ("logits-0", "logits-1", "logits-2")
    same = FunctionPosterior(probs, "probs").predict(DataLoader(TensorDataset(X), batch_size=5))
    torch.testing.assert_close(same.log_probs(), predictions.log_probs())
    assert len(select(predictions, 2, seed=0).predicted) == 2


def test_several_functions_are_one_after_the_other(tmp_path):
    def single(batch):  # one draw, and an array
        return logits(batch)[:, 1].double().numpy()

    posterior = FunctionPosterior([logits, single], name="mine", weights=[0.1, 0.2, 0.3, 0.4])
    predictions = posterior.predict(X, path=tmp_path / "pool.npy")
    assert predictions.draw_ids == ("mine-0", "mine-1", "mine-2", "mine-3")
    torch.testing.assert_close(predictions.log_probs()[:, 3], predictions.log_probs()[:, 1])
    assert predictions.weights.tolist() == pytest.approx([0.1, 0.2, 0.3, 0.4])
    with pytest.raises(DrawMismatchError, match="got draw 'other-0' where the pool has 'mine-0'"):
        predictions.check_same_draws(FunctionPosterior([logits, single], name="other").predict(X).with_weights(
            predictions.weights))  # fmt: skip


@pytest.mark.parametrize("kind", ["texts", "frame"])
def test_a_function_gets_tables_as_they_are(kind):
    seen = []

    def length(batch):
        seen.append(type(batch))
        numbers = [len(text) for text in batch] if kind == "texts" else batch["size"].tolist()
        return torch.tensor([[[0.0, number / 10]] for number in numbers])

    inputs = ["a", "bb", "cccc"] if kind == "texts" else pd.DataFrame({"size": [1.0, 2.0, 4.0]})
    got = FunctionPosterior(length).predict(inputs, batch_size=2).probs()[:, 0, 1]
    torch.testing.assert_close(got, torch.sigmoid(torch.tensor([0.1, 0.2, 0.4])))
    assert set(seen) == {type(inputs)}


def test_embeddings_need_a_function_of_their_own():
    assert torch.equal(FunctionPosterior(logits, embedding=lambda batch: batch * 2).embed(X, batch_size=3), X * 2)
    with pytest.raises(ValueError, match="`embedding`, a function that returns the features of a batch, must be given"):
        FunctionPosterior(logits).embed(X)


def test_functions_are_not_saved(tmp_path):
    with pytest.raises(ValueError, match="functions cannot be saved; save their predictions"):
        FunctionPosterior(logits).save(tmp_path / "saved")
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "posterior.json").write_text(
        f'{{"format": "{FORMAT}", "version": {VERSION}, "kind": "function", "options": {{}}, "weights": ""}}'
    )
    with pytest.raises(ValueError, match="make the posterior again from them"):
        load_posterior(tmp_path)


def test_the_number_of_draws_is_known_once_it_was_seen():
    posterior = FunctionPosterior(logits)
    with pytest.raises(ValueError, match="predict something first"):
        _ = posterior.num_draws
    posterior.predict(X)
    assert posterior.num_draws == 3


def noisy(batch):
    return logits(batch) + torch.randn(len(batch), 3, 2)


def by_place(batch):  # the same in every call, but a row's numbers depend on where it stands
    return logits(batch) * torch.arange(len(batch))[:, None, None]


def by_company(batch):
    return logits(batch - batch.mean(dim=0))


@pytest.mark.parametrize("function", [noisy, by_place, by_company])
def test_a_draw_must_be_one_hypothesis(function):
    message = "must predict a point the same in every call, .* differ by .* in a second call; fix the seed"
    with pytest.raises(ValueError, match=message):
        FunctionPosterior(function).predict(X)


@pytest.mark.parametrize(
    ("functions", "options", "message"),
    [
        ([], {}, "must be a function or a list of functions, got an empty list"),
        ([logits, 3], {}, "must be a function or a list of functions, got 3"),
        (probs, {}, r"must return logits, .*, which are non-negative and sum to 1; pass outputs='probs'"),
        (logits, {"outputs": "probs"}, r"must return probs, .*, which are not a distribution; pass outputs='logits'"),
        (lambda batch: logits(batch)[:-1], {}, r"one row for each of 11 inputs, got shape \(10, 3, 2\)"),
        (lambda batch: logits(batch)[0, 0], {}, "predictions must have 2 axes"),
        (lambda batch: logits(batch)[:, :, :1], {}, "at least two classes, got one"),
        (lambda batch: ["a"] * len(batch), {}, "the output of a function must be real numbers"),
        ([logits, lambda batch: batch[:, :3]], {}, r"must have the same classes, got \[2, 3\] of them"),
        (logits, {"classes": ["a", "b", "c"]}, "must return the 3 `classes`, got 2"),
        (logits, {"weights": [1.0]}, "must have one number for each of 3 draws"),
        (lambda batch: logits(batch) * torch.nan, {}, "must .*finite|second call"),
    ],
)
def test_what_is_refused(functions, options, message):
    with pytest.raises(ValueError, match=message):
        FunctionPosterior(functions, **options).predict(X)


def test_an_unknown_kind_of_outputs_is_named():
    with pytest.raises(UnknownNameError, match="did you mean 'logits'"):
        FunctionPosterior(logits, "logit")


def test_the_number_of_draws_stays():
    def fewer(batch):
        return logits(batch)[:, : 3 if len(batch) > 2 else 2]

    posterior = FunctionPosterior(fewer)
    posterior.predict(X)
    with pytest.raises(ValueError, match="must return 3 draws of every batch, got 2"):
        posterior.predict(X[:2])


class Sampler:
    """A library that puts sampled weights into a network, and remembers the rows that each draw saw."""

    def __init__(self):
        self.net, self.seen = nn.Linear(4, 3).double(), []
        self.net.register_forward_hook(lambda _, args, __: self.seen.append(len(args[0])))

    def __call__(self):
        self.seen.append("draw")
        for parameter in self.net.parameters():
            parameter.data = torch.randn_like(parameter)


def by_hand(draw, x, seed=0):
    """Log-probabilities of one draw."""
    with torch.random.fork_rng():
        torch.manual_seed(derived_seed(seed, "sampler", draw) % 2**32)
        weight, bias = torch.randn(3, 4, dtype=torch.float64), torch.randn(3, dtype=torch.float64)
    return torch.stack([torch.log_softmax(weight @ row + bias, dim=0) for row in x])


def test_a_sampler_gives_one_draw_to_all_inputs_and_then_the_next():
    x, sampler = torch.randn(10, 4, dtype=torch.float64), Sampler()
    before = torch.get_rng_state()
    posterior = FunctionPosterior.from_sampler(sampler, sampler.net, 3, classes=["a", "b", "c"])
    predictions = posterior.predict(x, batch_size=4)
    assert torch.equal(torch.get_rng_state(), before)
    for draw in range(3):
        torch.testing.assert_close(predictions.log_probs()[:, draw], by_hand(draw, x), rtol=0, atol=1e-10)
    each = ["draw", 4, 2, 4, 2]  # half of the first batch is predicted twice
    assert sampler.seen[: 3 * len(each)] == 3 * each
    again = posterior.predict(x[5:])
    assert torch.equal(again.log_probs(), predictions.log_probs()[5:])
    assert again.draw_ids == predictions.draw_ids == ("Linear-0-0", "Linear-0-1", "Linear-0-2")
    other = FunctionPosterior.from_sampler(sampler, sampler.net, 3, seed=1).predict(x)
    torch.testing.assert_close(other.log_probs()[:, 2], by_hand(2, x, 1), rtol=0, atol=1e-10)


class Bayesian(nn.Module):
    """Samples its weights at every call."""

    def forward(self, x):
        return x @ torch.randn(4, 3, dtype=x.dtype)


class NoisyRows(nn.Module):
    """Samples noise for every row, as dropout does."""

    def forward(self, x):
        return x[:, :3] + torch.randn(len(x), 3, dtype=x.dtype)


def test_models_that_sample_at_every_call():
    x = torch.randn(7, 4, dtype=torch.float64)
    posterior = FunctionPosterior.from_sampler(None, Bayesian(), 5)
    predictions = posterior.predict(x, batch_size=3)
    assert torch.equal(predictions.log_probs()[4:], posterior.predict(x[4:]).log_probs())
    assert len({round(float(value), 6) for value in predictions.log_probs()[0, :, 0]}) == 5
    with pytest.raises(ValueError, match="predict a point the same in every call"):
        FunctionPosterior.from_sampler(None, NoisyRows(), 2).predict(x)
    drawn = iter(range(1, 100))

    def sample():
        scale = next(drawn)
        return lambda batch: batch[:, :3] * scale

    with pytest.raises(ValueError, match="must fix the same weights again under the same random state"):
        FunctionPosterior.from_sampler(sample, len, 2).predict(x)
    with pytest.raises(ValueError, match="must have a length"):
        FunctionPosterior.from_sampler(None, Bayesian(), 2).predict(DataLoader(x, batch_size=None))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of torch.compile
def test_networks_go_in_as_they_are():
    x = torch.randn(9, 4)
    net = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3)).train()
    mean = {name: value.clone() for name, value in net[1].named_buffers()}
    plain = MCDropout(net, 4).predict(x)
    assert net.training
    torch.testing.assert_close(MCDropout(torch.compile(net), 4).predict(x).log_probs(), plain.log_probs())
    sampled = FunctionPosterior.from_sampler(lambda: None, torch.compile(net), 2).predict(x)
    torch.testing.assert_close(sampled.log_probs()[:, 0], torch.log_softmax(net.eval()(x), dim=1).detach())
    assert all(torch.equal(value, mean[name]) for name, value in net[1].named_buffers())
    skorch = pytest.importorskip("skorch")
    module = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.5), nn.Linear(8, 3))
    fitted = skorch.NeuralNetClassifier(
        module, criterion=nn.CrossEntropyLoss, max_epochs=1, verbose=0, train_split=None
    )
    fitted.fit(x, torch.arange(9) % 3)
    expected = MCDropout(fitted.module_, 4).predict(x).log_probs()
    assert torch.equal(MCDropout(fitted, 4).predict(x).log_probs(), expected)

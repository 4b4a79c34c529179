"""One contract for every posterior: the same draws on every set, in every chunk, and after saving."""

import json

import numpy as np
import pytest
import torch
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset, IterableDataset, SequentialSampler, TensorDataset

from batchbalance.errors import DrawMismatchError, FileFormatError
from batchbalance.posteriors import (
    BayesianHead,
    Committee,
    CyclicalSGMCMC,
    DeepEnsemble,
    LastLayer,
    MCDropout,
    Posterior,
    Schedule,
)
from batchbalance.posteriors.training import Recipe
from batchbalance.posteriors.training.networks import mnist_cnn, tabular_mlp
from batchbalance.predictions import Predictions


def data(num=60, seed=0):
    g = torch.Generator().manual_seed(seed)
    x = torch.randn(num, 4, generator=g)
    return x, (x[:, 0] > 0).long() + (x[:, 1] > 0.5).long()


def network():
    return tabular_mlp(3, (4,), hidden=(16, 8))


def general_network():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Dropout(0.3))
            self.head = nn.Linear(8, 3)

        def forward(self, x):
            hidden = self.body(x)
            return self.head(hidden + x.repeat(1, 2))

    return Residual()


def seeded_network(build, seed):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build()


def make(name, seed=0):
    """A fitted posterior of 6 draws, and the further arguments of its `load`."""
    x, y = data()
    recipe = Recipe(max_epochs=2)
    if name == "mc-dropout":
        return MCDropout(seeded_network(network, seed), 6, seed), (network(),)
    if name == "mc-dropout-general":
        return MCDropout(seeded_network(general_network, seed), 6, seed), (general_network(),)
    if name == "csgmcmc":
        options = {"epochs": 4, "cycles": 2, "samples_per_cycle": 1, "noise_epochs": 1, "num_chains": 3}
        return CyclicalSGMCMC(network, Schedule(**options), seed=seed).fit(x, y, num_classes=3), (network,)
    if name == "deep-ensemble":
        return DeepEnsemble(network, 6, recipe, seed=seed).fit(x, y, num_classes=3), (network,)
    if name == "committee":
        forest = RandomForestClassifier(6, max_depth=4, random_state=seed).fit(x.numpy(), y.numpy())
        return Committee.from_sklearn(forest), ()
    if name == "bootstrapped":
        return Committee.bootstrap(LogisticRegression(), x, y, 6, seed=seed), ()
    if name == "last-layer":
        model = seeded_network(general_network, 0)
        return LastLayer.from_model(model, [(x, y)], 6, temperature=0.01, seed=seed), (general_network,)
    return BayesianHead(name, 6, seed=seed).fit(x, y, num_classes=3), ()


NAMES = [
    "mc-dropout",
    "mc-dropout-general",
    "csgmcmc",
    "deep-ensemble",
    "committee",
    "bootstrapped",
    "laplace",
    "bootstrap",
    "last-layer",
]


@pytest.fixture(scope="module", params=NAMES)
def case(request):
    return request.param, *make(request.param)


def same(a, b, atol=1e-6):
    assert a.draw_ids == b.draw_ids
    torch.testing.assert_close(a.log_probs(), b.log_probs(), rtol=1e-6, atol=atol)


def test_predictions_are_distributions_that_differ_between_draws(case):
    _, posterior, _ = case
    x, _ = data(20, seed=1)
    predictions = posterior.predict(x)
    assert isinstance(posterior, Posterior)
    assert (predictions.num_points, predictions.num_draws, predictions.num_classes) == (20, 6, 3)
    torch.testing.assert_close(predictions.log_probs().exp().sum(dim=-1), torch.ones(20, 6), rtol=0, atol=1e-5)
    for draw in range(1, 6):
        assert not torch.equal(predictions.log_probs()[:, 0], predictions.log_probs()[:, draw])
    assert predictions.draw_ids == posterior.draw_ids


def test_chunks_order_and_company_change_nothing(case):
    _, posterior, _ = case
    x, _ = data(23, seed=1)
    whole = posterior.predict(x)
    same(posterior.predict(x, batch_size=5), whole)
    same(posterior.predict(x.flip(0)).subset(list(range(22, -1, -1))), whole)
    same(posterior.predict(x[7:9]), whole.subset(slice(7, 9)))


def test_the_same_again_exactly_and_global_state_untouched(case):
    name, posterior, _ = case
    x, _ = data(9, seed=1)
    before = torch.get_rng_state()
    first = posterior.predict(x).log_probs()
    posterior.embed(x)
    assert torch.equal(first, posterior.predict(x).log_probs())
    assert torch.equal(before, torch.get_rng_state())
    again, _ = make(name)
    assert torch.equal(first, again.predict(x).log_probs())
    assert again.draw_ids == posterior.draw_ids


class Items(Dataset):
    def __init__(self, x, y):
        self.x, self.y = x, y

    def __len__(self):
        return len(self.x)

    def __getitem__(self, row):
        return self.x[row], self.y[row]


class Stream(IterableDataset):
    def __init__(self, x):
        self.x = x

    def __iter__(self):
        return iter(self.x)


def test_datasets_and_loaders_give_what_tensors_give(case, tmp_path):
    _, posterior, _ = case
    x, y = data(13, seed=1)
    whole = posterior.predict(x)
    same(posterior.predict(x.numpy(), batch_size=4), whole)
    same(posterior.predict(TensorDataset(x, y), batch_size=4), whole)
    same(posterior.predict(Items(x, y), batch_size=4), whole)
    same(posterior.predict(DataLoader(Items(x, y), batch_size=5)), whole)
    same(posterior.predict(Stream(x), batch_size=4), whole)
    made = DataLoader([(x[:6], y[:6]), (x[6:7], y[6:7]), (x[7:], y[7:])], batch_size=None)
    same(posterior.predict(made), whole)
    with pytest.raises(ValueError, match="must have a length to be streamed into a file"):
        posterior.predict(made, path=tmp_path / "p.npy")
    for dropping in (
        DataLoader(Items(x, y), batch_size=5, drop_last=True),
        DataLoader(Stream(x), batch_size=5, drop_last=True),
        DataLoader(Items(x, y), batch_sampler=BatchSampler(SequentialSampler(x), 5, True)),
    ):
        with pytest.raises(ValueError, match=r"must hold every example, got a DataLoader with drop_last=True"):
            posterior.predict(dropping)
    same(posterior.predict(DataLoader(Items(x[:10], y[:10]), batch_size=5, drop_last=True)), whole.subset(slice(10)))


def test_masked_entries_are_refused(case):
    _, posterior, _ = case
    x = data(6, seed=1)[0].numpy()
    same(posterior.predict(np.ma.masked_array(x)), posterior.predict(x))
    masked = np.ma.masked_array(x, mask=np.arange(x.size).reshape(x.shape) == 3)
    for given in (masked, Items(masked, np.arange(6))):
        with pytest.raises(ValueError, match=r"`inputs` must not have masked entries, got 1; fill or drop them"):
            posterior.predict(given)


def test_streaming_into_a_file(case, tmp_path):
    _, posterior, _ = case
    x, _ = data(13, seed=1)
    path = tmp_path / "pool.npy"
    mapped = posterior.predict(x, batch_size=4, path=path)
    same(mapped, posterior.predict(x, batch_size=4), atol=0)
    assert np.load(path).shape == (13, 6, 3)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["pool.npy", "pool.npy.json"]
    same(Predictions.load(path), mapped, atol=0)


def test_save_and_load(case, tmp_path):
    _, posterior, arguments = case
    x, _ = data(13, seed=1)
    posterior.save(tmp_path / "saved")
    loaded = type(posterior).load(tmp_path / "saved", *arguments)
    same(loaded.predict(x), posterior.predict(x), atol=0)
    torch.testing.assert_close(loaded.embed(x), posterior.embed(x), rtol=0, atol=0)
    posterior.save(tmp_path / "saved")
    assert len(list((tmp_path / "saved").iterdir())) == 2


def test_embeddings_are_one_row_an_input(case):
    name, posterior, _ = case
    x, _ = data(13, seed=1)
    hidden = posterior.embed(x)
    assert hidden.shape[0] == 13
    assert hidden.ndim == 2
    torch.testing.assert_close(posterior.embed(x, batch_size=3), hidden, rtol=0, atol=1e-6)
    predictions, beside = posterior.predict_and_embed(x, batch_size=5)
    torch.testing.assert_close(beside, hidden, rtol=0, atol=1e-6)
    torch.testing.assert_close(predictions.log_probs(), posterior.predict(x).log_probs(), rtol=0, atol=1e-5)
    of_draws = posterior.embed(x, every_draw=True, batch_size=5)
    assert of_draws.shape == (13, posterior.num_draws, hidden.shape[1])
    torch.testing.assert_close(of_draws.mean(dim=1), hidden, rtol=0, atol=1e-6)
    assert (name in ("committee", "bootstrapped", "laplace", "bootstrap", "last-layer")) == torch.equal(
        of_draws[:, 0], of_draws[:, 1]
    )


def test_draws_of_another_seed_do_not_mix(case):
    name, posterior, _ = case
    x, _ = data(13, seed=1)
    other, _ = make(name, seed=1)
    with pytest.raises(DrawMismatchError, match="same draws"):
        posterior.predict(x).check_same_draws(other.predict(x))


def test_wrong_inputs(case, tmp_path):
    _, posterior, _ = case
    x, _ = data(6)
    with pytest.raises(ValueError, match=r"must be|must have shape|must fit|expecting"):
        posterior.predict(torch.zeros(6, 9))
    with pytest.raises(ValueError, match="at least one"):
        posterior.predict(x[:0])
    with pytest.raises(ValueError, match="batch_size"):
        posterior.predict(x, batch_size=0)
    with pytest.raises(ValueError, match=r"end in \.npy"):
        posterior.predict(x, path=tmp_path / "p.npz")
    with pytest.raises(ValueError, match="have a length"):
        posterior.predict(Stream(x), path=tmp_path / "p.npy")
    with pytest.raises(ValueError, match="shuffle=False"):
        posterior.predict(DataLoader(TensorDataset(x), shuffle=True))
    assert list(tmp_path.iterdir()) == []


def test_wrong_types_of_inputs(case):
    name, posterior, _ = case
    if name in ("committee", "bootstrapped"):
        pytest.skip("scikit-learn converts")
    if isinstance(posterior, BayesianHead):  # takes what NumPy has
        same(posterior.predict(np.ones((6, 4))), posterior.predict(torch.ones(6, 4)))
    else:
        with pytest.raises(ValueError, match=r"torch\.float"):
            posterior.predict(torch.zeros(6, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match="NaN at point 1, draw 0"):
        posterior.predict(torch.tensor([[0.0] * 4, [float("nan")] * 4]), batch_size=1)


def test_damaged_and_foreign_folders(case, tmp_path):
    _, posterior, arguments = case
    load = type(posterior).load
    with pytest.raises(FileFormatError, match=r"without posterior\.json"):
        load(tmp_path, *arguments)
    saved = tmp_path / "saved"
    posterior.save(saved)
    (weights,) = saved.glob("*.safetensors")
    intact = weights.read_bytes()
    weights.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
    with pytest.raises(FileFormatError, match="does not match its checksum"):
        load(saved, *arguments)
    weights.write_bytes(intact[: len(intact) // 2])
    with pytest.raises(FileFormatError, match="cannot read"):
        load(saved, *arguments)
    listing = saved / "posterior.json"
    content = json.loads(listing.read_text())
    for change, message in (
        ({"kind": "other"}, "of kind"),
        ({"version": 9}, "version"),
        ({"format": "x"}, "something"),
    ):
        listing.write_text(json.dumps({**content, **change}))
        with pytest.raises(FileFormatError, match=message):
            load(saved, *arguments)
    listing.write_text("{")
    with pytest.raises(FileFormatError, match="cannot read"):
        load(saved, *arguments)
    foreign = tmp_path / "foreign"
    foreign.mkdir()
    (foreign / "notes.txt").write_text("mine")
    with pytest.raises(FileFormatError, match="choose another folder"):
        posterior.save(foreign)


@pytest.mark.parametrize("name", ["mc-dropout", "csgmcmc", "deep-ensemble"])
def test_weights_of_another_network(name, tmp_path):
    posterior, _ = make(name)
    posterior.save(tmp_path / "saved")

    def wider():
        return tabular_mlp(3, (4,), hidden=(32, 8))

    with pytest.raises(FileFormatError, match="another network"):
        type(posterior).load(tmp_path / "saved", wider() if name == "mc-dropout" else wider)


@pytest.mark.parametrize("kind", [MCDropout, DeepEnsemble, CyclicalSGMCMC])
def test_convolutions_predict_exactly_the_same_after_loading(kind, tmp_path):
    def build():
        return mnist_cnn(2, width=0.2)

    images = torch.rand(6, 1, 28, 28, generator=torch.Generator().manual_seed(0))
    labels = torch.tensor([0, 1, 0, 1, 0, 1])
    if kind is MCDropout:
        posterior = MCDropout(seeded_network(build, 0), 3)
    elif kind is DeepEnsemble:
        posterior = DeepEnsemble(build, 2, Recipe(max_epochs=1)).fit(images, labels, num_classes=2)
    else:
        posterior = CyclicalSGMCMC(build, Schedule(2, 1, 2, 0.01, noise_epochs=2)).fit(images, labels, num_classes=2)
    posterior.save(tmp_path / "saved")
    loaded = kind.load(tmp_path / "saved", build() if kind is MCDropout else build)
    same(loaded.predict(images), posterior.predict(images), atol=0)


def test_a_file_of_predictions_that_shrinks_is_an_error(tmp_path):
    posterior, _ = make("mc-dropout")
    predictions = posterior.predict(data(9)[0], path=tmp_path / "p.npy")
    assert predictions.log_probs(slice(8, 9)).shape == (1, 6, 3)
    with (tmp_path / "p.npy").open("rb+") as file:
        file.truncate(200)
    with pytest.raises(FileFormatError, match="must not change while it is read"):
        predictions.log_probs(slice(8, 9))


def test_the_first_draws_are_a_posterior_of_their_own():
    posterior, _ = make("mc-dropout")
    x, _ = data(9)
    fewer = posterior.first(2)
    assert fewer.draw_ids == posterior.draw_ids[:2]
    torch.testing.assert_close(fewer.predict(x).log_probs(), posterior.predict(x).log_probs()[:, :2], rtol=0, atol=0)
    most = posterior.num_draws
    for wrong, message in (
        (0, "at least 1, got 0"),
        (most + 1, f"at most {most}, the number of draws, got {most + 1}"),
    ):
        with pytest.raises(ValueError, match=message):
            posterior.first(wrong)


def test_an_error_half_way_leaves_the_old_file(tmp_path):
    posterior, _ = make("mc-dropout")
    x, _ = data(9)
    path = tmp_path / "p.npy"
    posterior.predict(x, path=path)
    before = path.read_bytes()
    with pytest.raises(ValueError, match="NaN at point 8"):
        posterior.predict(torch.cat([x[:8], x[8:] * float("nan")]), batch_size=4, path=path)
    assert path.read_bytes() == before
    assert sorted(file.name for file in tmp_path.iterdir()) == ["p.npy", "p.npy.json"]
    assert Predictions.load(path).draw_ids == posterior.draw_ids


MEMORY = """
import resource, torch
from torch import nn
from torch.utils.data import Dataset
from batchbalance.posteriors import MCDropout
class Zeros(Dataset):
    def __init__(self, num): self.num = num
    def __len__(self): return self.num
    def __getitem__(self, row): return torch.zeros(2)
torch.set_num_threads(1)
posterior = MCDropout(nn.Sequential(nn.Linear(2, 4), nn.Dropout(0.5), nn.Linear(4, 10)), 50)
peaks = []
for num in (512, 30_000):
    posterior.predict(Zeros(num), batch_size=256, path="{path}")
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
print(peaks[1] - peaks[0])
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_number_of_inputs(tmp_path, parent):
    path = tmp_path / "p.npy"
    script = MEMORY.replace("{path}", str(path))
    ended, out, err = parent.run(script)
    assert ended == 0, err
    assert int(out) * 1024 < path.stat().st_size / 4


def test_progress_is_shown_if_asked(capsys):
    posterior, _ = make("mc-dropout")
    x, _ = data(9)
    posterior.predict(x)
    assert capsys.readouterr().err == ""
    posterior.predict(x, progress=True)
    posterior.embed(x, progress=True)
    shown = capsys.readouterr().err
    assert "predicting: 9 of 9" in shown
    assert "embedding: 9 of 9" in shown


def test_bfloat16_networks_predict_into_files_too(tmp_path):
    posterior = MCDropout(tabular_mlp(3, (4,)).to(torch.bfloat16), 5)
    x = data(9)[0].to(torch.bfloat16)
    path = tmp_path / "p.npy"
    same(posterior.predict(x, path=path), posterior.predict(x), atol=0)
    same(Predictions.load(path), posterior.predict(x), atol=0)


def test_sparse_inputs_are_refused_in_one_sentence(case):
    _, posterior, _ = case
    x, _ = data(6)
    message = r"`inputs` must be dense, got a tensor of layout torch.sparse_coo; use its to_dense\(\)"
    with pytest.raises(ValueError, match=message):
        posterior.predict(x.to_sparse())
    with pytest.raises(ValueError, match=message):
        posterior.predict(DataLoader(x, batch_size=2, collate_fn=lambda rows: torch.stack(rows).to_sparse()))

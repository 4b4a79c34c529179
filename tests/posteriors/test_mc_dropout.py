"""MC dropout: fixed masks by hand, the fast path against the general one, transformers, and refusals."""

import pytest
import torch
from torch import nn

from batchbalance.arguments.seeds import generator
from batchbalance.posteriors import MCDropout, mixing, sliced
from batchbalance.posteriors.sliced import Chain
from batchbalance.posteriors.training.networks import fashion_cnn, mnist_cnn, resnet18, tabular_mlp, vgg11


def built(build, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build()
        for name, value in model.named_buffers():  # batch normalisation that does something
            if name.endswith("running_mean"):
                value.uniform_(-0.5, 0.5)
            if name.endswith("running_var"):
                value.uniform_(0.5, 2)
        return model


def random(*shape, dtype=torch.float32):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=dtype)


def kept(name, draw, shape, rate, seed=0):
    return torch.rand(shape, generator=generator(seed, f"mask/{name}", draw)) >= rate


@pytest.mark.parametrize("fast", [True, False])
def test_draws_are_the_masked_network(fast):
    model = built(lambda: tabular_mlp(3, (5,), hidden=(8, 6), dropout=0.3).double())
    x = random(4, 5, dtype=torch.float64)
    got = MCDropout(model, 5, fast=fast).predict(x)
    weights = [p.detach() for p in model.parameters()]
    for draw in range(5):
        first = kept("features.2", draw, (8,), 0.3)
        second = kept("features.5", draw, (6,), 0.3)
        for n in range(4):
            hidden = x[n]
            for layer, mask in ((0, first), (2, second)):
                sums = [float(weights[layer][u] @ hidden + weights[layer + 1][u]) for u in range(len(mask))]
                units = [max(s, 0.0) / 0.7 if mask[u] else 0.0 for u, s in enumerate(sums)]
                hidden = torch.tensor(units, dtype=torch.float64)
            logits = weights[4] @ hidden + weights[5]
            expected = logits - logits.exp().sum().log()
            torch.testing.assert_close(got.log_probs()[n, draw], expected, rtol=0, atol=1e-10)


def sequential(*layers):
    return lambda: nn.Sequential(*layers)


CHAINS = {
    "mnist": (lambda: mnist_cnn(width=0.25), (1, 28, 28)),
    "fashion": (lambda: fashion_cnn(width=0.25), (1, 28, 28)),
    "vgg": (lambda: vgg11(width=0.05), (3, 32, 32)),
    "fashion, pools that round up": (lambda: fashion_cnn(width=0.25, hidden=512, round_up=True), (1, 28, 28)),
    "vgg, a wide head": (lambda: vgg11(width=0.05, head=[4096, 4096]), (3, 32, 32)),
    "resnet": (lambda: resnet18(width=0.125, dropout=0.4), (3, 32, 32)),
    "stride, padding, and a pool that leaves a rest": (
        sequential(
            nn.Conv2d(2, 6, 3), nn.Dropout2d(0.4), nn.ReLU(), nn.Conv2d(6, 5, 5, stride=2, padding=(1, 2)),
            nn.MaxPool2d(2), nn.Tanh(), nn.Dropout2d(0.3), nn.Flatten(), nn.Linear(45, 3),
        ),
        (2, 18, 14),
    ),
    "pools that overlap, wide kernels": (
        sequential(
            nn.Conv2d(1, 6, 3), nn.Dropout2d(0.5), nn.Conv2d(6, 4, (3, 5), dilation=(2, 1), bias=False),
            nn.MaxPool2d(3, 2), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3),
        ),
        (1, 12, 12),
    ),
    "wide kernels, a draw may drop all that they give": (
        sequential(
            nn.Conv2d(1, 6, 3), nn.Dropout2d(0.3), nn.Conv2d(6, 2, 3, padding="valid"), nn.Tanh(), nn.Dropout2d(0.8),
            nn.Flatten(), nn.Linear(32, 3),
        ),
        (1, 8, 8),
    ),
    "elementwise before a pool": (
        sequential(
            nn.Conv2d(2, 6, 3), nn.Dropout(0.4), nn.MaxPool2d(2), nn.ReLU(), nn.Flatten(), nn.Dropout(0.2),
            nn.Linear(54, 7), nn.ReLU(), nn.Dropout(0.5), nn.Linear(7, 3),
        ),
        (2, 8, 8),
    ),
    "activations that are not 0 at 0": (
        sequential(
            nn.Linear(4, 9), nn.Dropout(0.5), nn.Sigmoid(), nn.Linear(9, 8), nn.Sigmoid(), nn.Dropout(0.3),
            nn.GELU(), nn.Linear(8, 3),
        ),
        (4,),
    ),
    "batch normalisation behind dropout": (
        sequential(
            nn.Conv2d(2, 6, 3, padding=1, padding_mode="circular"), nn.Dropout2d(0.5), nn.BatchNorm2d(6), nn.ReLU(),
            nn.Conv2d(6, 8, 3, bias=False), nn.ELU(), nn.Dropout2d(0.5), nn.AvgPool2d(2), nn.Flatten(),
            nn.Linear(72, 3),
        ),
        (2, 8, 8),
    ),
    "batch normalisation behind convolutions": (
        sequential(
            nn.Conv2d(2, 6, 3), nn.Dropout2d(0.5), nn.Conv2d(6, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(),
            nn.MaxPool2d(2), nn.Dropout2d(0.5), nn.Conv2d(8, 5, 2, padding=1), nn.BatchNorm2d(5, affine=False),
            nn.LeakyReLU(-0.3), nn.MaxPool2d(2), nn.Dropout2d(0.3), nn.Flatten(), nn.Linear(20, 3),
        ),
        (2, 12, 12),
    ),
    "convolutions mixed, normalised, pooled later": (
        sequential(
            nn.Conv2d(2, 6, 3), nn.Dropout2d(0.2), nn.Conv2d(6, 8, 3), nn.BatchNorm2d(8), nn.Tanh(), nn.MaxPool2d(2),
            nn.Dropout2d(0.3), nn.Conv2d(8, 5, 2), nn.Flatten(), nn.Linear(45, 3),
        ),
        (2, 12, 12),
    ),
    "grouped convolution, nested, dropout twice": (
        sequential(
            nn.Sequential(nn.Conv1d(4, 6, 3), nn.Dropout1d(0.4)), nn.Conv1d(6, 6, 3, groups=3), nn.Dropout1d(0.3),
            nn.Dropout1d(0.3), nn.AdaptiveAvgPool1d(2), nn.Flatten(), nn.Linear(12, 3),
        ),
        (4, 9),
    ),
    "alpha dropout": (
        sequential(
            nn.Linear(4, 9), nn.SELU(), nn.AlphaDropout(0.3), nn.Linear(9, 8), nn.Dropout(0.5), nn.AlphaDropout(0.2),
            nn.Linear(8, 3),
        ),
        (4,),
    ),
    "everything dropped": (
        sequential(nn.Linear(4, 9), nn.Dropout(1.0), nn.ReLU(), nn.Linear(9, 2), nn.Dropout(0.9), nn.Linear(2, 3)),
        (4,),
    ),
    "no rate": (sequential(nn.Linear(4, 9), nn.Dropout(0.0), nn.Linear(9, 5), nn.Dropout(0.5), nn.Linear(5, 3)), (4,)),
    "volumes": (
        sequential(
            nn.Conv3d(1, 5, 2), nn.Dropout3d(0.5), nn.MaxPool3d(2), nn.Conv3d(5, 4, 2), nn.Flatten(), nn.Linear(4, 3)
        ),
        (1, 5, 5, 5),
    ),
    "linear on sequences": (
        sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.Linear(6, 5), nn.Dropout(0.5), nn.Flatten(), nn.Linear(15, 3)),
        (3, 4),
    ),
    "dropout last": (sequential(nn.Linear(4, 9), nn.ReLU(), nn.Linear(9, 3), nn.Dropout(0.2)), (4,)),
}  # fmt: skip


@pytest.mark.parametrize("name", CHAINS)
@pytest.mark.parametrize(("num_draws", "least", "rows"), [(7, 0, 1), (65, 0, 1), (7, 2**60, 2**12), (7, 2**60, 15)])
def test_the_fast_path_gives_the_general_numbers(name, num_draws, least, rows, monkeypatch):
    monkeypatch.setattr(sliced, "LEAST_PRODUCTS", least)  # cut units out, or take many draws at a time
    monkeypatch.setattr(sliced, "STACKED_ROWS", rows)
    build, shape = CHAINS[name]
    model = built(build)
    x = random(5, *shape)
    fast, general = MCDropout(model, num_draws, seed=2), MCDropout(model, num_draws, seed=2, fast=False)
    assert fast._chain is not None
    assert fast.draw_ids == general.draw_ids
    a, b = fast.predict(x).log_probs(), general.predict(x).log_probs()
    torch.testing.assert_close(a, b, rtol=0, atol=1e-5)
    torch.testing.assert_close(fast.embed(x), general.embed(x), rtol=1e-5, atol=1e-5)


def test_the_fast_path_computes_less():
    def width(posterior):
        seen = []
        original = torch.addmm
        x = random(2, 4)

        def spy(bias, inputs, weight, **scale):
            seen.append(weight.numel())
            return original(bias, inputs, weight, **scale)

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sliced, "LEAST_PRODUCTS", 0)
            list(*posterior._chain.runs(x, 1))
            patch.setattr(torch, "addmm", spy)
            list(*posterior._chain.runs(x, 1))
        return seen

    model = built(
        sequential(nn.Linear(4, 64), nn.ReLU(), nn.Dropout(0.5), nn.Linear(64, 64), nn.Dropout(0.5), nn.Linear(64, 3))
    )
    middle, last = width(MCDropout(model, 1))
    live = int(kept("2", 0, (64,), 0.5).sum()), int(kept("4", 0, (64,), 0.5).sum())
    assert (middle, last) == (live[0] * live[1], live[1] * 3)


@pytest.mark.parametrize("name", CHAINS)
def test_predictions_and_embeddings_of_a_chain_come_from_one_pass(name, monkeypatch):
    build, shape = CHAINS[name]
    posterior = MCDropout(built(build), 17, seed=2)
    x = random(5, *shape)
    predictions, embeddings = posterior.predict(x).log_probs(), posterior.embed(x)
    passes, runs = [], sliced.Chain.runs

    def counted(*arguments):
        passes.append(arguments)
        return runs(*arguments)

    monkeypatch.setattr(sliced.Chain, "runs", counted)
    both = posterior.predict_and_embed(x)
    assert len(passes) == 1
    torch.testing.assert_close(both[0].log_probs(), predictions, rtol=0, atol=1e-5)
    torch.testing.assert_close(both[1], embeddings, rtol=0, atol=1e-5)


MIXED = [
    "mnist",
    "stride, padding, and a pool that leaves a rest",
    "pools that overlap, wide kernels",
    "wide kernels, a draw may drop all that they give",
    "convolutions mixed, normalised, pooled later",
]


@pytest.mark.parametrize("name", CHAINS)
def test_wide_kernels_behind_the_first_dropout_are_mixed_for_all_draws_at_once(name, monkeypatch):
    build, shape = CHAINS[name]
    model = built(build)
    whole = MCDropout(model, 65, seed=2)
    assert (whole._chain._mixing is not None) == (name in MIXED)
    x = random(5, *shape)
    together = whole.predict(x).log_probs()
    monkeypatch.setattr(mixing, "BLOCK_NUMBERS", 1)
    monkeypatch.setattr(mixing, "STORED_NUMBERS", 1)
    torch.testing.assert_close(whole.predict(x).log_probs(), together, rtol=0, atol=1e-5)


def test_dropout_is_unbiased_and_has_its_rate():
    model = nn.Sequential(nn.Identity(), nn.Dropout(0.3), nn.Linear(50, 50, bias=False))
    nn.init.eye_(model[2].weight)
    hidden = MCDropout(model, 400).embed(torch.ones(1, 50))
    error = (0.3 / 0.7 / (400 * 50)) ** 0.5
    assert abs(float(hidden.mean()) - 1) < 4 * error


def test_alpha_dropout_keeps_mean_and_variance():
    model = nn.Sequential(nn.Identity(), nn.AlphaDropout(0.3), nn.Linear(2, 2))
    posterior = MCDropout(model, 2)
    mask = posterior._masks[0]
    x = random(200_000, 1)
    keep = torch.rand(200_000, 1, generator=torch.Generator().manual_seed(1)) >= 0.3
    out = mask.applied(x, keep)
    assert abs(float(out.mean())) < 4 * float(out.std()) / 200_000**0.5
    fourth = float(((out - out.mean()) ** 4).mean())
    assert abs(float(out.var()) - 1) < 4 * ((fourth - 1) / 200_000) ** 0.5


def test_draws_do_not_depend_on_their_number():
    model = built(lambda: tabular_mlp(3, (5,)))
    x = random(3, 5)
    few, many = MCDropout(model, 2).predict(x), MCDropout(model, 9).predict(x)
    torch.testing.assert_close(few.log_probs(), many.log_probs()[:, :2], rtol=0, atol=1e-6)
    assert few.draw_ids == many.draw_ids[:2]


def test_ids_tell_weights_seeds_and_rates_apart():
    model = built(lambda: tabular_mlp(3, (5,)))
    other = built(lambda: tabular_mlp(3, (5,)), seed=1)
    rate = built(lambda: tabular_mlp(3, (5,), dropout=0.4))
    ids = {MCDropout(m, 1, seed).draw_ids for m, seed in ((model, 0), (model, 1), (other, 0), (rate, 0))}
    assert len(ids) == 4


def test_the_model_is_copied_and_left_alone():
    model = built(lambda: tabular_mlp(3, (5,)))
    model.train()
    x = random(3, 5)
    posterior = MCDropout(model, 2)
    before = posterior.predict(x).log_probs()
    nn.init.zeros_(model.head.weight)
    assert torch.equal(before, posterior.predict(x).log_probs())
    assert model.training
    assert sum(isinstance(m, nn.Dropout) for m in model.modules()) == 2


class Encoder(nn.Module):
    def __init__(self, batch_first=True):
        super().__init__()
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.3, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=batch_first)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.encoder(x)[:, 0])


def kept_pairs(name, draw, heads, length, rate):
    """Masks of attention weights: up to 16 tokens they are in the first block."""
    stream = generator(0, f"mask/{name}/block/0/0", draw)
    return (torch.rand((heads, 16, 16), generator=stream) >= rate)[:, :length, :length]


def attended(layer, x, kept, rate):
    """Self-attention of 2 heads by a loop over heads, with a mask on its weights."""
    q, k, v = (x @ layer.in_proj_weight.T + layer.in_proj_bias).chunk(3, dim=2)
    heads = []
    for head in range(2):
        part = slice(4 * head, 4 * head + 4)
        weights = torch.softmax(q[:, :, part] @ k[:, :, part].transpose(1, 2) / 2, dim=2)
        heads.append((weights * kept[head] / (1 - rate)) @ v[:, :, part])
    return torch.cat(heads, dim=2) @ layer.out_proj.weight.T + layer.out_proj.bias


def test_transformer_layers_use_their_masks_at_every_length():
    model = built(Encoder).double().eval()
    posterior = MCDropout(model, 3)
    layer = model.encoder.layers[0]
    for length in (5, 7, 4):
        x = random(4, length, 8, dtype=torch.float64)
        got = posterior.predict(x).log_probs()
        for draw in range(3):
            masks = {
                name: kept(f"encoder.layers.0.{name}", draw, shape, 0.3).double() / 0.7
                for name, shape in (("dropout1", (length, 8)), ("dropout", (length, 16)), ("dropout2", (length, 8)))
            }
            pairs = kept_pairs("encoder.layers.0.self_attn", draw, 2, length, 0.3)
            with torch.no_grad():
                hidden = layer.norm1(x + masks["dropout1"] * attended(layer.self_attn, x, pairs, 0.3))
                inner = masks["dropout"] * torch.relu(layer.linear1(hidden))
                hidden = layer.norm2(hidden + masks["dropout2"] * layer.linear2(inner))
                expected = torch.log_softmax(model.head(hidden[:, 0]), dim=-1)
            torch.testing.assert_close(got[:, draw], expected, rtol=0, atol=1e-10)


def test_a_dropout_layer_that_runs_twice_has_two_masks():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.head = nn.Dropout(0.5), nn.Linear(40, 40, bias=False)
            nn.init.eye_(self.head.weight)

        def forward(self, x):
            return self.head(self.drop(x) + 10 * self.drop(x))

    hidden = MCDropout(Twice(), 1).embed(torch.ones(1, 40))
    assert set(hidden.unique().tolist()) == {0.0, 2.0, 20.0, 22.0}


def test_one_layer_in_two_places_is_no_chain():
    drop = nn.Dropout(0.5)
    model = nn.Sequential(nn.Linear(4, 6), drop, nn.Linear(6, 6), drop, nn.Linear(6, 3))
    posterior = MCDropout(model, 2)
    assert posterior._chain is None
    assert posterior.predict(random(3, 4)).num_draws == 2


def test_models_with_hooks_and_own_forwards_take_the_general_path():
    class Own(nn.Sequential):
        def forward(self, x):
            return super().forward(x) * 2

    assert Chain.of(Own(nn.Linear(4, 3), nn.Dropout(0.5))) is None
    hooked = nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5))
    hooked.register_forward_hook(lambda *_: None)
    assert MCDropout(hooked, 2)._chain is None


def test_token_inputs():
    model = built(sequential(nn.Embedding(10, 6), nn.Flatten(), nn.Dropout(0.5), nn.Linear(24, 3)))
    tokens = torch.arange(12).remainder(10).reshape(3, 4)
    assert MCDropout(model, 4).predict(tokens).num_points == 3


def test_refusals():
    with pytest.raises(ValueError, match="at least 1, got 0"):
        MCDropout(mnist_cnn(width=0.1), 0)
    with pytest.raises(ValueError, match="`num_draws` must be at most 100000, got 1000000000"):
        MCDropout(mnist_cnn(width=0.1), 10**9)
    with pytest.raises(ValueError, match=r"the model must be a network, an nn\.Module, got 'mnist'"):
        MCDropout("mnist", 3)
    for model in (resnet18(width=0.125), tabular_mlp(2, (3,), dropout=0.0)):
        with pytest.raises(ValueError, match="dropout layers with a rate above 0, got none"):
            MCDropout(model, 3)
    broken = mnist_cnn(width=0.1)
    nn.init.constant_(broken.head.bias, float("nan"))
    with pytest.raises(ValueError, match=r"NaN or infinity in `head\.bias`"):
        MCDropout(broken, 3)
    with pytest.raises(ValueError, match="logits"):
        MCDropout(nn.Sequential(nn.Linear(4, 3), nn.Dropout(0.5)), 2).predict(random(2, 5, 4))


@pytest.mark.parametrize("fast", [True, False])
def test_images_of_another_size(fast):
    posterior = MCDropout(mnist_cnn(width=0.1), 2, fast=fast)
    with pytest.raises(ValueError, match="must"):
        posterior.predict(torch.zeros(2, 1, 32, 32))
    with pytest.raises(ValueError, match="must"):
        posterior.predict(torch.zeros(2, 1, 28, 28, dtype=torch.uint8))


@pytest.mark.filterwarnings("ignore:dropout stays off")  # of the attention, whose batch is not first
def test_models_that_are_not_batch_first_or_mix_examples():
    with pytest.raises(ValueError, match="batch"):
        MCDropout(Encoder(batch_first=False), 2).predict(random(4, 5, 8))

    class Mixing(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.head = nn.Dropout(0.5), nn.Linear(4, 3)

        def forward(self, x):
            return self.head(self.drop(x - x.mean(dim=0)))

    with pytest.raises(ValueError, match="process each input independently"):
        MCDropout(built(Mixing), 2).predict(random(4, 4))


def test_layers_of_another_width():
    class Flexible(nn.Module):
        def __init__(self):
            super().__init__()
            self.drop, self.head = nn.Dropout(0.5), nn.Linear(1, 3)

        def forward(self, x):
            return self.head(self.drop(x).mean(dim=(1, 2)).unsqueeze(1))

    posterior = MCDropout(built(Flexible), 2)
    posterior.predict(random(4, 5, 8))
    posterior.predict(random(4, 6, 8))
    with pytest.raises(ValueError, match=r"differ only in length, got \(5, 9\) instead of 2 axes and 8 units"):
        posterior.predict(random(4, 5, 9))

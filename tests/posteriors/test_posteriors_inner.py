"""Dropout on attention weights and between recurrent layers: drawn like the rest, against plain loops."""

import pytest
import torch
from torch import nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from batchbalance.arguments.seeds import generator
from batchbalance.posteriors import MCDropout
from batchbalance.posteriors.masks import Keep

RATE = 0.4


def seeded(build, seed=0):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return build().double().eval()


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


def kept(name, draw, shape, call=0):
    purpose = f"mask/{name}" + (f"/{call}" if call else "")
    return (torch.rand(shape, generator=generator(0, purpose, draw)) >= RATE).double() / (1 - RATE)


class Recurrent(nn.Module):
    def __init__(self, kind, packed=False, batch_first=True, **options):
        super().__init__()
        self.rnn = kind(4, 5, num_layers=3, dropout=RATE, batch_first=batch_first, **options)
        width = (options.get("proj_size") or 5) * (2 if options.get("bidirectional") else 1)
        self.head = nn.Linear(width, 3)
        self.packed, self.batch_first = packed, batch_first

    def forward(self, x, lengths=None):
        if self.packed:
            out, state = self.rnn(pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False))
            out = pad_packed_sequence(out, batch_first=True)[0]
        else:
            out, state = self.rnn(x if self.batch_first else x.transpose(0, 1))
            out = out if self.batch_first else out.transpose(0, 1)
        state = state[0] if isinstance(state, tuple) else state
        return self.head(out.sum(dim=1)) + state.sum(dim=(0, 2)).unsqueeze(1)


def cell_by_hand(kind, rnn, name, x, state):
    """One step of a layer for one example; `state` is (h, c) for an LSTM, (h,) else."""
    w_ih, w_hh = getattr(rnn, f"weight_ih_{name}"), getattr(rnn, f"weight_hh_{name}")
    a = w_ih @ x + getattr(rnn, f"bias_ih_{name}")
    b = w_hh @ state[0] + getattr(rnn, f"bias_hh_{name}")
    if kind is nn.RNN:
        return (torch.tanh(a + b),)
    if kind is nn.GRU:
        (ar, az, an), (br, bz, bn) = a.chunk(3), b.chunk(3)
        r, z = torch.sigmoid(ar + br), torch.sigmoid(az + bz)
        n = torch.tanh(an + r * bn)
        return ((1 - z) * n + z * state[0],)
    i, f, g, o = (a + b).chunk(4)
    c = torch.sigmoid(f) * state[1] + torch.sigmoid(i) * torch.tanh(g)
    h = torch.sigmoid(o) * torch.tanh(c)
    projection = getattr(rnn, f"weight_hr_{name}", None)
    return (h if projection is None else projection @ h, c)


def by_hand(kind, model, x, length, draw):
    """The logits of one example of `length` steps under a draw, step by step."""
    rnn = model.rnn
    width = rnn.proj_size or rnn.hidden_size
    steps, last = list(x[:length]), torch.zeros((), dtype=torch.float64)
    for layer in range(3):
        if layer:
            mask = kept("rnn", draw, (len(x), len(steps[0])), layer - 1)
            steps = [step * mask[t] for t, step in enumerate(steps)]
        outs = []
        for suffix in ("", "_reverse") if rnn.bidirectional else ("",):
            order = range(length) if not suffix else range(length - 1, -1, -1)
            state = (torch.zeros(width, dtype=torch.float64), torch.zeros(5, dtype=torch.float64))
            found = {}
            for t in order:
                state = cell_by_hand(kind, rnn, f"l{layer}{suffix}", steps[t], state)
                found[t] = state[0]
            last = last + state[0].sum()
            outs.append(found)
        steps = [torch.cat([found[t] for found in outs]) for t in range(length)]
    return model.head(sum(steps)) + last


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (nn.LSTM, {}),
        (nn.LSTM, {"bidirectional": True, "proj_size": 2}),
        (nn.GRU, {"bidirectional": True}),
        (nn.RNN, {"batch_first": False}),
    ],
)
def test_recurrent_layers_step_by_step(kind, options):
    model = seeded(lambda: Recurrent(kind, **options))
    before = torch.get_rng_state()
    posterior = MCDropout(model, 2)
    for length in (5, 3, 6):
        x = random(4, length, 4)
        got = posterior.predict(x).log_probs()
        with torch.no_grad():
            logits = torch.stack([torch.stack([by_hand(kind, model, e, length, d) for d in range(2)]) for e in x])
        torch.testing.assert_close(got, torch.log_softmax(logits, dim=-1), rtol=0, atol=1e-10)
    assert torch.equal(before, torch.get_rng_state())
    assert not torch.equal(got[:, 0], got[:, 1])


def test_packed_sequences():
    model = seeded(lambda: Recurrent(nn.LSTM, packed=True))
    x, lengths = random(4, 6, 4), torch.tensor([3, 6, 1, 4])
    got = MCDropout(model, 2).predict((x, lengths)).log_probs()
    with torch.no_grad():
        rows = [[by_hand(nn.LSTM, model, e[:n], int(n), d) for d in range(2)] for e, n in zip(x, lengths, strict=True)]
    expected = torch.log_softmax(torch.stack([torch.stack(row) for row in rows]), dim=-1)
    torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)


class Attending(nn.Module):
    """Attention with all its arguments, and nothing else with dropout."""

    def __init__(self, need_weights, heads=2):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, heads, dropout=RATE, batch_first=True)
        self.head = nn.Linear(8, 3)
        self.need_weights = need_weights

    def forward(self, x, padding):
        return self.head(
            self.attention(x, x, x, key_padding_mask=padding, need_weights=self.need_weights)[0].sum(dim=1)
        )


def attended_by_hand(model, x, padding, draw, heads):
    layer, size = model.attention, 8 // heads
    q, k, v = (x @ layer.in_proj_weight.T + layer.in_proj_bias).chunk(3, dim=1)
    stream = generator(0, "mask/attention/block/0/0", draw)
    masks = (torch.rand((heads, 16, 16), generator=stream) >= RATE).double() / (1 - RATE)
    out = torch.zeros_like(x)
    for head in range(heads):
        span = slice(head * size, head * size + size)
        for i in range(len(x)):
            scores = torch.stack([q[i, span] @ k[j, span] / size**0.5 for j in range(len(x))])
            weights = torch.softmax(scores.masked_fill(padding, -torch.inf), dim=0)
            for j in range(len(x)):
                out[i, span] += weights[j] * masks[head, i, j] * v[j, span]
    return model.head((out @ layer.out_proj.weight.T + layer.out_proj.bias).sum(dim=0))


@pytest.mark.parametrize("heads", [1, 2])
@pytest.mark.parametrize("need_weights", [True, False])
def test_attention_weights_one_by_one(need_weights, heads):
    model = seeded(lambda: Attending(need_weights, heads))
    posterior = MCDropout(model, 2)
    before = torch.get_rng_state()
    for length in (4, 5):
        x, padding = random(3, length, 8), torch.zeros(3, length, dtype=torch.bool)
        padding[1, 3:] = True
        got = posterior.predict({"x": x, "padding": padding}).log_probs()
        with torch.no_grad():
            rows = [[attended_by_hand(model, x[n], padding[n], d, heads) for d in range(2)] for n in range(3)]
        expected = torch.log_softmax(torch.stack([torch.stack(row) for row in rows]), dim=-1)
        torch.testing.assert_close(got, expected, rtol=0, atol=1e-10)
    assert torch.equal(before, torch.get_rng_state())


class OddAttention(nn.Module):
    """Drops over (tokens, batch, batch), which has no axis of examples first."""

    def forward(self, x):
        weights = torch.softmax(x.transpose(0, 1) @ x.permute(1, 2, 0), dim=2) * torch.eye(len(x), dtype=x.dtype)
        weights = nn.functional.dropout(weights, 0.5, training=self.training)
        return x + 0 * weights.sum()


def test_attention_that_cannot_be_drawn_is_named_and_off():
    model = seeded(lambda: nn.Sequential(OddAttention(), nn.Flatten(), nn.Dropout(0.5), nn.Linear(40, 3)))
    posterior = MCDropout(model, 2)
    with pytest.warns(UserWarning, match=r"dropout stays off, as in eval mode, in '0': its weights \(5, 3, 3\)"):
        got = posterior.predict(random(3, 5, 8))
    same = MCDropout(seeded(lambda: nn.Sequential(nn.Identity(), *list(model)[1:])), 2).predict(random(3, 5, 8))
    torch.testing.assert_close(got.log_probs(), same.log_probs(), rtol=0, atol=1e-10)


@pytest.mark.parametrize("rate", [0.3, 0.5])  # 0.5 is a default of torch, and goes another way
def test_own_attention_with_dropout_as_a_function_is_drawn_without_a_warning(rate):
    class OwnAttention(nn.Module):
        def forward(self, x):
            weights = torch.softmax(x @ x.transpose(1, 2), dim=2)
            return nn.functional.dropout(weights, rate, self.training) @ x

    model = seeded(lambda: nn.Sequential(OwnAttention(), nn.Flatten(), nn.Linear(40, 3), nn.Dropout(0.0001)))
    x = random(3, 5, 8)
    got = MCDropout(model, 2).predict(x).log_probs()
    for draw in range(2):
        mask = torch.rand((1, 16, 16), generator=generator(0, "mask/0/block/0/0", draw))[0, :5, :5] >= rate
        hidden = (torch.softmax(x @ x.transpose(1, 2), dim=2) * mask / (1 - rate)) @ x
        with torch.no_grad():
            expected = torch.log_softmax(model[2](hidden.flatten(1)), dim=-1)
        torch.testing.assert_close(got[:, draw], expected, rtol=0, atol=1e-3)


@pytest.mark.parametrize("shapes", [[(3, 5, 5), (3, 40, 33), (3, 17, 70)], [(5, 8), (40, 8), (17, 8)]])
def test_masks_do_not_depend_on_the_size_nor_on_what_came_before(shapes):
    largest = tuple(map(max, *shapes))
    whole = Keep("layer", 1)(RATE, 2, largest)
    rate = float((~whole).double().mean())
    assert abs(rate - RATE) < 4 * (RATE * (1 - RATE) / whole.numel()) ** 0.5
    together = Keep("layer", 1)
    for shape in shapes:
        cut = whole[tuple(map(slice, shape))]
        assert torch.equal(Keep("layer", 1)(RATE, 2, shape), cut)
        assert torch.equal(together(RATE, 2, shape), cut)
    assert not torch.equal(Keep("layer", 1)(RATE, 3, largest), whole)


class DropPath(nn.Module):
    """As timm has it."""

    def __init__(self, drop_prob=0.0, scale_by_keep=True):
        super().__init__()
        self.drop_prob, self.scale_by_keep = drop_prob, scale_by_keep

    def forward(self, x):
        return x


class StochasticDepth(nn.Module):
    """As torchvision has it."""

    def __init__(self, p, mode):
        super().__init__()
        self.p, self.mode = p, mode

    def forward(self, x):
        return x


class Branches(nn.Module):
    def __init__(self, *paths):
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in paths)
        self.paths, self.head = nn.ModuleList(paths), nn.Linear(4, 3)

    def forward(self, x):
        for block, path in zip(self.blocks, self.paths, strict=True):
            x = x + path(torch.tanh(block(x)))
        return self.head(x)


def test_stochastic_depth_drops_branches_of_a_draw():
    torch.manual_seed(0)
    model = Branches(DropPath(0.5), StochasticDepth(0.3, "row"), DropPath(0.4, scale_by_keep=False), DropPath(0.0))
    x = torch.randn(7, 4)
    got = MCDropout(model, 30).predict(x, batch_size=3).log_probs()
    seen = set()
    for draw in range(30):
        h, kept = x, []
        for i, (rate, scale) in enumerate([(0.5, 2.0), (0.3, 1 / 0.7), (0.4, 1.0), (0.0, 1.0)]):
            keeps = rate == 0 or float(torch.rand(1, generator=generator(0, f"mask/paths.{i}", draw))) >= rate
            h = h + keeps * scale * torch.tanh(model.blocks[i](h))
            kept.append(bool(keeps))
        torch.testing.assert_close(got[:, draw], torch.log_softmax(model.head(h), dim=-1).detach())
        seen.add(tuple(kept))
    assert len(seen) > 3
    chained = nn.Sequential(nn.Linear(4, 4), DropPath(0.5), nn.Linear(4, 3))
    plain = MCDropout(chained, 6, fast=False).predict(x).log_probs()
    torch.testing.assert_close(MCDropout(chained, 6).predict(x).log_probs(), plain)


class Mixer(nn.Module):
    """Attention with dropout, under a name that does not say so."""

    def __init__(self):
        super().__init__()
        self.head, self.drop, self.norm = nn.Linear(4, 3), nn.Dropout(0.5), nn.BatchNorm1d(3)
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        self.steps += self.training
        q = x.unsqueeze(1)
        rate = 0.5 if self.training else 0.0
        h = nn.functional.scaled_dot_product_attention(q, q, q, dropout_p=rate).squeeze(1)
        return self.norm(self.head(self.drop(h)))


class Skipping(nn.Module):
    """Stochastic depth under another name."""

    def forward(self, x):
        return x * (torch.rand(len(x), 1) > 0.5) if self.training else x


def test_what_is_dropped_in_training_alone_is_named():
    x = torch.randn(6, 4)
    posterior = MCDropout(Mixer(), 3)
    state = torch.random.get_rng_state()
    with pytest.warns(UserWarning, match="random dropping in the model itself stays off"):
        posterior.predict(x)
    assert torch.equal(torch.random.get_rng_state(), state)
    assert float(posterior._model.steps) == 0
    assert float(posterior._model.norm.num_batches_tracked) == 0
    assert not posterior._model.training
    with pytest.warns(UserWarning, match=r"random dropping in module 'paths.0' stays off"):
        MCDropout(Branches(Skipping(), nn.Dropout(0.5)), 3).predict(x)


def test_a_network_that_fails_in_training_mode_names_nothing():
    class Strict(Branches):
        def forward(self, x):
            assert not self.training
            return super().forward(x)

    assert MCDropout(Strict(nn.Dropout(0.5)), 3).predict(torch.randn(6, 4)).num_draws == 3

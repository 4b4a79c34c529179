"""What runs before the first dropout runs once: each rule that makes it safe, and networks against a plain loop."""

import copy
from collections import namedtuple

import pytest
import torch
from torch import nn

from batchbalance.arguments.seeds import generator
from batchbalance.posteriors import MCDropout
from batchbalance.posteriors.replay import TIMED, Replay

DRAWS = 5


@pytest.fixture(autouse=True)
def always(monkeypatch):
    """Replay whatever can be, without measuring whether it is faster, and one draw at a time."""
    monkeypatch.setattr(Replay, "_is_due", lambda *_: False)
    monkeypatch.setattr(MCDropout, "_may_stack", lambda *_: False)


def random(*shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)


class Backbone(nn.Module):
    """Counts how many rows it has seen in all its runs."""

    def __init__(self, give=lambda h: h):
        super().__init__()
        self.layer, self.give, self.rows = nn.Linear(4, 6), give, []

    def forward(self, x, scale=1.0):
        self.rows.append(len(x))
        return self.give(torch.tanh(self.layer(x)) * scale)


class Net(nn.Module):
    def __init__(self, forward, **parts):
        super().__init__()
        self.backbone, self.drop, self.head = Backbone(), nn.Dropout(0.5), nn.Linear(6, 3)
        for name, part in parts.items():
            setattr(self, name, part)
        self.own = forward

    def forward(self, *inputs):
        return self.own(self, *inputs)


def built(forward, **parts):
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return Net(forward, **{name: part() for name, part in parts.items()}).double().eval()


def looped(model, *inputs):
    """Log-probabilities by a loop over draws, with hooks in the place of dropout."""
    out = []
    for draw in range(DRAWS):
        now = copy.deepcopy(model)
        for name, module in now.named_modules():
            if isinstance(module, nn.Dropout):

                def drop(_, args, __, draw=draw, name=name):
                    kept = torch.rand(args[0].shape[1:], generator=generator(0, f"mask/{name}", draw)) >= 0.5
                    return args[0] * kept * 2

                module.register_forward_hook(drop)
        with torch.no_grad():
            out.append(torch.log_softmax(now(*inputs), dim=-1))
    return torch.stack(out, dim=1)


def runs(posterior, num_inputs, name="backbone"):
    """How often a module saw a whole batch, once the posterior was asked again."""
    rows = posterior._model.get_submodule(name).rows
    rows.clear()
    posterior.predict(num_inputs)
    return len(rows)


def in_place(net, x):
    f = net.backbone(x)
    f += 1
    return net.head(net.drop(f))


def twice_with_other_inputs(net, x, y):
    return net.head(net.drop(net.backbone(x) + 2 * net.backbone(y)))


def through_modules(net, x):
    return net.head(net.drop(net.norm(net.backbone(x))))


def function_between(net, x):
    return net.head(net.drop(net.second(torch.relu(net.backbone(x))[:, :4])))


def changed_on_the_way(net, x):
    f = net.backbone(x)
    f *= 2
    return net.head(net.drop(net.norm(f)))


def view_of_it(net, x):
    f = net.backbone(x)
    net.flat(f).add_(1)
    return net.head(net.drop(f))


def branches(net, x):
    return net.head(net.drop(net.backbone(x)) + net.second(x))


class Writes(nn.Module):
    def forward(self, x):
        x += 1
        return x * 2


def written_to(net, x):
    f = net.backbone(x)
    g = net.writes(f)
    return net.head(net.drop(f + g))


def with_options(net, x):
    return net.head(net.drop(net.backbone(x, scale=2.0)))


def into_the_input(net, x):
    x = x.clone()
    net.backbone(x)
    x += 1
    return net.head(net.drop(net.backbone(x)))


Pair = namedtuple("Pair", ["features", "rest"])

WHOLE = {  # name: (forward, parts, runs of the backbone for a batch, inputs)
    "backbone and head": (lambda net, x: net.head(net.drop(net.backbone(x))), {}, 1, 1),
    "in place": (in_place, {}, 1, 1),
    "called twice": (twice_with_other_inputs, {}, 2, 2),
    "a layer behind": (through_modules, {"norm": lambda: nn.LayerNorm(6)}, 1, 1),
    "a function between": (function_between, {"second": Backbone}, 1, 1),
    "changed on the way": (changed_on_the_way, {"norm": lambda: nn.LayerNorm(6)}, 1, 1),
    "changed by a view": (view_of_it, {"flat": lambda: nn.Flatten(1)}, 1, 1),
    "a second branch": (branches, {"second": Backbone}, 1, 1),
    "a module that writes to its input": (written_to, {"writes": Writes}, 1, 1),
    "keywords": (with_options, {}, 1, 1),
    "other input each time": (into_the_input, {}, 2 * DRAWS, 1),
    "a tuple": (
        lambda net, x: net.head(net.drop(net.backbone(x).rest["a"])),
        {"backbone": lambda: Backbone(lambda h: Pair(h, {"a": h + 1, "n": 3}))}, 1, 1,
    ),
    "a part of itself": (
        lambda net, x: net.head(net.drop(net.backbone(x)[1])),
        {"backbone": lambda: Backbone(lambda h: (h, h[:, :]))}, DRAWS, 1,
    ),
    "something unknown": (
        lambda net, x: net.head(net.drop(net.backbone(x)[1]())),
        {"backbone": lambda: Backbone(lambda h: (3, lambda: h))}, DRAWS, 1,
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", WHOLE)
def test_networks_against_a_plain_loop(name):
    forward, parts, expected_runs, num_inputs = WHOLE[name]
    model = built(forward, **parts)
    inputs = tuple(random(9, 4) + i for i in range(num_inputs))
    given = inputs if num_inputs > 1 else inputs[0]
    posterior = MCDropout(model, DRAWS)
    expected = looped(model, *inputs)
    assert not torch.equal(expected[:, 0], expected[:, 1])
    torch.testing.assert_close(posterior.predict(given).log_probs(), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(posterior.predict(given, batch_size=4).log_probs(), expected, rtol=0, atol=1e-10)
    assert runs(posterior, given) == expected_runs
    plain = MCDropout(model, DRAWS, fast=False)
    torch.testing.assert_close(plain.predict(given).log_probs(), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(posterior.embed(given), plain.embed(given), rtol=0, atol=1e-10)
    every = posterior.embed(given, every_draw=True)
    torch.testing.assert_close(every, plain.embed(given, every_draw=True), rtol=0, atol=1e-10)


def test_embedding_alone_runs_once_too():
    model = built(WHOLE["backbone and head"][0])
    posterior = MCDropout(model, DRAWS)
    posterior.embed(random(9, 4))
    rows = posterior._model.backbone.rows
    rows.clear()
    posterior.embed(random(9, 4))
    assert rows == [9]


def test_the_last_linear_layer_may_come_before_the_first_dropout():
    model = built(lambda net, x: net.drop(net.head(net.backbone(x))))
    fast, plain = MCDropout(model, DRAWS), MCDropout(model, DRAWS, fast=False)
    torch.testing.assert_close(fast.embed(random(9, 4)), plain.embed(random(9, 4)), rtol=0, atol=1e-10)


@pytest.mark.parametrize("within", [False, True])
def test_modules_with_hooks_run_in_full(within):
    model = built(WHOLE["backbone and head"][0])
    seen = []
    hooked = model.backbone.layer if within else model.backbone
    hooked.register_forward_hook(lambda *_: seen.append(1))
    posterior = MCDropout(model, DRAWS)
    assert posterior.predict(random(9, 4)).num_points == 9
    assert runs(posterior, random(9, 4)) == DRAWS


def test_hooks_for_all_modules_stop_it():
    handle = nn.modules.module.register_module_forward_hook(lambda *_: None)
    try:
        posterior = MCDropout(built(WHOLE["backbone and head"][0]), DRAWS)
        posterior.predict(random(9, 4))
    finally:
        handle.remove()
    assert runs(posterior, random(9, 4)) == DRAWS


class Counting(Backbone):
    """Counts its runs in a buffer, in place or by a new one."""

    def __init__(self, replaces):
        super().__init__()
        self.replaces = replaces
        self.register_buffer("count", torch.zeros(()))

    def forward(self, x):
        if self.replaces:
            self.count = self.count + 1
        else:
            self.count += 1
        return super().forward(x)


@pytest.mark.parametrize("replaces", [False, True])
def test_modules_with_changing_buffers_run_in_full(replaces):
    posterior = MCDropout(built(WHOLE["backbone and head"][0], backbone=lambda: Counting(replaces)), DRAWS)
    posterior.predict(random(9, 4))
    assert runs(posterior, random(9, 4)) == DRAWS


def test_models_whose_passes_differ_run_in_full():
    stream = torch.Generator().manual_seed(0)

    def noisy(net, x):
        return net.head(net.drop(net.backbone(x)))

    def give(h):
        return h + 1e-6 * torch.randn(h.shape, generator=stream, dtype=h.dtype)

    posterior = MCDropout(built(noisy, backbone=lambda: Backbone(give)), DRAWS)
    posterior._model.backbone.give = give  # a generator is copied with its model
    posterior.predict(random(9, 4))
    assert posterior._replay is None
    assert runs(posterior, random(9, 4)) == DRAWS


class Telling(Backbone):
    """Leaves a number in a box that is not its output."""

    def __init__(self):
        super().__init__()
        self.box = [0]

    def forward(self, x):
        self.box[0] += 1
        return super().forward(x)


def test_what_replaying_would_change_falls_back_with_a_warning():
    def told(net, x):
        net.backbone.box[0] = 0
        return net.head(net.drop(net.backbone(x)) * net.backbone.box[0])

    model = built(told, backbone=Telling)
    posterior = MCDropout(model, DRAWS)
    with pytest.warns(UserWarning, match="the fast path of MC dropout differs from the model"):
        got = posterior.predict(random(9, 4))
    torch.testing.assert_close(got.log_probs(), looped(model, random(9, 4)), rtol=0, atol=1e-10)
    assert runs(posterior, random(9, 4)) == DRAWS


class Drop:
    """A stand-in for a mask."""

    calls = 0


def replayed(module):
    replay = Replay([module], [Drop()])

    def call(*args, first=False, **kwargs):
        return replay.draw(0 if first else 1, lambda: module(*args, **kwargs))

    return replay, call


class Times(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("by", torch.tensor(2.0, dtype=torch.float64))
        self.runs = 0

    def forward(self, x, plus=0):
        self.runs += 1
        return x * self.by + plus


def test_only_the_same_unchanged_inputs_are_replayed():
    module, x, y = Times(), random(2, 3), random(2, 3) + 1
    replay, call = replayed(module)
    with replay.batch(2):
        first = call(x, first=True)
        assert torch.equal(call(x), first)
        assert module.runs == 1
        assert torch.equal(call(y), 2 * y)  # another tensor
        assert torch.equal(call(x, plus=1), 2 * x + 1)  # another argument
        assert torch.equal(call(x.clone()), 2 * x)
        assert module.runs == 4
        x += 1  # another version
        assert torch.equal(call(x), 2 * x)
        assert module.runs == 5


def test_what_is_handed_out_may_be_written_to():
    module, x = Times(), random(2, 3)
    replay, call = replayed(module)
    with replay.batch(2):
        for draw in range(3):
            given = call(x, first=draw == 0)
            assert torch.equal(given, 2 * x)
            given.zero_()
    assert module.runs == 1


def test_a_changed_buffer_is_not_replayed():
    module, x = Times(), random(2, 3)
    replay, call = replayed(module)
    with replay.batch(2):
        call(x, first=True)
        module.by += 1
        assert torch.equal(call(x), 3 * x)


def test_nothing_is_kept_from_batch_to_batch_nor_behind_a_mask():
    module, x = Times(), random(2, 3)
    replay, call = replayed(module)
    with replay.batch(2):
        call(x, first=True)
    with replay.batch(2):
        call(x, first=True)
    assert module.runs == 2
    module(x)
    assert module.runs == 3
    replay._drops[0].calls = 1
    with replay.batch(2):
        call(x, first=True)
        call(x)
    assert module.runs == 5


def test_what_was_handed_out_and_written_to_is_another_input():
    one, two, x = Times(), Times(), random(2, 3)
    replay = Replay([one, two], [Drop()])
    with replay.batch(2):
        assert torch.equal(replay.draw(0, lambda: two(one(x))), 4 * x)
        assert torch.equal(replay.draw(1, lambda: two(one(x))), 4 * x)
        assert torch.equal(replay.draw(2, lambda: two(one(x).add_(1))), 4 * x + 2)
    assert (one.runs, two.runs) == (1, 2)


def test_inputs_that_a_module_writes_to_are_not_replayed():
    module, x = Writes(), random(2, 3)
    replay, call = replayed(module)
    with replay.batch(2):
        assert torch.equal(call(x, first=True), 2 * x)
        assert torch.equal(call(x), 2 * x)


def test_inference_tensors_have_no_version_and_run_in_full():
    module = Times()
    replay, call = replayed(module)
    with torch.inference_mode(), replay.batch(2):
        x = random(2, 3)
        call(x, first=True)
        call(x)
    assert module.runs == 2


@pytest.mark.parametrize("lookup", [0.1, 10.0])
def test_the_first_batch_is_measured_and_the_faster_way_taken(monkeypatch, lookup):
    """A run of the backbone takes a second by a clock of ours, a look-up as long as it is told to."""
    monkeypatch.undo()
    monkeypatch.setattr(MCDropout, "_may_stack", lambda *_: False)
    now, call = [0.0], Replay.call

    def slow(self, *given):
        now[0] += lookup * self._is_running
        return call(self, *given)

    monkeypatch.setattr(Replay, "call", slow)
    monkeypatch.setattr("batchbalance.posteriors.replay.time.perf_counter", lambda: now[0])
    model = built(WHOLE["backbone and head"][0])
    model.backbone.give = lambda h: (now.__setitem__(0, now[0] + 1.0), h)[1]
    posterior = MCDropout(model, DRAWS)
    posterior._model.backbone.give = model.backbone.give
    plain = MCDropout(model, DRAWS, fast=False).predict(random(12, 4), batch_size=4).log_probs()
    assert torch.equal(posterior.predict(random(12, 4), batch_size=4).log_probs(), plain)
    assert posterior._replay._measured_rows == 4
    assert runs(posterior, random(4, 4)) == (1 if lookup < 1 else DRAWS)
    assert runs(posterior, random(8, 4)) == 1 + DRAWS // 2  # twice as many rows: measured again
    assert posterior._replay._measured_rows == 8


def test_the_first_batch_is_measured_by_a_few_draws(monkeypatch):
    """A look-up takes ten seconds by a clock of ours: no draw behind the measured ones pays for it."""
    monkeypatch.undo()
    monkeypatch.setattr(MCDropout, "_may_stack", lambda *_: False)
    now, looked_up, call = [0.0], [], Replay.call

    def slow(self, *given):
        if self._is_running:
            now[0] += 10.0
            looked_up.append(None)
        return call(self, *given)

    monkeypatch.setattr(Replay, "call", slow)
    monkeypatch.setattr("batchbalance.posteriors.replay.time.perf_counter", lambda: now[0])
    MCDropout(built(WHOLE["backbone and head"][0]), 40).predict(random(9, 4))
    assert len(looked_up) == 1 + TIMED // 2


class Throughout(nn.Module):
    """A residual network with dropout of several kinds in each block, of which little comes before the first one."""

    def __init__(self):
        super().__init__()
        self.first, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        kinds = nn.Dropout(0.5), nn.AlphaDropout(0.3), nn.Dropout1d(0.5)
        self.blocks = nn.ModuleList(nn.Sequential(nn.Linear(6, 6), nn.Tanh(), kind) for kind in kinds)
        self.attention = nn.MultiheadAttention(6, 2, dropout=0.5, batch_first=True)

    def forward(self, x):
        h = self.first(x)
        for block in self.blocks:
            h = h + block(h)
        return self.head(self.attention(h, h, h)[0]).mean(dim=1)


class TimeMajor(nn.Module):
    """Its dropout sees examples behind steps, and so many steps that they could be examples."""

    def __init__(self):
        super().__init__()
        self.first, self.drop, self.second, self.head = (
            nn.Linear(4, 6),
            nn.Dropout(0.5),
            nn.Linear(6, 60),
            nn.Linear(60, 3),
        )

    def forward(self, x):
        return self.head(torch.tanh(self.second(self.drop(self.first(x).transpose(0, 1))))).mean(dim=0)


def test_small_batches_run_several_draws_in_one_pass(monkeypatch):
    monkeypatch.undo()
    model = Throughout().double()
    passes = []
    x = random(20, 5, 4)
    fast, plain = MCDropout(model, 30, 1), MCDropout(model, 30, 1, fast=False)
    expected = plain.predict(x).log_probs()
    torch.testing.assert_close(fast.predict(x).log_probs(), expected, rtol=0, atol=1e-10)
    torch.testing.assert_close(fast.predict(x, batch_size=7).log_probs(), expected, rtol=0, atol=1e-10)
    fast._model.head.register_forward_pre_hook(lambda _, args: passes.append(len(args[0])))
    fast.predict(x)
    assert passes == [20 * 30]
    monkeypatch.setattr("batchbalance.posteriors.mc_dropout.STACKED_ROWS", 20 * 8)
    torch.testing.assert_close(fast.predict(x).log_probs(), expected, rtol=0, atol=1e-10)
    assert passes[1:] == [20 * 8] * 3 + [20 * 6]


@pytest.mark.parametrize("shape", [(16, 32, 4), (16, 4)])
def test_draws_run_one_by_one_where_the_batch_is_not_first_or_most_is_shared(monkeypatch, shape):
    monkeypatch.undo()
    model = TimeMajor().double() if len(shape) == 3 else built(WHOLE["backbone and head"][0])
    x = random(*shape)
    fast, plain = MCDropout(model, 2, 1), MCDropout(model, 2, 1, fast=False)
    torch.testing.assert_close(fast.predict(x).log_probs(), plain.predict(x).log_probs(), rtol=0, atol=1e-10)
    assert not fast._stacks

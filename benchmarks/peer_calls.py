"""What runs in a peer's process: the same work by another library. Only the peer's own call is timed."""

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from benchmarks.cases import Size
from benchmarks.measure import Side, Times, peak_above, take_turns
from benchmarks.posterior_cases import network
from benchmarks.report import versions

PEERS = {"batchbald_redux": "batchbald-redux", "baal": "baal", "scikit-activeml": "scikit-activeml"}
Layers = dict[type[nn.Module], Callable[[Any], nn.Module]]
IMAGES_AT_ONCE = 10  # each is repeated S times, so that a forward pass has some thousand rows


def child(request: dict[str, Any]) -> dict[str, Any]:
    """What runs in the peer's process."""
    torch.set_num_threads(request["threads"])
    loaded = torch.from_numpy(np.load(request["input"], allow_pickle=False))
    run = CALLS[request["work"], request["peer"]](loaded, request["size"])
    found: list[Times] = []
    peak = peak_above(lambda: found.extend(take_turns([Side(request["peer"], run)], request["repeats"])))
    version = versions([PEERS[request["peer"]]]).get(PEERS[request["peer"]], "")
    return {"version": version, "seconds": found[0].seconds, "peak_mib": peak, "indices": found[0].result}


def _redux_batch_bald(log_probs: Tensor, size: Size) -> Callable[[], list[int]]:
    get_batch = import_module("batchbald_redux.batchbald").get_batchbald_batch
    # Double precision is what its own examples ask for: its joint probabilities underflow otherwise.
    return lambda: list(get_batch(log_probs, size["B"], size["M"], dtype=torch.double).indices)


def _baal_batch_bald(log_probs: Tensor, size: Size) -> Callable[[], list[int]]:
    heuristics = import_module("baal.active.heuristics")
    probs = log_probs.exp().transpose(1, 2).numpy()  # (N, C, S)
    # It draws `num_draw` configurations from every posterior draw, and counts its first point extra.
    heuristic = heuristics.BatchBALD(size["B"] - 1, num_draw=max(1, size["M"] // log_probs.shape[1]))
    return lambda: [int(i) for i in heuristic.get_ranks(probs)[0][: size["B"]]]


def _skactiveml_batch_bald(log_probs: Tensor, size: Size) -> Callable[[], list[int]]:
    batch_bald = import_module("skactiveml.pool").batch_bald
    probs = log_probs.double().exp().transpose(0, 1).numpy()  # (S, N, C)

    def run() -> list[int]:
        utilities = batch_bald(probs.copy(), size["B"], n_MC_samples=size["M"], random_state=0)
        return [int(i) for i in np.nanargmax(utilities, axis=1)]

    return run


def _redux_dropout(images: Tensor, size: Size) -> Callable[[], list[int]]:
    dropout = import_module("batchbald_redux.consistent_mc_dropout")
    layers: Layers = {nn.Dropout: dropout.ConsistentMCDropout, nn.Dropout2d: dropout.ConsistentMCDropout2d}
    chain = _with_layers(network(0), layers)
    for module in chain.modules():
        module.training = False  # its own `train` returns None, which breaks `eval` of a chain
    model = type("Network", (dropout.BayesianModule,), {"mc_forward_impl": lambda _self, rows: chain(rows)})()

    @torch.no_grad()
    def run() -> list[int]:
        for batch in images.split(IMAGES_AT_ONCE):
            torch.log_softmax(model(batch, size["S"]), dim=-1)
        return []

    return run


def _baal_dropout(images: Tensor, size: Size) -> Callable[[], list[int]]:
    patch = import_module("baal.bayesian.consistent_dropout").patch_module
    wrapper = import_module("baal.modelwrapper")
    model = wrapper.ModelWrapper(patch(network(0), inplace=False), wrapper.TrainingArgs(use_cuda=False))
    model.eval()

    def run() -> list[int]:
        for batch in images.split(IMAGES_AT_ONCE):
            torch.log_softmax(model.predict_on_batch(batch, size["S"]), dim=1)
        return []

    return run


def _with_layers(model: nn.Module, layers: Layers) -> nn.Module:
    """Put other dropout layers in the place of those of torch."""
    for name, module in list(model.named_modules()):
        if type(module) in layers:
            parent, _, last = name.rpartition(".")
            setattr(model.get_submodule(parent), last, layers[type(module)](module.p))
    return model


CALLS: dict[tuple[str, str], Callable[[Tensor, Size], Callable[[], list[int]]]] = {
    ("peer-batch-bald", "batchbald_redux"): _redux_batch_bald,
    ("peer-batch-bald", "baal"): _baal_batch_bald,
    ("peer-batch-bald", "scikit-activeml"): _skactiveml_batch_bald,
    ("peer-dropout", "batchbald_redux"): _redux_dropout,
    ("peer-dropout", "baal"): _baal_dropout,
}

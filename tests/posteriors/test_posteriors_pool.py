import os
from functools import partial

import numpy as np
import pytest
import torch
from torch import nn

from batchbalance import FileFormatError, select
from batchbalance.arguments.seeds import generator
from batchbalance.posteriors import MCDropout, predicted_pool

pytestmark = pytest.mark.typed

MODEL = nn.Sequential(nn.Linear(4, 16), nn.ReLU(), nn.Dropout(0.4), nn.Linear(16, 3))
INPUTS = torch.randn(70, 4, generator=generator(0, "inputs")).numpy()


@pytest.fixture
def saved(tmp_path):
    """A loader of a saved posterior, and two files of inputs."""
    with torch.random.fork_rng():
        torch.manual_seed(5)
        for module in MODEL:
            if isinstance(module, nn.Linear):
                module.reset_parameters()
    MCDropout(MODEL, num_draws=8).save(tmp_path / "posterior")
    paths = [tmp_path / "a.npy", tmp_path / "b.npy"]
    np.save(paths[0], INPUTS[:45])
    np.save(paths[1], INPUTS[45:])
    return partial(MCDropout.load, tmp_path / "posterior", MODEL), paths


def test_it_predicts_what_the_posterior_predicts(saved):
    loader, paths = saved
    pool = predicted_pool(loader, paths, batch_size=16)
    expected = loader().predict(INPUTS)
    assert pool.source.is_made_on_demand
    assert pool.draw_ids == expected.draw_ids
    for rows in (slice(None), slice(40, 50), torch.tensor([69, 3])):
        torch.testing.assert_close(pool.log_probs(rows), expected.log_probs(rows), rtol=1e-5, atol=1e-6)
    one, other = (select(each, 5, threshold=0.02).indices.tolist() for each in (expected, pool))
    assert one == other


def test_mistakes(saved, tmp_path):
    loader, paths = saved
    with pytest.raises(ValueError, match="at least one file, got none"):
        predicted_pool(loader, [])
    with pytest.raises(FileFormatError, match="the same file"):
        predicted_pool(loader, [paths[0], paths[0]])
    np.save(tmp_path / "wide.npy", np.zeros((3, 5), dtype=np.float32))
    with pytest.raises(FileFormatError, match=r"shape \(4,\) and float32 like .*a.npy, got \(5,\) and float32"):
        predicted_pool(loader, [*paths, tmp_path / "wide.npy"])
    (tmp_path / "text.npy").write_text("no array")
    with pytest.raises(FileFormatError, match=r"is damaged or not a \.npy file"):
        predicted_pool(loader, [tmp_path / "text.npy"])
    np.save(tmp_path / "flat.npy", np.zeros(3))
    with pytest.raises(FileFormatError, match=r"\(N, …\), got shape \(3,\)"):
        predicted_pool(loader, [tmp_path / "flat.npy"])
    with pytest.raises(TypeError, match="`loader` must return a posterior, got Sequential"):
        predicted_pool(lambda: MODEL, paths)
    pool = predicted_pool(loader, paths)
    with pytest.raises(ValueError, match="must be given for a pool that workers predict"):
        select(pool, 3, executor=NoExecutor())
    os.truncate(paths[1], 200)
    with pytest.raises(FileFormatError, match=r"b.npy must not change"):
        select(pool, 3, threshold=0.02)


class NoExecutor:
    def greedy(self, *args, **options):  # noqa: ARG002
        raise AssertionError("nothing may be started")

    unsureness = greedy

import pytest
import torch

from batchbalance.learner import engine

pytestmark = pytest.mark.typed


def test_a_fit_looks_at_a_sample_of_many_unlabelled_rows(monkeypatch):
    rows = torch.arange(50) * 3
    assert torch.equal(engine.sample_of(rows, 1), rows)
    monkeypatch.setattr(engine, "MAX_UNLABELLED", 10)
    found = engine.sample_of(rows, 1)
    assert len(found) == 10
    assert torch.equal(found, found.sort().values)
    assert set(found.tolist()) <= set(rows.tolist())
    assert torch.equal(found, engine.sample_of(rows, 1))
    assert not torch.equal(found, engine.sample_of(rows, 2))

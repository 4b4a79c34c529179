import math

import numpy as np
import pytest
import torch

from batchbalance import Predictions, select, token_weights

LOGITS = np.random.default_rng(0).normal(scale=3, size=(6, 5, 4))
MASK = np.array([[1, 1, 1, 1, 1], [1, 1, 0, 0, 0], [0, 0, 0, 0, 0], [0, 1, 0, 1, 0], [1, 0, 0, 0, 0], [1, 1, 1, 0, 0]])


def token_margins(text):
    found = []
    for t in range(5):
        if MASK[text][t]:
            powers = [math.exp(z) for z in LOGITS[text][t]]
            first, second = sorted((p / sum(powers) for p in powers), reverse=True)[:2]
            found.append(1 - (first - second))
    return found


@pytest.mark.typed
@pytest.mark.parametrize(
    ("reduce", "combined"),
    [
        ("sum", sum),
        ("max", lambda found: max(found, default=0)),
        ("mean", lambda found: np.mean(found or [0])),
    ],
)
def test_token_weights_by_loops(reduce, combined):
    holes = np.where(MASK[:, :, None] == 1, LOGITS, np.nan)
    for logits in (LOGITS, holes, torch.from_numpy(LOGITS)):
        expected = [combined(token_margins(text)) for text in range(6)]
        np.testing.assert_allclose(token_weights(logits, MASK, reduce=reduce), expected, atol=1e-10)
    embeddings = np.random.default_rng(1).normal(size=(6, 3))
    assert len(select(batch_size=2, embeddings=embeddings, weights=token_weights(LOGITS, MASK)).indices) == 2


def test_token_weights_refuse():
    assert token_weights(LOGITS, np.zeros((6, 5))).tolist() == [0] * 6
    with pytest.raises(ValueError, match=r"\(N, T, C\) and `mask` \(N, T\), got shapes \(6, 5, 4\) and \(6, 4\)"):
        token_weights(LOGITS, MASK[:, :4])
    with pytest.raises(ValueError, match="`reduce` must be 'sum', 'mean' or 'max', got 'total'"):
        token_weights(LOGITS, MASK, reduce="total")
    with pytest.raises(ValueError, match="NaN"):
        token_weights(np.full_like(LOGITS, np.nan), MASK)


@pytest.mark.typed
def test_rewards_of_pairs():
    rewards = np.random.default_rng(2).normal(scale=5, size=(7, 4, 2))
    probs = Predictions.from_rewards(rewards, draw_ids=list("abcd")).probs()
    for n in range(7):
        for s in range(4):
            expected = 1 / (1 + math.exp(-(rewards[n, s, 0] - rewards[n, s, 1])))
            assert float(probs[n, s, 0]) == pytest.approx(expected, abs=1e-10)

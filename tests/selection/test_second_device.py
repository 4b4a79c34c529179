"""Selection with tensors on a device other than the CPU."""

import pytest
import torch
from sklearn.ensemble import RandomForestClassifier

from batchbalance import STRATEGIES, Predictions, connect, evaluate_batch, information, select
from batchbalance.learner import Learner
from batchbalance.posteriors import Committee
from batchbalance.strategies.probing import parts_read
from conftest import random_probs, random_weights
from second_device import NAME, Far, SecondDevice

POOL = torch.tensor(random_probs(60, 8, 3, seed=1))
ARRAYS = {
    "reference": torch.tensor(random_probs(40, 8, 3, seed=2)),
    "embeddings": torch.tensor(random_probs(60, 1, 4, seed=3))[:, 0],
    "labelled_embeddings": torch.tensor(random_probs(5, 1, 4, seed=4))[:, 0],
}


def chosen(name, pool, arrays, **options):
    read = parts_read(STRATEGIES[name]())
    given = {key: value for key, value in arrays.items() if key in read}
    if "reference" in given:
        given["reference"] = Predictions.from_probs(given["reference"], weights=random_weights(8))
    if "threshold" in read:
        given["threshold"] = 0.05
    predictions = Predictions.from_probs(pool, weights=random_weights(8))
    return select(predictions, 4, strategy=name, seed=3, **given, **options)


def test_devices_do_not_mix():
    with SecondDevice():
        near, far = torch.arange(6.0), torch.arange(6.0).to(NAME)
        assert (far.device.type, type(far), type(far.cpu())) == (NAME, Far, torch.Tensor)
        assert (far * 2 + 1).tolist() == [1, 3, 5, 7, 9, 11]
        assert (far[torch.tensor([1])] @ torch.ones(1, device=NAME)).item() == 1
        for mixed in (lambda: far + near, lambda: far @ near, lambda: near[far.long()], lambda: torch.cat([far, near])):
            with pytest.raises(RuntimeError, match="must be on one device, got two"):
                mixed()
        with pytest.raises((TypeError, RuntimeError)):
            far.numpy()


@pytest.mark.parametrize("name", sorted(STRATEGIES))
def test_every_strategy_chooses_the_same_there(name):
    here = chosen(name, POOL, ARRAYS)
    with SecondDevice():
        far_arrays = {key: value.to(NAME) for key, value in ARRAYS.items()}
        there = {
            "all given there": chosen(name, POOL.to(NAME), far_arrays),
            "the pool alone": chosen(name, POOL.to(NAME), ARRAYS),
            "moved there": chosen(name, POOL, ARRAYS, device=NAME),
        }
        for how, found in there.items():
            assert found.indices.tolist() == here.indices.tolist(), how
            assert found.as_dict() == here.as_dict(), how


def test_the_value_and_the_information_of_a_batch_are_the_same_there():
    pool = Predictions.from_probs(POOL)
    edges = connect(pool, 0.05)
    here = evaluate_batch(pool, edges, [3, 1, 4])
    with SecondDevice():
        far = Predictions.from_probs(POOL.to(NAME))
        assert connect(far, 0.05).ends.tolist() == edges.ends.tolist()
        there = evaluate_batch(far, edges, [3, 1, 4])
        assert (there.delta, there.random_coverage, there.certificate) == (
            here.delta, here.random_coverage, here.certificate
        )  # fmt: skip
        for name in ("gains", "gain_errors", "coverage", "null_coverage"):
            assert getattr(there, name).tolist() == getattr(here, name).tolist(), name
        assert information(far, edges, [1, 2], [3]).tolist() == information(pool, edges, [1, 2], [3]).tolist()


def test_a_learner_takes_inputs_from_there():
    def forest(inputs, classes, seed):
        model = RandomForestClassifier(5, random_state=seed % 2**32).fit(inputs.cpu().numpy(), classes.numpy())
        return Committee.from_sklearn(model, classes=range(3))

    def asked(inputs, reference, **options):
        learner = Learner(inputs, 3, forest, reference=reference, candidates=20, **options)
        first = learner.ask(4)
        learner.tell(first, [0, 1, 2, 0])
        return first, learner.ask(3)

    inputs, reference = ARRAYS["embeddings"].float(), ARRAYS["labelled_embeddings"].float()
    for strategy in ("batch-balance", "epig"):
        here = asked(inputs, reference, strategy=strategy)
        with SecondDevice():
            assert asked(inputs.to(NAME), reference.to(NAME), strategy=strategy) == here
            assert asked(inputs, reference, strategy=strategy, device=NAME) == here

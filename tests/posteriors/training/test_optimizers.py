"""The same weights as by torch.optim, to the last digit; and without the compiler that it imports."""

import pytest
import torch

from batchbalance.posteriors.training.optimizers import Optimizer

KINDS = {
    "adam": (
        lambda weights, decay: Optimizer(weights, 0.01, decay),
        lambda weights, decay: torch.optim.Adam(weights, 0.01, weight_decay=decay, fused=True),
    ),
    "sgd": (
        lambda weights, decay: Optimizer(weights, 0.01, decay, 0.9),
        lambda weights, decay: torch.optim.SGD(weights, 0.01, momentum=0.9, weight_decay=decay),
    ),
    "plain sgd": (
        lambda weights, decay: Optimizer(weights, 0.01, decay, 0.0),
        lambda weights, decay: torch.optim.SGD(weights, 0.01, weight_decay=decay),
    ),
}


@pytest.mark.parametrize("decay", [0.0, 0.1])
@pytest.mark.parametrize("kind", KINDS)
def test_the_weights_are_those_of_torch(kind, decay):
    models = []
    for make in KINDS[kind]:
        torch.manual_seed(0)
        model = torch.nn.Sequential(
            torch.nn.Linear(5, 7), torch.nn.ReLU(), torch.nn.Linear(7, 3), torch.nn.Linear(3, 2)
        )
        model[3].requires_grad_(False)
        unused = torch.nn.Parameter(torch.ones(3))
        optimizer = make([*model.parameters(), unused], decay)
        for step in range(20):
            if hasattr(optimizer, "clear"):
                optimizer.clear()
            else:
                optimizer.zero_grad()
            x = torch.randn(8, 5)
            out = model[2](x @ model[0].weight.T) if step % 3 == 0 else model(x)  # a bias without a gradient
            out.square().mean().backward()
            optimizer.step()
        assert unused.tolist() == [1, 1, 1]
        models.append(model)
    for ours, theirs in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(ours, theirs)


def test_sparse_gradients_are_refused():
    embedding = torch.nn.Embedding(4, 2, sparse=True)
    embedding(torch.tensor([1])).sum().backward()
    with pytest.raises(ValueError, match="sparse=False"):
        Optimizer(embedding.parameters(), 0.1, 0.0).step()


@pytest.mark.slow
def test_training_does_not_import_the_compiler(parent):
    code = (
        "import sys, torch; from batchbalance.posteriors.training import Recipe, fit\n"
        "build = lambda: torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.Dropout(0.5), torch.nn.Linear(8, 2))\n"
        "for optimizer in ('adam', 'sgd'):\n"
        "    fit(build, torch.randn(6, 4), torch.arange(6) % 2, Recipe(optimizer, steps=2), num_classes=2)\n"
        "print('torch._dynamo' in sys.modules)"
    )
    assert parent.run(code) == (0, "False\n", "")

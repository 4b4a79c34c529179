"""The paper's networks: parameter counts by hand, shapes, and refusals."""

import itertools

import pytest
import torch
from torch import nn

from batchbalance.posteriors.training import networks as models


def count(model):
    return sum(parameter.numel() for parameter in model.parameters())


def test_mnist_cnn_has_the_papers_parameter_count():
    assert count(models.mnist_cnn()) == 184_586


def test_fashion_cnn_parameter_count():
    convolutions = (9 * 1 + 1) * 32 + (9 * 32 + 1) * 64 + (9 * 64 + 1) * 128
    assert count(models.fashion_cnn()) == convolutions + (128 * 3 * 3 + 1) * 128 + 129 * 10
    dropouts = [m for m in models.fashion_cnn(47).modules() if isinstance(m, nn.Dropout | nn.Dropout2d)]
    assert len(dropouts) == 4


def test_fashion_cnn_with_the_last_layers_of_the_released_code():
    model = models.fashion_cnn(hidden=512, round_up=True)
    convolutions = (9 * 1 + 1) * 32 + (9 * 32 + 1) * 64 + (9 * 64 + 1) * 128
    assert count(model) == convolutions + (2048 + 1) * 512 + (512 + 1) * 10 == 1_146_890
    assert [type(layer) for layer in model.features].count(nn.MaxPool2d) == 3
    linear = [layer for layer in model.features if isinstance(layer, nn.Linear)]
    assert [(layer.in_features, layer.out_features) for layer in linear] == [(2048, 512)]
    assert model(torch.rand(2, 1, 28, 28)).shape == (2, 10)


@pytest.mark.parametrize("hidden", [(64, 64), (32, 32), (8, 8)])
def test_tabular_mlp_parameter_count(hidden):
    first, second = hidden
    model = models.tabular_mlp(7, (16,), hidden=hidden)
    assert count(model) == 17 * first + (first + 1) * second + (second + 1) * 7


def test_vgg11_parameter_count():
    sizes = [3, 64, 128, 256, 256, 512, 512, 512, 512]
    trunk = sum((9 * a + 1) * b + 2 * b for a, b in itertools.pairwise(sizes))
    assert count(models.vgg11()) == trunk + 2 * 513 * 512 + 513 * 10


def test_vgg11_with_the_head_of_the_released_code():
    sizes = [3, 64, 128, 256, 256, 512, 512, 512, 512]
    trunk = sum((9 * a + 1) * b + 2 * b for a, b in itertools.pairwise(sizes))
    assert count(models.vgg11(head=[4096, 4096])) == trunk + 513 * 4096 + 4097 * 4096 + 4097 * 10
    small = models.vgg11(width=0.125, head=[64, 32, 16])
    assert [m.out_features for m in small.features if isinstance(m, nn.Linear)] == [8, 4, 2]


def test_resnet18_refuses_widths_that_crash_torch():
    with pytest.raises(ValueError, match=r"at least 0\.125 for resnet18, got 0\.09"):
        models.resnet18(width=0.09)


def test_resnet18_parameter_count():
    def block(a, b, projected):
        return 9 * a * b + 9 * b * b + 4 * b + (a * b + 2 * b if projected else 0)

    total = 9 * 3 * 64 + 2 * 64
    for a, b in ((64, 64), (64, 128), (128, 256), (256, 512)):
        total += block(a, b, a != b) + block(b, b, False)
    assert count(models.resnet18()) == total + 513 * 10 == 11_173_962


@pytest.mark.parametrize("name", sorted(models.NETWORKS))
def test_networks_give_logits_from_the_last_hidden_layer(name):
    shape = {"tabular-mlp": (5,), "vgg11": (3, 32, 32), "resnet18": (3, 32, 32)}.get(name, (1, 28, 28))
    model = models.network_named(name)(4, shape, width=0.125).eval()
    x = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0))
    logits = model(x)
    assert logits.shape == (3, 4)
    hidden = model.embed(x)
    torch.testing.assert_close(logits, hidden @ model.head.weight.T + model.head.bias)
    assert any(isinstance(m, nn.Dropout) and m.p == 0.5 for m in model.modules()) == (name != "resnet18")


def test_vgg_has_dropout_only_behind_its_trunk():
    kinds = [type(layer) for layer in models.vgg11(width=0.125).features]
    assert kinds.index(nn.Dropout) > max(i for i, kind in enumerate(kinds) if kind is nn.Conv2d)


def test_width_scales_the_layers():
    assert models.mnist_cnn(width=0.5).head.in_features == 64


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: models.mnist_cnn(0), "num_classes"),
        (lambda: models.mnist_cnn(10, (28, 28)), "input_shape"),
        (lambda: models.mnist_cnn(10, (1, 9, 9)), "larger"),
        (lambda: models.mnist_cnn(dropout=1.0), "dropout"),
        (lambda: models.mnist_cnn(width=0.0), "width"),
        (lambda: models.tabular_mlp(2, (3,), hidden=()), "hidden"),
        (lambda: models.vgg11(head=[]), "`head` must be the units of"),
        (lambda: models.vgg11(head=[512, 0]), "`head` must be a whole number of at least 1, got 0"),
        (lambda: models.fashion_cnn(hidden=0), "`hidden` must be a whole number of at least 1"),
        (lambda: models.network_named("mnist_cnn"), "did you mean 'mnist-cnn'"),
        (lambda: models.mnist_cnn()(torch.rand(2, 1, 27, 28)), r"\(N, 1, 28, 28\), got \(2, 1, 27, 28\)"),
    ],
)
def test_wrong_arguments(build, message):
    with pytest.raises(ValueError, match=message):
        build()


def test_operations_are_those_of_every_product():
    """28×28 becomes 24×24 and, halved to 12×12, 8×8. Each output takes two operations for each of its weights."""
    first, second = 24 * 24 * 32 * 25, 8 * 8 * 64 * 32 * 25
    expected = 2 * (first + second + 1024 * 128 + 128 * 10)
    for num in (1, 3):
        assert models.flops_of(models.mnist_cnn().eval(), torch.zeros(num, 1, 28, 28)) == expected
    model = models.tabular_mlp(3, (5,), hidden=(7,)).eval()
    assert models.flops_of(model, torch.zeros(2, 5)) == 2 * (5 * 7 + 7 * 3)
    assert not any(layer._forward_hooks for layer in model.modules())

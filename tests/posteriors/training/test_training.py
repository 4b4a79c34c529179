"""The training loop: deterministic, stops early, restores the best weights, refuses what it cannot train on."""

from dataclasses import asdict

import pytest
import torch
from torch import nn

from batchbalance.arguments.seeds import generator
from batchbalance.errors import UnknownNameError
from batchbalance.posteriors.training.calling import crop_and_flip
from batchbalance.posteriors.training.fitting import Recipe, class_weights, fit, network_accuracy, split_rows
from batchbalance.posteriors.training.networks import mnist_cnn, tabular_mlp, vgg11


def blobs(num, seed=0, num_classes=3):
    g = torch.Generator().manual_seed(seed)
    labels = torch.randint(num_classes, (num,), generator=g)
    centres = torch.tensor([[3.0, 0.0], [-3.0, 1.0], [0.0, -3.0]])
    return centres[labels] + torch.randn(num, 2, generator=g), labels


def factory():
    return tabular_mlp(3, (2,), hidden=(16,))


def test_learns_and_restores_the_best_epoch():
    x, y = blobs(200)
    validation = blobs(100, seed=1)
    fitted = fit(factory, x, y, Recipe(learning_rate=0.01, patience=3), num_classes=3, validation=validation, seed=1)
    accuracies = [epoch.accuracy for epoch in fitted.history]
    assert max(accuracies) > 0.9
    assert fitted.best == accuracies.index(max(accuracies))
    assert network_accuracy(fitted.model, *validation) == accuracies[fitted.best]
    assert len(accuracies) == fitted.best + 1 + 3
    assert not fitted.model.training


def test_runs_all_epochs_without_a_validation_set():
    fitted = fit(factory, *blobs(20), Recipe(max_epochs=4), num_classes=3)
    assert len(fitted.history) == 4
    assert fitted.best == 3
    assert fitted.history[0].accuracy is None


class Spy(nn.Linear):
    """Tells which rows it is trained on, by their first feature."""

    def __init__(self, seen):
        super().__init__(1, 2)
        self.seen = seen

    def forward(self, x):
        if self.training:
            self.seen.append(x[:, 0].int().tolist())
        return super().forward(x)


def test_steps_are_taken_on_pass_after_pass_whatever_validation_says():
    """Seven steps on five examples in batches of two: two steps a pass, since a lone last row joins the one before."""
    seen = []
    x, y = torch.arange(5.0)[:, None], torch.tensor([0, 1, 0, 1, 0])
    recipe = Recipe(batch_size=2, steps=7)
    fitted = fit(lambda: Spy(seen), x, y, recipe, num_classes=2, validation=(x, 1 - y))
    assert [len(rows) for rows in seen] == [2, 3] * 3 + [2]
    for start in (0, 2, 4):
        assert sorted(seen[start] + seen[start + 1]) == [0, 1, 2, 3, 4]
    assert (fitted.kept.epoch, fitted.kept.steps) == (4, 7)
    assert len(fitted.history) == 4
    assert all(epoch.accuracy is None for epoch in fitted.history)


def test_what_was_kept_is_told():
    x, y = blobs(200)
    recipe = Recipe(learning_rate=0.01, samples_per_epoch=100, batch_size=50, patience=3)
    fitted = fit(factory, x, y, recipe, num_classes=3, validation=blobs(100, seed=1), seed=1)
    right = sum(int(fitted.model(x[i : i + 1]).argmax()) == int(y[i]) for i in range(200))
    assert fitted.kept.training_accuracy == right / 200
    assert fitted.kept.epoch == fitted.best + 1
    assert fitted.kept.steps == 2 * fitted.kept.epoch


def test_a_recipe_is_of_steps_or_of_epochs():
    assert (Recipe().steps, Recipe().max_epochs, Recipe().patience) == (1000, None, None)
    assert (Recipe(patience=7).steps, Recipe(patience=7).max_epochs, Recipe(patience=7).patience) == (None, 100, 7)
    assert (Recipe(samples_per_epoch=9).max_epochs, Recipe(samples_per_epoch=9).patience) == (100, 3)
    assert Recipe(**asdict(Recipe(max_epochs=4))) == Recipe(max_epochs=4)
    assert Recipe(**asdict(Recipe(steps=4))) == Recipe(steps=4)
    with pytest.raises(ValueError, match="`steps` must not be given together with `patience`"):
        Recipe(steps=10, patience=3)


@pytest.mark.parametrize("optimizer", ["adam", "sgd"])
def test_same_seed_same_weights_and_no_global_state(optimizer):
    recipe = Recipe(optimizer=optimizer, max_epochs=2, samples_per_epoch=40, batch_size=16)
    before = torch.get_rng_state()
    first, again, other = (fit(factory, *blobs(30), recipe, num_classes=3, seed=s).model for s in (5, 5, 6))
    assert torch.equal(before, torch.get_rng_state())
    for a, b in zip(first.parameters(), again.parameters(), strict=True):
        assert torch.equal(a, b)
    assert not torch.equal(next(first.parameters()), next(other.parameters()))


@pytest.mark.parametrize("class_weighted", [True, False])
@pytest.mark.parametrize("length", [{"max_epochs": 3}, {"steps": 3}])
def test_sgd_with_momentum_follows_a_hand_written_loop(class_weighted, length):
    x, y = blobs(8)
    x = x.double()

    def start():
        layer = nn.Linear(2, 3).double()
        nn.init.constant_(layer.weight, 0.1)
        nn.init.constant_(layer.bias, 0.0)
        return layer

    recipe = Recipe("sgd", 0.1, momentum=0.5, weight_decay=0.01, batch_size=8, class_weighted=class_weighted, **length)
    fitted = fit(start, x, y, recipe, num_classes=3)

    counts = [int((y == c).sum()) for c in range(3)]
    weight = torch.full((3, 2), 0.1, dtype=torch.float64)
    bias = torch.zeros(3, dtype=torch.float64)
    speed_w, speed_b = torch.zeros_like(weight), torch.zeros_like(bias)
    for _ in range(3):
        grad_w, grad_b, total = torch.zeros_like(weight), torch.zeros_like(bias), 0.0
        for i in range(8):
            p = torch.exp(weight @ x[i] + bias)
            p = p / p.sum()
            p[y[i]] -= 1
            importance = 1 / counts[y[i]] if class_weighted else 1.0
            total += importance
            grad_w += importance * p[:, None] * x[i][None, :]
            grad_b += importance * p
        speed_w = 0.5 * speed_w + grad_w / total + 0.01 * weight
        speed_b = 0.5 * speed_b + grad_b / total + 0.01 * bias
        weight, bias = weight - 0.1 * speed_w, bias - 0.1 * speed_b
    torch.testing.assert_close(fitted.model.weight, weight, rtol=0, atol=1e-10)
    torch.testing.assert_close(fitted.model.bias, bias, rtol=0, atol=1e-10)


def test_class_weights_are_inverse_frequencies():
    weights = class_weights(torch.tensor([0, 0, 0, 2]), 4)
    assert weights.tolist() == [4 / (3 * 2), 0.0, 4 / (1 * 2), 0.0]


@pytest.mark.parametrize("labels", [[1], [1, 1, 1], [0, 2]])
def test_few_labels_train(labels):
    y = torch.tensor(labels)
    x = torch.randn(len(y), 2, generator=torch.Generator().manual_seed(0))
    fitted = fit(factory, x, y, Recipe(max_epochs=30, learning_rate=0.05), num_classes=3)
    assert fitted.history[-1].loss < 1.1
    assert network_accuracy(fitted.model, x, y) == 1.0


def test_one_image_trains_a_network_with_batch_normalisation():
    fitted = fit(
        lambda: vgg11(width=0.05), torch.rand(1, 3, 32, 32), torch.tensor([3]), Recipe(max_epochs=1), num_classes=10
    )
    assert len(fitted.history) == 1


def test_tokens_train_an_embedding():
    tokens, labels = torch.tensor([[1, 2], [3, 4], [1, 4]]), torch.tensor([0, 1, 1])
    fitted = fit(
        lambda: nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(8, 2)), tokens, labels, num_classes=2
    )
    assert network_accuracy(fitted.model, tokens, labels) == 1.0


def test_batches_never_hold_a_single_row():
    assert [b.tolist() for b in split_rows(torch.arange(5), 2)] == [[0, 1], [2, 3, 4]]
    assert [b.tolist() for b in split_rows(torch.arange(1), 2)] == [[0, 0]]


def test_samples_per_epoch_is_the_number_of_examples_seen():
    seen = []

    class Spy(nn.Linear):
        def forward(self, x):
            if self.training:
                seen.append(len(x))
            return super().forward(x)

    fit(lambda: Spy(2, 3), *blobs(5), Recipe(samples_per_epoch=100, batch_size=40, max_epochs=2), num_classes=3)
    assert seen == [40, 40, 20] * 2


def test_augmentation_is_off_by_default_and_a_function_of_the_seed():
    x = torch.randn(12, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    y = torch.arange(12) % 3

    def build():
        return nn.Sequential(nn.Flatten(), nn.Linear(192, 3))

    def weights(augmentation, seed):
        recipe = Recipe(max_epochs=2, batch_size=5, augmentation=augmentation)
        return fit(build, x, y, recipe, num_classes=3, seed=seed).model[1].weight

    assert Recipe().augmentation == "none"
    plain, first, again, other = weights("none", 1), *(weights("crop-flip", seed) for seed in (1, 1, 2))
    assert torch.equal(first, again)
    assert not torch.equal(first, plain)
    assert not torch.equal(first, other)


def test_what_is_seen_in_training_are_crops():
    """Every batch is drawn from one stream, in order; validation sees the images as they are."""
    x = torch.randn(6, 2, 5, 5, generator=torch.Generator().manual_seed(0))
    seen = []

    class Spy(nn.Linear):
        def forward(self, rows):
            seen.append((self.training, rows.reshape(-1, 2, 5, 5).clone()))
            return super().forward(rows)

    recipe = Recipe(max_epochs=1, batch_size=3, augmentation="crop-flip")
    build = lambda: nn.Sequential(nn.Flatten(), Spy(50, 2))  # noqa: E731
    y = torch.tensor([0, 1, 0, 1, 0, 1])
    fit(build, x, y, recipe, num_classes=2, seed=4, validation=(x, y))
    order = torch.randperm(6, generator=generator(4, "order"))
    stream = generator(4, "augmentation")
    expected = [crop_and_flip(x[rows], generator=stream) for rows in order.split(3)]
    trained = [batch for training, batch in seen if training]
    assert all(torch.equal(a, b) for a, b in zip(trained, expected, strict=True))
    untouched = [batch for training, batch in seen if not training]
    assert untouched
    assert all(torch.equal(batch, x[: len(batch)]) for batch in untouched)


def test_augmentation_refuses_rows_of_features():
    with pytest.raises(ValueError, match="unless inputs are images"):
        fit(factory, *blobs(9), Recipe(augmentation="crop-flip"), num_classes=3)
    with pytest.raises(UnknownNameError, match="did you mean 'crop-flip'"):
        Recipe(augmentation="crop-flp")


def test_progress_tells_loss_and_accuracy(capsys):
    fit(factory, *blobs(9), Recipe(max_epochs=1), num_classes=3, validation=blobs(5), progress=True)
    assert "accuracy" in capsys.readouterr().err


x3, y3 = torch.zeros(3, 2), torch.tensor([0, 1, 2])


@pytest.mark.parametrize(
    ("x", "y", "message"),
    [
        (x3[:0], y3[:0], "at least one"),
        (x3, y3[:2], "one row for each"),
        (x3, y3.float(), "int64"),
        (x3, y3 + 1, "0 to 2, got 1 to 3"),
        (x3 / 0, y3, "finite"),
        (x3.double(), y3, "torch.float32 like the model's weights"),
        (torch.zeros(3, 5), y3, r"\(N, 2\)"),
    ],
)
def test_wrong_data(x, y, message):
    with pytest.raises(ValueError, match=message):
        fit(factory, x, y, num_classes=3)


def test_wrong_models():
    with pytest.raises(ValueError, match=r"\(3, 3\) logits, got \(3, 2\)"):
        fit(lambda: nn.Linear(2, 2), x3, y3, num_classes=3)
    with pytest.raises(ValueError, match="must fit the model"):
        fit(lambda: nn.Linear(7, 3), x3, y3, num_classes=3)
    broken = nn.Linear(2, 3)
    nn.init.constant_(broken.weight, float("nan"))
    with pytest.raises(ValueError, match="NaN or infinity in `weight`"):
        fit(lambda: broken, x3, y3, num_classes=3)


def test_wrong_factories():
    built = nn.Linear(2, 3)
    with pytest.raises(ValueError, match="got a Linear; pass a function"):
        fit(built, x3, y3, num_classes=3)
    with pytest.raises(ValueError, match=r"must return an nn\.Module, got list"):
        fit(lambda: [built], x3, y3, num_classes=3)


def test_a_loss_that_explodes_is_named():
    with pytest.raises(ValueError, match="lower `learning_rate`"):
        fit(lambda: nn.Linear(2, 3), torch.eye(3)[:, :2] * 1e10, y3, Recipe("sgd", 1e30, max_epochs=20), num_classes=3)


@pytest.mark.parametrize(
    "options",
    [
        {"optimizer": "adamw"},
        {"patience": 0},
        {"steps": 0},
        {"max_epochs": 1.5},
        {"samples_per_epoch": 0},
        {"learning_rate": -1.0},
        {"momentum": 1.0},
    ],
)
def test_wrong_recipes(options):
    with pytest.raises(ValueError, match=r"got|unknown optimizer"):
        Recipe(**options)


def test_images_train_in_channels_last():
    x = torch.rand(4, 1, 28, 28)
    fitted = fit(lambda: mnist_cnn(2, width=0.1), x, torch.tensor([0, 1, 0, 1]), Recipe(max_epochs=1), num_classes=2)
    assert fitted.model.features[4].weight.is_contiguous(memory_format=torch.channels_last)

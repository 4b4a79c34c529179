"""Shared parts of the analyses: a data set, its split and a network trained on it, and figure panels."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from batchbalance.arguments.sections import parsed
from batchbalance.arguments.seeds import derived_seed, generator
from batchbalance.balance.edges import annealed_threshold
from batchbalance.lab.config import RunConfig
from batchbalance.lab.data import Dataset, Splits
from batchbalance.lab.report.figures import LEGEND_ROW, LIGHT, blank_figure, look
from batchbalance.lab.trial import TrainingRows, prepared, test_probs
from batchbalance.posteriors import MCDropout, Posterior, PosteriorFit
from batchbalance.posteriors.inputs import Blocks
from batchbalance.posteriors.training.fitting import Labelled, fit, network_accuracy
from batchbalance.posteriors.training.networks import built, network_named
from batchbalance.predictions import Predictions

PANEL_HEIGHT = 3.0  # inches


@dataclass(frozen=True)
class Setup:
    """A data set, its split, and the settings of a network on it, loaded on first use.

    Attributes:
        settings: the tables data, split, model, training, posterior and edges of a run.
        seed: the seed of the split, the initial weights and the masks.
        data_dir: the folder of published data sets.
    """

    settings: dict[str, Any]
    seed: int
    data_dir: Path | None

    @cached_property
    def config(self) -> RunConfig:
        """The settings as those of a run; its strategy and batch size are not used."""
        return parsed(lambda: RunConfig(**self.settings, batch_size=1, strategy="balance"))

    @cached_property
    def _prepared(self) -> tuple[Dataset, Splits]:
        return prepared(self.config, self.seed, self.data_dir)

    @property
    def data(self) -> Dataset:
        """The data set."""
        return self._prepared[0]

    @property
    def splits(self) -> Splits:
        """The split of its training part."""
        return self._prepared[1]

    @property
    def num_draws(self) -> int:
        """The number of draws, S."""
        return int(getattr(self.config.posterior, "num_draws", 0))

    def inputs(self, rows: Tensor) -> TrainingRows:
        """Return inputs of some rows of the training part."""
        return TrainingRows(self.data, rows, self.config.flat_inputs)

    def labelled(self, rows: Tensor) -> Labelled:
        """Return inputs and labels of some rows of the training part."""
        return self.inputs(rows)[torch.arange(len(rows))], self.data.train_y[rows]

    def train(self, rows: Tensor) -> tuple[nn.Module, float]:
        """Train a network on these rows; return it and its validation error ε with dropout off."""
        inputs, labels = self.labelled(rows)
        validation = self.labelled(self.splits.validation_rows(len(rows)))
        options = dict(self.config.model or {})
        network = network_named(options.pop("name"))
        build = partial(built, network, self.data.num_classes, tuple(inputs.shape[1:]), **options)
        trained = fit(
            build, inputs, labels, self.config.training,
            num_classes=self.data.num_classes, validation=validation, seed=self.seed,
        )  # fmt: skip
        return trained.model, 1 - network_accuracy(trained.model, *validation)

    def train_with_threshold(self) -> tuple[nn.Module, float]:
        """Train a network on the initial rows; return it and the threshold τ that its validation error gives."""
        model, error = self.train(self.splits.initial)
        return model, annealed_threshold(error, self.config.edges.ratio)

    def fit(self) -> PosteriorFit:
        """Return the function that a learner calls to train."""
        return self.config.posterior_fit(self.data.num_classes, self.labelled(self.splits.validation))

    def draws(self, model: nn.Module, purpose: str, repeat: int = 0, num_draws: int | None = None) -> MCDropout:
        """Return draws of a trained network; another purpose or repeat gives other draws."""
        return MCDropout(model, num_draws or self.num_draws, derived_seed(self.seed, purpose, repeat))

    def predict(self, posterior: Posterior, rows: Tensor) -> Predictions:
        """Return predictions of some rows of the training part."""
        return posterior.predict(Blocks(self.inputs(rows), torch.arange(len(rows))))

    def sampled_pool(self, most: int) -> Tensor:
        """Return at most `most` random rows of the pool, in order."""
        order = torch.randperm(len(self.splits.pool), generator=generator(self.seed, "sampled pool"))
        return self.splits.pool[order[:most].sort().values]

    def test_accuracy(self, posterior: Posterior) -> float:
        """Return the accuracy of the mean prediction on the test part."""
        probs = test_probs(posterior, self.data, self.config.flat_inputs)
        return int((probs.argmax(dim=1) == self.data.test_y).sum()) / len(self.data.test_y)


def first_draws(predictions: Predictions, num_draws: int) -> Predictions:
    """Return predictions with the first draws only."""
    ids = None if predictions.draw_ids is None else predictions.draw_ids[:num_draws]
    return Predictions.from_log_probs(predictions.log_probs()[:, :num_draws], draw_ids=ids)


def panels(num: int, legend_rows: int = 0) -> tuple[Any, list[Any], str]:
    """Create a figure with `num` stacked panels; return it with its axes and its text colour."""
    return blank_figure(num * PANEL_HEIGHT + LEGEND_ROW * legend_rows, num)


def draw_lines(axes: Any, x: Sequence[float], curves: Mapping[str, Sequence[float]], first: int = 0) -> None:
    """Draw one line for each label, with the line styles from number `first` on."""
    for index, (label, values) in enumerate(curves.items(), start=first):
        colour, line, marker = look(index, LIGHT[0])
        axes.plot(x, values, color=colour, linestyle=line, marker=marker, linewidth=1.6, label=label)

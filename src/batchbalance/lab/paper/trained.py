"""What most analyses start from: a data set, its split, and a network trained on some of it."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from batchbalance.arguments.sections import parsed
from batchbalance.arguments.seeds import derived_seed, generator
from batchbalance.lab.config import RunConfig
from batchbalance.lab.data import Dataset, Splits
from batchbalance.lab.trial import TrainingRows, flattened, prepared
from batchbalance.learner.passes import BLOCK, predict
from batchbalance.posteriors import MCDropout, Posterior, PosteriorFit
from batchbalance.posteriors.training.fitting import Labelled, fit, network_accuracy
from batchbalance.posteriors.training.networks import built, network_named
from batchbalance.predictions import Predictions


@dataclass(frozen=True)
class Setup:
    """A data set, its split, and the settings of a network on it.

    Attributes:
        config: data, split, model, training, posterior and edges, as in a run; its strategy is not used.
        seed: draws the split, the initial weights and the masks.
        data_dir: where published data sets are.
    """

    config: RunConfig
    seed: int
    data_dir: Path | None

    @classmethod
    def read(cls, settings: dict[str, Any], seed: int, data_dir: Path | None) -> "Setup":
        """Make a setup from the tables of a run."""
        return cls(parsed(lambda: RunConfig(**settings, batch_size=1, strategy="balance")), seed, data_dir)

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

    @property
    def flat(self) -> bool:
        """Whether the network takes rows of features."""
        return self.config.flat_inputs

    def inputs(self, rows: Tensor) -> TrainingRows:
        """Return inputs of some rows of the training part."""
        return TrainingRows(self.data, rows, self.flat)

    def labelled(self, rows: Tensor) -> Labelled:
        """Return inputs and labels of some rows of the training part."""
        return self.inputs(rows)[torch.arange(len(rows))], self.data.train_y[rows]

    def train(self, rows: Tensor, seed: int) -> tuple[nn.Module, float]:
        """Train a network on these rows; return it and its validation error ε with dropout off."""
        inputs, labels = self.labelled(rows)
        validation = self.labelled(self.splits.validation_rows(len(rows)))
        options = dict(self.config.model or {})
        network = network_named(options.pop("name"))
        build = partial(built, network, self.data.num_classes, tuple(inputs.shape[1:]), **options)
        trained = fit(
            build, inputs, labels, self.config.training,
            num_classes=self.data.num_classes, validation=validation, seed=seed,
        )  # fmt: skip
        return trained.model, 1 - network_accuracy(trained.model, *validation)

    def fit(self) -> PosteriorFit:
        """Return the function that a learner calls to train."""
        return self.config.posterior_fit(self.data.num_classes, self.labelled(self.splits.validation))

    def draws(self, model: nn.Module, purpose: str, repeat: int = 0, num_draws: int | None = None) -> MCDropout:
        """Return draws of a trained network; another purpose or repeat gives other draws."""
        return MCDropout(model, num_draws or self.num_draws, derived_seed(self.seed, purpose, repeat))

    def predict(self, posterior: Posterior, rows: Tensor) -> Predictions:
        """Return predictions of some rows of the training part."""
        return predict(posterior, self.inputs(rows), torch.arange(len(rows)))

    def sampled_pool(self, most: int) -> Tensor:
        """Return at most so many rows of the pool, in order."""
        order = torch.randperm(len(self.splits.pool), generator=generator(self.seed, "sampled pool"))
        return self.splits.pool[order[:most].sort().values]

    def test_accuracy(self, posterior: Posterior) -> float:
        """Return accuracy of the mean prediction on the test part."""
        hits = sum(int((probs.argmax(dim=1) == labels).sum()) for probs, labels in self._test_probs(posterior))
        return hits / len(self.data.test_y)

    def _test_probs(self, posterior: Posterior) -> Iterator[tuple[Tensor, Tensor]]:
        for rows in torch.split(torch.arange(len(self.data.test_y)), BLOCK):
            inputs = flattened(self.data.test_inputs(rows), self.flat)
            yield posterior.predict(inputs).mean_probs(), self.data.test_y[rows]


def first_draws(predictions: Predictions, num_draws: int) -> Predictions:
    """Return predictions with the first draws only."""
    ids = None if predictions.draw_ids is None else predictions.draw_ids[:num_draws]
    return Predictions.from_log_probs(predictions.log_probs()[:, :num_draws], draw_ids=ids)

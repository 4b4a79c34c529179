"""Figure 17: the value of one batch, for training sets of growing size (appendix "Predictive variance").

Each step adds random points to the training set. For each training set every strategy chooses one batch, several times
with different weights and draws. The network is then trained again with the batch, and its test accuracy is recorded.
"""

from statistics import fmean
from typing import Any

import torch
from torch import Tensor

from analyses.trained import Setup, draw_lines, panels
from batchbalance.arguments.sections import Section, Whole
from batchbalance.arguments.seeds import derived_seed, generator
from batchbalance.lab.report.paired import standard_deviation
from batchbalance.learner import Learner
from batchbalance.posteriors import Fit, Fitted, MCDropout, Posterior
from batchbalance.strategies import ConnectedStrategy, strategy_named


class SingleBatchOptions(Section):
    """The sizes and strategies of the analysis.

    Attributes:
        start: random training labels in the first step.
        step: random labels that each further step adds.
        num_steps: the number of training sets.
        batch: points that a strategy chooses.
        repeats: repeats of each strategy on each training set.
        strategies: their names.
        equal_draws: give all strategies the same 2K draws; else those without edges have the first K.
    """

    table = "[options]"
    start: Whole = 10
    step: Whole = 10
    num_steps: Whole
    batch: Whole = 20
    repeats: Whole = 20
    strategies: list[str]
    equal_draws: bool = True


def compute(options: SingleBatchOptions, setup: Setup) -> dict[str, Any]:
    """Compute test accuracies before and after one batch of each strategy, for every step and repeat."""
    seed = setup.seed
    order = torch.randperm(len(setup.splits.pool), generator=generator(seed, "single batch"))
    sizes = [options.start + i * options.step for i in range(options.num_steps)]
    before: list[list[float]] = [[] for _ in sizes]
    after: dict[str, list[list[float]]] = {name: [[] for _ in sizes] for name in options.strategies}
    for index, size in enumerate(sizes):
        labelled = order[:size]
        for repeat in range(options.repeats):
            fit = remembered(setup.fit())  # all strategies of a repeat choose with the same draws
            trial = derived_seed(seed, f"repeat of {size}", repeat)
            for name in options.strategies:
                joins = options.equal_draws or isinstance(strategy_named(name), ConnectedStrategy)
                first, last = accuracies(setup, fit if joins else halved(fit), name, labelled, options.batch, trial)
                after[name][index].append(last)
            before[index].append(first)
    return {"sizes": sizes, "batch": options.batch, "before": before, "after": after}


def accuracies(setup: Setup, fit: Fit, strategy: str, labelled: Tensor, batch: int, seed: int) -> tuple[float, float]:
    """Return the test accuracy with some labelled rows of the pool, and after one more batch."""
    rows = setup.splits.pool
    learner = Learner(
        setup.inputs(rows), setup.data.num_classes, fit, strategy=strategy, edges=setup.config.edges,
        reference=setup.inputs(setup.splits.reference), candidates=setup.config.candidates, seed=seed,
    )  # fmt: skip
    found = []
    for asked in (labelled.tolist(), None):
        chosen = learner.ask(batch) if asked is None else asked
        learner.tell(chosen, setup.data.train_y[rows[torch.tensor(chosen)]].tolist())
        fitted = learner.fitted()
        if fitted is None:
            raise ValueError("`start` must give at least one label, got none")
        found.append(setup.test_accuracy(fitted.posterior))
    return found[0], found[1]


def remembered(fit: Fit) -> Fit:
    """Return a fit that reuses earlier results for the same labels and seed."""
    known: dict[Any, Posterior | Fitted] = {}

    def remember(inputs: Tensor, labels: Tensor, seed: int) -> Posterior | Fitted:
        key = (seed, tuple(labels.tolist()), float(inputs.double().sum()))
        if key not in known:
            known[key] = fit(inputs, labels, seed)
        return known[key]

    return remember


def halved(fit: Fit) -> Fit:
    """Return a fit that keeps the first half of the draws."""

    def half(inputs: Tensor, labels: Tensor, seed: int) -> Posterior | Fitted:
        found = fit(inputs, labels, seed)
        fitted = found if isinstance(found, Fitted) else Fitted(found)
        posterior = fitted.posterior
        if not isinstance(posterior, MCDropout):
            raise TypeError(f"`equal_draws` must be true for draws of {type(posterior).__name__}, got false")
        return Fitted(posterior.first(max(1, posterior.num_draws // 2)), fitted.validation_error)

    return half


def draw(numbers: dict[str, Any]) -> Any:
    """Draw mean and standard deviation of the accuracy over repeats, against the size of the training set."""
    figure, (top, bottom), _ = panels(2, legend_rows=1 + len(numbers["after"]) // 2)
    curves = {"before the batch": numbers["before"], **numbers["after"]}
    for axes, summary in ((top, fmean), (bottom, standard_deviation)):
        draw_lines(axes, numbers["sizes"], {label: [summary(x) for x in each] for label, each in curves.items()})
    top.set_ylabel("mean test accuracy")
    bottom.set_ylabel("std of test accuracy")
    bottom.set_xlabel(f"training labels before a batch of {numbers['batch']}")
    handles, labels = top.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, handlelength=3.2)
    return figure

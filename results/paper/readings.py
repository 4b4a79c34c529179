"""What the records say about a claim: an outcome in words, and a verdict."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from batchbalance.lab.records import Record
from batchbalance.lab.report.paired import mean_interval

CONFIRMED, NOT_CONFIRMED, CONTRADICTED = "confirmed", "not confirmed", "contradicted"
FEWEST = 3  # trials below which nothing is decided

Trials = Mapping[str, Mapping[int, Sequence[Record]]]  # the records of each run's seeds
Numbers = Sequence[dict[str, Any]]  # the numbers of an analysis, one for each seed
Finding = tuple[str, str]  # outcome and verdict


@dataclass(frozen=True)
class Expectation:
    """What is expected of the accuracy of `first` minus that of `second`, in trials of the same seed.

    Attributes:
        first: the label of a run.
        second: of another.
        at: label counts of which the mean is taken; all after the initial set if omitted.
        above: the difference is expected to be above this.
        within: if given, the difference is expected to be between −within and within instead.
    """

    first: str
    second: str
    at: int | list[int] | None = None
    above: float = 0.0
    within: float | None = None

    def differences(self, trials: Trials) -> list[float]:
        """One for each seed that both have completed as far as is looked at."""
        one, other = (
            {seed: curve(records) for seed, records in trials.get(label, {}).items()}
            for label in (self.first, self.second)
        )
        found = []
        for seed in sorted(one.keys() & other.keys()):
            counts = self._counts([*one.values(), *other.values()])
            if counts and all(count in one[seed] and count in other[seed] for count in counts):
                found.append(math.fsum(one[seed][count] - other[seed][count] for count in counts) / len(counts))
        return found

    def _counts(self, curves: Sequence[Mapping[int, float]]) -> list[int]:
        if self.at is None:
            return sorted({count for each in curves for count in each})[1:]
        return [self.at] if isinstance(self.at, int) else self.at

    def verdict(self, interval: tuple[float, float] | None, num_trials: int) -> str:
        """Confirmed or contradicted if the whole interval lies on one side of what is expected."""
        if interval is None or num_trials < FEWEST:
            return NOT_CONFIRMED
        low, high = interval
        if self.within is not None:
            if -self.within < low and high < self.within:
                return CONFIRMED
            return CONTRADICTED if high < -self.within or low > self.within else NOT_CONFIRMED
        if low > self.above:
            return CONFIRMED
        return CONTRADICTED if high < min(self.above, 0.0) else NOT_CONFIRMED

    def finding(self, trials: Trials) -> Finding | None:
        """The mean difference with its 95 % interval, and the verdict; None without a pair of trials."""
        found = self.differences(trials)
        if not found:
            return None
        interval = mean_interval(found)
        at = "over the curve" if self.at is None else f"at {spoken(self.at)}"
        between = "" if interval is None else f" [{signed(interval[0])}, {signed(interval[1])}]"
        names = " − ".join(f"`{label}`" for label in (self.first, self.second))
        wanted = f" (expected above {signed(self.above)})" if self.above else ""
        wanted = wanted if self.within is None else f" (expected within ±{self.within:g})"
        text = f"{names} {at}: {signed(math.fsum(found) / len(found))}{between}, {counted(len(found))}{wanted}"
        return text, self.verdict(interval, len(found))


def curve(records: Sequence[Record]) -> dict[int, float]:
    """Accuracy by the number of labels."""
    return {record["num_labelled"]: record["metrics"]["accuracy"] for record in records}


def joined(findings: Sequence[Finding]) -> Finding:
    """One outcome of several: contradicted if one of them is, confirmed if all are."""
    verdicts = [verdict for _, verdict in findings]
    overall = CONTRADICTED if CONTRADICTED in verdicts else NOT_CONFIRMED
    overall = CONFIRMED if set(verdicts) == {CONFIRMED} else overall
    return "; ".join(text for text, _ in findings), overall


def signed(value: float) -> str:
    """Return a difference with its sign, to three places."""
    return f"{value:+.3f}".replace("-", "−")


def spoken(at: int | list[int]) -> str:
    """Return label counts as "130 labels" or "40 to 80 labels"."""
    return f"{at} labels" if isinstance(at, int) else f"{at[0]} to {at[-1]} labels"


def counted(num_trials: int) -> str:
    """Return "1 trial" or "6 trials"."""
    return f"{num_trials} trial" + ("s" if num_trials != 1 else "")


def crowded_draws(numbers: Numbers) -> Finding:
    """Figure 1: the largest class against the classes that are at least as accurate as the whole."""
    classes = numbers[0]["classes"]
    largest = max(classes, key=lambda each: each["mass"])
    better = sum(each["mass"] for each in classes if each["mean_accuracy"] > largest["mean_accuracy"])
    text = (
        f"the largest of {len(classes)} classes holds {largest['mass']:.0%} of the draws, with an accuracy of "
        f"{largest['mean_accuracy']:.3f}; more accurate classes hold {better:.0%}"
    )
    return text, CONFIRMED if largest["mass"] > 0.5 and better < 0.25 else CONTRADICTED


def faster_than_coreset(numbers: Numbers) -> Finding:
    """Figures 2 and 6: seconds at the largest batch that CoreSet was timed at."""
    seconds, sizes = numbers[0]["seconds"], numbers[0]["batch_sizes"]
    last = max(index for index, taken in enumerate(seconds["coreset"]) if taken is not None)
    names = ("power-balance", "cluster-balance", "coreset")
    shown = {name: seconds[name][last] for name in names}
    text = f"a batch of {sizes[last]:,}: " + ", ".join(
        f"`{name}` {'not timed' if taken is None else f'{taken:.2f} s'}" for name, taken in shown.items()
    )
    faster = [shown[name] is not None and shown[name] < shown["coreset"] for name in names[:2]]
    return text, CONFIRMED if all(faster) else CONTRADICTED if not any(faster) else NOT_CONFIRMED


def exponents(numbers: Numbers) -> Finding:
    """Table 1: the power of B by which the time grows between the largest batches."""
    known = [each for each in numbers[0]["complexities"] if each["exponent"] is not None]
    far = [each for each in known if abs(each["exponent"] - each["paper_exponent"]) > 0.5]
    text = ", ".join(f"`{each['strategy']}` {each['exponent']:.1f} ({each['paper_exponent']})" for each in known)
    worse = [each for each in far if each["exponent"] > each["paper_exponent"]]
    verdict = CONFIRMED if not far else CONTRADICTED if worse else NOT_CONFIRMED
    return f"powers of B, the paper's in brackets: {text}", verdict


def line_labels(numbers: Numbers) -> Finding:
    """Figure 5: labels in the worst case."""
    found = numbers[0]
    sizes = found["num_hypotheses"]
    text = (
        f"with {sizes[0]} to {sizes[-1]} hypotheses BALD needs {found['bald'][0]} to {found['bald'][-1]} labels in the "
        f"worst case, EC² {found['ec2'][0]} to {found['ec2'][-1]}; log₂ 1/σ is {found['log_sigma']:g}"
    )
    grows = found["bald"][-1] > found["bald"][0] and found["ec2"][-1] <= found["log_sigma"] + 1
    return text, CONFIRMED if grows else CONTRADICTED


def spread_falls(numbers: Numbers) -> Finding:
    """Figure 8: the standard deviation of Δ over sets of draws."""
    pairs, spread = numbers[0]["num_pairs"], numbers[0]["std"]
    text = f"standard deviation of Δ: {spread[0]:.3f} with K = {pairs[0]}, {spread[-1]:.3f} with K = {pairs[-1]}"
    return text, CONFIRMED if all(a > b for a, b in pairwise(spread)) else CONTRADICTED


def less_variation(numbers: Numbers) -> Finding:
    """Figure 16: the medians of the coefficients of variation, a network for each seed."""
    medians = [(each["balance"]["median"], each["bald"]["median"]) for each in numbers]
    text = "medians of BALanCe against BALD: " + ", ".join(f"{ours:.4f} against {bald:.4f}" for ours, bald in medians)
    smaller = [ours < bald for ours, bald in medians]
    verdict = NOT_CONFIRMED if len(medians) < FEWEST or len(set(smaller)) > 1 else None
    return text, verdict or (CONFIRMED if smaller[0] else CONTRADICTED)


def worth_of_a_batch(numbers: Numbers) -> Finding:
    """Figure 17: the mean gain in accuracy by one batch, and its spread over repeats."""
    gains: dict[str, list[list[float]]] = {}
    for each in numbers:
        for name, steps in each["after"].items():
            for before, after in zip(each["before"], steps, strict=True):
                differences = [b - a for a, b in zip(before, after, strict=True)]
                gains.setdefault(name, []).append(differences)
    means = {name: _mean([gain for step in steps for gain in step]) for name, steps in gains.items()}
    spreads = {name: _mean([_spread(step) for step in steps]) for name, steps in gains.items()}
    text = ", ".join(f"`{name}` {signed(means[name])} ± {spreads[name]:.3f}" for name in means)
    ours = [name for name in means if name.endswith("balance")]
    others = [name for name in means if name not in ours]
    ahead = min(means[name] for name in ours) > max(means[name] for name in others)
    steadier = max(spreads[name] for name in ours) < min(spreads[name] for name in others)
    behind = max(means[name] for name in ours) < max(means[name] for name in others)
    return f"mean gain ± spread over repeats: {text}", (
        CONFIRMED if ahead and steadier else CONTRADICTED if behind else NOT_CONFIRMED
    )


def clustering_rounds(trials: Trials) -> Finding | None:
    """Section 4.2: the rounds of the clusterings that were recorded."""
    rounds = [r["clustering_rounds"] for seeds in trials.values() for each in seeds.values() for r in each]
    known = [each for each in rounds if each is not None]
    if not known:
        return None
    share = _mean([float(each < 5) for each in known])
    text = f"{len(known)} clusterings took {min(known)} to {max(known)} rounds; {share:.0%} of them fewer than 5"
    return text, CONFIRMED if share > 0.5 else CONTRADICTED


def edges_at_large_threshold(trials: Trials) -> Finding | None:
    """Figure 7 (b): rounds without an edge at τ = 0.3, by the accuracy of the network."""
    label = next((each for each in trials if "threshold=0.3" in each), None)
    rounds = [r for records in trials.get(label or "", {}).values() for r in records if r["num_edges"] is not None]
    accurate = [r for r in rounds if r["metrics"]["accuracy"] >= 0.88]
    if not rounds:
        return None
    bare = [r["num_edges"] == 0 for r in rounds]
    text = f"τ = 0.3: {_mean(bare):.0%} of {len(rounds)} batches had no edge"
    if not accurate:
        return f"{text}; no network reached .88", NOT_CONFIRMED
    share = _mean([r["num_edges"] == 0 for r in accurate])
    return (
        f"{text}; {share:.0%} of the {len(accurate)} with an accuracy of .88",
        CONFIRMED if share > 0.5 else CONTRADICTED,
    )


def first_ties(trials: Trials) -> Finding | None:
    """The pick, from 1, at which float32 no longer tells the best points of `released-balance` apart."""
    batches = [r for records in trials.get("released-balance", {}).values() for r in records if r["indices"]]
    if not batches:
        return None
    picks = [math.inf if r["continued_from"] is None else r["continued_from"] + 1 for r in batches]
    share = _mean([pick <= 6 for pick in picks])
    decided = _mean([max(0.0, 11 - pick) / 10 for pick in picks])
    text = f"ties begin by the sixth pick in {share:.0%} of {len(picks)} batches, and decide {decided:.0%} of all picks"
    return text, CONFIRMED if share > 0.5 else CONTRADICTED


def more_draws(trials: Trials) -> Finding | None:
    """Figure 15 (b): the most draws against the fewest."""
    if len(trials) < 2:
        return None
    labels = sorted(trials, key=lambda label: int("".join(filter(str.isdigit, label)) or 0))
    return Expectation(labels[-1], labels[0], within=0.02).finding(trials)


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _spread(values: Sequence[float]) -> float:
    centre = _mean(values)
    return math.sqrt(_mean([(value - centre) ** 2 for value in values]))


OF_NUMBERS: dict[str, Callable[[Numbers], Finding]] = {
    each.__name__: each
    for each in (
        crowded_draws,
        faster_than_coreset,
        exponents,
        line_labels,
        spread_falls,
        less_variation,
        worth_of_a_batch,
    )
}
OF_TRIALS: dict[str, Callable[[Trials], Finding | None]] = {
    each.__name__: each for each in (clustering_rounds, edges_at_large_threshold, first_ties, more_draws)
}

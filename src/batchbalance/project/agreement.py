"""How well two people agree: Cohen's κ (1960) of their first answers."""

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

from batchbalance.project.state import ANSWERS, State, Who


@dataclass(frozen=True)
class Agreement:
    """Of two people on the items that both answered.

    Attributes:
        first, second: the two.
        num_items: how many both answered.
        share: on how many of these they agree, as a share.
        kappa: Cohen's κ; NaN if each of them gave one and the same answer throughout.
    """

    first: Who
    second: Who
    num_items: int
    share: float
    kappa: float


def cohen_kappa(first: Sequence[int], second: Sequence[int]) -> float:
    """(p_o − p_e) / (1 − p_e): agreement beyond that of independent answers with the same shares."""
    num = len(first)
    if not num:
        return math.nan
    agreed = sum(a == b for a, b in zip(first, second, strict=True)) / num
    ours, theirs = Counter(first), Counter(second)
    by_chance = sum(ours[each] * theirs[each] for each in ours) / num**2
    return math.nan if by_chance == 1 else (agreed - by_chance) / (1 - by_chance)


def agreements(state: State) -> list[Agreement]:
    """Of every two people who answered an item both, by the first answer of each.

    Disputed items are asked again until people agree, so that later answers agree by design.
    """
    firsts: dict[int, dict[Who, int]] = {}
    for event in state.history():
        if event.kind in ANSWERS and event.item is not None:
            firsts.setdefault(event.item, {}).setdefault(event.who, event.value)
    found = []
    for first, second in combinations(state.annotators(), 2):
        both = [answers for answers in firsts.values() if first in answers and second in answers]
        if both:
            ours, theirs = [each[first] for each in both], [each[second] for each in both]
            share = sum(a == b for a, b in zip(ours, theirs, strict=True)) / len(both)
            found.append(Agreement(first, second, len(both), share, cohen_kappa(ours, theirs)))
    return found

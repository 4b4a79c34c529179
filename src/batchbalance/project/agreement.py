"""How well two people agree: Cohen's κ (1960) of their first answers."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np
from numpy.typing import NDArray

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


def cohen_kappa(first: Sequence[int] | NDArray[Any], second: Sequence[int] | NDArray[Any]) -> float:
    """Return (p_o − p_e) / (1 − p_e), the agreement beyond chance of two lists of classes; NaN if p_e is 1.

    It equals scikit-learn's ``cohen_kappa_score``, whose import would add a second to every command.
    """
    ours, theirs = np.asarray(first), np.asarray(second)
    if not len(ours):
        return math.nan
    classes, codes = np.unique(np.concatenate([ours, theirs]), return_inverse=True)
    shares = [np.bincount(each, minlength=len(classes)) / len(ours) for each in np.split(codes, 2)]
    by_chance = float(shares[0] @ shares[1])
    return math.nan if by_chance == 1 else (float((ours == theirs).mean()) - by_chance) / (1 - by_chance)


def agreements(state: State) -> list[Agreement]:
    """Return the agreement of every two people with items in common, by the first answer of each.

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

"""Statistics of paired differences: an exact test, Holm's correction, and intervals.

The trials of two strategies with the same seed share their data split and first labels, so differences are taken within
a seed. All tests are two-sided.
"""

import math
from collections.abc import Sequence
from statistics import fmean

import numpy as np
import torch

EXACT_LIMIT = 36  # up to this many differences, all sign flips are counted
NUM_SAMPLED_FLIPS = 100_000
CONFIDENCE = 0.95
TIE = 1e-9  # sums that differ by less than this share of the largest one count as equal


def sign_flip_test(differences: Sequence[float], *, generator: torch.Generator) -> float:
    """Return the p-value of "differences are symmetric about 0", by their mean under all 2ⁿ flips of their signs.

    The test is exact up to 36 differences: the sums of the flips of each half are sorted, and pairs of them are
    counted. Above that it uses 100,000 random flips and the observed one.

    Args:
        differences: the difference of each pair; at least one.
        generator: used above 36 differences only.
    """
    values = np.asarray(differences, dtype=np.float64)
    observed, tolerance = abs(values.sum()), TIE * float(np.abs(values).sum())
    if observed <= tolerance:
        return 1.0
    if len(values) > EXACT_LIMIT:
        flips = torch.randint(2, (NUM_SAMPLED_FLIPS, len(values)), generator=generator).numpy() * 2 - 1
        as_far = int((np.abs(flips @ values) >= observed - tolerance).sum())
        return (as_far + 1) / (NUM_SAMPLED_FLIPS + 1)
    half = len(values) // 2
    left, right = _flipped_sums(values[:half]), np.sort(_flipped_sums(values[half:]))
    as_large = len(left) * len(right) - np.searchsorted(right, observed - tolerance - left).sum()
    return float(min(1.0, 2 * int(as_large) / 2.0 ** len(values)))  # the flips are symmetric about 0


def _flipped_sums(values: np.ndarray) -> np.ndarray:
    sums = np.zeros(1)
    for value in values:
        sums = np.concatenate([sums + value, sums - value])
    return sums


def smallest_p(num_pairs: int) -> float:
    """Return the smallest p-value possible with `num_pairs` pairs: that of differences of one sign."""
    return min(1.0, 2.0 ** (1 - num_pairs))


def holm(p_values: Sequence[float]) -> list[float]:
    """Apply Holm's correction: rejecting p-values below α makes any error with probability at most α."""
    corrected, largest = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(sorted(range(len(p_values)), key=lambda i: p_values[i])):
        largest = max(largest, min(1.0, (len(p_values) - rank) * p_values[index]))
        corrected[index] = largest
    return corrected


def mean_interval(values: Sequence[float], num: int = 1) -> tuple[float, float] | None:
    """Return Student's 95 % interval of a mean, wide enough for `num` intervals together (Bonferroni).

    None for fewer than two values.
    """
    if len(values) < 2:
        return None
    from scipy.stats import t

    centre = fmean(values)
    quantile = float(t.ppf(1 - (1 - CONFIDENCE) / 2 / num, len(values) - 1))
    reach = quantile * standard_deviation(values) / math.sqrt(len(values))
    return centre - reach, centre + reach


def standard_deviation(values: Sequence[float]) -> float:
    """Return the standard deviation with n − 1 in the denominator; 0 for one value."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else 0.0


def middle(values: Sequence[float]) -> float | None:
    """Return the median of values of which some may be infinite; None if it lies between −∞ and ∞."""
    ordered = sorted(values)
    found = (ordered[(len(values) - 1) // 2] + ordered[len(values) // 2]) / 2
    return None if math.isnan(found) else found


def median_interval(values: Sequence[float]) -> tuple[float, float] | None:
    """Return the distribution-free 95 % interval of a median, between two of the values; None for fewer than six.

    The median lies below the k-th smallest value with the probability of fewer than k heads in n tosses, and above the
    k-th largest with the same probability. The smallest and the largest of five values contain it in only 93.75 % of
    cases, and of three in 75 %. Values may be infinite, and so may the limits.
    """
    num, ordered = len(values), sorted(values)
    below, k = 0, 0  # of the 2ⁿ outcomes of n tosses, those with fewer than k + 1 heads
    while 2 * (below + math.comb(num, k)) <= (1 - CONFIDENCE) * 2**num:
        below, k = below + math.comb(num, k), k + 1
    return (ordered[k - 1], ordered[num - k]) if k else None

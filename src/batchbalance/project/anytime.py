"""Bounds of a share that hold at any look, by betting (Robbins 1970; Waudby-Smith and Ramdas 2024).

For a share of at most p, the ratio of the likelihood averaged over larger shares, with Jeffreys' weights, to the
likelihood at p is the capital of a gambler in a game that cannot be won on average. By Ville's inequality it ever
reaches 1/α with a probability of at most α, however often one looks. So shares at which it has are ruled out.
"""

import math

from batchbalance.arguments.checks import check_whole
from batchbalance.project.audit import ALPHA, Interval

PRIOR = 0.5  # both parameters of Jeffreys' beta distribution
STEPS = 50  # of bisection


def log_capital(right: int, total: int, share: float) -> float:
    """Return the log of the capital against "the share is at most `share`", from `right` of `total`."""
    from scipy.special import betaincc, betaln  # scipy.stats takes seconds to import

    if not 0 < share < 1:
        return 0.0 if share >= 1 or not right else math.inf
    wrong = total - right
    tail, prior = betaincc(right + PRIOR, wrong + PRIOR, share), betaincc(PRIOR, PRIOR, share)
    if not tail > 0:  # far above what was observed
        return -math.inf
    mixed = betaln(right + PRIOR, wrong + PRIOR) + math.log(tail) - betaln(PRIOR, PRIOR) - math.log(prior)
    return float(mixed - right * math.log(share) - wrong * math.log1p(-share))


def is_above(right: int, total: int, share: float, alpha: float = ALPHA) -> bool:
    """Return whether the true share is above `share`, at any look; wrong with a probability of at most `alpha`."""
    return right > share * total and log_capital(right, total, share) >= -math.log(alpha)


def lower_bound(right: int, total: int, alpha: float = ALPHA) -> float:
    """Return a share that the true one is below, at any look, with a probability of at most `alpha`."""
    check_whole("right", right, 0, total)
    low, high = 0.0, right / total if total else 0.0
    for _ in range(STEPS):
        middle = (low + high) / 2
        low, high = (middle, high) if is_above(right, total, middle, alpha) else (low, middle)
    return low


def any_look(right: int, total: int, alpha: float = ALPHA) -> Interval:
    """Return an interval that misses the true share at any look with a probability of at most `alpha`."""
    high = 1 - lower_bound(total - right, total, alpha / 2) if total else 1.0
    return Interval(lower_bound(right, total, alpha / 2), high)

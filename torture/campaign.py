"""What a campaign is, and how its attempts are counted."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Literal

Outcome = Literal["intact", "refused", "lost", "different", "traceback"]
FAILURES = ("lost", "different", "traceback")


@dataclass(frozen=True)
class Finding:
    """What one attempt came to.

    Attributes:
        outcome: "intact" if nothing was lost or changed, "refused" if the damage was said in one sentence; the others
            are failures of the project.
        what: what was tried, and for failures what happened.
    """

    outcome: Outcome
    what: str


@dataclass
class Tally:
    """Counts of one campaign, and its failures in full."""

    counts: Counter[str] = field(default_factory=Counter)
    failures: list[Finding] = field(default_factory=list)

    def add(self, finding: Finding) -> None:
        """Count one attempt."""
        self.counts[finding.outcome] += 1
        if finding.outcome in FAILURES:
            self.failures.append(finding)

    @property
    def num_tried(self) -> int:
        """All attempts."""
        return sum(self.counts.values())


# One attempt in an empty folder of its own, from a random source of its own.
Attempt = Callable[[Path, Random], Finding]


@dataclass(frozen=True)
class Campaign:
    """Attempts of one kind.

    Attributes:
        name: what it is called.
        promise: what must hold, in a sentence.
        attempt: does one.
        share: of the time there is.
    """

    name: str
    promise: str
    attempt: Attempt
    share: float = 1.0


CAMPAIGNS: list[Campaign] = []


def campaign(name: str, promise: str, share: float = 1.0) -> Callable[[Attempt], Attempt]:
    """Register an attempt."""

    def register(attempt: Attempt) -> Attempt:
        CAMPAIGNS.append(Campaign(name, promise, attempt, share))
        return attempt

    return register

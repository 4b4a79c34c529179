"""Torture: kill, damage and fuzz what the project promises to survive, for as long as one likes.

`make torture` runs it; docs/reliability.md says what is promised. A campaign does one thing to the project, again and
again, from one seed, and counts what it tried and what it found. Nothing here is needed to select.
"""

from torture import (  # noqa: F401  (they register their campaigns)
    accepted,
    claims,
    damage,
    exchanges,
    fuzz,
    inputs,
    kills,
    labels,
    looks,
    projects,
    servers,
    syncing,
)
from torture.campaign import CAMPAIGNS, Campaign, Finding, Tally

__all__ = ["CAMPAIGNS", "Campaign", "Finding", "Tally"]

"""The overall verdict on stopping, in one sentence."""

from collections.abc import Sequence

from batchbalance.project.audit import FIRST_LOOK, LEAST_FOR_ERROR
from batchbalance.project.stopping import Accuracy, Advice, Forecast


def overall_verdict(accuracy: Accuracy | None, advice: Sequence[Advice], forecast: Forecast | None) -> Advice:
    """Return the overall advice of all rules.

    A reached target or a used budget decides alone. Before ten audit or test labels no other rule counts. After that
    the advice is to stop if more labels are not worth it, or if successive models agree and their predictions have
    settled.
    """
    by_rule = {each.rule: each for each in advice}
    for rule in ("target", "budget"):
        if rule in by_rule and by_rule[rule].verdict == "stop":
            return Advice("verdict", "stop", f"Stop: {_lowered(by_rule[rule].sentence)}")
    known = "the accuracy is not known yet" if accuracy is None else _told_range(accuracy)
    if accuracy is None or accuracy.total < FIRST_LOOK:
        source, total = ("audit", 0) if accuracy is None else (accuracy.source, accuracy.total)
        more = LEAST_FOR_ERROR - total
        return Advice("verdict", "go on", f"Go on: {known}; {more} more {source} labels say more.")
    stops = {each.rule for each in advice if each.verdict == "stop"}
    if "target" not in by_rule and ("forecast" in stops or {"agreement", "label change"} <= stops):
        return Advice("verdict", "stop", f"You may stop: {known}, and more labels would hardly change the model.")
    if forecast is not None:
        gain = f"{forecast.more} more labels would bring about {100 * forecast.gain:+.1f} points"
        return Advice("verdict", "go on", f"Go on: {known}; {gain}.")
    return Advice("verdict", "go on", f"Go on: {known}; more labels show whether the model has settled.")


def _told_range(accuracy: Accuracy) -> str:
    low, high = 100 * accuracy.interval.low, 100 * accuracy.interval.high
    about = f" {accuracy.about}" if accuracy.about else ""
    return f"accuracy{about} is between {low:.0f} and {high:.0f} %"


def _lowered(sentence: str) -> str:
    return sentence[:1].lower() + sentence[1:]

"""Why an item was asked, in sentences that a layperson understands."""

from collections.abc import Mapping
from typing import Any

AUDIT_WHY = (
    "It was chosen at random to measure how good the model is. The model never learns from it, and shows no guess, so "
    "that your answer is your own."
)
NO_MODEL_WHY = "There is no model yet. It was chosen because it is typical of many items that have no label near them."
NEARLY_ALL = 0.9  # of the draws
BY_REASON = {
    "found": "Somebody looked for items like this one.",
    "seek": "It was chosen because it may be of a class that is looked for.",
    "explore": "All labels so far are of one class. It was chosen to find out whether it is of another one.",
    "random": "It was chosen at random, to find out whether the strategy does better than chance.",
    "strategy random": "It was chosen at random.",
    "disputed": "People disagree about this one, so one more opinion is needed.",
    "overlap": "Somebody else labels this one too, to find out how well people agree.",
    "again": "You skipped it before, and asked for it again.",
}


def why(reason: str, is_audit: bool, insight: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return why an item was asked: a sentence, and what to show beside it.

    Args:
        reason: the project's word for it.
        is_audit: whether it measures the model; then no prediction is shown.
        insight: the votes of the model, if there is one.
    """
    if is_audit:
        return {"sentence": AUDIT_WHY}
    if insight is None:
        return {"sentence": BY_REASON.get(reason, NO_MODEL_WHY)}
    found = dict(insight)
    found["sentence"] = BY_REASON.get(reason) or votes_sentence(insight)
    return found


def votes_sentence(insight: Mapping[str, Any]) -> str:
    """Return a sentence on how the draws vote on an item."""
    groups, num_draws = insight["groups"], insight["draws"]
    if len(groups) < 2 or groups[0]["draws"] >= NEARLY_ALL * num_draws:
        count = "All" if len(groups) < 2 else f"{groups[0]['draws']} of the"
        name = groups[0]["class"] if groups else insight["guess"]
        return (
            f"{count} {num_draws} draws of the model say “{name}”. It was chosen because it stands for items that "
            "have no label near them: your answer shows whether the model is right there too."
        )
    first, second = groups
    return (
        f"The model is undecided: {first['draws']} of its {num_draws} draws say “{first['class']}” and "
        f"{second['draws']} say “{second['class']}”. Your answer shows which of them to trust."
    )


def guess_sentence(is_audit: bool, insight: Mapping[str, Any] | None) -> str:
    """Return the model's guess about an item, if it may be shown."""
    if is_audit:
        return "This item measures the model, so no guess is shown."
    if insight is None:
        return "There is no guess yet: the model learns with the next batch."
    share = dict(insight["votes"]).get(insight["guess"])
    if share is None:  # several labels: draws vote for each
        return f"The model would say “{insight['guess']}”, and is {100 * insight['confidence']:.0f} % sure."
    return f"The model would say “{insight['guess']}”; {100 * share:.0f} % of its draws vote for that."

"""One sentence from all advice."""

import pytest

from batchbalance.project.audit import Interval, clopper_pearson
from batchbalance.project.stopping import Accuracy, Advice, Forecast, overall_verdict


def accuracy(correct, total):
    return Accuracy(60, correct, total, clopper_pearson(correct, total), "audit")


def advice(**verdicts):
    return [Advice(rule.replace("_", " "), verdict, "It Is So.") for rule, verdict in verdicts.items()]


FORECAST = Forecast(50, 0.012, Interval(-0.01, 0.03))


def test_few_audit_labels_say_only_the_range_and_how_many_more_are_needed():
    told = overall_verdict(accuracy(2, 2), advice(forecast="stop", agreement="stop"), None)
    assert (told.verdict, told.sentence) == (
        "go on", "Go on: accuracy is between 16 and 100 %; 18 more audit labels say more.",
    )  # fmt: skip
    assert "not known yet; 20 more audit labels" in overall_verdict(None, [], None).sentence


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"forecast": "stop"}, "stop"),
        ({"agreement": "stop", "label_change": "stop", "forecast": "go on"}, "stop"),
        ({"agreement": "stop", "label_change": "go on", "forecast": "cannot tell"}, "go on"),
        ({"forecast": "stop", "target": "go on"}, "go on"),  # somebody wants more
        ({"forecast": "go on", "target": "stop"}, "stop"),
        ({"forecast": "go on", "budget": "stop"}, "stop"),
    ],
)
def test_what_decides(given, wanted):
    assert overall_verdict(accuracy(27, 30), advice(**given), FORECAST).verdict == wanted


def test_a_target_and_a_budget_decide_before_there_are_ten_labels():
    assert overall_verdict(None, advice(budget="stop"), None).sentence == "Stop: it Is So."


def test_what_more_labels_would_bring_is_said():
    told = overall_verdict(accuracy(27, 30), advice(forecast="go on"), FORECAST).sentence
    assert told == "Go on: accuracy is between 73 and 98 %; 50 more labels would bring about +1.2 points."

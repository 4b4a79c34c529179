"""A sample of `make torture`: a few attempts of what takes no process or project; and the counting itself."""

from random import Random

import pytest
from typer.testing import CliRunner

from torture import CAMPAIGNS, Finding, Tally
from torture.__main__ import run, table
from torture.campaign import FAILURES, Campaign
from torture.damage import damaged, judged

SAMPLED = [each for each in CAMPAIGNS if not each.name.startswith(("kill", "looks")) and "project" not in each.name]


@pytest.mark.slow
@pytest.mark.parametrize("campaign", SAMPLED, ids=lambda each: each.name)
def test_a_sample_finds_nothing(campaign):
    tally = run(campaign, 0.0, seed=7, at_least=8)
    assert tally.num_tried == 8
    assert tally.failures == []


def test_failures_are_counted_and_end_with_1(tmp_path, monkeypatch):
    outcomes = ["intact", "refused", *FAILURES]
    bad = Campaign("bad", "nothing breaks", lambda _, random: Finding(random.choice(outcomes), "it broke"))
    monkeypatch.setattr("torture.__main__.CAMPAIGNS", [bad])
    import typer

    from torture.__main__ import main

    app = typer.Typer()
    app.command()(main)
    result = CliRunner().invoke(app, ["--minutes", "0", "--at-least", "40"])
    assert result.exit_code == 1
    assert "| bad | nothing breaks | 40 |" in result.output
    assert "it broke" in result.output
    result = CliRunner().invoke(app, ["--minutes", "0", "--only", "bda"])
    assert result.exit_code == 2
    fine = Tally()
    fine.add(Finding("intact", ""))
    assert "| bad | nothing breaks | 1 | 1 | 0 | 0 | 0 | 0 |" in table([bad], {"bad": fine})


def test_damage_damages(tmp_path):
    path = tmp_path / "file"
    for seed in range(40):
        path.write_bytes(b"0123456789")
        what = damaged(path, Random(seed))
        assert path.read_bytes() != b"0123456789"
        assert "file" in what


def test_outcomes():
    def fails(error):
        raise error

    assert judged("x", lambda: 1, lambda found: found == 1).outcome == "intact"
    assert judged("x", lambda: 2, lambda found: found == 1).outcome == "different"
    assert judged("x", lambda: fails(ValueError("no")), lambda _: True).outcome == "refused"
    assert judged("x", lambda: fails(KeyError("no")), lambda _: True).outcome == "traceback"

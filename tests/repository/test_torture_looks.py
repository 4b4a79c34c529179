"""Looks at the audit in whole projects: a sample of `python -m torture.coverage`, and how it judges."""

import math

import pytest

from torture import coverage, looks
from torture.coverage import summary
from torture.looks import Seen, chance_of, missed


@pytest.mark.slow
def test_intervals_hold_in_projects():
    found = coverage.run(5, seed=100)
    assert [[look.number for look in each] for each in found] == [[1, 2, 3, 4]] * 5
    table, fine = summary(found)
    assert fine, table


def projects(num, num_missed_once, num_missed):
    """Projects of two looks, of which some miss the interval for one look, and some that of the look."""
    return [[Seen(1, i >= num_missed_once, True), Seen(2, True, i >= num_missed)] for i in range(num)]


def test_more_misses_than_promised_are_seen():
    assert summary(projects(400, 20, 20))[1]
    assert summary(projects(400, 28, 0))[1]  # 7 %: within two standard errors of 5 %
    assert not summary(projects(400, 29, 0))[1]
    assert summary(projects(400, 0, 28))[1]
    assert not summary(projects(400, 0, 29))[1]


def test_the_table_counts():
    table, _ = summary(projects(40, 2, 1))
    assert "| 1 | 40 | 95.0 % | 100.0 % |" in table
    assert "| 2 | 40 | 100.0 % | 97.5 % |" in table
    assert table.endswith("A miss at any look: 2.5 % of 40 projects.")


def test_the_campaign_fails_if_hardly_any_chance_explains_it(tmp_path, monkeypatch):
    monkeypatch.setattr(looks, "simulated", lambda folder, _: [Seen(1, True, int(folder.name) >= bad)])
    import random

    for bad, outcome in ((0, "intact"), (6, "intact"), (7, "different")):
        folder = tmp_path / str(bad)
        folder.mkdir()
        assert looks.looks_hold(folder, random.Random(0)).outcome == outcome


def test_chance_and_misses():
    assert chance_of(1, 20) == pytest.approx(1 - 0.95**20)
    assert chance_of(20, 20) == pytest.approx(0.05**20)
    assert math.isclose(chance_of(0, 20), 1.0)
    assert missed([Seen(1, True, True), Seen(2, True, False)])
    assert not missed([Seen(1, False, True)])

"""What `status` claims, in whole projects: a sample of `python -m torture.rates`, and how the campaign judges."""

import random

import pytest

from torture import claims


@pytest.mark.slow
def test_random_is_not_called_better_than_random(tmp_path):
    found = 0
    for seed in range(8):
        (tmp_path / str(seed)).mkdir()
        found += claims.p_of_random(tmp_path / str(seed), 700 + seed) <= claims.LEVEL
    assert found <= 2


def test_the_campaign_fails_if_hardly_any_chance_explains_it(tmp_path, monkeypatch):
    monkeypatch.setattr(claims, "p_of_random", lambda folder, _: 0.025 if int(folder.name) < num else 0.05)
    for num, outcome in ((0, "intact"), (6, "intact"), (7, "different")):
        folder = tmp_path / str(num)
        folder.mkdir()
        assert claims.arms_are_alike(folder, random.Random(0)).outcome == outcome

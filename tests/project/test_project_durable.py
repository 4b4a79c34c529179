"""Projects that are killed, and used by two processes at once; a sample of what `make torture` does for an hour."""

import json
import sys

import pytest

from batchbalance.project import Project
from torture import CAMPAIGNS
from torture.__main__ import run
from torture.projects import STEPS, label, play, story

pytestmark = [pytest.mark.slow, pytest.mark.skipif(sys.platform != "linux", reason="needs fork")]

KILLED = """
import os, sys
from pathlib import Path
from torture.projects import deadly, play
folder, counts, at, before = Path(sys.argv[1]), eval(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "True"
with deadly(at, before, 1):
    play(folder, counts)
"""


def test_killed_between_any_two_events_nothing_is_lost_or_changed(tmp_path, parent):
    whole = tmp_path / "whole"
    whole.mkdir()
    counts = play(whole)
    assert len(counts) == len(STEPS)
    assert counts[-1] > 60
    expected = story(whole)
    for at, before in ((1, True), (8, False), (21, True)):
        folder = tmp_path / f"{at}-{before}"
        folder.mkdir()
        killed = 0
        while True:
            code, out, err = parent.run(KILLED, folder, counts, at + 5 * killed, before)
            acknowledged = [int(line) for line in out.split()]
            assert code in (0, -9), err
            if code == 0:
                break
            killed += 1
            assert len(Project.open(folder / "p").events() if (folder / "p" / "project.toml").exists() else []) >= max(
                acknowledged, default=0
            )
        assert killed
        assert story(folder) == expected


ANNOTATOR = """
import json, sys
from batchbalance.project import Project
from torture.projects import label
project, who, asked = Project.open(sys.argv[1]), sys.argv[2], []
for _ in range(4):
    names = project.ask(4, who).ids
    asked += names
    project.tell({name: label(name) for name in names}, who)
print(json.dumps(asked))
"""


def test_two_processes_and_two_annotators_at_once(tmp_path, parent):
    from torture.projects import begin

    begin(tmp_path).close()
    with (
        parent.start(ANNOTATOR, tmp_path / "p", "Ann") as first,
        parent.start(ANNOTATOR, tmp_path / "p", "Bob") as second,
    ):
        found = [json.loads(each.stdout.read() or each.stderr.read()) for each in (first, second)]
        assert [each.wait() for each in (first, second)] == [0, 0]
    assert [len(set(each)) for each in found] == [16, 16]
    assert not set(found[0]) & set(found[1])
    project = Project.open(tmp_path / "p")
    assert project.labels == {name: label(name) for each in found for name in each}
    assert project.check() == []


@pytest.mark.parametrize("name", ["damaged project", "full project"])
def test_a_sample_finds_nothing(name):
    (campaign,) = [each for each in CAMPAIGNS if each.name == name]
    assert run(campaign, 0.0, seed=7, at_least=2).failures == []

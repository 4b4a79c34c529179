"""The processes behind the page, played by a short script that needs no imports."""

import sys
import time

import pytest

from batchbalance.project.page.chooser import DOING, ENDED, ChoiceProgress, ProcessChooser

SCRIPT = """
import json, os, sys
left = 2
for line in sys.stdin:
    request = json.loads(line)
    with open(sys.argv[1], "a") as log:
        log.write(line)
    answer = {"done": request["do"]}
    if request["do"] == "ask":
        if request["who"] == "killer":
            os._exit(9)
        if request["who"] == "slow":
            print(json.dumps({"doing": "embedding", "steps": 3, "total": 9}), flush=True)
            while not os.path.exists(sys.argv[1] + ".go"):
                pass
        if request["who"] == "wrong":
            answer["trouble"] = "it cannot be"
        else:
            answer |= {"added": min(left, 1), "ids": ["a"], "insights": {"a": {"guess": "cat"}}}
            left -= min(left, 1)
    elif request["do"] == "explain":
        answer |= {"ids": request["ids"], "insights": {}}
    else:
        answer |= {"status": {"n": request["revision"]}}
    print(json.dumps(answer), flush=True)
"""


@pytest.fixture
def chooser(tmp_path, monkeypatch):
    made = ProcessChooser(tmp_path)
    for worker in (made._chooser, *made._workers.values()):
        monkeypatch.setattr(worker, "_command", [sys.executable, "-S", "-c", SCRIPT, str(tmp_path / "log")])
    yield made
    made.close()


def wait(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end, "nothing came"
        time.sleep(0.005)


def requests(tmp_path):
    path = tmp_path / "log"
    return path.read_text().splitlines() if path.exists() else []


def test_a_batch_is_chosen_and_explained_while_others_go_on(chooser):
    assert chooser.insight("a") is None
    assert not chooser.is_explained("a")
    chooser.want(None, 1)
    assert chooser.choosing(None) == ChoiceProgress(DOING)
    wait(lambda: chooser.is_explained("a"))
    assert chooser.insight("a") == {"guess": "cat"}
    assert chooser.choosing(None) == ChoiceProgress()


def test_what_is_under_way_is_not_asked_twice_and_is_told(chooser, tmp_path):
    chooser.want("slow", 1)
    chooser.want("slow", 1)
    chooser.want("slow", 2)
    wait(lambda: chooser.choosing("slow").total)
    assert chooser.choosing("slow") == ChoiceProgress("Looking at the items for the first time", 3, 9)
    assert chooser.choosing("other") == ChoiceProgress()
    (tmp_path / "log.go").touch()
    wait(lambda: not chooser.choosing("slow").doing)
    assert len(requests(tmp_path)) == 1


def test_where_nothing_is_left_it_is_asked_again_only_after_something_happened(chooser, tmp_path):
    for revision in range(3):  # the third brings nothing
        chooser.want("x", revision)
        wait(lambda: not chooser.choosing("x").doing)
    chooser.want("x", 2)
    assert not chooser.choosing("x").doing
    chooser.want("x", 3)
    wait(lambda: not chooser.choosing("x").doing)
    assert len(requests(tmp_path)) == 4


def test_an_error_is_told_and_can_be_tried_again(chooser, tmp_path):
    chooser.want("wrong", 1)
    wait(lambda: chooser.choosing("wrong").trouble)
    assert chooser.choosing("wrong") == ChoiceProgress(trouble="it cannot be")
    chooser.want("x", 1)  # not before somebody looked
    assert len(requests(tmp_path)) == 1
    chooser.try_again()
    chooser.want("x", 1)
    wait(lambda: chooser.is_explained("a"))


def test_a_process_that_dies_is_told_and_started_anew(chooser):
    chooser.want("killer", 1)
    wait(lambda: chooser.choosing("killer").trouble)
    assert chooser.choosing("x").trouble == ENDED
    chooser.try_again()
    chooser.want("x", 1)
    wait(lambda: chooser.is_explained("a"))


def test_status_is_measured_beside_and_once_for_each_revision(chooser, tmp_path):
    chooser.want("slow", 1)  # takes as long as it likes
    ask = {"do": "status"}
    assert chooser.latest(ask, 5) == (None, False)
    wait(lambda: chooser.latest(ask, 5)[1])
    assert chooser.latest(ask, 5)[0]["status"] == {"n": 5}
    assert chooser.latest(ask, 6)[0]["status"] == {"n": 5}  # until there is a newer one
    wait(lambda: chooser.latest(ask, 6)[1])
    assert chooser.latest(ask, 6)[0]["status"] == {"n": 6}
    assert sum('"do": "status"' in line for line in requests(tmp_path)) == 2


def test_items_are_explained_once(chooser, tmp_path):
    chooser.explain(["p", "q"])
    chooser.explain(["q", "r"])
    wait(lambda: chooser.is_explained("r"))
    chooser.explain(["p", "q", "r"])
    wait(lambda: not chooser._chooser.requests)
    assert [line.partition("ids")[2] for line in requests(tmp_path)] == ['": ["p", "q"]}', '": ["r"]}']


def test_closing_ends_the_processes(chooser):
    chooser.want("slow", 1)
    process = chooser._chooser._process
    chooser.close()
    assert process.poll() is not None
    assert chooser.choosing("slow").trouble == ""


def test_it_is_this_python_that_chooses(tmp_path):
    command = ProcessChooser(tmp_path, allow_imports=True)._chooser._command
    assert command[:4] == [sys.executable, "-P", "-m", "batchbalance.project.page.choosing"]
    assert command[4:] == [str(tmp_path.resolve()), "--allow-imports"]

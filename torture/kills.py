"""Random kills: a process that is killed and started again must end where one that was not killed ends."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from random import Random
from typing import Any

from batchbalance.lab.records import read_runs
from torture.campaign import Finding, campaign

CONFIG = """
batch_size = 4
budget = 22
trials = 1
strategies = ["batch-balance", "random"]

[data]
name = "digits"

[split]
initial_per_class = 1
validation = 10
reference = 20
pool = 80
test = 40

[posterior]
kind = "committee"
size = 6
max_depth = 3
"""
LEARNER = """
import sys
import numpy as np
from batchbalance import Learner
from batchbalance.posteriors import CommitteeOptions

x = np.random.default_rng(0).normal(size=(60, 3)).astype("float32")
y = (x[:, 0] > 0).astype(int)
learner = Learner(x, 2, CommitteeOptions(size=4, max_depth=2), directory=sys.argv[1], seed=1)
if not learner.labels:
    learner.tell(range(4), y[:4])
print("told", 4, flush=True)
while len(learner.labels) < 40:
    asked = learner.ask(3)
    print("asked", *asked, flush=True)
    learner.tell(asked, y[asked])
    print("told", len(learner.labels), flush=True)
"""
UNEQUAL = ("seconds", "peak_memory")


def _records(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """The records of all runs, without what may differ."""
    found = {}
    for run in read_runs([folder]):
        for records in run.trials.values():
            found[run.label] = [{k: v for k, v in record.items() if k not in UNEQUAL} for record in records]
    return found


def _killed(command: list[str], folder: Path, seconds: float) -> tuple[bool, str]:
    """Start a command, kill it and its children after a while; whether it ended by itself, and what it printed."""
    with subprocess.Popen(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as process:
        try:
            out, err = process.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            out, err = process.communicate()
            return False, out
    if process.returncode:
        raise RuntimeError(err)
    return True, out


@campaign("kill run", "a run that is killed and resumed has the records of one that was not", share=3)
def kill_run(folder: Path, random: Random) -> Finding:
    """Kill `batchbalance run` at random moments until it is done, and compare with an undisturbed run."""
    (folder / "run.toml").write_text(CONFIG)
    command = [sys.executable, "-P", "-m", "batchbalance.cli", "run", "run.toml", "--runs-dir"]
    if not _killed([*command, "whole"], folder, 600)[0]:
        return Finding("lost", "an undisturbed run took more than ten minutes")
    kills = 0
    try:
        while not _killed([*command, "killed"], folder, random.uniform(0.5, 9.0) if kills < 12 else 600)[0]:
            kills += 1
    except RuntimeError as error:
        return Finding("traceback", f"resuming after {kills} kills: {error}")
    whole, killed = _records(folder / "whole"), _records(folder / "killed")
    if whole != killed:
        return Finding("different", f"records after {kills} kills: {json.dumps(killed)[:500]}")
    return Finding("intact", f"{kills} kills of a run")


@campaign(
    "kill learner", "what `ask` and `tell` returned from is there after a kill, and nothing else changed", share=2
)
def kill_learner(folder: Path, random: Random) -> Finding:
    """Kill a process that asks and tells; all that it said was told must be there, and the end must be the same."""
    (folder / "script.py").write_text(LEARNER)
    command = [sys.executable, "-P", "script.py"]
    done, whole = _killed([*command, "whole"], folder, 600)
    if not done:
        return Finding("lost", "an undisturbed learner took more than ten minutes")
    questions = [line for line in whole.splitlines() if line.startswith("asked")]
    acknowledged, seen, kills = 0, [], 0
    try:
        while True:
            done, out = _killed([*command, "killed"], folder, random.uniform(1.0, 8.0) if kills < 12 else 600)
            lines = out.splitlines()
            counts = [int(line.split()[1]) for line in lines if line.startswith("told")]
            if counts and counts[0] == 4 and acknowledged > 4:
                counts = counts[1:]  # the first line of a restart is about the labels that it began with
            if counts and min(counts) < acknowledged:
                return Finding("lost", f"{acknowledged} labels were told, after a kill there are {min(counts)}")
            acknowledged = max([acknowledged, *counts])
            seen += [line for line in lines if line.startswith("asked")]
            if done:
                break
            kills += 1
            time.sleep(0.01)
    except RuntimeError as error:
        return Finding("traceback", f"after {kills} kills: {error}")
    if list(dict.fromkeys(seen)) != questions:
        return Finding("different", f"other questions after {kills} kills")
    return Finding("intact", f"{kills} kills of a learner")

"""The package where `fcntl`, `resource`, `os.sysconf`, /proc and /sys are not there, as on Windows."""

import subprocess
import sys
from pathlib import Path

ELSEWHERE = """
import os, sys, warnings
import psutil  # has ways of its own on every system, and takes those of Linux here
import joblib  # scikit-learn's, likewise

sys.modules["fcntl"] = sys.modules["resource"] = None
del os.sysconf

def refuse(event, given):
    if event in ("open", "os.listdir", "os.scandir") and str(given[0]).startswith(("/proc", "/sys")):
        frame, callers = sys._getframe(1), []
        while frame is not None:
            callers.append(frame.f_globals.get("__name__", "").partition(".")[0])
            frame = frame.f_back
        if not {"psutil", "joblib"} & set(callers):
            raise FileNotFoundError(given[0])

sys.addaudithook(refuse)
for name in ("fcntl", "resource"):
    try:
        __import__(name)
    except ImportError:
        continue
    raise AssertionError(f"{name} can be imported")
for read in (lambda: open("/proc/self/status"), lambda: os.open("/sys/fs/cgroup/memory.max", os.O_RDONLY)):
    try:
        read()
    except FileNotFoundError:
        continue
    raise AssertionError("/proc and /sys can be read")
warnings.filterwarnings("ignore", "only soft file lock is available")  # filelock, which uses msvcrt on Windows
"""

SELECT = """
import numpy as np
from batchbalance import Predictions, select

log_probs = np.log(np.random.default_rng(0).dirichlet(np.ones(3), size=(50, 8)))
print(len(select(Predictions.from_log_probs(log_probs), 5, threshold=0.1, memory_budget="64MiB").indices))
print(len(select(Predictions.from_log_probs(log_probs), 5, threshold=0.1).indices))
"""

LEARNER = """
from batchbalance.system.journal import Journal
from batchbalance.learner import Learner
from batchbalance.posteriors import Committee
from sklearn.ensemble import RandomForestClassifier
import torch

def forest(inputs, classes, seed):
    model = RandomForestClassifier(5, random_state=seed % 2**32).fit(inputs.numpy(), classes.numpy())
    return Committee.from_sklearn(model, classes=range(2))

x = torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
for _ in range(2):
    learner = Learner(x, 2, forest, directory=folder / "labels")
    rows = learner.ask(4)
    learner.tell(rows, [int(x[row, 0] > 0) for row in rows])
print(len(Learner(x, 2, forest, directory=folder / "labels").labels))
with Journal(folder / "labels" / "journal.jsonl") as journal:
    try:
        Journal(journal.path)
    except BlockingIOError:
        print("refused")
"""

TRIAL = """
from batchbalance.lab.records import read_runs
from batchbalance.lab.trial import Goal, run_trial
from batchbalance.system.memory import free_memory
from batchbalance.system.memory import peak_memory
from small_runs import FOREST, run_of

for budget in (15, 20):
    records = run_trial(run_of("power-balance", **FOREST), 0, folder, Goal(budget=budget))
print(len(read_runs([folder])[0].trials[0]), records[-1]["peak_memory"] > 2**20, free_memory() > 2**20)
"""

BENCHMARKS = """
from benchmarks.report import processor
print(bool(processor()))
"""


def test_a_selection_a_learner_a_trial_and_the_benchmarks(tmp_path):
    paths = [str(Path(__file__).parents[1] / "support"), str(Path(__file__).parents[2])]
    begin = f"import sys; from pathlib import Path; folder = Path({str(tmp_path)!r}); sys.path[:0] = {paths!r}\n"
    command = [sys.executable, "-c", begin + ELSEWHERE + SELECT + LEARNER + TRIAL + BENCHMARKS]
    result = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert (result.returncode, result.stderr) == (0, "")
    assert result.stdout.split() == ["5", "5", "8", "refused", "3", "True", "True", "True"]

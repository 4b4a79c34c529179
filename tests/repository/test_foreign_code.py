"""Code that nobody asked for: modules that lie in the working directory, and what files name, are never imported."""

import ast
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from batchbalance.arguments.registry import imported, safe_path
from batchbalance.lab.config import read_comparison
from batchbalance.project import Project
from batchbalance.project.page.chooser import ProcessChooser
from made_projects import answered, make

ROOT = Path(__file__).parents[2]
NAMES = ("torch", "numpy", "sklearn", "scipy", "multiprocessing", "joblib", "json", "ray", "typer", "polars", "cupy")
PLANTED = """
with open({mark!r}, "a") as file:
    file.write(__file__ + chr(10))
raise RuntimeError("this must not run")
"""
COMMAND = """
import sys
from batchbalance.cli import main
if __name__ == "__main__":
    main()
"""
BOOTSTRAP = """
import numpy as np
from sklearn.naive_bayes import GaussianNB
from batchbalance.posteriors import Committee
if __name__ == "__main__":
    x = np.random.default_rng(0).normal(size=(30, 2))
    Committee.bootstrap(GaussianNB(), x, (x[:, 0] > 0).astype(int), size=4, jobs=2)
"""
TRIAL = """
batch_size = 4
budget = 14
trials = 2
strategies = ["random"]

[data]
name = "digits"

[split]
initial_per_class = 1
validation = 10
reference = 20
pool = 40
test = 20

[posterior]
kind = "committee"
size = 4
max_depth = 3
"""


@pytest.fixture
def planted(tmp_path, monkeypatch):
    """The working directory, with modules of names that our processes look for; what ran is in `mark`."""
    folder = tmp_path / "planted"
    folder.mkdir()
    for name in NAMES:
        (folder / f"{name}.py").write_text(PLANTED.format(mark=str(tmp_path / "mark")))
    monkeypatch.chdir(folder)
    return folder


def assert_nothing_ran(planted):
    mark = planted.parent / "mark"
    assert not mark.exists(), mark.read_text()


def run_script(folder, code, *arguments):
    """Run a script that lies elsewhere, as the command `batchbalance` does, in the working directory."""
    (folder.parent / "elsewhere").mkdir()
    script = folder.parent / "elsewhere" / "script.py"
    script.write_text(code)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    environment.pop("PYTHONSAFEPATH", None)
    return subprocess.run([sys.executable, script, *arguments], capture_output=True, text=True, env=environment)


@pytest.mark.slow
def test_the_process_that_chooses(planted, tmp_path):
    project = make(tmp_path)
    answered(project, 12)
    chooser = ProcessChooser(project.folder)
    try:
        for _ in range(600):
            if chooser.latest({"do": "status"}, 1)[0] is not None:
                break
            time.sleep(0.1)
        assert chooser.latest({"do": "status"}, 1)[0] is not None
    finally:
        chooser.close()
    assert_nothing_ran(planted)


@pytest.mark.slow
def test_processes_of_trials(planted):
    (planted / "run.toml").write_text(TRIAL)
    done = run_script(planted, COMMAND, "run", "run.toml", "--runs-dir", "runs", "--jobs", "2")
    assert_nothing_ran(planted)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_processes_of_a_committee(planted):
    done = run_script(planted, BOOTSTRAP)
    assert_nothing_ran(planted)
    assert (done.returncode, done.stderr) == (0, "")


def test_a_start_is_safe_and_leaves_the_environment_as_it_was(monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(["", "/a", ""]))
    monkeypatch.delenv("PYTHONSAFEPATH", raising=False)
    before = dict(os.environ)
    with safe_path():
        assert (os.environ["PYTHONSAFEPATH"], os.environ["PYTHONPATH"]) == ("1", "/a")
    assert dict(os.environ) == before
    monkeypatch.delenv("PYTHONPATH")
    with safe_path():
        assert "PYTHONPATH" not in os.environ
    assert "PYTHONSAFEPATH" not in os.environ


@pytest.mark.parametrize("path", [*ROOT.glob("src/**/*.py"), *ROOT.glob("[bdt][eo][nrc]*/*.py")], ids=lambda p: p.stem)
def test_python_is_started_with_a_safe_path(path):
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.List) and node.elts and ast.unparse(node.elts[0]) == "sys.executable":
            assert ast.unparse(node.elts[1]) == "'-P'", f"line {node.lineno}"


def test_a_path_is_searched_for_in_the_working_directory_last_and_only_then(planted):
    (planted / "own_thing.py").write_text("import json, helper_of_own\nTHING = helper_of_own.THING\n")
    (planted / "helper_of_own.py").write_text("THING = 3\n")
    before = list(sys.path)
    try:
        assert imported("thing", "own_thing:THING") == 3
        assert sys.path == before
        with pytest.raises(ValueError, match="must be in a module that can be imported"):
            imported("thing", "own_nothing:THING")
        assert sys.path == before
    finally:
        for name in ("own_thing", "helper_of_own"):
            sys.modules.pop(name, None)
    assert_nothing_ran(planted)


def test_scikit_learn_is_never_searched_for_in_the_working_directory(planted):
    with pytest.raises(ValueError, match=r"No module named 'sklearn\.planted'"):
        imported("estimator", "sklearn.planted:Thing")
    assert_nothing_ran(planted)


@pytest.mark.slow
def test_status_of_a_project_with_an_estimator(planted, tmp_path):
    project = make(tmp_path, model={"estimator": "sklearn.naive_bayes:GaussianNB", "size": 2})
    project.close()
    done = run_script(planted, COMMAND, "status", str(project.folder))
    assert_nothing_ran(planted)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ('encoder = "sklearn.own:f"', "encoder 'sklearn.own:f'"),
        ('strategy = {name = "sklearn.own:S"}', "strategy 'sklearn.own:S'"),
        ('strategy = {name = "auto", first = ["own:S"]}', "strategy 'own:S'"),
        ('model = {kind = "sklearn.own:K"}', "model's kind 'sklearn.own:K'"),
        ('model = {estimator = "own:E"}', "model's estimator 'own:E'"),
        ('encoder = "sentence-transformers:."', "encoder 'sentence-transformers:.'"),
    ],
)
def test_a_project_names_code(planted, tmp_path, line, told):
    folder = make(tmp_path).folder
    lines = (folder / "project.toml").read_text().split("\n\n")
    kept = [each for each in lines if not each.startswith(("[model]", "[strategy]"))]
    (folder / "project.toml").write_text(f"{line}\n" + "\n\n".join(kept))
    with pytest.raises(ValueError, match=f"names the {told}, which would import code"):
        Project.open(folder)


@pytest.mark.parametrize("line", ['cold_start = "own:S"', 'cold_start = {name = "own:S"}'])
def test_a_comparison_names_code_for_the_cold_start(planted, line):
    (planted / "own.py").write_text((planted / "torch.py").read_text())
    (planted / "run.toml").write_text(f"{line}\n{TRIAL}")
    with pytest.raises(ValueError, match="names the strategy 'own:S', which would import code"):
        read_comparison(planted / "run.toml")
    assert_nothing_ran(planted)

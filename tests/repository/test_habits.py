"""What a project states in several places: versions, dependencies, workflows, and what the sdist leaves out."""

import ast
import re
import sys
import tomllib
from fnmatch import fnmatch
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

import batchbalance

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.y*ml"))
YAML = [*WORKFLOWS, *sorted((ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.y*ml")), ROOT / ".pre-commit-config.yaml"]


def read_yaml(path):
    return yaml.safe_load(path.read_text(encoding="utf-8"))


def declared(*, dev):
    """The project's requirements by name, those of its extras included."""
    extras = PROJECT["project"]["optional-dependencies"]
    lines = PROJECT["project"]["dependencies"] + [
        line for name in extras if dev or name != "dev" for line in extras[name]
    ]
    requirements = {canonicalize_name(Requirement(line).name): Requirement(line) for line in lines}
    requirements.pop("batchbalance", None)  # an extra that names other extras
    return requirements


def pins(path):
    """Name and version of every line `name==version`."""
    lines = [line for line in path.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    return {canonicalize_name(name): Version(version) for name, version in (line.split("==") for line in lines)}


def lower_bound(requirement):
    (bound,) = requirement.specifier
    assert bound.operator == ">=", f"{requirement} should have a lower bound and nothing else"
    return Version(bound.version)


def imported(tree):
    """The top names of all absolute imports, also those inside functions."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module.partition(".")[0]


def matrix(job):
    return job.get("strategy", {}).get("matrix", {})


@pytest.mark.parametrize("path", YAML, ids=lambda path: path.name)
def test_yaml_parses(path):
    assert isinstance(read_yaml(path), dict)


def test_every_python_of_the_classifiers_is_tested():
    (job,) = [job for path in WORKFLOWS for job in read_yaml(path)["jobs"].values() if "python" in matrix(job)]
    named = [re.fullmatch(r"Programming Language :: Python :: (3\.\d+)", c) for c in PROJECT["project"]["classifiers"]]
    versions = [match[1] for match in named if match]
    assert set(versions) <= set(matrix(job)["python"])
    assert PROJECT["project"]["requires-python"] == f">={versions[0]}"


def test_the_version_is_the_same_everywhere():
    version = batchbalance.__version__
    assert metadata.version("batchbalance") == version, "the installed metadata is old; run `make install`"
    assert "version" in PROJECT["project"]["dynamic"]
    assert str(read_yaml(ROOT / "CITATION.cff")["version"]) == version
    newest = re.search(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert newest[1] == version


def test_every_import_is_declared():
    distributions = metadata.packages_distributions()
    known = sys.stdlib_module_names | {"batchbalance"}
    requirements = declared(dev=False)
    undeclared = {}
    for path in sorted((ROOT / "src").rglob("*.py")):
        for name in set(imported(ast.parse(path.read_text(encoding="utf-8")))) - known:
            if not {canonicalize_name(found) for found in distributions.get(name, [name])} & requirements.keys():
                undeclared.setdefault(name, []).append(str(path.relative_to(ROOT)))
    assert not undeclared


def test_every_requirement_is_pinned_for_development():
    pinned = pins(ROOT / "constraints.txt")
    for name, requirement in declared(dev=True).items():
        assert name in pinned, f"{name} is not in constraints.txt"
        assert pinned[name] in requirement.specifier


def test_the_lowest_versions_are_the_lower_bounds():
    bounds = {name: lower_bound(requirement) for name, requirement in declared(dev=True).items()}
    assert pins(ROOT / ".github" / "lowest.txt") == bounds


def test_the_sdist_leaves_records_of_runs_out():
    patterns = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["exclude"]
    records = [
        "/results/any.tar.xz",
        *(f"/{path.relative_to(ROOT).as_posix()}" for path in ROOT.glob("results/**/*.tar.xz")),
    ]
    assert [path for path in records if not any(fnmatch(path, pattern) for pattern in patterns)] == []


def test_csv_files_are_written_in_one_place():
    """Another writer would not escape formulas."""
    sources = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")}
    assert [name for name, text in sources.items() if re.search(r"csv\.\w*[wW]riter", text)] == ["spreadsheets.py"]


def test_source_files_stay_under_450_lines():
    lengths = {path.name: len(path.read_text(encoding="utf-8").splitlines()) for path in (ROOT / "src").rglob("*.py")}
    assert {name: length for name, length in lengths.items() if length >= 450} == {}

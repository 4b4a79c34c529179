"""The site: built without a warning, nothing in it leads nowhere, and what is generated is not stale."""

import os
import shutil
import subprocess
import sys
from importlib import metadata

import pytest
from test_habits import pins

from docsite import ROOT
from docsite.__main__ import REFERENCE
from docsite.built import in_repository, mistakes
from docsite.commands import row
from docsite.names import undocumented
from docsite.settings import declared, documented, words


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The site, built in a copy, and what was said while it was built."""
    folder = tmp_path_factory.mktemp("repository")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    for name in ("docs", "docsite", "src"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    done = subprocess.run(
        [sys.executable, "-m", "zensical", "build", "--strict", "--clean"],
        cwd=folder,
        env={**os.environ, "NO_COLOR": "1"},
        capture_output=True,
        encoding="utf-8",
    )
    return folder / "site", done


@pytest.mark.slow
def test_it_is_built_without_a_warning(site):
    _, done = site
    assert done.returncode == 0, done.stdout + done.stderr
    assert "No issues found" in done.stderr
    assert "warn" not in (done.stdout + done.stderr).lower()


@pytest.mark.slow
def test_everything_leads_somewhere(site):
    folder, _ = site
    assert len(list(folder.rglob("index.html"))) >= len(list((ROOT / "docs").rglob("*.md")))
    assert mistakes(folder) == []


@pytest.mark.slow
def test_every_public_name_is_on_the_page_of_the_api(site):
    folder, _ = site
    text = (folder / "reference" / "api" / "index.html").read_text(encoding="utf-8")
    assert undocumented() == set()
    for anchor in ("batchbalance.select", "batchbalance.Project.ask", "batchbalance.posteriors.Committee.bootstrap"):
        assert f'id="{anchor}"' in text


def test_what_leads_nowhere_is_found(tmp_path):
    links = '<a href="../b/">b</a><a href="#here">h</a><a href="gone/">g</a><a href="../b/#no">n</a>'
    there = '<a href="https://github.com/batchbalance/batchbalance/blob/main/no.md">n</a><h1 id="here">A</h1>'
    fetched = '<img src="no.png"><img src="../b/yes.png"><script src="https://example.com/x.js"></script>'
    for name, text in {"a": links + there + fetched, "b": '<h1 id="b">B</h1>'}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "index.html").write_text(text)
    (tmp_path / "b" / "yes.png").write_bytes(b"")
    assert mistakes(tmp_path) == [
        "a/index.html: no.png is not there",
        "a/index.html: https://example.com/x.js is fetched from another host",
        "a/index.html: gone/ leads nowhere",
        "a/index.html: ../b/#no names no part of that page",
        "a/index.html: https://github.com/batchbalance/batchbalance/blob/main/no.md is not in the repository",
    ]


def test_files_of_the_repository_are_told_by_their_addresses():
    repository = "https://github.com/batchbalance/batchbalance"
    assert in_repository(f"{repository}/blob/main/results/README.md#records")
    assert in_repository(f"{repository}/issues")
    assert not in_repository(f"{repository}/blob/main/results/REDME.md")
    assert not in_repository(f"{repository}/blob/master/results/README.md")


@pytest.mark.skipif(
    any(metadata.version(name) != str(pins(ROOT / "constraints.txt")[name]) for name in ("typer", "pydantic")),
    reason="other versions of typer and pydantic tell types in other words",
)
@pytest.mark.parametrize("name", REFERENCE)
def test_the_reference_is_what_the_code_says(name):
    text = (ROOT / "docs" / "reference" / f"{name}.md").read_text(encoding="utf-8")
    assert text == REFERENCE[name](), "run `python -m docsite reference`"


def test_options_are_rows():
    assert row("-b, --batch-size <int>", "How many.  [required]") == (
        "`-b, --batch-size NUMBER`",
        "How many. **Required.**",
    )
    assert row("--port <int range>", "The port.  [default: 8420; 0<=x<=65535]") == (
        "`--port NUMBER`", "The port. Default `8420`. Must be from 0 to 65535.",
    )  # fmt: skip
    assert row("--ids <list[Path]>", "Names [one a line].") == ("`--ids PATH`", r"Names \[one a line\]. Repeatable.")
    assert row("name <str>", "Which.  [required]") == ("`NAME`", "Which.")


def test_keys_have_types_and_meanings():
    from batchbalance.lab.config import Comparison
    from batchbalance.posteriors.training import Recipe

    kinds = {name: words(kind) for name, kind, _ in declared(Comparison)}
    assert kinds["trials"] == "whole number, at least 1, at most 10000"
    assert kinds["target_error"] == "number, at least 0, below 1"
    assert documented(Comparison).keys() >= kinds.keys()
    assert {name: words(kind) for name, kind, _ in declared(Recipe)}["steps"] == "whole number"
    assert words(tuple[int, ...] | None) == "list of whole numbers"

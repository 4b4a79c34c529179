"""Every block of the docs runs, or says why not; and the docs stay readable as plain text."""

import re

import pytest

from docs_blocks import ROOT, Block, blocks, commands, run
from docs_stand_ins import STAND_INS

DOCS = ROOT / "docs"
PAGES = [page for page in sorted(DOCS.rglob("*.md")) if blocks(page)]
# Run elsewhere: those of models.md one by one in test_docs_models.py, and the notebooks in test_notebooks.py.
ALONE = [DOCS / "models.md", *(DOCS / "notebooks").glob("*.md")]
WITH_RAY = [DOCS / "scale.md"]
RAY = [pytest.mark.ray, pytest.mark.filterwarnings("default")]


def name(page):
    return page.relative_to(DOCS).as_posix()


def made(text, language="python", file=None):
    return Block(DOCS / "made.md", 1, language, text, file)


def run_here():
    """The pages to run, those that start a Ray cluster marked so."""
    return [
        pytest.param(page, marks=RAY if page in WITH_RAY else [], id=name(page)) for page in PAGES if page not in ALONE
    ]


@pytest.mark.slow
@pytest.mark.parametrize("page", run_here())
def test_the_blocks_of_a_page_run(page, tmp_path, monkeypatch, parent, request):
    if page in WITH_RAY:
        request.getfixturevalue("ray_cluster")  # blocks of Python find this process connected to it
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names = {"__name__": "docs"}
    if name(page) in STAND_INS:
        names |= STAND_INS[name(page)](tmp_path) or {}
    for block in blocks(page):
        run(block, names, tmp_path, parent.command)


def test_stand_ins_are_for_pages():
    assert STAND_INS.keys() <= {name(page) for page in PAGES}


def test_a_block_that_fails_or_prints_something_else_is_found(tmp_path):
    run(made("print(1 + 1)  # → 2\n"), {}, tmp_path)
    with pytest.raises(AssertionError, match="does not print '3'"):
        run(made("print(1 + 1)  # → 3\n"), {}, tmp_path)
    with pytest.raises(ZeroDivisionError):
        run(made("1 / 0\n"), {}, tmp_path)
    with pytest.raises(AssertionError, match="false"):
        run(made("false\n", "console"), {}, tmp_path)
    with pytest.raises(AssertionError, match="unknown language"):
        run(made("x\n", ""), {}, tmp_path)
    with pytest.raises(AssertionError, match="say why"):
        run(made("# not run in the tests: slow\n1 / 0\n"), {}, tmp_path)


def test_commands_behind_a_prompt_are_told_from_what_they_print():
    assert commands("$ a \\\n  b\nprinted\n$ c\n") == ["a \\", "  b", "c"]
    assert commands("a\nb\n") == ["a", "b"]


def test_a_block_becomes_the_file_that_its_paragraph_names(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("# Title\n\n`own.toml`: what\nit is.\n\n```toml\na = 1\n```\n\nMore.\n\n```python\nx\n```\n")
    assert [(block.file, block.language, block.line) for block in blocks(page)] == [
        ("own.toml", "toml", 6),
        (None, "python", 12),
    ]


@pytest.mark.parametrize("page", [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))], ids=lambda page: page.stem)
def test_code_is_fenced(page):
    text = re.sub(r"^ *```.*?^ *```$", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    indented = [part for part in re.split(r"\n[ \t]*\n", text) if re.match(r"    [^\s*-]", part)]
    assert indented == [], "indented code is not run; fence it"

"""README and docs: short where it must be, links lead somewhere, blocks of Python run."""

import re

import pytest
import yaml

from docs_blocks import ROOT, blocks, run
from docs_stand_ins import for_readme
from docsite import DOCS, REPOSITORY
from docsite.built import in_repository

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md", *sorted(DOCS.rglob("*.md"))]
PAGES += sorted((ROOT / "results").rglob("*.md"))
README = PAGES[0].read_text(encoding="utf-8")


OUTSIDE = f"link to {REPOSITORY}/blob/main/…, and put pictures into docs/images"


def without_code(text):
    return re.sub(r"^```.*?^```|`[^`\n]*`", "", text, flags=re.S | re.M)


def anchors(page):
    """What a link may name behind #, as GitHub spells it."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.S | re.M)
    titles = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        path, _, anchor = target.partition("#")
        if re.match(r"https?:|mailto:", target):
            assert not target.startswith(f"{REPOSITORY}/") or in_repository(target), f"{target} of {page.name}"
            continue
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{target} of {page.name}"
        if page.is_relative_to(DOCS):
            assert linked.is_relative_to(DOCS), f"{target} of {page.name}: the site has no such page; {OUTSIDE}"
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked), f"{target} of {page.name}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_tests_that_a_page_names_exist(page):
    named = re.findall(r"(?<![\w/])tests/[\w/.]*\w", page.read_text(encoding="utf-8"))
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_the_site_has_every_page_once():
    def pages(entries):
        for entry in entries:
            (found,) = entry.values()
            yield from [found] if isinstance(found, str) else pages(found)

    # PyYAML does not know the tags that name functions.
    config = re.sub(r"!!python/\S+", "", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
    listed = list(pages(yaml.safe_load(config)["nav"]))
    assert sorted(listed) == sorted(page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md"))


@pytest.mark.slow
def test_the_blocks_of_the_readme_run(tmp_path, monkeypatch, parent):
    monkeypatch.chdir(tmp_path)
    names = for_readme(tmp_path)
    found = blocks(PAGES[0])
    assert {"python", "console"} <= {block.language for block in found}
    for block in found:
        run(block, names, tmp_path, parent.command)
    assert len(names["selection"].indices) == 10
    assert 0 < names["selection"].certificate <= 1

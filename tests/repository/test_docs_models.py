"""Every block of docs/models.md runs as it is, and is short."""

import re
from pathlib import Path

import pytest

TEXT = (Path(__file__).parents[2] / "docs" / "models.md").read_text(encoding="utf-8")
BLOCKS = {
    heading: block
    for heading, section in re.findall(r"^## (.*?)\n(.*?)(?=^## |\Z)", TEXT, re.MULTILINE | re.DOTALL)
    for block in re.findall(r"```python\n(.*?)```", section, re.DOTALL)
}


def test_every_section_has_one_block():
    assert len(BLOCKS) == TEXT.count("```python\n") == TEXT.count("\n## ")
    assert {"Forest in a pipeline on a DataFrame", "Any estimator by bootstrap", "A function"} <= BLOCKS.keys()
    assert {"Embeddings", "Last layer of a fine-tuned model"} <= BLOCKS.keys()
    assert {"Own nn.Module", "BERT"} <= BLOCKS.keys()


def test_links_within_the_page_lead_somewhere():
    anchors = {
        re.sub(r"[^\w -]", "", heading.lower()).replace(" ", "-")
        for heading in re.findall(r"^## (.*)$", TEXT, re.MULTILINE)
    }
    assert set(re.findall(r"\]\(#([^)]*)\)", TEXT)) <= anchors


@pytest.mark.slow
@pytest.mark.parametrize("heading", BLOCKS)
def test_a_block_runs_as_it_is(heading, tmp_path, monkeypatch, capsys):
    block = BLOCKS[heading]
    assert sum(bool(line.strip()) for line in block.splitlines()) <= 10
    monkeypatch.chdir(tmp_path)
    exec(compile(block, "docs/models.md", "exec"), {"__name__": "docs_models"})
    assert capsys.readouterr().out.strip()

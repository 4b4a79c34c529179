"""README and docs: short where it must be, links lead somewhere, blocks of Python run."""

import re
from pathlib import Path

import numpy as np
import pytest
from sklearn.linear_model import LogisticRegression
from torch import nn

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]
README = PAGES[0].read_text(encoding="utf-8")


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
        if re.match(r"https?:", target):
            continue
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{target} of {page.name}"
        if anchor and linked.suffix == ".md":
            assert anchor in anchors(linked), f"{target} of {page.name}"


def test_the_readme_is_short():
    assert len(README.split()) < 900


def test_the_blocks_of_the_readme_run(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    np.save("probs.npy", rng.dirichlet(np.ones(3), size=(50, 10)))
    X, pool = rng.normal(size=(2, 40, 4)).astype(np.float32)
    names = {
        "pipeline": LogisticRegression(),
        "X": X,
        "y": np.arange(40) % 3,
        "pool": pool,
        "network": nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.5), nn.Linear(8, 3)),
    }
    blocks = re.findall(r"^```python\n(.*?)^```", README, re.S | re.M)
    assert len(blocks) == 2
    for block in blocks:
        exec(compile(block, "README.md", "exec"), names)
    assert len(names["selection"].indices) == 10
    assert 0 < names["selection"].certificate <= 1

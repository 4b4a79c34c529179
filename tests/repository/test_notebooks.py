"""The notebooks run, show pictures, tell nothing of the machine they were run on, and are what their pages show."""

import json
import re

import pytest

from docsite.notebooks import FOLDER, NOTEBOOKS, code_cells, page_of

pytestmark = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


@pytest.mark.slow
def test_it_runs(path, tmp_path, monkeypatch):
    import matplotlib.pyplot as plt

    shown = []
    monkeypatch.setattr(plt, "show", lambda: shown.append(len(plt.get_fignums())) or plt.close("all"))
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "notebook"}
    for number, cell in enumerate(code_cells(path)):
        exec(compile(cell, f"{path.name}, cell {number}", "exec"), names)
    assert all(shown)


def test_it_was_run_from_top_to_bottom(path):
    cells = [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == "code"]
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1)), "run `make docs`"
    outputs = [output for cell in cells for output in cell["outputs"]]
    assert not [output for output in outputs if output["output_type"] == "error" or output.get("name") == "stderr"]
    kinds = {kind for output in outputs for kind in output.get("data", {})}
    text = "".join(str(output) for output in outputs)
    assert "image/png" in kinds or ("<svg" in text and "<img" in text), "it should show pictures"


def test_it_tells_nothing_of_the_machine(path):
    text = path.read_text(encoding="utf-8")
    assert not re.findall(r"/(?:home|root|tmp|work|Users|private)/|[A-Z]:\\\\|\.venv|site-packages", text)


def test_its_page_shows_it(path):
    text, pictures = page_of(path)
    assert path.with_suffix(".md").read_text(encoding="utf-8") == text, "run `make docs`"
    assert {name: (FOLDER / name).read_bytes() for name in pictures} == pictures
    beside = {each.name for each in FOLDER.glob(f"{path.stem}-*")}
    assert beside == pictures.keys()

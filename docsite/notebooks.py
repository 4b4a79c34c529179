"""The notebooks: run from the first cell to the last, kept with their outputs, and turned into pages."""

import base64
import json
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from docsite import DOCS

FOLDER = DOCS / "notebooks"
NOTEBOOKS = sorted(FOLDER.glob("*.ipynb"))
PICTURES = {"image/png": "png", "image/jpeg": "jpg"}
SECONDS = 600  # the longest that a cell may take


def code_cells(path: Path) -> list[str]:
    """The code of a notebook, cell by cell."""
    return ["".join(cell["source"]) for cell in _read(path)["cells"] if cell["cell_type"] == "code"]


def executed(path: Path) -> str:
    """A notebook after a run in an empty folder, as JSON that does not tell when and where it was run."""
    import nbformat
    from jupyter_client.manager import AsyncKernelManager
    from jupyter_core.utils import run_sync
    from nbclient import NotebookClient

    notebook = nbformat.read(path, as_version=4)
    with tempfile.TemporaryDirectory() as folder:
        kernel = AsyncKernelManager(transport="ipc", ip=f"{folder}/kernel")  # by files: no port is opened
        try:
            NotebookClient(notebook, kernel, timeout=SECONDS, resources={"metadata": {"path": folder}}).execute()
        finally:
            run_sync(kernel.shutdown_kernel)(now=True)
    content = json.loads(nbformat.writes(notebook))
    content["metadata"] = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    for cell in content["cells"]:
        cell["metadata"] = {}
        for output in cell.get("outputs", []):
            output.get("data", {}).pop("application/vnd.jupyter.widget-view+json", None)
    return json.dumps(content, indent=1, ensure_ascii=False) + "\n"


def write_page(path: Path) -> None:
    """Write the page of a notebook, and its pictures beside it."""
    text, pictures = page_of(path)
    for old in FOLDER.glob(f"{path.stem}-*"):
        old.unlink()
    for name, content in pictures.items():
        (FOLDER / name).write_bytes(content)
    path.with_suffix(".md").write_text(text, encoding="utf-8")


def page_of(path: Path) -> tuple[str, dict[str, bytes]]:
    """A notebook with its outputs as Markdown, and its pictures by the names of their files."""
    note = f"<!-- Written by `python -m docsite notebooks` from {path.name}; edit that. -->"
    pictures: dict[str, bytes] = {}
    parts, heading = [note], ""
    for cell in _read(path)["cells"]:
        source = "".join(cell["source"]).strip()
        if cell["cell_type"] == "markdown":
            parts.append(source)
            heading = next(iter(re.findall(r"^#+ (.*)", source, re.MULTILINE)), heading)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            parts += _shown(output, path.stem, heading, pictures)
    parts.insert(2, f"[Download this notebook]({path.name}) to run it in Jupyter.")
    return "\n\n".join(parts) + "\n", pictures


def _shown(output: dict[str, Any], stem: str, heading: str, pictures: dict[str, bytes]) -> Iterator[str]:
    data = {kind: "".join(value) for kind, value in output.get("data", {}).items()}
    for kind, ending in PICTURES.items():
        if kind in data:
            name = f"{stem}-{len(pictures) + 1}.{ending}"
            pictures[name] = base64.b64decode(data[kind])
            yield f"![{heading}]({name})"
            return
    if "text/html" in data:
        html = re.sub(r"<style.*?</style>|\n\s*", "", data["text/html"], flags=re.DOTALL)
        yield f'<div class="output">{html}</div>'
        return
    text = "".join(output.get("text", data.get("text/plain", ""))).rstrip()
    if text:
        yield f"```text\n{text}\n```"


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))

"""Pictures of the labelling page, made from the page itself: ``python -m docsite film --data-dir DIR``.

DIR has the folder ``cifar-10-batches-bin``. A project of its images is labelled with the published labels, by keys in
a real browser; what the browser shows becomes `docs/images/page.gif` and the pictures beside it.
"""

import argparse
import io
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from batchbalance.project import Project
from docsite import DOCS

CLASSES = ("airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck")
CHOSEN = (1, 3, 6, 8)  # classes that appear
NUM_IMAGES, SIDE = 500, 128
FILM = (720, 480)
MOST_BYTES = 2_000_000
PATIENCE = 600_000  # milliseconds
ALONE = ["--no-sandbox", "--disable-background-networking", "--disable-component-update", "--no-first-run"]


def truth(name: str) -> str:
    """Return the published label of a file, which its folder says; the page shows the file's name only."""
    return name.split("/")[0]


def make_project(data: Path, folder: Path) -> Project:
    """Create a project of images and label the first batch."""
    content = np.fromfile(data / "cifar-10-batches-bin" / "data_batch_1.bin", dtype=np.uint8).reshape(-1, 3073)
    kept = content[np.isin(content[:, 0], CHOSEN)][:NUM_IMAGES]
    for number, row in enumerate(kept):
        path = folder / "photos" / CLASSES[row[0]] / f"photo-{number:04}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        image = Image.fromarray(row[1:].reshape(3, 32, 32).transpose(1, 2, 0))
        image.resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(path, quality=92)
    names = [CLASSES[each] for each in CHOSEN]
    project = Project.create(
        folder / "photos-of-things", images=folder / "photos", classes=names, batch_size=20, audit=0.25, image_size=96
    )
    answer(project, 1)
    project.flag(next(iter(project.labels)), "two things in one image")
    project.ask(20)
    return project


def answer(project: Project, num_batches: int) -> None:
    """Answer open questions and further batches with the published labels, but for one of each."""
    for _ in range(num_batches):
        told = {name: truth(name) for name in project.ask(20).ids}
        wrong = next((name for name, is_audit in zip(told, project.is_audit(told), strict=True) if not is_audit), None)
        if wrong is not None and len(project.labels) > 60:  # a mistake, for Review
            told[wrong] = next(name for name in project.classes if name != told[wrong])
        project.tell(told)


@contextmanager
def served(folder: Path) -> Iterator[str]:
    """Serve a project as the command does; give the address."""
    command = [sys.executable, "-P", "-m", "batchbalance.cli", "label", str(folder), "--no-open", "--port", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
        assert server.stdout is not None
        try:
            yield next(line for line in server.stdout if line.startswith("http")).strip()
        finally:
            server.terminate()


class Camera:
    """Takes pictures of a page for a film and for files.

    Args:
        page: of a browser.
    """

    def __init__(self, page: Any) -> None:
        self._page = page
        self.frames: list[tuple[Image.Image, int]] = []

    def take(self, milliseconds: int) -> None:
        """Add what is seen to the film, for so long."""
        shot = Image.open(io.BytesIO(self._page.screenshot())).convert("RGB")
        self.frames.append((shot.resize(FILM, Image.Resampling.LANCZOS), milliseconds))

    def keep(self, name: str) -> None:
        """Write what is seen to a file of the docs."""
        shot = Image.open(io.BytesIO(self._page.screenshot())).convert("RGB")
        shot.quantize(256).save(DOCS / "images" / f"{name}.png", optimize=True)

    def write(self, path: Path) -> int:
        """Write the film; return its size in bytes."""
        every = Image.new("RGB", (FILM[0], FILM[1] * len(self.frames)))
        for place, (frame, _) in enumerate(self.frames):
            every.paste(frame, (0, place * FILM[1]))
        colours = every.quantize(160)
        first, *rest = (frame.quantize(palette=colours, dither=Image.Dither.NONE) for frame, _ in self.frames)
        times = [each for _, each in self.frames]
        first.save(path, save_all=True, append_images=rest, duration=times, loop=0, optimize=True)
        return path.stat().st_size


def label(page: Any, camera: Camera, count: int, milliseconds: int) -> None:
    """Label some items by keys, and film each."""
    keys = {CLASSES[each]: str(place + 1) for place, each in enumerate(CHOSEN)}
    for _ in range(count):
        name = page.wait_for_selector("#stage[data-item]", timeout=PATIENCE).get_attribute("data-item")
        page.wait_for_timeout(150)
        camera.take(milliseconds)
        page.keyboard.press(keys[truth(name)])
        page.wait_for_function("id => document.querySelector('#stage').dataset.item !== id", arg=name, timeout=PATIENCE)


def film(page: Any, camera: Camera, project: Project) -> None:
    """Show labelling, and the map as it fills up; then, with more labels, the other views."""

    def open_view(name: str, sight: str) -> None:
        page.click(f"[data-view={name}]")
        page.wait_for_selector(sight, timeout=PATIENCE)
        page.wait_for_timeout(800)

    label(page, camera, 3, 900)
    page.keyboard.press("w")
    page.wait_for_selector(".why-parts section", timeout=PATIENCE)
    page.wait_for_timeout(500)
    camera.take(2500)
    camera.keep("page-label")
    page.keyboard.press("w")
    open_view("map", ".map-item")
    camera.take(1200)
    page.wait_for_function("() => !document.querySelector('.map-message').textContent", timeout=PATIENCE)
    page.wait_for_timeout(1500)
    camera.take(1200)
    for turn in range(5):
        open_view("label", "#stage[data-item]")
        label(page, camera, 3, 250)
        answer(project, turn)  # meanwhile others label too
        open_view("map", ".map-item")
        page.wait_for_timeout(4000)
        camera.take(900)
    camera.keep("page-map")
    page.select_option(".map-tools select >> nth=0", "prediction")
    page.wait_for_timeout(6000)
    camera.take(2500)
    open_view("grid", ".tile")
    camera.keep("page-grid")
    open_view("review", ".review-detail")
    page.wait_for_function("() => !document.body.textContent.includes('being computed')", timeout=PATIENCE)
    camera.keep("page-review")
    open_view("progress", ".rules")
    page.wait_for_function("() => !document.querySelector('.computing')", timeout=PATIENCE)
    camera.take(3000)
    camera.keep("page-progress")


def main(words: list[str]) -> None:
    """Make all pictures."""
    from playwright.sync_api import sync_playwright

    parser = argparse.ArgumentParser(prog="python -m docsite film", description=__doc__)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--browser", default="/usr/bin/chromium")
    options = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as name, sync_playwright() as playwright:
        project = make_project(options.data_dir, Path(name))
        with served(project.folder) as link:
            browser = playwright.chromium.launch(executable_path=options.browser, args=ALONE)
            page = browser.new_page(viewport={"width": 1200, "height": 800})
            page.goto(link)
            camera = Camera(page)
            film(page, camera, project)
            browser.close()
    size = camera.write(DOCS / "images" / "page.gif")
    if size > MOST_BYTES:
        raise SystemExit(f"page.gif must have at most {MOST_BYTES:,} bytes, got {size:,}; film fewer frames")
    sys.stdout.write(f"page.gif: {len(camera.frames)} frames, {size:,} bytes\n")

"""From a key press to the next item painted: ``python -m benchmarks.page`` labels images of 2 MB in a real browser.

With ``--items 1000000`` it labels a project of so many embeddings instead, opens its map, and tells how long a frame
of the map takes.
"""

import argparse
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import Page, sync_playwright

from batchbalance.project import Project

SIDES = (1000, 700)  # noise in PNG: 3 bytes a pixel, 2.1 MB
WATCH = """
window.waits = [];
let pressed = 0;
addEventListener("keydown", () => (pressed = performance.now()), true);
addEventListener("DOMContentLoaded", () => {
  const painted = () => requestAnimationFrame(() => setTimeout(() => window.waits.push(performance.now() - pressed)));
  new MutationObserver(painted).observe(document.querySelector("#stage"), { attributeFilter: ["data-item"] });
});
"""
WATCH_FRAMES = """() => {
  window.frames_of_map = [];
  const own = CanvasRenderingContext2D.prototype.createImageData;
  const put = CanvasRenderingContext2D.prototype.putImageData;
  let begun = 0;
  CanvasRenderingContext2D.prototype.createImageData = function (...all) {
    begun = performance.now();
    return own.apply(this, all);
  };
  CanvasRenderingContext2D.prototype.putImageData = function (...all) {
    put.apply(this, all);
    window.frames_of_map.push(performance.now() - begun);
  };
}"""


def make_project(folder: Path, num_images: int) -> Path:
    """A project of images of noise."""
    files = folder / "files"
    files.mkdir()
    random = np.random.default_rng(0)
    for i in range(num_images):
        noise = random.integers(256, size=(SIDES[1], SIDES[0], 3), dtype=np.uint8)
        Image.fromarray(noise).save(files / f"{i:03}.png", compress_level=0)
    project = folder / "project"
    Project.create(project, images=files, classes=["a", "b"], image_size=32, batch_size=num_images).ask(num_images)
    return project


def make_large_project(folder: Path, num_items: int, num_asked: int) -> Path:
    """A project of embeddings in ten clusters, of which some items are asked without choosing."""
    random = np.random.default_rng(0)
    centres = random.normal(size=(10, 8)).astype(np.float32)
    vectors = centres[random.integers(10, size=num_items)] + 0.3 * random.normal(size=(num_items, 8)).astype(np.float32)
    np.save(folder / "e.npy", vectors)
    project = folder / "project"
    made = Project.create(project, embeddings=folder / "e.npy", classes=["a", "b"], batch_size=20, audit=0.0)
    made.queue(made.ids(random.choice(num_items, num_asked, replace=False).tolist()))
    return project


def map_times(page: Page) -> tuple[float, float]:
    """Seconds until the map is there, and milliseconds of a frame of it."""
    start = time.monotonic()
    page.click("[data-view=map]")
    page.wait_for_selector(".map-item", timeout=1_200_000)
    there = time.monotonic() - start
    page.evaluate(WATCH_FRAMES)
    for key in "+-" * 5:
        page.keyboard.press(key)
    return there, statistics.median(page.evaluate("window.frames_of_map"))


def waits(link: str, num_labels: int, browser: str, pause: float, *, with_map: bool = False) -> list[float]:
    """Milliseconds from each key press to the next item painted."""
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = started.new_page(viewport={"width": 1200, "height": 800})
        page.add_init_script(WATCH)
        page.goto(link)
        page.wait_for_function("() => window.waits.length === 1")
        for i in range(num_labels):
            page.wait_for_timeout(1000 * pause)
            page.keyboard.press("12"[i % 2])
            page.wait_for_function("count => window.waits.length === count", arg=i + 2)
        found = [float(each) for each in page.evaluate("window.waits")]
        if with_map:
            there, frame = map_times(page)
            sys.stdout.write(f"the map is there after {there:.1f} s; a frame takes {frame:.0f} ms (median of 10)\n")
        started.close()
    return found[1:]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labels", type=int, default=40)
    parser.add_argument("--pause", type=float, default=0.7, help="seconds that a person looks at an item")
    parser.add_argument("--items", type=int, default=0, help="embeddings instead of images, and the map")
    parser.add_argument("--browser", default="/usr/bin/chromium")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        if options.items:
            project, told = (
                make_large_project(Path(name), options.items, options.labels + 30),
                f"{options.items:,} items",
            )
        else:
            project = make_project(Path(name), options.labels + 10)
            told = f"images of {(Path(name) / 'files' / '000.png').stat().st_size / 1e6:.1f} MB"
        command = [sys.executable, "-P", "-m", "batchbalance.cli", "label", str(project), "--no-open", "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            link = server.stdout.readline().strip()
            found = waits(link, options.labels, options.browser, options.pause, with_map=bool(options.items))
            server.terminate()
    cuts = statistics.quantiles(found, n=20)
    spread = f"median {statistics.median(found):.0f} ms, 90 % between {cuts[0]:.0f} and {cuts[-1]:.0f} ms"
    sys.stdout.write(f"{len(found)} labels, {told}: {spread}\n")


if __name__ == "__main__":
    main()

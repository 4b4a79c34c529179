"""From a key press to the next item painted: ``python -m benchmarks.page`` labels images of 2 MB in a real browser."""

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
from PIL import Image
from playwright.sync_api import sync_playwright

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


def waits(link: str, num_labels: int, browser: str, pause: float) -> list[float]:
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
        started.close()
    return found[1:]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--labels", type=int, default=40)
    parser.add_argument("--pause", type=float, default=0.7, help="seconds that a person looks at an item")
    parser.add_argument("--browser", default="/usr/bin/chromium")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        project = make_project(Path(name), options.labels + 10)
        size = (Path(name) / "files" / "000.png").stat().st_size
        command = [sys.executable, "-P", "-m", "batchbalance.cli", "label", str(project), "--no-open", "--port", "0"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as server:
            assert server.stdout is not None
            found = waits(server.stdout.readline().strip(), options.labels, options.browser, options.pause)
            server.terminate()
    cuts = statistics.quantiles(found, n=20)
    spread = f"median {statistics.median(found):.0f} ms, 90 % between {cuts[0]:.0f} and {cuts[-1]:.0f} ms"
    sys.stdout.write(f"{len(found)} images of {size / 1e6:.1f} MB: {spread}\n")


if __name__ == "__main__":
    main()

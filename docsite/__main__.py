"""`python -m docsite`: write the generated pages, run the notebooks, build the site, check it.

With a word, only that: `reference`, `notebooks`, `build`, or `serve`, which shows the site at 127.0.0.1:8000 and builds
it anew when a page changes. `film --data-dir DIR` makes the pictures of the labelling page; see `docsite/film.py`.
"""

import os
import subprocess
import sys
from collections.abc import Callable

from docsite import DOCS, ROOT, SITE
from docsite.built import mistakes
from docsite.commands import commands_page
from docsite.names import names_page
from docsite.notebooks import NOTEBOOKS, executed, write_page
from docsite.settings import settings_page

REFERENCE: dict[str, Callable[[], str]] = {"cli": commands_page, "config": settings_page, "api": names_page}


def write_reference() -> None:
    """Write the pages that are made from the code."""
    for name, page in REFERENCE.items():
        (DOCS / "reference" / f"{name}.md").write_text(page(), encoding="utf-8")


def run_notebooks() -> None:
    """Run every notebook in place, and write its page."""
    for path in NOTEBOOKS:
        path.write_text(executed(path), encoding="utf-8")
        write_page(path)


def build() -> None:
    """Build the site, strictly, and look through what was built."""
    zensical("build", "--strict", "--clean")
    wrong = mistakes(SITE)
    if wrong:
        raise SystemExit("\n".join([*wrong, f"{len(wrong)} mistakes in the built site"]))


def serve() -> None:
    """Show the site until Ctrl-C."""
    zensical("serve")


def zensical(*words: str) -> None:
    """Run Zensical in the root of the repository; if it fails, so does this."""
    command = [sys.executable, "-P", "-m", "zensical", *words]
    done = subprocess.run(command, cwd=ROOT, env={**os.environ, "NO_COLOR": "1"})
    if done.returncode:
        raise SystemExit(done.returncode)


STEPS: dict[str, Callable[[], None]] = {
    "reference": write_reference,
    "notebooks": run_notebooks,
    "build": build,
    "serve": serve,
}

if __name__ == "__main__":
    if sys.argv[1:2] == ["film"]:
        from docsite.film import main

        main(sys.argv[2:])
        raise SystemExit
    chosen = sys.argv[1:] or ["reference", "notebooks", "build"]
    if unknown := [word for word in chosen if word not in STEPS]:
        raise SystemExit(f"a step must be one of {', '.join(STEPS)}, got {unknown[0]!r}")
    for step in chosen:
        STEPS[step]()

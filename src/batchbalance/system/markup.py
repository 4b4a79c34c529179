"""Self-contained HTML pages: inline styles, no scripts, no external resources; light and dark; readable on a phone.

A table that is wider than the page scrolls. A shadow at its right edge shows that there is more. At the end of the
table a strip in the background colour, which scrolls with it, covers the shadow.
"""

from collections.abc import Iterable, Sequence
from functools import cache
from html import escape
from pathlib import Path

from batchbalance.system.ids import mended

STYLE = """
:root { --shade: #0004; }
@media (prefers-color-scheme: dark) { :root { --shade: #fff4; } }
main { margin: 0 auto; padding: 1rem 1.2rem 3rem; max-width: 76rem; }
h1 { font-size: 1.5rem; margin: .5rem 0 .8rem; overflow-wrap: anywhere; }
p { margin: .3rem 0 .7rem; overflow-wrap: anywhere; } p.text, figcaption { color: var(--muted); font-size: .92rem; }
p, ul.notes { max-width: 75ch; } .card > :last-child { margin-bottom: 0; }
ul.notes { background: var(--warn-soft); padding: .7rem 1rem .7rem 2rem; border-radius: var(--round); }
ul.notes li { list-style: disc; }
.scroll { scrollbar-color: var(--muted) transparent;
  background: linear-gradient(var(--bg), var(--bg)) right / 1.2rem 100% local,
    linear-gradient(to left, var(--shade), transparent) right / 1.2rem 100% scroll;
  background-repeat: no-repeat; }
table:not(.text) :is(th, td):not(:first-child) { text-align: end; } td.wide { white-space: normal; }
th:first-child, td:first-child { padding-left: 0; position: sticky; left: 0; background: var(--bg); z-index: 1; }
@media (max-width: 40rem) {
  table:not(.text) :is(th, td):first-child { min-width: 8rem; white-space: normal; overflow-wrap: anywhere; }
}
@media print { .scroll { background: none; } main { padding: 0; max-width: none; } td { white-space: normal; } }
"""


@cache
def look() -> str:
    """Return the styles that these pages share with the labelling page."""
    return Path(__file__).with_name("look.css").read_text(encoding="utf-8")


def page(title: str, parts: Iterable[str], style: str = "") -> str:
    """Return a page made of parts that are already HTML; empty parts are omitted."""
    return mended(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{look()}{STYLE}{style}</style>\n</head>\n<body>\n<main>\n"
        + "\n".join(part for part in parts if part)
        + "\n</main>\n</body>\n</html>\n"
    )


def card(title: str, *parts: str, kind: str = "whole") -> str:
    """Return a section of parts that are already HTML; by default it is as wide as the page."""
    return f'<section class="card {kind}"><h2>{escape(title)}</h2>{"".join(parts)}</section>'


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, is_text: bool = False) -> str:
    """Return a table of escaped cells that scrolls on its own, also by keyboard; with `is_text`, cells wrap."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header if any(header))
    cell = '<td class="wide">' if is_text else "<td>"
    body = "".join("<tr>" + "".join(f"{cell}{escape(each)}</td>" for each in row) + "</tr>" for row in rows)
    kind = ' class="text"' if is_text else ""
    parts = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll" tabindex="0"><table{kind}>{parts}</table></div>'

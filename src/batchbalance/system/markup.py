"""Pages of one file: styles inside, no script, nothing from elsewhere; light and dark, narrow enough for a phone.

A table that is wider than its place scrolls. A shadow at its right edge shows that there is more; at the end of the
table a strip of paper, which scrolls with it, covers the shadow.
"""

from collections.abc import Iterable, Sequence
from html import escape

from batchbalance.system.ids import mended

STYLE = """
:root { color-scheme: light dark; --ink: #1a1a1a; --paper: #fff; --soft: #667; --line: #ddd; --note: #fff6dd;
  --shade: #0004; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e8e8e8; --paper: #16181c; --soft: #9aa; --line: #3a3d42; --note: #33301f;
    --shade: #fff4; }
}
body { margin: 0 auto; padding: 1rem; max-width: 56rem; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, sans-serif; -webkit-text-size-adjust: 100%; }
h1 { font-size: 1.5rem; margin: .5rem 0; } h2 { font-size: 1.15rem; margin: 2rem 0 .3rem; }
p { margin: .3rem 0 .7rem; } p.text, figcaption { color: var(--soft); font-size: .9rem; }
ul.notes { background: var(--note); padding: .7rem 1rem .7rem 2rem; border-radius: .4rem; }
.scroll { overflow-x: auto; scrollbar-width: thin; scrollbar-color: var(--soft) transparent;
  background: linear-gradient(var(--paper), var(--paper)) right / 1.2rem 100% local,
    linear-gradient(to left, var(--shade), transparent) right / 1.2rem 100% scroll;
  background-repeat: no-repeat; }
table { border-collapse: collapse; font-size: .9rem; font-variant-numeric: tabular-nums; }
th, td { padding: .25rem .7rem; text-align: right; white-space: nowrap; border-bottom: 1px solid var(--line); }
td.wide { white-space: normal; text-align: left; } table.text th { text-align: left; }
th:first-child, td:first-child { text-align: left; padding-left: 0; position: sticky; left: 0;
  background: var(--paper); }
@media (max-width: 40rem) {
  table:not(.text) :is(th, td):first-child { min-width: 8rem; white-space: normal; overflow-wrap: anywhere; }
}
"""


def page(title: str, parts: Iterable[str], style: str = "") -> str:
    """Return a whole page from parts that are HTML already; empty ones are omitted."""
    return mended(
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}{style}</style>\n</head>\n<body>\n"
        + "\n".join(part for part in parts if part)
        + "\n</body>\n</html>\n"
    )


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, is_text: bool = False) -> str:
    """Return a table of escaped cells that scrolls by itself, by keys too; cells of texts wrap."""
    head = "".join(f'<th scope="col">{escape(cell)}</th>' for cell in header)
    cell = '<td class="wide">' if is_text else "<td>"
    body = "".join("<tr>" + "".join(f"{cell}{escape(each)}</td>" for each in row) + "</tr>" for row in rows)
    kind = ' class="text"' if is_text else ""
    parts = f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<div class="scroll" tabindex="0"><table{kind}>{parts}</table></div>'

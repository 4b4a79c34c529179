"""HTML of a project: `status.html`, the contact sheet `batch.html`, and output for notebooks.

All user input, including ids, is escaped.
"""

import base64
import io
import math
import re
from collections.abc import Iterable, Sequence, Sized
from html import escape
from pathlib import Path

from batchbalance.errors import FileFormatError, MissingExtraError
from batchbalance.project.audit import FIRST_LOOK
from batchbalance.project.labelling import NONE, SEPARATOR
from batchbalance.project.settings import NAMES, ProjectSettings
from batchbalance.project.status import NUM_SUSPECTS, Status, told_suspects
from batchbalance.project.stopping import ONE_LOOK, Accuracy, Advice
from batchbalance.project.store import ShownItem
from batchbalance.system.markup import card, page, table

THUMBNAIL, QUALITY = 240, 80  # pixels of the longer side; JPEG quality
SHOWN_TEXT = 600  # characters of a text on a contact sheet

STYLE = """
.beside { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); gap: .5rem 2rem; }
.notes { margin: 1rem 0 0; } ol > li { background: var(--panel); }
"""

SHEET = "display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,11rem),1fr));gap:.8rem;padding:0"
CARD = "border:1px solid color-mix(in srgb,currentColor 25%,transparent);border-radius:.4rem;padding:.5rem;min-width:0"
WRAPPED = "overflow-wrap:anywhere;white-space:pre-wrap"


def status_page(status: Status) -> str:
    """Return `status.html`, a self-contained page: one sentence, the curve, then tables."""
    facts, now, classes = status.facts, status.accuracy, status.quality.classes
    title = f"{facts.name}: {facts.counts.labelled:,} labels"
    below = ("class", "likely label error", "cannot be known", "note", "warning", *(x.rule for x in status.advice))
    rows = table(["", ""], [row for row in status.rows() if not row[0].startswith(below)], is_text=True)
    value, band = "not known yet", ""
    if now is not None:
        is_few = now.total < FIRST_LOOK  # the range is more informative
        value = (
            f"{100 * now.interval.low:.0f} to {100 * now.interval.high:.0f} %" if is_few else f"{100 * now.value:.0f} %"
        )
        band = f"Each model on the current {now.source} labels; band: 95 %, {ONE_LOOK} each."
    curve = f'{curve_chart(status.curve)}<p class="text">{band}</p>'
    rules = "".join(
        f"<li>{_chip(each)}<p><strong>{escape(each.rule.capitalize())}.</strong> {_told(each.sentence)}</p></li>"
        for each in status.advice
    )
    warning = () if facts.model_warning is None else (facts.model_warning,)
    warned = "".join(f"<li>{_told(each)}</li>" for each in (*warning, *status.unknown, *facts.notes))
    notes = f'<ul class="notes">{warned}</ul>' if warned else ""
    columns = ["class", "labels", "share of the pool", "precision", "recall", "F1"]
    figures = ((each.name, f"{each.labels:,}", each.share, each.precision, each.recall, each.f1) for each in classes)
    measured = table(columns, [["–" if x is None else str(x) for x in row] for row in figures])
    valid = f'<p class="text">On audit or test labels, with 95 % intervals, {ONE_LOOK} at one figure.</p>'
    kind, sentence = status.verdict.verdict.replace(" ", "-"), _told(status.verdict.sentence)
    parts = [
        f'<h1>{escape(title)}</h1><div class="cards">',
        f'<section class="card overall {kind}"><p class="sentence">{sentence}</p></section>',
        card("Accuracy", f'<div class="beside"><div><p class="figure">{value}</p>{rows}</div><div>{curve}</div></div>'),
        card("Reasons", f'<ul class="rules">{rules}</ul>', notes),
        card("Each class", measured, valid, kind="whole long"),
    ]
    if facts.suspects:
        shown = facts.suspects[:NUM_SUSPECTS]
        captions = (f"{s.label}: {_percent(s.probability)}. Rather {s.suggested}?" for s in shown)
        told = f'<p class="text">{escape(told_suspects(facts)).capitalize()}. Look at them again.</p>'
        parts.append(card("Likely label errors", told, _sheet([s.item for s in shown], captions), kind="whole long"))
    return page(title, [*parts, "</div>"], STYLE)


def status_fragment(status: Status) -> str:
    """Return a status for a notebook: the curve above the table."""
    return f"<div>{curve_chart(status.curve)}{_in_notebook(status.rows())}</div>"


def project_fragment(name: str, settings: ProjectSettings, num_items: int, labels: Sized, open_questions: Sized) -> str:
    """Return a project for a notebook: its name and a summary."""
    rows = [
        ("items", f"{num_items:,} {NAMES[settings.data.kind]} from {settings.data.path}"),
        ("classes", ", ".join(settings.classes)),
        ("labels", f"{len(labels):,}"),
        ("open questions", f"{len(open_questions):,}"),
        ("model", str(settings.model.get("kind", ""))),
        ("strategy", str(settings.strategy.get("name", ""))),
    ]
    return f"<div><strong>{escape(name)}</strong>{_in_notebook(rows)}</div>"


def batch_page(
    project: str,
    items: Sequence[ShownItem],
    classes: Sequence[str],
    answers: str = "batch.csv",
    *,
    is_multi: bool = False,
) -> str:
    """Return `batch.html`: the items to label, with embedded images."""
    title = f"{project}: {len(items):,} items to label"
    told = f"Fill in the column <code>label</code> of <code>{escape(answers)}</code> with one of these classes. "
    if is_multi:
        told += f"Write several as <code>a{SEPARATOR}b</code>, and <code>{NONE}</code> if an item has none of them. "
    told += "Leave it empty for items that you cannot label."
    names = ", ".join(f"<code>{escape(each)}</code>" for each in classes)
    parts = [f"<h1>{escape(title)}</h1>", f"<p>{told}</p>", f'<p class="text">{names}</p>', batch_fragment(items)]
    return page(title, parts, STYLE)


def batch_fragment(items: Sequence[ShownItem]) -> str:
    """Return a batch for a notebook: thumbnails or texts."""
    return _sheet(items, (f"{number}." for number in range(1, len(items) + 1)))


def thumbnail(path: Path) -> str | None:
    """Return an image as a small JPEG data URL; None if it cannot be read, or Pillow is not installed."""
    from batchbalance.encoders.images import read_image

    try:
        image = read_image(path)
    except (FileFormatError, MissingExtraError, OSError):
        return None
    image.thumbnail((THUMBNAIL, THUMBNAIL))
    buffer = io.BytesIO()
    image.save(buffer, "JPEG", quality=QUALITY)
    return "data:image/jpeg;base64," + base64.b64encode(buffer.getvalue()).decode()


def _in_notebook(rows: Sequence[tuple[str, str]]) -> str:
    """Return a table with inline styles, because the styles of a notebook align text to the right."""
    left = 'style="text-align:left;vertical-align:top"'
    told = (f"<tr><th {left}>{escape(name)}</th><td {left}>{escape(text)}</td></tr>" for name, text in rows)
    return f"<table><tbody>{''.join(told)}</tbody></table>"


def _sheet(items: Sequence[ShownItem], told: Iterable[str]) -> str:
    """Return cards side by side, each with a caption."""
    cards = "".join(_card(each, text) for each, text in zip(items, told, strict=True))
    return f'<ol style="{SHEET};list-style:none">{cards}</ol>'


def _card(item: ShownItem, told: str) -> str:
    parts = []
    if item.image is not None:
        small = thumbnail(item.image)
        size = "width:100%;height:10rem;object-fit:contain"
        parts.append(
            f'<img alt="{escape(item.id)}" src="{small}" style="{size}">'
            if small
            else f'<div style="{WRAPPED}">{escape(item.image.name)} cannot be shown</div>'
        )
    if item.text:
        text = item.text if len(item.text) <= SHOWN_TEXT else f"{item.text[:SHOWN_TEXT]}…"
        parts.append(f'<div style="{WRAPPED}">{escape(text)}</div>')
    if item.fields:
        lines = "".join(f"<div><small>{escape(name)}</small> {escape(value)}</div>" for name, value in item.fields)
        parts.append(f'<div style="{WRAPPED}">{lines}</div>')
    named = f'<small style="{WRAPPED};opacity:.7">{escape(item.id)}</small>'
    return f'<li style="{CARD}">{"".join(parts)}<div style="{WRAPPED}">{escape(told)} {named}</div></li>'


def _told(text: str) -> str:
    """Return a sentence as HTML, in which `x` is something to type."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def _chip(advice: Advice) -> str:
    return f'<span class="verdict {advice.verdict.replace(" ", "-")}">{escape(advice.verdict)}</span>'


def _percent(share: float) -> str:
    return "below 1 %" if share < 0.005 else f"{100 * share:.0f} %"


WIDTH, HEIGHT = 400, 230
LEFT, RIGHT, TOP, BOTTOM = 40, 12, 10, 34
INK, ACCENT = "currentColor", "var(--accent, #1b6554)"


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return at most `most` round numbers from `low` to `high`: multiples of 1, 2 or 5 times a power of ten."""
    for exponent in range(math.floor(math.log10(high - low)) - 1, math.ceil(math.log10(high - low)) + 2):
        for digit in (1, 2, 5):
            step = digit * 10.0**exponent
            first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
            if last - first < most:
                return [round(number * step, max(0, 1 - exponent)) for number in range(first, last + 1)]
    return []


def curve_chart(curve: Sequence[Accuracy]) -> str:
    """Return a chart of accuracy by training labels, with its intervals as a band; "" without points."""
    if not curve:
        return ""
    xs, values = [float(each.num_labels) for each in curve], [100 * each.value for each in curve]
    lows, highs = [100 * each.interval.low for each in curve], [100 * each.interval.high for each in curve]
    first, last = min(xs), max(xs) if max(xs) > min(xs) else min(xs) + 1
    least = 10.0 * int(min(lows) // 10)

    def across(x: float) -> str:
        return f"{LEFT + (x - first) / (last - first) * (WIDTH - LEFT - RIGHT):.1f}"

    def up(y: float) -> str:
        return f"{HEIGHT - BOTTOM - (y - least) / (100 - least) * (HEIGHT - TOP - BOTTOM):.1f}"

    def line(ys: Sequence[float]) -> list[str]:
        return [f"{across(x)},{up(y)}" for x, y in zip(xs, ys, strict=True)]

    drawn = []
    for value in ticks(least, 100):
        y = up(value)
        drawn.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y}" y2="{y}" stroke="{INK}" opacity=".15"/>')
        drawn.append(f'<text x="{LEFT - 6}" y="{y}" dy=".32em" text-anchor="end">{value:,g} %</text>')
    below = 'text-anchor="middle"'
    drawn += [f'<text x="{across(x)}" y="{HEIGHT - BOTTOM + 14}" {below}>{x:,g}</text>' for x in ticks(first, last)]
    drawn.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 4}" {below} opacity=".7">training labels</text>')
    drawn.append(f'<polygon points="{" ".join(line(highs) + line(lows)[::-1])}" fill="{ACCENT}" opacity=".2"/>')
    drawn.append(f'<polyline points="{" ".join(line(values))}" fill="none" stroke="{ACCENT}" stroke-width="2"/>')
    dots = zip(xs, values, strict=True)
    drawn += [f'<circle cx="{across(x)}" cy="{up(y)}" r="2.5" fill="{ACCENT}"/>' for x, y in dots]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Accuracy" style="width:100%;max-width:36rem" '
        f'font-size="11" fill="{INK}" font-family="system-ui, sans-serif"><title>Accuracy</title>{"".join(drawn)}</svg>'
    )

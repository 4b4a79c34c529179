"""HTML of a project: `status.html`, the contact sheet `batch.html`, and output for notebooks.

All user input, including ids, is escaped.
"""

import base64
import io
import math
import re
from collections.abc import Iterable, Iterator, Sequence, Sized
from dataclasses import dataclass
from datetime import UTC, datetime
from html import escape
from pathlib import Path

from batchbalance.errors import FileFormatError, MissingExtraError
from batchbalance.project.audit import FIRST_LOOK
from batchbalance.project.settings import NAMES, ProjectSettings
from batchbalance.project.status import NUM_SUSPECTS, Status, told_suspects
from batchbalance.project.stopping import ONE_LOOK, Accuracy
from batchbalance.project.store import ShownItem
from batchbalance.system.markup import page, table

THUMBNAIL, QUALITY = 240, 80  # pixels of the longer side; JPEG quality
SHOWN_TEXT = 600  # characters of a text on a contact sheet

STYLE = """
.overall { border-left: 6px solid var(--accent); margin: 1rem 0; } .overall.stop { border-left-color: var(--warn); }
.overall p { font-size: 1.3rem; line-height: 1.35; font-weight: 600; margin: 0; max-width: none; }
.large { font-size: 1.6rem; font-weight: 600; margin: .6rem 0 0; }
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 24rem), 1fr)); gap: 0 2rem; }
.charts svg { max-width: none !important; }
.bars { display: grid; grid-template-columns: minmax(0, max-content) auto 1fr; gap: .1rem .6rem;
  font-size: .9rem; align-items: center; }
.bars div { overflow-wrap: anywhere; } .bars .count { text-align: right; }
.bars i { display: block; height: .7rem; background: var(--accent); border-radius: .15rem; min-width: 1px; }
dl.advice { display: grid; grid-template-columns: auto 1fr; gap: .5rem 1rem; align-items: baseline; margin: .3rem 0; }
dl.advice dd { margin: 0; max-width: 60rem; }
@media (max-width: 40rem) { dl.advice { grid-template-columns: 1fr; gap: .2rem; } dl.advice dt { margin-top: .5rem; } }
.more td { overflow-wrap: break-word; }
"""

SHEET = "display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,11rem),1fr));gap:.8rem;padding:0"
CARD = "border:1px solid color-mix(in srgb,currentColor 25%,transparent);border-radius:.4rem;padding:.5rem;min-width:0"
WRAPPED = "overflow-wrap:anywhere;white-space:pre-wrap"


def status_page(status: Status) -> str:
    """Return `status.html`, a self-contained page."""
    facts, counts = status.facts, status.facts.counts
    title = f"{facts.name}: {counts.labelled:,} labels"
    above = {
        "accuracy",
        "majority class",
        "macro F1",
        "curve",
        "classes",
        "likely label error",
        "likely label errors",
        "cannot be known",
        "note",
    }
    above |= {each.rule for each in status.advice} | {f"class {each.name}" for each in status.quality.classes}
    warning = () if facts.model_warning is None else (facts.model_warning,)
    warned = "".join(f"<li>{_told(each)}</li>" for each in (*warning, *status.unknown, *facts.notes))
    parts = [f"<h1>{escape(title)}</h1>", _verdict(status), *_headline(status)]
    parts += [f'<div class="charts">{"".join(_charts(status))}</div>', "<h2>Reasons</h2>", _advice(status)]
    parts += [f'<ul class="notes">{warned}</ul>'] if warned else []
    parts += [*_classes(status), *_items(status)]
    above |= dict(status.quality.class_rows()).keys()
    told = [row for row in status.rows() if row[0] not in above and row[0].partition(":")[0] not in above]
    parts += ["<h2>More</h2>", f'<div class="more">{table(["", ""], told, is_text=True)}</div>']
    return page(title, parts, STYLE)


def status_fragment(status: Status) -> str:
    """Return a status for a notebook: the curve above the table."""
    return f"<div>{_accuracy_chart(status.curve)}{_in_notebook(status.rows())}</div>"


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


def batch_page(project: str, items: Sequence[ShownItem], classes: Sequence[str], answers: str = "batch.csv") -> str:
    """Return `batch.html`: the items to label, with embedded images."""
    title = f"{project}: {len(items):,} items to label"
    told = (
        f"Fill in the column <code>label</code> of <code>{escape(answers)}</code> with one of: "
        + ", ".join(f"<code>{escape(each)}</code>" for each in classes)
        + ". Leave it empty for items that you cannot label."
    )
    return page(title, [f"<h1>{escape(title)}</h1>", f"<p>{told}</p>", batch_fragment(items)], STYLE)


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


def _verdict(status: Status) -> str:
    found = status.verdict
    return f'<div class="card overall {found.verdict.replace(" ", "-")}"><p>{_told(found.sentence)}</p></div>'


def _headline(status: Status) -> Iterator[str]:
    found = status.accuracy
    if found is None:
        yield "<p>The accuracy is not yet known.</p>"
        return
    percent = [f"{100 * each:.0f} %" for each in (found.value, found.interval.low, found.interval.high)]
    if found.total >= FIRST_LOOK:  # below that, the range is more informative
        yield f'<p class="large">{percent[0]} accuracy{f" {found.about}" if found.about else ""}</p>'
    yield (
        f'<p class="text">Accuracy between {percent[1]} and {percent[2]} with 95 % confidence, {ONE_LOOK}: '
        f"{found.correct} of {found.total} {found.source} labels are predicted right by the model of "
        f"{found.num_labels:,} labels. If you look often, you see a lucky interval sooner or later; the advice below "
        "allows for that.</p>"
    )
    beside = ". ".join(f"{name[0].upper()}{name[1:]}: {text}" for name, text in status.quality.rows())
    yield f'<p class="text">{escape(beside)}.</p>' if beside else ""


def _charts(status: Status) -> Iterator[str]:
    drawn = _accuracy_chart(status.curve)
    if drawn:
        told = f"Each model on the current {status.curve[-1].source} labels; band: 95 %, {ONE_LOOK} each."
        yield f'<section><h2>Accuracy</h2>{drawn}<p class="text">{told}</p></section>'
    times = status.facts.label_times
    if len(times) > 1:
        scale, unit = (86400, "days") if times[-1] - times[0] >= 2 * 86400 else (3600, "hours")
        if times[-1] - times[0] < 2 * 3600:
            scale, unit = 60, "minutes"
        first = datetime.fromtimestamp(times[0], UTC).strftime("%Y-%m-%d %H:%M UTC")
        name = f"{unit} since {first}"
        drawn = steps_chart("Labels over time", name, [(each - times[0]) / scale for each in times])
        yield f"<section><h2>Labels over time</h2>{drawn}</section>"


def _accuracy_chart(curve: Sequence[Accuracy]) -> str:
    if not curve:
        return ""
    points = [(float(each.num_labels), 100 * each.value) for each in curve]
    band = [(100 * each.interval.low, 100 * each.interval.high) for each in curve]
    least = 10 * int(min(low for low, _ in band) // 10)
    return curve_chart("Accuracy", "training labels", points, band, y=(float(least), 100.0), y_unit=" %")


def _advice(status: Status) -> str:
    told = "".join(
        f'<dt class="verdict {each.verdict.replace(" ", "-")}">{escape(each.rule)}: {escape(each.verdict)}</dt>'
        f"<dd>{_told(each.sentence)}</dd>"
        for each in status.advice
    )
    return f'<dl class="advice">{told}</dl><p class="text">This is advice only: nothing stops automatically.</p>'


def _classes(status: Status) -> Iterator[str]:
    found = status.quality.classes
    most = max((each.labels for each in found), default=0)
    if not most:
        return
    bars = "".join(
        f'<div>{escape(each.name)}</div><div class="count">{each.labels:,}</div>'
        f'<div><i style="width:{100 * each.labels / most:.1f}%"></i></div>'
        for each in found
    )
    yield f'<h2>Labels of each class</h2><div class="bars">{bars}</div>'
    if any(each.share or each.f1 for each in found):
        columns = ["class", "share of the pool", "precision", "recall", "F1"]
        figures = [(each.name, each.share, each.precision, each.recall, each.f1) for each in found]
        rows = [["not known" if x is None else str(x) for x in row] for row in figures]
        yield f'<h2>Each class</h2><div class="more">{table(columns, rows, is_text=True)}</div>'
        yield f'<p class="text">On audit or test labels, with 95 % intervals, {ONE_LOOK} at one figure.</p>'


def _items(status: Status) -> Iterator[str]:
    facts = status.facts
    if facts.suspects:
        yield "<h2>Likely label errors</h2>"
        shown = facts.suspects[:NUM_SUSPECTS]
        yield f'<p class="text">{escape(told_suspects(facts)).capitalize()}. Look at them again.</p>'
        told = (f"{s.label}: {_percent(s.probability)}. Rather {s.suggested}?" for s in shown)
        yield _sheet([s.item for s in shown], told)
    if facts.hardest:
        yield "<h2>Hardest items</h2>"
        yield '<p class="text">Unlabelled items that the model is least sure about.</p>'
        guesses = (" or ".join(f"{name} {_percent(p)}" for name, p in each.guesses) for each in facts.hardest)
        yield _sheet([each.item for each in facts.hardest], guesses)


def _percent(share: float) -> str:
    return "below 1 %" if share < 0.005 else f"{100 * share:.0f} %"


WIDTH, HEIGHT = 400, 230
LEFT, RIGHT, TOP, BOTTOM = 40, 12, 10, 34
INK, ACCENT = "currentColor", "var(--accent, #1b6554)"


@dataclass(frozen=True)
class Frame:
    """The data ranges of a chart.

    Attributes:
        x: the lower and upper limit.
        y: the lower and upper limit.
    """

    x: tuple[float, float]
    y: tuple[float, float]

    def at(self, x: float, y: float) -> str:
        """Return a point as "x,y" in pixels."""
        across = (x - self.x[0]) / (self.x[1] - self.x[0])
        up = (y - self.y[0]) / (self.y[1] - self.y[0])
        return f"{LEFT + across * (WIDTH - LEFT - RIGHT):.1f},{HEIGHT - BOTTOM - up * (HEIGHT - TOP - BOTTOM):.1f}"


def ticks(low: float, high: float, most: int = 6) -> list[float]:
    """Return at most `most` round numbers from `low` to `high`: multiples of 1, 2 or 5 times a power of ten."""
    for exponent in range(math.floor(math.log10(high - low)) - 1, math.ceil(math.log10(high - low)) + 2):
        for digit in (1, 2, 5):
            step = digit * 10.0**exponent
            first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
            if last - first < most:
                return [round(number * step, max(0, 1 - exponent)) for number in range(first, last + 1)]
    return []


def curve_chart(
    title: str,
    x_name: str,
    points: Sequence[tuple[float, float]],
    band: Sequence[tuple[float, float]] | None = None,
    *,
    y: tuple[float, float] | None = None,
    y_unit: str = "",
) -> str:
    """Return a line chart of points, with a band of (low, high) at the same x if given."""
    xs = [each[0] for each in points]
    lows, highs = zip(*(band or [(each[1], each[1]) for each in points]), strict=True)
    frame = Frame(_range(min(xs), max(xs)), y or _range(min(0.0, *lows), max(highs)))
    drawn = []
    if band:
        over = [frame.at(x, high) for x, high in zip(xs, highs, strict=True)]
        under = [frame.at(x, low) for x, low in zip(xs, lows, strict=True)]
        drawn.append(f'<polygon points="{" ".join(over + under[::-1])}" fill="{ACCENT}" opacity=".2"/>')
    line = " ".join(frame.at(*each) for each in points)
    drawn.append(f'<polyline points="{line}" fill="none" stroke="{ACCENT}" stroke-width="2"/>')
    if band:
        dots = (frame.at(*each).split(",") for each in points)
        drawn += [f'<circle cx="{x}" cy="{y}" r="2.5" fill="{ACCENT}"/>' for x, y in dots]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" '
        f'style="width:100%;max-width:36rem" font-size="11" fill="{INK}" '
        f'font-family="system-ui, sans-serif"><title>{escape(title)}</title>'
        f"{''.join([*_grid(frame, x_name, y_unit), *drawn])}</svg>"
    )


def steps_chart(title: str, x_name: str, times: Sequence[float]) -> str:
    """Return a step chart of a count that grows by one at each of the ascending times."""
    corners: list[tuple[float, float]] = [(times[0], 0)]
    for number, when in enumerate(times, 1):
        corners += [(when, number - 1), (when, number)]
    return curve_chart(title, x_name, corners)


def _range(low: float, high: float) -> tuple[float, float]:
    return (low, high) if high > low else (low, low + 1)


def _grid(frame: Frame, x_name: str, y_unit: str) -> list[str]:
    """Return grid lines, tick labels and the name of the horizontal axis."""
    parts = []
    for value in ticks(*frame.y):
        (x0, y0), (x1, _) = frame.at(frame.x[0], value).split(","), frame.at(frame.x[1], value).split(",")
        parts.append(f'<line x1="{x0}" x2="{x1}" y1="{y0}" y2="{y0}" stroke="{INK}" opacity=".15"/>')
        parts.append(f'<text x="{LEFT - 6}" y="{y0}" dy=".32em" text-anchor="end">{value:,g}{escape(y_unit)}</text>')
    for value in ticks(*frame.x):
        x0, y0 = frame.at(value, frame.y[0]).split(",")
        parts.append(f'<text x="{x0}" y="{float(y0) + 14:.1f}" text-anchor="middle">{value:,g}</text>')
    middle = LEFT + (WIDTH - LEFT - RIGHT) / 2
    parts.append(f'<text x="{middle}" y="{HEIGHT - 4}" text-anchor="middle" opacity=".7">{escape(x_name)}</text>')
    return parts

"""Write a report to files: figures (PNG and SVG), Markdown, CSV, and one self-contained HTML page."""

import base64
import html
import os
import re
from collections.abc import Sequence
from pathlib import Path

from batchbalance.lab.report.comparisons import Report
from batchbalance.lab.report.curves import Drawn, metric_name
from batchbalance.lab.report.figures import curve_figures, figures, rendered
from batchbalance.lab.report.notes import conclusion, notes
from batchbalance.lab.report.tables import ReportTable, csv_tables, tables
from batchbalance.system import markup
from batchbalance.system.files import replacing
from batchbalance.system.progress import progress as shown_progress
from batchbalance.system.spreadsheets import csv_text

HTML_PAGE, MARKDOWN_PAGE = "report.html", "report.md"

REPORT_STYLE = """
h1 + p { max-width: none; font-size: 1.3rem; line-height: 1.35; padding: 1.1rem 1.2rem; margin-bottom: 1rem;
  background: var(--panel); border: 1px solid var(--line); border-left: 6px solid var(--accent); border-radius: 14px; }
h1 + p strong { font-weight: 600; } ul.notes { margin: 0 0 1rem; max-width: none; }
.cards { grid-template-columns: repeat(auto-fit, minmax(min(100%, 30rem), 1fr)); }
figure { margin: 0 0 1rem; } .cards figure { margin: 0; } .first img { max-height: 32rem; }
img { width: 100%; height: auto; border-radius: var(--round); }
"""

CURVES: dict[Drawn, str] = {
    "means": "Mean over trials; the band is Student's 95 % interval of the mean, separately for each strategy. Trials "
    "are paired, so strategies whose bands overlap can still differ.",
    "medians": "Median over trials; the band reaches from the lower to the upper quartile.",
}
WHERE = "Drawn where at least half of the trials have a value."
DIFFERENCES = "Each tick is a trial; the marker and the bar are the mean and its 95 % interval."


def write_report(report: Report, folder: str | os.PathLike[str], *, progress: bool = False) -> Path:
    """Write all files of a report into a folder, created if necessary. Files of an earlier report are replaced.

    Args:
        report: what to write.
        folder: where to write it.
        progress: show the progress of drawing.

    Returns:
        The path of the HTML page.

    Raises:
        MissingExtraError: if matplotlib is not installed; nothing is written.
        OSError: if the folder cannot be written to.
    """
    drawn = figures(report)
    folder = Path(folder)
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OSError(f"cannot write a report to {folder}: {error.strerror or error}") from error
    images: dict[str, tuple[bytes, bytes]] = {}
    with shown_progress("drawing", len(drawn), progress) as bar:
        for name, draw in drawn.items():
            light = draw(False)
            images[name] = rendered(light, "svg"), rendered(draw(True), "svg")
            _write(folder / f"{name}.svg", images[name][0])
            _write(folder / f"{name}.png", rendered(light, "png"))
            bar.advance(note=name)
    for name, rows in csv_tables(report).items():
        if rows:
            _write(folder / f"{name}.csv", csv_text(list(rows[0]), [list(row.values()) for row in rows]).encode())
    _write(folder / MARKDOWN_PAGE, as_markdown(report, list(drawn)).encode())
    _write(folder / HTML_PAGE, as_html(report, images).encode())
    return folder / HTML_PAGE


def _write(path: Path, content: bytes) -> None:
    with replacing(path) as temporary:
        temporary.write_bytes(content)


def title(report: Report) -> str:
    """Return the title of the report."""
    num = len(report.summaries)
    return (
        f"{', '.join(report.data)}: {num} strateg{'y' if num == 1 else 'ies'} compared by {metric_name(report.metric)}"
    )


def _caption(report: Report, name: str) -> tuple[str, str]:
    """Return the title and the explanation of a figure."""
    if name == "differences":
        return "Differences from the control", DIFFERENCES
    return f"Learning curves, {metric_name(curve_figures(report)[name])}", f"{CURVES[report.curves]} {WHERE}"


def as_markdown(report: Report, figure_names: Sequence[str]) -> str:
    """Return the report as Markdown that links the PNG files beside it."""
    figure = {name: f"![{escaped(_caption(report, name)[0])}]({name}.png)" for name in figure_names}
    parts = [f"# {escaped(title(report))}", escaped(conclusion(report))]
    parts += [f"> {escaped(note)}" for note in notes(report)]
    for name in figure_names[:1]:
        parts += [figure[name], escaped(". ".join(_caption(report, name)))]
    parts += [_markdown_table(table) for table in tables(report)]
    if len(figure_names) > 1:
        parts += ["## More figures", *(figure[name] for name in figure_names[1:])]
    return "\n\n".join(parts) + "\n"


def escaped(text: str) -> str:
    """Escape text for Markdown, on one line: labels and metrics may have any name."""
    return re.sub(r"([\\`*_\[\]<>|&~#$])", r"\\\1", " ".join(text.split()))


def _markdown_table(table: ReportTable) -> str:
    def line(cells: Sequence[str]) -> str:
        return f"| {' | '.join(map(escaped, cells))} |"

    ruler = f"| --- |{' ---: |' * (len(table.header) - 1)}"
    head = [f"## {escaped(table.title)}", "", escaped(table.text), ""]
    return "\n".join([*head, line(table.header), ruler, *map(line, table.rows)])


def as_html(report: Report, images: dict[str, tuple[bytes, bytes]]) -> str:
    """Return the report as one page with its styles and images, without scripts or external files.

    Args:
        report: what to show.
        images: the light and dark SVG files of each figure, by name.
    """
    shown: list[str] = []
    for name, svgs in images.items():
        heading, text = _caption(report, name)
        light, dark = (f"data:image/svg+xml;base64,{base64.b64encode(svg).decode()}" for svg in svgs)
        # Only the first figure of curves has an explanation.
        explained = f" {text}" if not shown or text == DIFFERENCES else ""
        shown.append(
            f'<figure class="card {"more" if shown else "first"}"><picture>'
            f'<source media="screen and (prefers-color-scheme: dark)" srcset="{dark}">'
            f'<img alt="{html.escape(heading)}" src="{light}"></picture>'
            f"<figcaption>{html.escape(heading)}.{html.escape(explained)}</figcaption></figure>"
        )
    warned = "".join(f"<li>{html.escape(note)}</li>" for note in notes(report))
    parts = [
        f"<h1>{html.escape(title(report))}</h1>",
        f"<p><strong>{html.escape(conclusion(report))}</strong></p>",
        f'<ul class="notes">{warned}</ul>' if warned else "",
        *shown[:1],
        f'<div class="cards">{"".join(map(_html_table, tables(report)))}{"".join(shown[1:])}</div>',
    ]
    return markup.page(title(report), parts, REPORT_STYLE)


def _html_table(table: ReportTable) -> str:
    shown = markup.table(table.header, table.rows, is_text=table.is_text)
    is_wide = len(table.header) > 6 or table.is_text
    text = f'<p class="text">{html.escape(table.text)}</p>'
    return markup.card(table.title, text, shown, kind="whole" if is_wide else "")

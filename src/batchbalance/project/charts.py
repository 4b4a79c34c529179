"""Small charts as SVG inside a page: their colours follow the page, light or dark, and they fit a phone."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

WIDTH, HEIGHT = 400, 230
LEFT, RIGHT, TOP, BOTTOM = 40, 12, 10, 34
INK, ACCENT = "currentColor", "var(--accent, #3273c4)"


@dataclass(frozen=True)
class Frame:
    """Where data lie in a chart.

    Attributes:
        x: from and to.
        y: from and to.
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
    """Return a line through points, with a band of (low, high) at the same x if given."""
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
    return _chart(title, [*_grid(frame, x_name, y_unit), *drawn])


def steps_chart(title: str, x_name: str, times: Sequence[float]) -> str:
    """Return how a count grows: one more at each of the times, which rise."""
    corners: list[tuple[float, float]] = [(times[0], 0)]
    for number, when in enumerate(times, 1):
        corners += [(when, number - 1), (when, number)]
    return curve_chart(title, x_name, corners)


def _range(low: float, high: float) -> tuple[float, float]:
    return (low, high) if high > low else (low, low + 1)


def _grid(frame: Frame, x_name: str, y_unit: str) -> list[str]:
    """Return the grid lines, numbers and the name of the horizontal axis."""
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


def _chart(title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(title)}" '
        f'style="width:100%;max-width:36rem" font-size="11" fill="{INK}" '
        f'font-family="system-ui, sans-serif"><title>{escape(title)}</title>'
        f"{''.join(parts)}</svg>"
    )

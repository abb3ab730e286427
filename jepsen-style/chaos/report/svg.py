"""Small plots as SVG: lines over time with bands behind them, and bars. Pure: numbers in, text out."""

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from math import ceil, floor, log10

from chaos.report.series import Band, Points

WIDTH, HEIGHT = 1000, 240
LEFT, RIGHT, TOP, BOTTOM = 56, 12, 12, 28
COLOURS = ("#2563eb", "#dc2626", "#059669", "#d97706")
_TICKS = 5


@dataclass(frozen=True)
class Line:
    name: str
    points: Points


def lines_plot(lines: Sequence[Line], bands: Sequence[Band], unit: str, *, logarithmic: bool = False) -> str:
    """Each line with its own colour, and a legend."""
    last_s = max((x for line in lines for x, _ in line.points), default=1.0) or 1.0
    top = max((y for line in lines for _, y in line.points), default=1.0) or 1.0
    scale = _Scale(last_s, top, logarithmic)
    parts = [_band(band, scale) for band in bands]
    parts += [_axes(scale, unit)]
    for number, line in enumerate(lines):
        colour = COLOURS[number % len(COLOURS)]
        path = " ".join(f"{scale.x(x):.1f},{scale.y(y):.1f}" for x, y in line.points)
        parts.append(f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>')
        left = LEFT + 10 + 150 * number
        parts.append(f'<rect x="{left}" y="{TOP}" width="10" height="10" fill="{colour}"/>')
        parts.append(f'<text x="{left + 14}" y="{TOP + 9}">{escape(line.name)}</text>')
    return _svg("".join(parts), HEIGHT)


def bars_plot(bars: Sequence[tuple[str, float | None, float | None]], unit: str) -> str:
    """Of each name two bars, one in front of the other; None is drawn as missing."""
    row, label = 20, 260
    height = TOP + row * len(bars) + BOTTOM
    top = max((value for _, *values in bars for value in values if value is not None), default=1.0) or 1.0
    width = WIDTH - label - RIGHT - 90
    parts = []
    for number, (name, front, back) in enumerate(bars):
        y = TOP + row * number
        parts.append(f'<text x="{label - 6}" y="{y + 13}" text-anchor="end">{escape(name)}</text>')
        for value, colour, inset in ((back, "#fecaca", 2), (front, "#2563eb", 6)):
            if value is not None:
                length = max(1.0, value / top * width)
                shape = f'x="{label}" y="{y + inset}" width="{length:.1f}" height="{row - 2 * inset}"'
                parts.append(f'<rect {shape} fill="{colour}"/>')
        shown = " / ".join("never" if value is None else f"{value:.2f} {unit}" for value in (front, back))
        end = label + max((value or 0.0) for value in (front, back, 0.0)) / top * width
        parts.append(f'<text x="{end + 6:.1f}" y="{y + 13}">{shown}</text>')
    return _svg("".join(parts), height)


@dataclass(frozen=True)
class _Scale:
    last_s: float
    top: float
    logarithmic: bool

    @property
    def decades(self) -> tuple[int, int]:
        return -1, max(0, ceil(log10(self.top)))

    def x(self, seconds: float) -> float:
        return LEFT + (WIDTH - LEFT - RIGHT) * min(1.0, max(0.0, seconds / self.last_s))

    def y(self, value: float) -> float:
        room = HEIGHT - TOP - BOTTOM
        if not self.logarithmic:
            return HEIGHT - BOTTOM - room * value / self.top
        low, high = self.decades
        share = (log10(max(value, 10.0**low)) - low) / (high - low)
        return HEIGHT - BOTTOM - room * share

    def y_ticks(self) -> list[float]:
        if self.logarithmic:
            low, high = self.decades
            return [10.0**power for power in range(low, high + 1)]
        step = _nice(self.top / _TICKS)
        return [step * number for number in range(floor(self.top / step) + 1)]


def _nice(step: float) -> float:
    """1, 2 or 5 times a power of ten, and not less."""
    power = 10.0 ** floor(log10(step)) if step > 0 else 1.0
    return next((factor * power for factor in (1, 2, 5) if factor * power >= step), 10 * power)


def _axes(scale: _Scale, unit: str) -> str:
    parts = []
    for value in scale.y_ticks():
        y = scale.y(value)
        parts.append(f'<line x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}" stroke="#e5e7eb"/>')
        parts.append(f'<text x="{LEFT - 4}" y="{y + 4:.1f}" text-anchor="end">{value:g}</text>')
    step = _nice(scale.last_s / 10)
    for number in range(floor(scale.last_s / step) + 1):
        x = scale.x(step * number)
        parts.append(f'<text x="{x:.1f}" y="{HEIGHT - 10}" text-anchor="middle">{step * number:g} s</text>')
    parts.append(f'<text x="4" y="{TOP + 8}">{escape(unit)}</text>')
    return "".join(parts)


def _band(band: Band, scale: _Scale) -> str:
    x, end = scale.x(band.from_s), scale.x(band.to_s)
    shape = f'x="{x:.1f}" y="{TOP}" width="{max(1.5, end - x):.1f}" height="{HEIGHT - TOP - BOTTOM}"'
    return f'<rect {shape} fill="#f59e0b" opacity="0.25"><title>{escape(band.what)}</title></rect>'


def _svg(inside: str, height: int) -> str:
    return f'<svg viewBox="0 0 {WIDTH} {height}" xmlns="http://www.w3.org/2000/svg" role="img">{inside}</svg>'

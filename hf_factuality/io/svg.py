"""A plot of shares as the text of an SVG image, for cards and reports: no dependency, no script, every text escaped."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from html import escape


# Also the colour-blind tell these apart (Okabe and Ito, 2008).
_COLOURS = "#0072b2 #d55e00 #009e73 #cc79a7 #e69f00 #56b4e9 #000000".split()
_SIDE, _LEFT, _TOP, _MOST_DOTS = 300, 60, 40, 50
# What XML cannot hold, and what turns round the text that follows.
_UNSAFE = re.compile(r"[^\t\n\r -\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]|[\u202a-\u202e\u2066-\u2069]")


def plot_svg(
    title: str, x: str, y: str, series: Mapping[str, Sequence[tuple[float, float]]], *, diagonal: bool = False
) -> str:
    """Lines through points (x, y) in [0, 1], else `ValueError`, of each series by name; for a file, or a part of a page.

    `x` and `y` name the axes. Names of several series stand below the plot, cut at 60 characters. Where a series has few
    points they are dots as well. `diagonal` draws x = y, dashed.
    """
    right, bottom, parts = _LEFT + _SIDE, _TOP + _SIDE, []
    for tick in (0, 0.25, 0.5, 0.75, 1):
        across, up = _LEFT + tick * _SIDE, bottom - tick * _SIDE
        parts.append(f'<path d="M{across} {_TOP}V{bottom}M{_LEFT} {up}H{right}" stroke="#ddd"/>')
        parts += [_text(across, bottom + 16, f"{tick:g}"), _text(_LEFT - 6, up + 4, f"{tick:g}", "end")]
    if diagonal:
        parts.append(f'<path d="M{_LEFT} {bottom}L{right} {_TOP}" stroke="#777" stroke-dasharray="5 4"/>')
    height = bottom + 50
    for number, (name, points) in enumerate(series.items()):
        if wrong := [point for point in points if not all(0 <= value <= 1 for value in point)]:
            raise ValueError(f"the series {name!r} has the point {wrong[0]}; plot_svg takes shares in [0, 1]")
        colour = _COLOURS[number % len(_COLOURS)]
        places = [f"{_LEFT + across * _SIDE:.1f},{bottom - up * _SIDE:.1f}" for across, up in points]
        dots = [place.split(",") for place in places] if len(places) <= _MOST_DOTS else []
        parts.append(f'<polyline points="{" ".join(places)}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{across}" cy="{up}" r="3.5" fill="{colour}"/>' for across, up in dots]
        if len(series) > 1:
            parts.append(f'<rect x="{_LEFT}" y="{height - 9}" width="10" height="10" fill="{colour}"/>')
            parts.append(_text(_LEFT + 16, height, name[:60], "start"))
            height += 18
    parts += [_text(_LEFT + _SIDE / 2, 22, title), _text(_LEFT + _SIDE / 2, bottom + 36, x)]
    parts.append(f'<g transform="translate(16 {_TOP + _SIDE / 2}) rotate(-90)">{_text(0, 0, y)}</g>')
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {right + 20} {height}" width="{right + 20}" height="{height}" '
        f'role="img" font-family="sans-serif" font-size="12"><title>{_safe(title)}</title>'
        f'<rect width="100%" height="100%" fill="#fff"/>{"".join(parts)}</svg>\n'
    )


def _text(across: float, up: float, text: str, anchor: str = "middle") -> str:
    return f'<text x="{across}" y="{up}" text-anchor="{anchor}" fill="#222">{_safe(text)}</text>'


def _safe(text: str) -> str:
    return escape(_UNSAFE.sub("\ufffd", str(text)))

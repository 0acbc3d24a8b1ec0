"""Plots, read back by a parser of XML."""

import math
from xml.etree import ElementTree

import pytest

from hf_factuality.io.svg import plot_svg


SVG = "{http://www.w3.org/2000/svg}"


def test_points_lie_where_the_axes_say():
    """By the ticks that are drawn, not by the constants of the code."""
    points = [(0.0, 0.0), (0.25, 1.0), (0.6, 0.3)]
    tree = ElementTree.fromstring(plot_svg("Risk", "coverage", "risk", {"": points}, diagonal=True))
    texts = [(node.text, float(node.get("x")), float(node.get("y"))) for node in tree.iter(f"{SVG}text")]
    across = {float(text): x for text, x, y in texts if text[0].isdigit() and y > 350}
    up = {float(text): y - 4 for text, x, y in texts if text[0].isdigit() and y <= 344.5 and x < 60}
    assert set(across) == set(up) == {0, 0.25, 0.5, 0.75, 1}
    dots = [(float(node.get("cx")), float(node.get("cy"))) for node in tree.iter(f"{SVG}circle")]
    for (x, y), (cx, cy) in zip(points, dots, strict=True):
        assert cx == pytest.approx(across[0] + x * (across[1] - across[0]), abs=0.06)
        assert cy == pytest.approx(up[0] + y * (up[1] - up[0]), abs=0.06)
    line = next(tree.iter(f"{SVG}polyline")).get("points").split()
    assert [tuple(map(float, place.split(","))) for place in line] == dots
    assert {"Risk", "coverage", "risk"} <= {text for text, _, _ in texts}
    assert "stroke-dasharray" in plot_svg("", "", "", {}, diagonal=True) and "dasharray" not in plot_svg(
        "", "", "", {}
    )


def test_names_are_text_and_stand_where_there_are_several():
    hostile = "</text><script>alert(1)</script>\x00\ud800\u202e&\"'"
    svg = plot_svg(hostile, hostile, hostile, {hostile: [(0, 1)], "b" * 999: [(i / 99, 0.5) for i in range(100)]})
    tree = ElementTree.fromstring(svg.encode("utf-8"))
    assert {node.tag.removeprefix(SVG) for node in tree.iter()}.isdisjoint({"script", "image", "a", "foreignObject"})
    shown = "</text><script>alert(1)</script>\ufffd\ufffd\ufffd&\"'"
    names = [node.text for node in tree.iter(f"{SVG}text")]
    assert names.count(shown) == 4 and "b" * 60 in names and tree.find(f"{SVG}title").text == shown
    assert len(list(tree.iter(f"{SVG}circle"))) == 1, "a line of many points has no dots"
    assert "only" not in plot_svg("", "", "", {"only": [(0, 0)]})


@pytest.mark.parametrize("point", [(1.01, 0), (0, -0.1), (math.nan, 0), (0, math.inf)])
def test_only_shares(point):
    with pytest.raises(ValueError, match=r"series 'a' has the point .*; plot_svg takes shares in \[0, 1\]"):
        plot_svg("", "", "", {"a": [(0, 0), point]})

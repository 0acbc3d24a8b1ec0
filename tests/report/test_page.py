"""Painted completions and the page around them; what a browser makes of it is in `test_browser.py`."""

import re

import pytest

from hf_factuality.errors import SpanError
from hf_factuality.report import ReportSample, paint, render_report, write_report
from hf_factuality.spans import Label, LabeledSpan, Verification
from tests.report.marks import Marks


def test_sentences_are_painted_by_label_with_evidence():
    text = "Ann ran. Bob sat."
    verification = Verification(
        spans=(
            LabeledSpan(9, 17, Label.CONTRADICTED, evidence='Bob "stood" & sang.'),
            LabeledSpan(0, 8, Label.SUPPORTED),
        )
    )
    page = Marks(paint(text, verification))
    assert page.text == text
    assert page.marks == [
        ("supported", "supported by the evidence", "Ann ran."),
        ("contradicted", 'contradicted by the evidence: Bob "stood" & sang.', "Bob sat."),
    ]


def test_overlapping_spans_keep_every_character_once():
    spans = (LabeledSpan(0, 5, Label.SUPPORTED), LabeledSpan(2, 4, Label.CONTRADICTED), LabeledSpan(3, 8, None))
    page = Marks(paint("abcdefghij", Verification(spans=spans)))
    assert page.text == "abcdefghij"
    assert [mark[2] for mark in page.marks] == ["abcde", "fgh"]


def test_model_text_cannot_inject_markup(tmp_path):
    evil = "<script>alert(1)</script> \" onmouseover='x' &amp;"
    verification = Verification(spans=(LabeledSpan(0, len(evil), Label.SUPPORTED, evidence=evil),))
    sample = ReportSample(evil, evil, [("before", evil, verification)])
    path = write_report(tmp_path / "deep" / "page.html", evil, evil, [{"metric": evil, "after": 0.5}], [sample])
    page = Marks(path.read_text(encoding="utf-8"))
    assert "script" not in page.tags and not {"img", "link", "iframe"} & set(page.tags)
    assert page.text.count("alert(1)") >= 5
    assert any(mark[2] == evil for mark in page.marks)


@pytest.mark.parametrize("code", [*range(0x202A, 0x202F), *range(0x2066, 0x206A)])
def test_controls_of_the_direction_of_text_reach_nothing_outside_their_sentence(code):
    text = f"Ann {chr(code)}ran. Bob sat."
    spans = (LabeledSpan(0, 9, Label.SUPPORTED, evidence=chr(code)), LabeledSpan(10, 18, Label.CONTRADICTED))
    sample = ReportSample(text, text, [(text, text, Verification(spans=spans))])
    html = render_report(text, text, [{text: text}], [sample])
    marks = Marks(html)
    assert chr(code) not in html and f"[U+{code:04X}]" in marks.marks[-2][1]
    assert [mark[2] for mark in marks.marks[-2:]] == [f"Ann [U+{code:04X}]ran.", "Bob sat."]
    # Text that is written from right to left stays whole, and each sentence has its own direction.
    assert html.count('<mark dir="auto"') == 2 and '<div class="text" dir="auto">' in html
    assert paint("\u05e9\u05dc\u05d5\u05dd\u200f!", Verification()) == "\u05e9\u05dc\u05d5\u05dd\u200f!"


def test_citations_are_shown_with_the_passages_that_they_name():
    text = "<think>Leeds [9]?</think>Ada <b>was born [1, 2] in Ulm.[3] She ran (Smith, 2020)."
    start = text.index("Ada")
    spans = (LabeledSpan(start, text.index("[3]"), Label.SUPPORTED), LabeledSpan(text.index("She"), len(text), None))
    html = paint(text, Verification(spans=spans))
    assert Marks(html).text == text and set(Marks(html).tags) == {"mark", "span"} and "<b>" not in html
    cited = re.findall(r'<span class="cite" title="([^"]*)">([^<]*)</span>', html)
    assert cited == [("passages 1, 2", "[1, 2]"), ("passage 3", "[3]"), ("source", "(Smith, 2020)")]
    # A span that ends within a citation keeps every character once.
    for end in range(1, len(text) + 1):
        cut = paint(text, Verification(spans=(LabeledSpan(0, end, Label.SUPPORTED),)))
        assert Marks(cut).text == text and Marks(cut).marks[0][2] == text[:end]


def test_a_span_outside_the_text_is_refused():
    with pytest.raises(SpanError, match="ends after the completion"):
        render_report("t", "n", [], [ReportSample("q", "a", [("x", "abc", Verification(spans=(LabeledSpan(0, 9),)))])])

"""Painted completions and the page around them; what a browser makes of it is in `test_browser.py`."""

import itertools
import json
import re
from html import unescape
from pathlib import Path

import pytest

import hf_factuality
from hf_factuality.errors import SpanError
from hf_factuality.report import ReportSample, page, paint, render_report, write_report
from hf_factuality.spans import Label, LabeledSpan, Verification
from tests.conftest import searched
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


S, C, U, N, HS = Label.SUPPORTED, Label.CONTRADICTED, Label.UNVERIFIABLE, Label.NO_FACT, Label.HEDGED_SUPPORTED


def labelled(*labels, score=None):
    """A text of letters, each of which has one of the labels."""
    text = "abcdefgh"[: len(labels)]
    return text, Verification(tuple(LabeledSpan(n, n + 1, it, score) for n, it in enumerate(labels)))


def sections(samples, **options):
    """The attributes of each section."""
    html = render_report("t", "n", [], samples, **options)
    found = re.findall(r"<section ([^>]*)>", html)
    attributes = [dict(re.findall(r'data-([a-z]+)(?:="([^"]*)")?', it)) for it in found]
    return [
        {**it, **{name: json.loads(unescape(it[name])) for name in ("figures", "groups") if name in it}}
        for it in attributes
    ]


def test_answers_say_what_they_are_filtered_and_sorted_by():
    text, one = labelled(S, C, U, HS, N, None, score=0.25)
    failed = Verification((LabeledSpan(0, 1, None),), error="down")
    found = sections([
        ReportSample("q", None, [("h", text, one)], row=7),
        ReportSample("q", None, [("h", "", Verification())]),
        ReportSample("q", None, [("h", "a", failed)]),
        # What is said twice counts once.
        ReportSample("q", None, [("h", "Ann. Ann. Bob.", Verification((LabeledSpan(0, 4, S), LabeledSpan(5, 9, S), LabeledSpan(10, 14, C))))]),
    ])  # fmt: skip
    # Precision: 2 of 4 that were judged; the one without a fact is no claim, the one that was not judged may be.
    assert found[0] == {
        "figures": {"row": 7, "precision": 0.5, "claims": 5, "contradicted": 1, "score": 0.25},
        "kinds": "contradicted hedged_supported no_fact supported unjudged unverifiable",
    }  # fmt: skip
    assert found[1] == {"figures": {"row": 1, "claims": 0, "contradicted": 0}, "kinds": "nothing"}
    assert found[2] == {"figures": {"row": 2}, "kinds": "unjudged"}, "unknown is not none"
    assert (found[3]["figures"]["precision"], found[3]["figures"]["claims"]) == (0.5, 2)


def test_outcomes_figures_and_groups_of_the_caller():
    text, one = labelled(S)
    samples = [
        ReportSample("q", None, [("a", text, one), ("b", text, one)], name="<7>", outcomes=["wrong", None],
                     figures={"reward": 0.5, "other": None}, groups={"verifier": "x<y"}),
        ReportSample("q", None, [("a", text, one), ("b", text, one)], outcomes=["wrong", "refused"], groups={"verifier": "z"}),
    ]  # fmt: skip
    first, second = sections(samples)
    assert (
        first["figures"]["own reward"] == 0.5
        and first["figures"]["name"] == "<7>"
        and "own other" not in first["figures"]
    )
    assert first["groups"] == {"verifier": "x<y"} and (first["outcomes"], second["outcomes"]) == (
        "wrong|",
        "wrong|refused",
    )
    assert "changed" in second and "changed" not in first, "what is not known may be the same"
    html = render_report("t", "n", [], samples)
    assert (
        '<h4>a <span class="kind contradicted">wrong</span></h4>' in html
        and "x&lt;y (1)" in html
        and "x<y" not in html
    )
    # Nothing to choose of one verifier; no range without figures.
    alone = render_report("t", "n", [], samples[1:]).partition("<script>")[0]
    assert "data-group=" not in alone and 'id="figure"' not in alone and "<form" in alone


def test_of_a_comparison_the_last_side_is_sorted_and_each_is_filtered():
    found = sections([ReportSample("q", "a", [("before", *labelled(C, C)), ("after", *labelled(S, C, S))])])
    assert found == [
        {
            "figures": {"row": 0, "precision": 0.666667, "claims": 3, "contradicted": 1},
            "kinds": "contradicted|contradicted supported",
            "changed": "",
        }
    ]
    # Headings that differ are no sides.
    samples = [ReportSample("q", None, [(str(n), *labelled(C)), ("x", *labelled(S))]) for n in range(2)]
    assert [it["kinds"] for it in sections(samples)] == ["contradicted supported"] * 2
    assert "changed" not in render_report("t", "n", [], samples).partition("<script>")[0]


@searched(3, 4)
def test_what_is_not_known_has_not_changed(count):
    """Against a slow loop: a pair has changed if it differs whatever the unknown labels are."""
    labels = (S, C, None)

    def filled(side):
        return {
            tuple(sorted(it))
            for it in itertools.product(*[[x] if x else ["supported", "contradicted", "other"] for x in side])
        }

    sides = [side for length in range(count) for side in itertools.product(labels, repeat=length)]
    for one, two in itertools.product(sides, repeat=2):
        sample = ReportSample("q", None, [("before", *labelled(*one)), ("after", *labelled(*two))])
        (found,) = sections([sample])
        assert ("changed" in found) == (not filled(one) & filled(two)), (one, two)


def test_the_list_of_labels_has_what_a_mark_points_to():
    spans = (
        LabeledSpan(5, 8, C, 0.125, claim="<i>it</i>", evidence="e" * 2500, reason="because"),
        LabeledSpan(0, 4, S),
        LabeledSpan(1, 3, U),  # within the first: it has no mark
    )
    html = render_report("t", "n", [], [ReportSample("q", None, [("h", "Ann. Bob", Verification(spans))])])
    items = re.findall("<li>(.*?)</li>", html)
    marked = re.findall(r'data-item="(\d)">([^<]*)<', html)
    assert marked == [("0", "Ann."), ("2", "Bob")] and len(items) == 3
    assert "supported by the evidence" in items[0] and "Ann." in items[0] and "score" not in items[0]
    assert "neither stated" in items[1] and ">nn<" in items[1]
    for part in (
        "contradicted by",
        "score 0.12",
        "&lt;i&gt;it&lt;/i&gt;",
        "because",
        "e" * 2000 + " … (500 characters more)",
    ):
        assert part in items[2]
    # Evidence is twice on the page; what is shown on hover is cut.
    assert len(re.findall("e{301,}", html)) == 1 and "e" * 300 + " … (2200 characters more)" in html


def test_the_first_answers_are_there_without_a_script():
    samples = [ReportSample(f"Question {n}?", None, [("h", *labelled(S))]) for n in range(page.PLAIN + 3)]
    before, _, after = render_report("t", "n", [], samples).partition('<template id="rest">')
    assert before.count("<section") == page.PLAIN and after.partition("</template>")[0].count("<section") == 3
    assert "The other 3 answers need JavaScript." in before
    assert "need JavaScript" not in render_report("t", "n", [], samples[: page.PLAIN])


def test_a_page_of_nothing():
    html = render_report("t", "n", [], [])
    assert "<fieldset" not in html and "<table" not in html.partition("<script>")[0]


def test_the_script_writes_no_markup_and_is_short():
    script = (Path(page.__file__).parent / "page.js").read_text(encoding="utf-8")
    for name in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "fetch(",
        "</",
        "<!--",
    ):
        assert name not in script
    assert len(script.splitlines()) <= 300


def luminance(color):
    """Relative luminance of WCAG 2.2, of `#rgb` or `#rrggbb`."""
    digits = color[1:] if len(color) == 7 else "".join(2 * it for it in color[1:])
    shares = [int(digits[at : at + 2], 16) / 255 for at in (0, 2, 4)]
    linear = [it / 12.92 if it <= 0.04045 else ((it + 0.055) / 1.055) ** 2.4 for it in shares]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one, two):
    low, high = sorted(map(luminance, (one, two)))
    return (high + 0.05) / (low + 0.05)


def test_contrast_is_that_of_wcag_aa():
    assert contrast("#fff", "#000000") == pytest.approx(21) and contrast("#777", "#fff") == pytest.approx(
        4.48, abs=0.01
    )
    style = (Path(page.__file__).parent / "page.css").read_text(encoding="utf-8")
    palettes = [dict(re.findall(r"--([a-z]+): (#[0-9a-f]+)", it)) for it in re.findall(r":root \{[^}]*\}", style)[:4]]
    palettes = [it for it in palettes if it]
    assert len(palettes) == 3, "light, dark, paper"
    for colors in palettes:
        for paper in ("page", "supported", "contradicted", "unverifiable", "nofact", "found"):
            assert paper not in colors or contrast(colors["text"], colors[paper]) >= 4.5
        assert contrast(colors["quiet"], colors["page"]) >= 4.5
        assert contrast(colors["wave"], colors["contradicted"]) >= 3
        for line in ("edge", "focus"):
            assert line not in colors or contrast(colors[line], colors["page"]) >= 3


# ---- names of rows


@pytest.mark.parametrize(
    ("value", "heading"),
    [
        ("a17", "a17: Who? <small>row 1</small>"),
        (0, "0: Who? <small>row 1</small>"),
        ("<b>\u202e", "&lt;b&gt;: Who? <small>row 1</small>"),
        ("x" * 150, "x" * 99 + "…: Who? <small>row 1</small>"),
        ("", "row 1: Who?"),
        (" \n", "row 1: Who?"),
        (None, "row 1: Who?"),
        (True, "row 1: Who?"),
        (["a"], "row 1: Who?"),
        (float("nan"), "row 1: Who?"),
    ],
)
def test_rows_are_called_by_their_id(tmp_path, value, heading):
    row = {"id": value, "question": "Who?", "completion": "Ann ran.", "evidence": "Ann sat."}
    out, summary = tmp_path / "page.html", tmp_path / "summary.md"
    hf_factuality.verify([row], html=out, job_summary=summary)
    assert re.findall("<h3>(.*?)</h3>", out.read_text(encoding="utf-8")) == [heading]
    # So is the summary of a job.
    assert ("row 1" in summary.read_text(encoding="utf-8")) == heading.startswith("row 1")


def test_the_table_says_what_was_left_out(tmp_path):
    rows = [{"completion": "Ann ran.", "evidence": "Ann ran."}, {"completion": "I do not know.", "evidence": "Ann."}]
    hf_factuality.verify(rows, html=tmp_path / "page.html")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<td>2 (1 declined)</td>" in page and "<td>declined 1</td>" not in page
    assert "<legend>Answers by label" in page  # the table counts claims
    hf_factuality.verify([*rows, {"completion": "", "evidence": "Ann."}], html=tmp_path / "page.html")
    assert "<td>2 (1 declined)</td><td>not judged 1 (empty 1)</td>" in (tmp_path / "page.html").read_text(
        encoding="utf-8"
    )


def test_the_column_of_the_id_can_be_named(tmp_path):
    rows = [{"key": f"k{n}", "id": "no", "completion": "Ann ran."} for n in range(2)]
    evidence = [{"key": f"k{n}", "evidence": "Ann sat."} for n in range(2)]
    out = tmp_path / "page.html"
    hf_factuality.verify(rows, evidence=evidence, id_column="key", html=out)
    headings = re.findall("<h3>(.*?)</h3>", out.read_text(encoding="utf-8"))
    assert headings == ["k0 <small>row 1</small>", "k1 <small>row 2</small>"]


def test_conversations_are_called_by_their_id(tmp_path):
    call = {"id": "1", "type": "function", "function": {"name": "find", "arguments": "{}"}}
    messages = [
        {"role": "user", "content": "Where is Cork?"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "1", "content": "Cork is in Ireland."},
        {"role": "assistant", "content": "Cork is in Ireland."},
    ]
    out = tmp_path / "page.html"
    hf_factuality.verify([{"id": "talk", "messages": messages}], html=out)
    (heading,) = re.findall("<h3>(.*?)</h3>", out.read_text(encoding="utf-8"))
    assert heading.startswith("talk, 1 turn: precision 1.00") and heading.endswith("<small>row 1</small>")

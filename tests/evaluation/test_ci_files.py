"""What `verify` writes for CI: JUnit's XML and the summary of a job; and the intervals and means that it prints."""

import json
import random
import re
from xml.etree import ElementTree

import pytest
from markdown_it import MarkdownIt

import hf_factuality
from hf_factuality import Verification
from hf_factuality.cli import main
from hf_factuality.evaluation.verify import AnswerShares
from hf_factuality.io.transcripts import TranscriptTurn
from hf_factuality.spans import Label, LabeledSpan
from hf_factuality.verifiers.base import VerifierInput
from hf_factuality.verifiers.service import JudgedRow, VerificationRequest
from tests.evaluation.conftest import write_rows
from tests.evaluation.junit_schema import problems
from tests.evaluation.test_transcripts import TALK


JUDGE = "tests.evaluation.judges:Judge"
EVIL = 'Ulm]]></failure><b>&amp; | `x` \x00\x0b \ud800 \ufffe "\n## Done\n- [x](http://e.org) <script>1</script> **A[c].**'


def junit(tmp_path, rows, **options):
    path = tmp_path / "new" / "junit.xml"
    found = hf_factuality.verify(rows, junit=path, **options)
    data = path.read_bytes()
    assert problems(data) == []
    suites = {suite.get("name"): suite for suite in ElementTree.fromstring(data)}
    return found, suites


def results(suite):
    """Name of each case, kind of its result, message."""
    found = []
    for case in suite.findall("testcase"):
        result = next(iter(case), None)
        found.append(
            (case.get("name"), *((result.tag, result.get("message")) if result is not None else (None, None)))
        )
    return found


def test_a_test_case_per_answer_and_per_threshold(tmp_path):
    rows = ["A. B.", "A. B[c].", "A[?]. B.", "A[?].", "", "B[c]. C[u].", "Ulm on the Danube", "Who!!"]
    rows = [{"completion": text, "evidence": "e", "question": "Q?" if not n else None} for n, text in enumerate(rows)]
    found, suites = junit(tmp_path, [*rows, {"completion": None}], verifier=JUDGE, fail_under=0.6, max_not_judged=0.9)
    assert results(suites["answers"]) == [
        ("row 1: Q?", None, None),
        ("row 2", "failure", "precision 0.50; at least 0.6 is asked for"),
        ("row 3", "skipped", "precision 1.00, claims not judged: 1"),
        ("row 4", "skipped", "not judged: no sentence could be judged"),
        ("row 5", "skipped", "not judged: nothing in the scope"),
        ("row 6", "failure", "precision 0.00; at least 0.6 is asked for"),
        ("row 7", "skipped", "no claim"),
        ("row 8", "skipped", "not judged: it asks"),
        ("row 9", "skipped", "not judged: no answer"),
    ]
    (text,) = (case.find("failure").text for case in suites["answers"] if case.get("name") == "row 6")
    assert re.sub(" +", " ", text) == "contradicted [0:5] B[c].\nunverifiable [6:11] C[u]."
    assert found.precision == pytest.approx(4 / 7)  # by hand
    assert results(suites["thresholds"]) == [
        ("precision at least 0.6", "failure", found.failures[0]),
        ("at most 0.9 not judged", None, None),
    ]


def test_without_a_threshold_nothing_fails(tmp_path):
    _, suites = junit(tmp_path, [{"completion": "B[c]."}], verifier=JUDGE)
    assert results(suites["answers"]) == [("row 1", None, None)] and set(suites) == {"answers"}


def test_turns_are_cases_of_their_conversation(tmp_path):
    _, suites = junit(tmp_path, [{"messages": TALK}], fail_under={"decided_precision": 0.9})
    names = [(case.get("classname"), case.get("name")) for case in suites["answers"].findall("testcase")]
    asked = "Where does Ulm lie?"
    assert names == [("answers.row 1", f"row 1, turn 1: {asked}"), ("answers.row 1", f"row 1, turn 2: {asked}")]
    assert "not found" in suites["answers"].find("testcase/failure").text


def test_any_text_stays_well_formed(tmp_path):
    rows = [{"completion": EVIL, "question": EVIL, "evidence": EVIL}] * 2
    _, suites = junit(tmp_path, rows, verifier=JUDGE, fail_under=1.0)
    (case, _) = suites["answers"].findall("testcase")
    assert "]]></failure><b>&amp;" in case.get("name") and "Ulm]]></failure>" not in (case.find("failure").text or "")
    assert case.find("failure") is not None


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (' hostname="localhost"', "", "testsuite lacks hostname"),
        ('tests="2"', 'tests="3"', "tests is 3, not 2"),
        ('errors="0"', 'errors="none"', "errors='none'"),
        ("T", " ", "timestamp="),
        ("<system-out />", "", "testsuite holds"),
        (' type="factuality"', "", "failure lacks type"),
        ("<failure", "<skipped /><failure", "testcase holds 'skipped failure'"),
        (' classname="answers"', "", "testcase lacks classname"),
        ("<properties>", "words<properties>", "testsuite holds text"),
        ('time="0', 'time="-0', "time="),
        ("<testcase ", '<testcase extra="1" ', "testcase has extra"),
    ],
)
def test_the_rules_of_the_schema_can_be_broken(tmp_path, old, new, said):
    path = tmp_path / "junit.xml"
    hf_factuality.verify(["A.", "B[c]."], verifier=JUDGE, junit=path, fail_under={"precision": 0.9})
    text = path.read_text(encoding="utf-8")
    head, end = text.index("timestamp"), len(text)
    if old == "T":
        text = text[:head] + re.sub(r"(\d)T(\d)", r"\1 \2", text[head:end])
    else:
        assert old in text
        text = text.replace(old, new)
    assert any(said in it for it in problems(text.encode()))


def summary(tmp_path, rows, **options):
    path = tmp_path / "summary.md"
    hf_factuality.verify(rows, job_summary=path, **options)
    return path.read_text(encoding="utf-8")


def test_the_summary_has_scores_failures_and_the_worst_answers(tmp_path):
    rows = [{"completion": "A.", "evidence": "e"}, {"completion": "B[c]. C[u]. D.", "question": "Which?"}]
    text = summary(tmp_path, [*rows, *rows[:1] * 20, {"completion": "Who!!"}], verifier=JUDGE, fail_under=0.99)
    assert text.startswith("## Factuality of completions\n\n**Failed:** precision 0.9")
    assert "| precision | 0.917 |" in text
    worst = text[text.index("###") :].splitlines()
    assert worst[0] == "### The 10 of 23 answers: those with claims that are not supported"
    assert worst[2:] == [
        "**row 2: Which?**",
        "- precision 0.33",
        "  - *contradicted*: B\\[c\\].",
        "  - *unverifiable*: C\\[u\\].",
        "",
    ]


def test_the_summary_is_appended_and_no_text_has_a_meaning_in_it(tmp_path):
    (tmp_path / "summary.md").write_text("# Before\n\n", encoding="utf-8")
    rows = [{"completion": EVIL, "question": EVIL, "evidence": EVIL}]
    text = summary(tmp_path, rows, verifier=JUDGE)
    assert text.startswith("# Before\n\n## Factuality of completions")
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    kinds = {it.type for token in tokens for it in [token, *(token.children or [])]}
    assert not kinds & {"html_block", "html_inline", "link_open", "image", "fence", "code_inline"}
    assert [token.tag for token in tokens if token.type == "heading_open"] == ["h1", "h2", "h3"]


def test_the_summary_names_no_account_and_no_issue(tmp_path):
    """As GitHub finds them in what it shows, behind the escapes of Markdown."""
    rows = [{"completion": "@octocat me/it#12 A[c].", "question": "@octocat #3"}]
    shown = re.sub(r"\\([!-/])", r"\1", summary(tmp_path, rows, verifier=JUDGE))
    assert "octocat" in shown and not re.search(r"@[\w]|#\d", shown)


def test_the_summary_stays_small(tmp_path):
    long = "x" * 1000
    rows = [{"completion": " ".join(f"{long}{n}[c]." for n in range(20)), "question": long} for _ in range(30)]
    assert len(summary(tmp_path, rows, verifier=JUDGE)) < 50_000
    (tmp_path / "summary.md").unlink()
    said = [{"role": "assistant", "content": "A[c]."}, {"role": "assistant", "content": "A."}]
    talk = {"messages": [{"role": "tool", "content": "x"}, *said * 15]}
    text = summary(tmp_path, [talk], verifier=JUDGE)
    assert "the first 10 of 15 turns with such claims" in text and text.count("A\\[c\\]") == 10


def test_the_command_appends_to_the_summary_of_the_step(tmp_path, monkeypatch, capsys):
    step, own = tmp_path / "step.md", tmp_path / "own.md"
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(step))
    file = write_rows(tmp_path / "a.jsonl", [{"completion": "A."}])
    assert main(["verify", str(file), "--verifier", JUDGE]) == 0
    assert "Factuality of" in step.read_text() and f"wrote {step}" in capsys.readouterr().err
    written = step.read_text()
    assert (
        main(["verify", str(file), "--verifier", JUDGE, "--job-summary", str(own), "--junit", str(tmp_path / "j")])
        == 0
    )
    assert own.exists() and step.read_text() == written and f"wrote {tmp_path / 'j'}, {own}" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["junit", "job_summary", "html"])
def test_files_that_would_be_overwritten_are_refused_before_anything_is_judged(tmp_path, name):
    file = write_rows(tmp_path / "a.jsonl", [{"completion": "A."}])
    with pytest.raises(ValueError, match=f"would be overwritten while it is in use; name another `{name}`"):
        hf_factuality.verify(file, verifier=JUDGE, **{name: file})
    with pytest.raises(OSError, match=f"`{name}` .* cannot be written"):
        hf_factuality.verify(file, verifier=JUDGE, **{name: tmp_path})
    with pytest.raises(ValueError, match="would be overwritten"):
        hf_factuality.verify(file, verifier=JUDGE, **{"out": tmp_path / "o", name: tmp_path / "o"})


def drawn(answers, measure, seed=3):
    """A slow bootstrap: its quantiles are near those of any other."""
    random_ = random.Random(seed)
    found = sorted(
        value for _ in range(2000) if (value := measure([random_.choice(answers) for _ in answers])) is not None
    )
    return found[int(0.025 * len(found))], found[int(0.975 * len(found))]


def test_intervals_are_those_of_drawing_answers():
    texts = ["A. B. C. D.", "A[c].", "A. B[c].", "A[u]. B.", "A. B. C[u].", "A.", "A[c]. B[c].", "A[?]."] * 5
    found = hf_factuality.verify(texts, verifier=JUDGE)
    counts = [
        (text.count(".") - text.count("["), text.count(".") - text.count("[?]"), text.count("[c]")) for text in texts
    ]
    scored = [it for it in counts if it[1]]
    assert found.summary["scored"] == len(scored) == 35
    pooled = sum(it[0] for it in scored) / sum(it[1] for it in scored)
    mean = sum(it[0] / it[1] for it in scored) / len(scored)
    assert found.precision == pytest.approx(pooled) and found.summary["precision_per_answer"] == pytest.approx(mean)
    assert abs(pooled - mean) > 0.02
    measures = {
        "precision": lambda own: sum(it[0] for it in own) / sum(it[1] for it in own),
        "precision_per_answer": lambda own: sum(it[0] / it[1] for it in own) / len(own),
        "decided_precision": lambda own: sum(it[0] for it in own) / max(sum(it[0] + it[2] for it in own), 1),
    }
    for name, measure in measures.items():
        interval = found.summary["intervals"][name]
        low, high = drawn(scored, measure)
        assert interval["low"] == pytest.approx(low, abs=0.03) and interval["high"] == pytest.approx(high, abs=0.03)
    shown = {row["measure"]: row for row in found.table()}
    interval = found.summary["intervals"]["precision"]
    assert shown["precision"]["interval"] == f"{interval['low']:.3f} to {interval['high']:.3f}"
    assert shown["precision_per_answer"]["parts"] == "mean over the 35 answers with claims"


def test_the_mean_over_answers_can_be_gated():
    texts = ["A. B. C. D. E. F. G. H.", "A[c]."]
    found = hf_factuality.verify(texts, verifier=JUDGE, fail_under={"precision_per_answer": 0.8, "precision": 0.8})
    assert found.failures == ["precision_per_answer 0.5 is below 0.8"]


def turn(row, number):
    return TranscriptTurn("", None, (), number, 0, row)


def test_turns_of_a_conversation_are_one_unit_wherever_its_claims_begin():
    """A conversation whose first turn states nothing is not taken for the one before it."""
    shares = AnswerShares()
    right, wrong = LabeledSpan(0, 1, Label.SUPPORTED), LabeledSpan(0, 1, Label.CONTRADICTED)
    rows = [
        ("a", [right]),
        ("a", [wrong]),
        ("b", []),
        ("b", [right]),
        (None, [wrong]),
        ("c", []),
        ("d", [wrong]),
        ("d", []),
    ]
    for number, (row, spans) in enumerate(rows):
        request = VerificationRequest(VerifierInput(""), turn=row and turn(row, number))
        shares.add(JudgedRow(request, Verification(tuple(spans))), spans)
    assert shares.scored == 5
    assert shares.conversations()["conversations"] == {
        "n": 4,
        "scored": 3,
        "precision": pytest.approx((0.5 + 1 + 0) / 3),
    }
    assert shares.mean_precision() == pytest.approx(2 / 5)


def test_what_is_written_is_said(tmp_path, capsys):
    file = write_rows(tmp_path / "a.jsonl", [{"completion": "A."}])
    page = tmp_path / "page.html"
    found = hf_factuality.verify(file, verifier=JUDGE, html=page)
    assert found.notes[-1] == f"wrote {page}"
    assert hf_factuality.verify(file, verifier=JUDGE).notes == []
    assert main(["verify", str(file), "--verifier", JUDGE, "--html", str(page), "--json"]) == 0
    printed = capsys.readouterr()
    assert printed.err == "" and json.loads(printed.out)["precision"] == 1.0

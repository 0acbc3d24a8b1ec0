import ast
import itertools
import re
from pathlib import Path

import pytest

import hf_factuality
from hf_factuality.errors import JudgingError
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers.base import VerifierInput
from hf_factuality.verifiers.guard import GuardedVerifier
from hf_factuality.verifiers.service import JudgingReport, VerificationRequest, judge_rows


class Words:
    """Labels the first word; fails on what says so. Notes what it was shown."""

    def __init__(self, requires_evidence=False):
        self.requires_evidence = requires_evidence
        self.calls = []

    def verify(self, inputs):
        self.calls.append([item.completion for item in inputs])
        return [self._one(item.completion) for item in inputs]

    def _one(self, text):
        if text == "down":
            return Verification(error="no route to host")
        label = None if text == "mute" else Label.SUPPORTED
        return Verification(spans=(LabeledSpan(0, len(text.split()[0]), label),))


def row(text, evidence=("E",), **settings):
    return VerificationRequest(VerifierInput(text, "Q?", evidence, {"column": 1}), **settings)


class Kept(dict):
    """Remembers what was judged, by the key of its row."""

    def get(self, row):
        return super().get(row.key)

    def add(self, judged):
        self.update({it.row.key: it.verification for it in judged if it.verification.error is None})


def flat(chunks):
    return [judged for chunk in chunks for judged in chunk]


def test_spans_are_characters_of_the_whole_completion():
    verifier = Words()
    rows = [
        row("<think>Hm so.</think> Warsaw it is.", scope="answer"),
        row("Hm so.</think> Warsaw.", scope="think", opened=True),
        row(" Warsaw. "),
    ]
    found = flat(judge_rows(verifier, rows))
    assert verifier.calls == [["Warsaw it is.", "Hm so.", " Warsaw. "]]
    texts = [span.text(it.row.input.completion) for it in found for span in it.verification.spans]
    assert texts == ["Warsaw", "Hm", " Warsaw"]
    assert [it.found.spans[0].start for it in found] == [0, 0, 0]
    assert found[0].row.shown.question == "Q?" and found[0].row.shown.row == {"column": 1}


def test_rows_that_cannot_be_judged_are_left_out_in_their_place():
    verifier, report = Words(requires_evidence=True), JudgingReport()
    rows = [row("One.", ()), row("Two."), row("<think>x</think> ", scope="answer"), row(" ", ())]
    found = flat(judge_rows(verifier, rows, report=report))
    assert verifier.calls == [["Two."]]
    assert [it.left_out for it in found] == ["no_evidence", None, "empty", "no_evidence"]
    assert [it.verification.error for it in found] == ["no evidence", None, None, "no evidence"]
    assert found[2].verification == Verification()
    assert (report.rows, report.sent, report.empty, report.no_evidence, report.failed) == (4, 1, 1, 2, 0)


def test_rows_are_read_as_they_are_needed():
    read = []

    def endless():
        for number in itertools.count():
            read.append(number)
            yield row(f"w{number}", key=number)

    chunks = judge_rows(Words(), endless(), chunk=3)
    assert [it.row.key for it in next(chunks)] == [0, 1, 2] and len(read) == 3
    assert [it.row.key for it in next(chunks)] == [3, 4, 5] and len(read) == 6


def test_rows_that_are_left_out_do_not_make_calls_smaller():
    verifier, kept = Words(requires_evidence=True), Kept()
    rows = [row(f"w{n}", key=n) for n in range(1280)]
    kept.update({n: Verification() for n in range(1280) if n % 64 != 5})
    found = flat(judge_rows(verifier, rows, verdicts=kept))
    assert [len(call) for call in verifier.calls] == [20]
    assert [it.row.key for it in found] == list(range(1280))
    assert [it.row.key for it in found if it.left_out is None] == [*range(5, 1280, 64)]
    verifier.calls.clear()
    chunks = judge_rows(verifier, (row(f"w{n}", () if n % 10 else ("E",)) for n in range(1300)))
    assert [len(chunk) for chunk in chunks] == [631, 640, 29]
    assert [len(call) for call in verifier.calls] == [64, 64, 2]


def test_rows_that_are_left_out_do_not_fill_the_memory():
    read = []
    rows = (read.append(n) or row(f"w{n}", ()) for n in itertools.count())
    assert len(next(judge_rows(Words(requires_evidence=True), rows))) == len(read) == 2048


@pytest.mark.parametrize("rows", [[], [row(" ")], [row("a"), row("down")]])
def test_one_list_is_one_call_of_the_guard(rows):
    guard = GuardedVerifier(Words())
    guard.verify([VerifierInput("down")] * 3)
    (found,) = judge_rows(guard, rows, chunk=None)
    assert len(found) == len(rows)
    assert guard.last_report.sent == sum(bool(it.row.ranges) for it in found)
    assert guard.last_report.failed == (len(rows) == 2)


def test_what_a_verifier_raises_is_said_in_its_row():
    class Raises(Words):
        def _one(self, text):
            if text == "bad":
                raise RuntimeError("cannot read this")
            return super()._one(text)

    found = flat(judge_rows(Raises(), [row("a"), row("bad"), row("c")]))
    assert [it.verification.error for it in found] == [None, "RuntimeError: cannot read this", None]


def test_failures_in_a_row_end_it_after_their_chunk_was_seen():
    rows, seen = [row(t) for t in ["down", "a", "mute", "mute", "mute", "mute", "a", "a"]], []
    with pytest.raises(JudgingError, match="4 completions.*row 6"):
        for chunk in judge_rows(Words(), rows, chunk=2, give_up_after=3):
            seen += chunk
    assert len(seen) == 6
    assert len(flat(judge_rows(Words(), rows, chunk=2, give_up_after=3, needs_label=False))) == 8


def test_the_last_reason_is_said_where_the_last_row_is():
    report = JudgingReport()
    with pytest.raises(JudgingError, match="2 completions.*row 3"):
        flat(judge_rows(Words(), [row("a"), row("down"), row("mute")], chunk=3, give_up_after=2, report=report))
    assert report.first_reason == "no route to host"


def test_a_verifier_that_judged_nothing_is_down():
    report = JudgingReport()
    chunks = judge_rows(Words(), [row("down"), row(" "), row("down")], give_up_after=128, report=report)
    with pytest.raises(JudgingError, match="2 completions in a row.*no route to host"):
        flat(chunks)
    assert (report.sent, report.failed, report.first_reason) == (2, 2, "no route to host")
    assert len(flat(judge_rows(Words(), [row("down")] * 200))) == 200  # nobody asked to give up


def test_what_is_known_is_not_asked_again():
    verifier, kept, report = Words(), Kept(), JudgingReport()
    rows = [row(f"<think>x</think> {text}", scope="answer", key=text) for text in ("a b", "down", "c")]
    first = flat(judge_rows(verifier, rows, verdicts=kept))
    again = flat(judge_rows(verifier, rows, verdicts=kept, report=report, give_up_after=128))
    assert verifier.calls == [["a b", "down", "c"], ["down"]]
    assert [it.verification for it in again] == [it.verification for it in first]
    assert [it.left_out for it in again] == ["known", None, "known"]
    assert (report.known, report.failed) == (2, 1) and not report.all_failed


# Verifiers that hold another one and add to what it finds; and the guard, which the service asks.
COMPOSITES = {
    "demos/comparing.py",
    "verifiers/guard.py",
    "verifiers/searched.py",
    "verifiers/transformers_pipeline.py",
    "worlds/noisy.py",
}


def test_nothing_else_asks_a_verifier():
    """Whatever else calls a `verify` judges in a way of its own: how it skips, counts and gives up."""
    package = Path(hf_factuality.__file__).parent
    found = {}
    for path in package.rglob("*.py"):
        text = path.read_text(encoding="utf-8")
        if ".verify" not in text:
            continue  # most files are not parsed
        calls = [
            node
            for node in ast.walk(ast.parse(text))
            if isinstance(node, ast.Attribute) and node.attr == "verify" and isinstance(node.ctx, ast.Load)
        ]
        # `type(x).verify` and `VerifierPipeline.verify` name the method of a class and call nothing.
        calls = [node for node in calls if not re.search(r"^type\(|^[A-Z]\w+$", ast.unparse(node.value))]
        if calls:
            found[path.relative_to(package).as_posix()] = len(calls)
    assert found.pop("verifiers/service.py") == 1
    assert set(found) == COMPOSITES

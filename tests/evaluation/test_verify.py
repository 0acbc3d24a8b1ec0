"""`hf-factuality verify` beyond tests/test_cli.py: evidence files, metrics, thresholds, page, and what it refuses."""

import io
import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

import hf_factuality.evaluation.verify as command
from hf_factuality import Verification, VerifierInput, load_verifier
from hf_factuality.cli import main
from hf_factuality.io.upload import naming_model
from hf_factuality.metrics import add_metric, compute
from hf_factuality.metrics._claims import small_answer
from hf_factuality.metrics._registry import METRICS
from hf_factuality.metrics.factscore.factscore import Factscore
from hf_factuality.metrics.longwiki.longwiki import Longwiki
from hf_factuality.metrics.safe.safe import Safe
from hf_factuality.metrics.veriscore.veriscore import Veriscore
from hf_factuality.spans import Label, LabeledSpan
from hf_factuality.verifiers.registry import VERIFIER_NAMES
from tests.test_report import Marks


BORN = "Marie Curie was born in Warsaw in 1867."
EVIDENCE = [BORN, "She won the Nobel Prize in Physics in 1903."]
TRUE = BORN
FALSE = "Marie Curie was born in Warsaw in 1890."
REFUSAL = "Sorry, I can't do that."
PAGE = Path(__file__).resolve().parents[2] / "docs" / "quickstart-ci.md"


class CountingVerifier:
    """A sentence is supported if the evidence holds it; "?" fails; counts what it is asked."""

    requires_evidence = True
    calls: list[list[str]] = []

    def verify(self, inputs):
        self.calls.append([item.completion for item in inputs])
        return [self._one(item) for item in inputs]

    def _one(self, item):
        if "?" in item.completion:
            return Verification(error="it asks")
        claims = [
            LabeledSpan(found.start(), found.end(), self._label(found[0], item.evidence), 0.5, None, item.evidence[0])
            for found in re.finditer(r"[^.]+\.", item.completion)
        ]
        return Verification(spans=claims)

    def _label(self, sentence, evidence):
        return Label.SUPPORTED if any(sentence.strip() in text for text in evidence) else Label.CONTRADICTED


@pytest.fixture
def counting(monkeypatch):
    monkeypatch.setattr(CountingVerifier, "calls", [])
    return ["--verifier", "tests.evaluation.test_verify:CountingVerifier"], CountingVerifier


def lines(path, *rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


class Judge:
    """Labels sentences by a mark in them; what has no mark is supported."""

    requires_evidence = False
    seen: list[str] = []

    def verify(self, inputs):
        marks = {"[u]": Label.UNVERIFIABLE, "[c]": Label.CONTRADICTED, "[?]": None}
        self.seen += [item.completion for item in inputs]
        return [
            Verification(
                spans=[
                    LabeledSpan(found.start(), found.end(), marks.get(found[1], Label.SUPPORTED))
                    for found in re.finditer(r"\w+(\[.\])?\.", item.completion)
                ]
            )
            for item in inputs
        ]


@pytest.fixture
def judge(monkeypatch, tmp_path, capsys):
    """Runs the command on completions that [`Judge`] reads; returns status, summary and error stream."""
    monkeypatch.setattr(Judge, "seen", [])

    def run_on(texts, *flags):
        file = lines(tmp_path / "answers.jsonl", *[{"completion": text} for text in texts])
        return run(capsys, file, "--verifier", "tests.evaluation.test_verify:Judge", *flags)

    return run_on


def run(capsys, *args):
    status = main(["verify", *map(str, args)])
    printed = capsys.readouterr()
    return status, json.loads(printed.out) if printed.out else None, printed.err


def answers(tmp_path, *completions, **columns):
    rows = [{"completion": text, "evidence": EVIDENCE, **columns} for text in completions]
    return lines(tmp_path / "answers.jsonl", *rows)


def test_metrics_equal_the_modules_called_by_hand(tmp_path, capsys):
    texts = [TRUE, f"{TRUE} {FALSE}", FALSE, REFUSAL, "", "Nobody wrote down what he ate.", TRUE]
    evidence = [EVIDENCE] * 6 + [None]
    rows = [{"completion": text, "evidence": passages} for text, passages in zip(texts, evidence, strict=True)]
    file = lines(tmp_path / "answers.jsonl", *rows)
    status, found, err = run(
        capsys,
        file,
        "--metric",
        "factscore,veriscore",
        "--metric_args",
        "factscore.gamma=0",
        "--out",
        tmp_path / "out",
    )
    assert status == 0 and "factscore" in err
    given = {"predictions": texts, "references": evidence, "verifier": "lexical"}
    by_hand = {"factscore": Factscore().compute(gamma=0, **given), "veriscore": Veriscore().compute(**given)}
    assert found["metrics"] == by_hand
    assert found["metrics"]["factscore"]["judge"]["name"] == "LexicalJudge"
    assert found["metrics"]["factscore"]["left_out"]["responses"]["no_evidence"] == 1
    # The rows of --out give the same score.
    written = [json.loads(line) for line in (tmp_path / "out").read_text(encoding="utf-8").splitlines()]
    assert Factscore().compute(predictions=written, gamma=0)["factscore"] == by_hand["factscore"]["factscore"]


def test_every_metric_of_claims_runs_and_judges_nothing_twice(tmp_path, capsys, counting):
    flags, verifier = counting
    texts = [TRUE, f"{TRUE} {FALSE}", "Who?", REFUSAL]
    rows = [{"completion": text, "evidence": EVIDENCE} for text in texts] + [{"completion": "Alone."}]
    metrics = [flag for name in command.CLAIM_METRICS for flag in ("--metric", name)]
    status, found, err = run(capsys, lines(tmp_path / "a", *rows), *flags, *metrics, "--html", tmp_path / "page.html")
    assert status == 0 and verifier.calls == [texts]
    assert set(found["metrics"]) == set(command.CLAIM_METRICS)
    # By hand: one response of one supported claim, one of 1 in 2, the refusal's sentence is not in the evidence.
    assert found["precision"] == 2 / 4 and found["not_judged"] == 2
    assert found["metrics"]["anah"]["anah"] == 2 / 4
    assert found["metrics"]["factscore"]["parts"]["init_score"] == pytest.approx((1 + 1 / 2 + 0) / 3)
    assert found["metrics"]["veriscore"]["left_out"]["responses"]["abstained"] == 1
    left_out = found["metrics"]["safe"]["left_out"]["responses"]
    assert left_out["verifier_failed"] == left_out["no_evidence"] == 1
    assert "failed on 1 completions, which are left out; the first: it asks" in err


def test_a_metric_of_another_package_is_a_function_of_labels(tmp_path, capsys, judge, monkeypatch):
    """The one of the page, from a file beside the answers; by hand: (1 + 2 + 0) / 3, the fourth declines."""
    page = Path(__file__).resolve().parents[2] / "docs" / "metrics.md"
    code = re.search(r"```python\n# my_metrics.py\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)[1]
    (tmp_path / "my_metrics.py").write_text(code, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])
    monkeypatch.setattr("hf_factuality.metrics._registry.METRICS", dict(METRICS))
    texts = ["A[c]. B.", "C[c]. D[c].", "", REFUSAL]
    flags = ["--metric", "my_metrics:contradictions,anah", "--metric_args", "contradictions.abstention=veriscore"]
    status, found, err = judge(texts, *flags, "--fail_under", "contradictions=0.9", "--max_not_judged", "1")
    assert status == 0 and "contradictions" in err and set(found["metrics"]) == {"contradictions", "anah"}
    result = found["metrics"]["contradictions"]
    assert result["contradictions"] == 1.0 and result["n_scored"] == 3 and result["judge"] == {"name": "Judge"}
    assert result["left_out"]["responses"]["abstained"] == 1
    verifications = [Verification([LabeledSpan(0, 1, label)]) for label in (Label.CONTRADICTED, Label.SUPPORTED)]
    assert compute(add_metric("my_metrics:contradictions"), verifications)["contradictions"] == 0.5
    for place, message in (
        ("my_metrics:nothing", "names no function"),
        ("no_such_module:f", "names no function"),
        ("json:__doc__", "is no function but a str"),
        ("my_metrics:anah", "there is a metric 'anah'"),
    ):
        status, _, err = judge(texts, "--metric", place)
        assert status == 2 and message in err and err.count("\n") == 1


OWN_METRICS = """
from hf_factuality.metrics import Answers

def declining(predictions, references, **options):
    answers = Answers(predictions, references, table=None, abstention=lambda text: "sorry" in text, options=options)
    return answers.result("declining", float(answers.labels().count(None)), [0.0] * len(answers.scorable))

def renamed(predictions, references, **options):
    answers = Answers(predictions, references, table=None, options=options)
    return answers.result("another_name", 1.0, [1.0] * len(answers.scorable))
"""


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("declining", "a function cannot say whether a verified response declines"),
        ("renamed", "the result of the metric 'renamed' has no 'renamed'"),
    ],
)
def test_a_metric_that_cannot_be_computed_of_labels_is_refused_before_any_judging(
    tmp_path, capsys, counting, monkeypatch, name, message
):
    (tmp_path / "own_metrics.py").write_text(OWN_METRICS, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "own_metrics", raising=False)
    monkeypatch.setattr("hf_factuality.metrics._registry.METRICS", dict(METRICS))
    flags, verifier = counting
    status, _, err = run(
        capsys,
        lines(tmp_path / "a", {"completion": "I'm sorry.", "evidence": "E"}),
        *flags,
        "--metric",
        f"own_metrics:{name}",
    )
    assert status == 2 and message in err and err.count("\n") == 1
    assert verifier.calls == []
    if name == "declining":  # of texts it is one
        assert compute(name, [{"text": "sorry", "claims": []}, ["S"]])[name] == 1.0


@pytest.mark.parametrize("rule", ["generic", "perplexity_ai", "veriscore"])
def test_metrics_see_repeats_blanks_and_refusals_as_the_modules_do(tmp_path, capsys, rule):
    """The modules read whole verifications here; the command gives them less of each."""
    apology = f"I'm sorry. {TRUE}"
    texts = [
        f"{TRUE} {TRUE} {FALSE}",
        f"{TRUE}\n{TRUE.replace(' ', '  ')}",
        " \n",
        apology,
        REFUSAL,
        f"\ud800 {TRUE}",
        TRUE,
    ]
    rows = [{"completion": text, "evidence": EVIDENCE if n < 6 else None} for n, text in enumerate(texts)]
    names = ["veriscore", "longwiki", "safe", "factscore"]
    flags = [flag for name in names for flag in ("--metric_args", f"{name}.abstention={rule}")]
    flags += ["--metric_args", "safe.deduplicate=true", "--metric", ",".join(names), "--out", tmp_path / "out"]
    status, found, _ = run(capsys, lines(tmp_path / "answers.jsonl", *rows), *flags)
    assert status == 0
    whole = load_verifier("lexical").verify([VerifierInput(text, evidence=tuple(EVIDENCE)) for text in texts[:6]])
    predictions = [{"text": text, **it.to_dict()} for text, it in zip(texts, whole, strict=False)] + [TRUE]
    kinds = {"veriscore": Veriscore, "longwiki": Longwiki, "safe": Safe, "factscore": Factscore}
    repeats = 0
    for name in names:
        extra = {"deduplicate": True} if name == "safe" else {}
        by_hand = kinds[name]().compute(predictions=predictions, verifier="lexical", abstention=rule, **extra)
        for key in (name, "parts", "left_out", "confidence_interval", "settings", "n", "n_scored"):
            assert found["metrics"][name][key] == by_hand[key], (name, key)
        repeats += by_hand["left_out"]["claims"]["duplicate"]
        assert by_hand["left_out"]["responses"]["no_evidence"] == by_hand["parts"]["empty"] == 1
    assert repeats > 0


def test_what_a_metric_is_fed_does_not_grow_with_the_texts():
    sentence = "Marie Curie was born in Warsaw. "
    spans = tuple(LabeledSpan(32 * i, 32 * i + 31, Label.SUPPORTED, 0.5, f"claim {i}", "x" * 5000) for i in range(50))
    fed = small_answer(sentence * 50, Verification(spans=spans))
    kept = [value for value in asdict(fed).values() if value]
    assert kept == [(Label.SUPPORTED,) * 50, True]


def test_a_verifier_that_says_no_evidence_itself_is_not_asked_again(tmp_path, capsys, counting, monkeypatch):
    flags, verifier = counting
    monkeypatch.setattr(verifier, "requires_evidence", False)
    monkeypatch.setattr(
        verifier, "_one", lambda self, item: Verification(error="no evidence" if item.row["n"] else None)
    )
    rows = [{"completion": "a.", "n": 0}, {"completion": "b.", "n": 1}]
    _, found, _ = run(capsys, lines(tmp_path / "a", *rows), *flags, "--metric", "factscore")
    assert verifier.calls == [["a.", "b."]]
    assert found["metrics"]["factscore"]["left_out"]["responses"]["verifier_failed"] == 1


@pytest.mark.parametrize("ids", [None, "id", "key"])
def test_evidence_from_a_file(tmp_path, capsys, ids):
    rows = [{"completion": TRUE}, {"completion": "Bob sat."}]
    passages = [{"evidence": EVIDENCE}, {"evidence": "Bob sat."}]
    flags = []
    if ids:
        rows = [{**row, ids: number} for number, row in enumerate(rows)]
        passages = [{**row, ids: str(number)} for number, row in enumerate(passages)][::-1]
        flags = [] if ids == "id" else ["--id-column", "key"]
    file, other = lines(tmp_path / "a.jsonl", *rows), lines(tmp_path / "e.jsonl", *passages)
    status, found, err = run(capsys, file, "--evidence", other, *flags)
    assert (status, found["precision"], found["not_judged"]) == (0, 1.0, 0)
    assert f"joined {f'by {ids!r}' if ids else 'by the order of their rows'}: 2 of 2 rows" in err


def test_an_answer_whose_id_is_missing_has_no_evidence(tmp_path, capsys):
    file = lines(tmp_path / "a", {"completion": TRUE, "id": 1}, {"completion": TRUE, "id": 2})
    other = lines(tmp_path / "e", {"passages": EVIDENCE, "id": 2})
    _, found, err = run(capsys, file, "--evidence", other, "--evidence_column", "passages")
    assert found["not_judged"] == 1 and "1 of 2 rows" in err


def test_evidence_from_a_column(tmp_path, capsys):
    file = lines(tmp_path / "a", {"text": TRUE, "docs": EVIDENCE, "ask": "Who?"})
    columns = ["--completion-column", "text", "--question-column", "ask"]
    for flag in ("--evidence", "--evidence_column"):
        assert run(capsys, file, *columns, flag, "docs")[1]["precision"] == 1.0


def test_standard_input(tmp_path, capsys, monkeypatch):
    row = json.dumps({"completion": TRUE, "evidence": EVIDENCE})
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"\ufeff{row}\r\n\r\n{row}".encode())))
    assert run(capsys, "-")[1]["completions"] == 2


@pytest.mark.parametrize(
    ("flags", "status", "message"),
    [
        ([], 0, ""),
        (["--fail-under", "0.5"], 0, ""),
        (["--fail_under", "0.6"], 1, "precision 0.5 is below 0.6"),
        (["--fail-under=0.6"], 1, "precision 0.5 is below 0.6"),
        (["--metric", "factscore", "--metric-args", "factscore.gamma=0", "--fail-under", "0.5"], 0, ""),
        (["--metric", "factscore", "--fail-under", "0.5"], 1, "is below 0.5"),  # the length penalty
        (["--metric", "factscore", "--fail_under", "precision=0.5"], 0, ""),
        (["--metric", "anah,factscore", "--fail_under", "anah=0.5", "--fail_under", "precision=.9"], 1, "below 0.9"),
        (["--max-not-judged", "0"], 0, ""),
    ],
)
def test_thresholds(tmp_path, capsys, flags, status, message):
    found, summary, err = run(capsys, answers(tmp_path, TRUE, FALSE), *flags)
    assert found == status and message in err and summary["precision"] == 0.5


@pytest.mark.parametrize("flag", ["--max_not_judged", "--max-not-judged"])
def test_too_many_not_judged(tmp_path, capsys, flag):
    file = lines(tmp_path / "a", {"completion": TRUE, "evidence": EVIDENCE}, {"completion": TRUE})
    assert run(capsys, file)[0] == 0
    status, _, err = run(capsys, file, flag, "0.4")
    assert status == 1 and "1 of 2 completions could not be judged" in err
    assert run(capsys, file, "--fail-under", "0.1")[0] == 1  # 0.1 by default
    assert run(capsys, file, "--fail-under", "0.1", flag, "0.5")[0] == 0


def test_a_score_that_is_undefined_is_below_every_threshold(tmp_path, capsys):
    file = answers(tmp_path, "")
    assert run(capsys, file, "--fail-under", "0")[0] == 1
    assert run(capsys, file, "--metric", "factscore", "--fail-under", "0")[0] == 1


def test_one_true_sentence_and_five_inventions_fail_the_gate(tmp_path, capsys):
    inventions = (
        "Napoleon liked cheese. Aliens built pyramids. Bananas conquered Mars. Dolphins wrote operas. Trees dance."
    )
    file = answers(tmp_path, f"{TRUE} {inventions}")
    status, found, err = run(capsys, file, "--fail-under", "0.8")
    assert status == 1 and "precision 0.1666" in err
    assert found["claims"] == {"supported": 1, "contradicted": 0, "unverifiable": 5, "not_judged": 0}
    assert (found["precision"], found["decided_precision"]) == (pytest.approx(1 / 6), 1.0)
    assert "supported 1, contradicted 0, unverifiable 5, not judged 0" in err
    assert run(capsys, file, "--fail-under", "decided_precision=0.8")[0] == 0


def test_a_judge_that_never_says_contradicted_can_fail_the_gate(judge):
    status, found, _ = judge(["A. B[u]. C[u].", "D."], "--fail-under", "0.8")
    assert (status, found["precision"], found["decided_precision"]) == (1, 2 / 4, 1.0)
    assert judge(["A. B[u].", "D. E. F."], "--fail-under", "0.8")[0] == 0


@pytest.mark.parametrize(
    ("flags", "status"),
    [
        ([], 0),
        (["--fail-under", "0.8"], 1),  # 0.1 by default
        (["--fail-under", "decided_precision=0.8"], 1),
        (["--max-not-judged", "0.89"], 1),
        (["--max-not-judged", "0.9"], 0),
        (["--fail-under", "0.8", "--max-not-judged", "0.9"], 0),
    ],
)
def test_claims_that_were_not_judged_count(judge, flags, status):
    found, summary, err = judge(["A." + " B[?]." * 9], *flags)
    assert found == status and summary["precision"] == 1.0 and summary["not_judged"] == 0
    assert summary["claims"]["not_judged"] == 9 and ("9 of 10 claims could not be judged" in err) == bool(status)


def test_an_answer_whose_claims_all_failed_counts_in_both_shares(judge):
    status, found, err = judge(["A[?]. B[?].", "C."], "--max-not-judged", "0.4")
    assert status == 1 and "1 of 2 completions" in err and "2 of 3 claims" in err
    assert found["labels"] == {"supported": 1, "unjudged": 2}


@pytest.mark.parametrize(
    ("scope", "texts", "seen", "claims"),
    [
        ([], ["Right."], ["Right."], 1),
        (["--scope", "think"], ["Moon[c].", "Two[c]."], ["Moon[c].\n Two[c].", "Open[c]."], 3),
        (["--scope=completion"], ["Moon[c].", "Two[c].", "Right.", "Open[c].", "Said."], None, 5),
    ],
)
def test_only_the_scope_is_judged_and_painted(judge, tmp_path, scope, texts, seen, claims):
    rows = [
        "<think>Moon[c].</think><think> Two[c]. </think>\n Right.",
        "<think>Open[c]. ",
        "<answer>Said.</answer>",
        " ",
    ]
    page, out = tmp_path / "page.html", tmp_path / "out.jsonl"
    status, found, _ = judge(
        rows[:2] if scope != ["--scope=completion"] else rows, *scope, "--html", page, "--out", out
    )
    kept = [json.loads(line) for line in out.read_text(encoding="utf-8").splitlines()]
    painted = [row["completion"][it["start"] : it["end"]] for row in kept for it in row["verification"]["spans"]]
    assert status == 0 and sum(found["claims"].values()) == claims == len(painted)
    assert painted[: len(texts)] == texts
    if seen:
        assert [" ".join(text.split()) for text in Judge.seen] == [" ".join(text.split()) for text in seen]
    marks = Marks(page.read_text(encoding="utf-8"))
    assert sorted(text for _, title, text in marks.marks if title) == sorted(painted)
    assert all(row in marks.text for row in rows[:2]), "the rest is shown, without colour"


def test_the_reasoning_is_not_judged_by_default(judge):
    status, found, _ = judge(["<think>Moon[c]. Cheese[c].</think>Right."], "--fail-under", "1")
    assert status == 0 and found["sentences"] == 1 and Judge.seen == ["Right."]
    assert judge(["<think>Moon[c].</think>Right."], "--fail-under", "1", "--scope", "completion")[0] == 1


def test_an_answer_with_nothing_in_the_scope_is_counted_and_not_sent(judge, tmp_path):
    page, out = tmp_path / "page.html", tmp_path / "out.jsonl"
    texts = ["<think>cut off", "", "Right.", "<think>all</think> "]
    flags = ["--metric", "factscore,safe", "--metric_args", "factscore.gamma=0", "--html", page, "--out", out]
    status, found, err = judge(texts, *flags)
    assert status == 0 and Judge.seen == ["Right."]
    assert (found["completions"], found["not_judged"], found["empty"], found["precision"]) == (4, 3, 3, 1.0)
    assert "not judged 3 (empty 3)" in err and "the verifier failed" not in err
    assert [found["metrics"][name]["parts"]["empty"] for name in ("factscore", "safe")] == [3, 3]
    assert page.read_text(encoding="utf-8").count("not judged: nothing in the scope") == 3
    assert len(out.read_text(encoding="utf-8").splitlines()) == 4
    # Nine answers that were cut off say nothing, and one true one must not speak for them.
    assert judge([*texts[:1] * 9, "Right."], "--fail-under", "0.8")[0] == 1
    assert judge(texts[:1], "--fail-under", "0")[0] == 1


def test_answers_of_inventions_alone_come_first_on_the_page(judge, tmp_path):
    page = tmp_path / "page.html"
    judge(["A.", "B[u]. C[u].", "D. E[c].", "F[?]. G."], "--html", page)
    headings = re.findall(r"<h3>(.*?)</h3>.*?<h4>(.*?)</h4>", page.read_text(encoding="utf-8"))
    assert headings == [
        ("line 2", "precision 0.00"),
        ("line 3", "precision 0.50"),
        ("line 1", "precision 1.00"),
        ("line 4", "precision 1.00, claims not judged: 1"),
    ]


def test_the_page_is_painted_escaped_and_sorted(tmp_path, capsys):
    evil = "<script>alert(1)</script> \ud800 was born in Warsaw in 1890."
    rows = [
        {"completion": TRUE, "evidence": EVIDENCE, "question": "<b>Where?</b>"},
        {"completion": FALSE, "evidence": EVIDENCE},
        {"completion": evil, "evidence": [*EVIDENCE, "<i>"]},
        {"completion": "Nothing known."},
    ]
    page, out = tmp_path / "new" / "page.html", tmp_path / "out.jsonl"
    status, _, _ = run(capsys, lines(tmp_path / "a", *rows), "--html", page, "--out", out)
    html = page.read_text(encoding="utf-8")
    marks = Marks(html)
    assert status == 0 and "script" not in marks.tags and "i" not in marks.tags and "b" not in marks.tags
    kinds = [kind for kind, title, _ in marks.marks if title]
    assert kinds == ["contradicted", "unverifiable", "supported"]
    assert "<script>alert(1)</script>" in marks.text and "right answer" not in marks.text
    order = [
        marks.text.index(text)
        for text in ("line 2", "line 3", "line 1: <b>Where?</b>", "line 4", "not judged: no evidence")
    ]
    assert order == sorted(order)
    assert json.loads(out.read_text(encoding="utf-8").split("\n")[2])["completion"] == evil


def test_the_page_keeps_the_worst(tmp_path, capsys, counting):
    flags, _ = counting
    texts = [TRUE] * 300 + [f"{TRUE} {FALSE}", FALSE]
    run(capsys, answers(tmp_path, *texts), *flags, "--html", tmp_path / "p.html", "--html-rows", "3")
    page = (tmp_path / "p.html").read_text(encoding="utf-8")
    assert re.findall(r"<h3>(.*?)</h3>", page) == ["line 302", "line 301", "line 1"]
    assert "The 3 of 302 answers" in page


def test_the_table_is_for_terminals(tmp_path, capsys, monkeypatch):
    file = answers(tmp_path, TRUE)
    assert main(["verify", file]) == 0
    piped = capsys.readouterr()
    assert json.loads(piped.out) and "precision  1.000" in piped.err
    assert main(["verify", file, "--json"]) == 0
    silent = capsys.readouterr()
    assert silent.out == piped.out and silent.err == ""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["verify", file, "--metric", "factscore"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("measure") and "init_score 1.000" in shown.out and "length penalty" in shown.out
    assert main(["verify", file, "--json"]) == 0
    assert capsys.readouterr().out == piped.out


def test_a_progress_bar_in_terminals_only(tmp_path, capsys, monkeypatch):
    file = answers(tmp_path, TRUE)
    assert main(["verify", file, "--json"]) == 0
    assert "1/1" not in capsys.readouterr().err
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["verify", file]) == 0
    assert "1/1" in capsys.readouterr().err


def test_rows_are_judged_in_chunks_and_written_as_they_come(tmp_path, capsys, counting, monkeypatch):
    flags, verifier = counting
    file, out, written = answers(tmp_path, *[TRUE] * 200), tmp_path / "out.jsonl", []

    def verify(self, inputs):
        written.append(len(out.read_text(encoding="utf-8").splitlines()))
        return [self._one(item) for item in inputs]

    monkeypatch.setattr(verifier, "verify", verify)
    _, found, _ = run(capsys, file, *flags, "--out", out)
    assert written == [0, 64, 128, 192] and found["completions"] == 200


def test_a_verifier_that_fails_on_everything(tmp_path, capsys, counting, monkeypatch):
    flags, _ = counting
    rows = [{"completion": "Who?", "evidence": "x"}, {"completion": "Why?", "evidence": "x"}, {"completion": "Alone."}]
    status, found, err = run(capsys, lines(tmp_path / "a", *rows), *flags, "--html", tmp_path / "page.html")
    assert (status, found) == (2, None) and "failed on 2 completions in a row" in err and "it asks" in err
    assert not (tmp_path / "page.html").exists()


def test_a_verifier_that_goes_down_ends_the_run_and_keeps_what_it_has(tmp_path, capsys, counting):
    flags, verifier = counting
    file = answers(tmp_path, *[TRUE] * 100, *["Who?"] * 400)
    out = tmp_path / "out.jsonl"
    status, _, err = run(capsys, file, *flags, "--out", out)
    assert status == 2 and "row 256 of 500" in err and "it asks" in err and f"{out} holds the 256 rows" in err
    assert sum(map(len, verifier.calls)) == 256 == len(out.read_text(encoding="utf-8").splitlines())


def test_bad_input_is_named_before_anything_is_judged(tmp_path, capsys, counting):
    flags, verifier = counting
    good = {"completion": TRUE, "evidence": EVIDENCE}
    bad = {
        "line 3 has no text in 'completion'": [good, good, {"completion": None}],
        "line 2, row 2: evidence must be": [good, {**good, "evidence": 3}],
        "line 2: the question in 'question' must be text": [good, {**good, "question": ["x"]}],
        "one object per line, not an array": [[good]],
    }
    for message, rows in bad.items():
        status, _, err = run(capsys, lines(tmp_path / "a.jsonl", *rows), *flags)
        assert status == 2 and message in err and "a.jsonl" in err
    for message, data in {"line 1 is not UTF-8": b'{"completion": "\xff"}', "line 2 is not JSON": b"\n{"}.items():
        (tmp_path / "a.jsonl").write_bytes(data)
        status, _, err = run(capsys, tmp_path / "a.jsonl", *flags)
        assert status == 2 and message in err
    assert verifier.calls == []


@pytest.mark.parametrize(
    ("rows", "passages", "flags", "message"),
    [
        ([{}, {}], [{"evidence": "x"}], [], "a.jsonl has 2 rows and "),
        (
            [{"id": 1}],
            [{"id": 1, "evidence": "x"}, {"id": "1", "evidence": "y"}],
            [],
            "e.jsonl, line 2 has the same 'id'",
        ),
        ([{"id": 1}, {}], [{"id": 1, "evidence": "x"}], [], "a.jsonl, line 2 has no id in 'id'"),
        ([{"id": 1}], [{"id": 1, "evidence": "x"}, {"evidence": "x"}], [], "e.jsonl, line 2 has no id in 'id'"),
        ([{"id": 1}], [{"id": 2, "evidence": "x"}], [], "--id_column (now 'id')"),
        ([{}], [{"passage": "x"}], [], "e.jsonl, line 1 has no evidence in 'evidence' (found ['passage'])"),
        ([{}], [{"evidence": {}}], [], "e.jsonl, line 1: evidence must be a string or a list of strings"),
        ([{}], ["x"], [], "e.jsonl, line 1 has no evidence in 'evidence' (found str)"),
        ([{}], [{"evidence": "x"}], ["--out", "e.jsonl"], "would be overwritten"),
        ([{}], [{"evidence": "x"}], ["--html", "a.jsonl"], "would be overwritten"),
        ([{}], [{"evidence": "x"}], ["--html", "."], "cannot be written"),
        ([{"e.jsonl": "x"}], [{"evidence": "x"}], [], "is a file and a column"),
    ],
)
def test_files_that_do_not_fit(tmp_path, capsys, monkeypatch, counting, rows, passages, flags, message):
    verifier_flags, verifier = counting
    monkeypatch.syspath_prepend(Path.cwd())
    monkeypatch.chdir(tmp_path)
    lines(tmp_path / "a.jsonl", *[{"completion": TRUE, **row} for row in rows])
    lines(tmp_path / "e.jsonl", *passages)
    status, _, err = run(capsys, "a.jsonl", "--evidence", "e.jsonl", *verifier_flags, *flags)
    assert status == 2 and message in err and verifier.calls == []
    assert (tmp_path / "a.jsonl").stat().st_size and (tmp_path / "e.jsonl").stat().st_size


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--evidence", "no.jsonl"], "there is no such file, and no such column"),
        (["--evidence", "docs", "--evidence_column", "text"], "there is no such file"),
        (["--id_column", "id"], "name that file with --evidence"),
        (["--metric", "factscor"], "choose of anah, factscore"),
        (["--metric", "truthfulqa"], "needs other inputs"),
        (["--metric", "factscore", "--metric_args", "factscore.gama=0"], "no argument 'gama'; it takes gamma"),
        (["--metric", "veriscore", "--metric_args", "veriscore.k={}"], "veriscore refuses {'k': {}}"),
        (["--metric", "safe", "--metric_args", 'safe.k={"a": 1}'], "safe.k must be a number above 0"),
        (["--metric", "factscore", "--metric_args", "gamma=0"], "takes METRIC.ARGUMENT=VALUE"),
        (["--metric_args", "safe.k=3"], "add --metric safe"),
        (["--metric", "factscore", "--metric_args", "factscore.verifier=nli:x"], "no argument 'verifier'"),
        (["--fail_under", "safe=0.5"], "'safe' is not computed"),
        (["--fail_under", "half"], "takes a share or NAME=SHARE, a share in [0, 1], got half"),
        (["--fail_under", "nan"], "in [0, 1], got nan"),
        (["--max_not_judged", "10"], "in [0, 1], got 10"),
        (["--html_rows", "0"], "at least 1"),
    ],
)
def test_bad_flags_are_named(tmp_path, capsys, counting, flags, message):
    status, found, err = run(capsys, answers(tmp_path, TRUE), *counting[0], *flags)
    assert (status, found) == (2, None) and message in err and counting[1].calls == []


CLAIM_ARGUMENTS = {
    name: [
        "gamma" if name == "factscore" else "k",
        "deduplicate",
        "abstention",
        "confidence_level",
        "resamples",
        "seed",
    ]
    for name in command.CLAIM_METRICS
} | {"anah": ["abstention", "confidence_level", "resamples", "seed"]}


@pytest.mark.parametrize("metric", command.CLAIM_METRICS)
def test_every_argument_of_a_metric_is_refused_by_name(tmp_path, capsys, counting, metric):
    file = answers(tmp_path, TRUE)
    _, _, err = run(capsys, file, *counting[0], "--metric", metric, "--metric_args", f"{metric}.nonsense=1")
    names = err.strip().partition("it takes ")[2].split(", ")
    assert {"abstention", "confidence_level", "resamples", "seed"} <= set(names)
    for name in names:
        for value in ("abc", "NaN", "[1]", "-1", "1" * 400, "[" * 100_000, '{"a": "b"}'):
            if (name, value) == ("seed", "-1"):
                continue
            flags = ("--metric", metric, "--metric_args", f"{metric}.{name}={value}")
            status, found, err = run(capsys, file, *counting[0], *flags)
            assert (status, found) == (2, None) and len(err) < 300
            assert err.startswith(f"hf-factuality: --metric_args: {metric}.{name} must be ")
    assert counting[1].calls == []


def test_help_names_every_verifier(capsys):
    for name in ("verify", "evaluate", "build-preferences"):
        with pytest.raises(SystemExit):
            main([name, "--help"])
        text = capsys.readouterr().out
        assert all(verifier in text for verifier in (*VERIFIER_NAMES, "pipeline:")), name


@pytest.mark.parametrize("verifier", ["nli:nobody/nothing", "hhem", "minicheck:nobody/none", "pipeline:nobody/none"])
def test_a_missing_model_is_named_in_one_line(tmp_path, capsys, verifier):
    name = verifier.partition(":")[2] or "vectara/hallucination_evaluation_model"
    status, _, err = run(capsys, answers(tmp_path, TRUE), "--verifier", verifier)
    assert status == 2 and f"the model {name!r} was not found locally or on the Hub" in err and err.count("\n") == 1


@pytest.mark.parametrize(
    ("cause", "message"),
    [
        ("LocalEntryNotFoundError", "the model 'a/base' was not found locally or on the Hub, which was not asked"),
        ("HFValidationError", "the model 'a/base' was not found locally or on the Hub"),
        ("GatedRepoError", "is gated: ask for access"),
        ("KeyError", "cannot be loaded: what the client says, in two lines"),
    ],
)
def test_what_is_missing_is_named(tmp_path, cause, message):
    """Of an adapter that is here, that is its base."""
    (tmp_path / "adapter_config.json").write_text('{"base_model_name_or_path": "a/base"}')
    with pytest.raises(OSError, match=re.escape(message)) as caught, naming_model(tmp_path):
        raise OSError("what the client says,\nin two lines") from type(cause, (Exception,), {})()
    assert ("a/base" in str(caught.value)) == ("not found" in message) and "\n" not in str(caught.value)


def test_a_folder_that_holds_no_model_is_named_in_one_line(tmp_path, capsys):
    status, _, err = run(capsys, answers(tmp_path, TRUE), "--verifier", f"nli:{tmp_path}")
    assert status == 2 and f"the model {str(tmp_path)!r} cannot be loaded: " in err and err.count("\n") == 1


def test_the_command_starts_without_the_libraries_that_it_does_not_need(tmp_path):
    heavy = ("evaluate", "transformers", "datasets")
    code = (
        "import sys; from hf_factuality.cli import main; status = main(sys.argv[1:]); "
        f"print(status, sorted(set({heavy}) & set(sys.modules)))"
    )
    metrics = ("--metric", "factscore,anah", "--metric_args", "factscore.gamma=0")
    given = [sys.executable, "-c", code, "verify", answers(tmp_path, TRUE), "--fail-under", "0.8", *metrics]
    printed = subprocess.run(given, capture_output=True, text=True, check=True).stdout.splitlines()
    assert json.loads(printed[0])["precision"] == 1.0 and printed[1] == "0 []"


def test_a_lone_dash_pair_and_values_keep_their_dashes(tmp_path, capsys):
    file = lines(tmp_path / "a", {"my-text": TRUE, "evidence": EVIDENCE})
    assert run(capsys, "--completion-column=my-text", "--", file)[0] == 0


def test_the_job_of_the_page(tmp_path, capsys, monkeypatch):
    job = yaml.safe_load(re.search(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[1])
    (step,) = [step["run"] for step in job["jobs"]["verify"]["steps"] if "verify" in step.get("run", "")]
    monkeypatch.chdir(tmp_path)
    lines(tmp_path / "evidence.jsonl", {"id": 1, "evidence": EVIDENCE})
    for text, status in ((TRUE, 0), (FALSE, 1)):
        lines(tmp_path / "answers.jsonl", {"id": 1, "question": "Where?", "completion": text})
        assert main(step.split()[1:]) == status
        assert (tmp_path / "report.html").exists()
    assert load_verifier("lexical").requires_evidence

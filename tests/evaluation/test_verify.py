"""`hf-factuality verify`: metrics, the page, what is written and printed; tests/cases/commands/verify.json has the rest."""

import io
import json
import re
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest
import yaml

from hf_factuality import Verification, VerifierInput, load_verifier
from hf_factuality.cli import main
from hf_factuality.io.upload import naming_model
from hf_factuality.metrics import compute
from hf_factuality.metrics._claims import small_answer
from hf_factuality.metrics._registry import CLAIM_METRICS
from hf_factuality.metrics.factscore.factscore import Factscore
from hf_factuality.metrics.longwiki.longwiki import Longwiki
from hf_factuality.metrics.safe.safe import Safe
from hf_factuality.metrics.veriscore.veriscore import Veriscore
from hf_factuality.spans import Label, LabeledSpan
from hf_factuality.verifiers.registry import VERIFIER_NAMES
from tests.conftest import fast_few
from tests.evaluation.conftest import write_rows
from tests.evaluation.judges import Judge, Strict, seen
from tests.report.marks import Marks


TRUE = "Marie Curie was born in Warsaw in 1867."
FALSE = "Marie Curie was born in Warsaw in 1890."
EVIDENCE = [TRUE, "She won the Nobel Prize in Physics in 1903."]
REFUSAL = "Sorry, I can't do that."
DOCS = Path(__file__).resolve().parents[2] / "docs"
JUDGE = ("--verifier", "tests.evaluation.judges:Judge")
STRICT = ("--verifier", "tests.evaluation.judges:Strict")


@pytest.fixture
def verify(tmp_path, capsys):
    """Runs the command on rows, or on completions with evidence; returns status, summary and error stream."""

    def run(given, *flags):
        rows = [{"completion": it, "evidence": EVIDENCE} if isinstance(it, str) else it for it in given]
        status = main(["verify", str(write_rows(tmp_path / "answers.jsonl", rows)), *map(str, flags)])
        printed = capsys.readouterr()
        return status, json.loads(printed.out) if printed.out else None, printed.err

    return run


def read_rows(path):
    return [json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line]


def test_metrics_equal_the_modules_called_by_hand(tmp_path, verify):
    texts = [TRUE, f"{TRUE} {FALSE}", FALSE, REFUSAL, "", "Nobody wrote down what he ate.", TRUE]
    evidence = [EVIDENCE] * 6 + [None]
    rows = [{"completion": text, "evidence": passages} for text, passages in zip(texts, evidence, strict=True)]
    flags = ("--metrics", "factscore,veriscore", "--metric_args", "factscore.gamma=0", "--out", tmp_path / "out")
    status, found, err = verify(rows, *flags)
    assert status == 0 and "factscore" in err
    given = {"predictions": texts, "references": evidence, "verifier": "small"}
    by_hand = {"factscore": Factscore().compute(gamma=0, **given), "veriscore": Veriscore().compute(**given)}
    assert found["metrics"] == by_hand
    assert found["metrics"]["factscore"]["judge"]["name"] == "SmallJudge"
    assert found["metrics"]["factscore"]["left_out"]["responses"]["no_evidence"] == 1
    # The rows of --out give the same score.
    again = Factscore().compute(predictions=read_rows(tmp_path / "out"), gamma=0)
    assert again["factscore"] == by_hand["factscore"]["factscore"]


def test_every_metric_of_claims_runs_and_judges_nothing_twice(verify):
    texts = ["A.", "A. B[c].", "Who!!", REFUSAL]
    status, found, err = verify([*texts, {"completion": "Alone."}], *STRICT, "--metrics", ",".join(CLAIM_METRICS))
    assert status == 0 and Strict.calls == [texts]
    assert set(found["metrics"]) == set(CLAIM_METRICS)
    # By hand: responses of one supported claim, of 1 in 2, and of one again, for metrics to which it is no refusal.
    assert found["precision"] == 3 / 4 and found["not_judged"] == 2
    assert found["metrics"]["anah"]["anah"] == 3 / 4
    assert found["metrics"]["factscore"]["parts"]["init_score"] == pytest.approx((1 + 1 / 2 + 1) / 3)
    assert found["metrics"]["veriscore"]["left_out"]["responses"]["abstained"] == 1
    left_out = found["metrics"]["safe"]["left_out"]["responses"]
    assert left_out["verifier_failed"] == left_out["no_evidence"] == 1
    assert "failed on 1 completions, which are left out; the first: it asks" in err


@pytest.fixture
def beside(tmp_path, monkeypatch):
    """Writes a module beside the answers, whose metrics are known for a test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [*sys.path])

    def write(name, code):
        monkeypatch.delitem(sys.modules, name, raising=False)
        (tmp_path / f"{name}.py").write_text(code, encoding="utf-8")

    return write


def test_a_metric_of_another_package_is_a_function_of_labels(verify, beside):
    """The one of the page, from a file beside the answers; by hand: (1 + 2 + 0) / 3, the fourth declines."""
    page = (DOCS / "metrics.md").read_text(encoding="utf-8")
    beside("my_metrics", re.search(r"```python\n# my_metrics.py\n(.*?)```", page, re.DOTALL)[1])
    texts = ["A[c]. B.", "C[c]. D[c].", "", REFUSAL]
    flags = ["--metrics", "my_metrics:contradictions,anah", "--metric_args", "contradictions.abstention=veriscore"]
    status, found, err = verify(texts, *JUDGE, *flags, "--fail_under", "contradictions=0.9", "--max_not_judged", "1")
    assert status == 0 and "contradictions" in err and set(found["metrics"]) == {"contradictions", "anah"}
    result = found["metrics"]["contradictions"]
    assert result["contradictions"] == 1.0 and result["n_scored"] == 3 and result["judge"] == {"name": "Judge"}
    assert result["left_out"]["responses"]["abstained"] == 1
    beside("own_metrics", "def anah(predictions, references): ...")
    verifications = [Verification([LabeledSpan(0, 1, label)]) for label in (Label.CONTRADICTED, Label.SUPPORTED)]
    assert compute("my_metrics:contradictions", verifications)["contradictions"] == 0.5
    for place, message in (
        ("my_metrics:contradiction", "did you mean 'contradictions'"),
        ("no_such_module:f", "no module 'no_such_module'"),
        ("json:__doc__", "'json:__doc__' is a str"),
        ("own_metrics:anah", "'anah'; rename"),
    ):
        status, _, err = verify(texts, *JUDGE, "--metrics", place)
        assert status == 2 and message in err and err.count("\n") == 1


OWN_METRICS = """
from hf_factuality.metrics import JudgedAnswers

def declining(predictions, references, **options):
    answers = JudgedAnswers(predictions, references, table=None, abstention=lambda text: "sorry" in text, options=options)
    return answers.result("declining", float(answers.labels().count(None)), [0.0] * len(answers.scorable))

def renamed(predictions, references, **options):
    answers = JudgedAnswers(predictions, references, table=None, options=options)
    return answers.result("another_name", 1.0, [1.0] * len(answers.scorable))
"""


def test_a_metric_that_cannot_be_computed_of_labels_is_refused_before_any_judging(verify, beside):
    beside("own_metrics", OWN_METRICS)
    for name, message in (
        ("declining", "a function cannot say whether a verified response declines"),
        ("renamed", "the result of the metric 'renamed' has no 'renamed'"),
    ):
        status, _, err = verify(["I'm sorry."], *STRICT, "--metrics", f"own_metrics:{name}")
        assert status == 2 and message in err and err.count("\n") == 1 and seen() == []
    assert (
        compute("own_metrics:declining", [{"text": "sorry", "claims": []}, ["S"]])["declining"] == 1.0
    )  # of texts it is one


@pytest.mark.parametrize("rule", ["generic", "perplexity_ai", "veriscore"])
def test_metrics_see_repeats_blanks_and_refusals_as_the_modules_do(verify, rule):
    """The modules read whole verifications here; the command gives them less of each."""
    again = f"{TRUE}\n{TRUE.replace(' ', '  ')}"
    texts = [f"{TRUE} {TRUE} {FALSE}", again, " \n", f"I'm sorry. {TRUE}", REFUSAL, f"\ud800 {TRUE}", TRUE]
    kinds = {"veriscore": Veriscore, "longwiki": Longwiki, "safe": Safe, "factscore": Factscore}
    flags = [flag for name in kinds for flag in ("--metric_args", f"{name}.abstention={rule}")]
    flags += ["--metric_args", "safe.deduplicate=true", "--metrics", ",".join(kinds), "--verifier", "lexical"]
    status, found, _ = verify([*texts[:6], {"completion": TRUE}], *flags)
    assert status == 0
    whole = load_verifier("lexical").verify([VerifierInput(text, evidence=tuple(EVIDENCE)) for text in texts[:6]])
    predictions = [{"text": text, **it.to_dict()} for text, it in zip(texts, whole, strict=False)] + [TRUE]
    repeats = 0
    for name, kind in kinds.items():
        extra = {"deduplicate": True} if name == "safe" else {}
        by_hand = kind().compute(predictions=predictions, verifier="lexical", abstention=rule, **extra)
        for key in (name, "parts", "left_out", "confidence_interval", "settings", "n", "n_scored"):
            assert found["metrics"][name][key] == by_hand[key], (name, key)
        repeats += by_hand["left_out"]["claims"]["duplicate"]
        assert by_hand["left_out"]["responses"]["no_evidence"] == by_hand["parts"]["empty"] == 1
    assert repeats > 0


def test_what_a_metric_is_fed_does_not_grow_with_the_texts():
    sentence = "Marie Curie was born in Warsaw. "
    spans = tuple(LabeledSpan(32 * i, 32 * i + 31, Label.SUPPORTED, 0.5, f"claim {i}", "x" * 5000) for i in range(50))
    fed = small_answer(sentence * 50, Verification(spans=spans))
    assert [value for value in asdict(fed).values() if value] == [(Label.SUPPORTED,) * 50, True]


def test_a_verifier_that_says_no_evidence_itself_is_not_asked_again(verify, monkeypatch):
    monkeypatch.setattr(Judge, "one", lambda self, it: Verification(error="no evidence" if it.row["n"] else None))
    _, found, _ = verify(
        [{"completion": "a.", "n": 0}, {"completion": "b.", "n": 1}], *JUDGE, "--metrics", "factscore"
    )
    assert Judge.calls == [["a.", "b."]]
    assert found["metrics"]["factscore"]["left_out"]["responses"]["verifier_failed"] == 1


def test_standard_input(capsys, monkeypatch):
    row = json.dumps({"completion": TRUE, "evidence": EVIDENCE})
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(f"\ufeff{row}\r\n\r\n{row}".encode())))
    assert main(["verify", "-"]) == 0 and json.loads(capsys.readouterr().out)["completions"] == 2


@pytest.mark.parametrize(
    ("scope", "painted", "sent"),
    [
        ("answer", ["Right.", "Said."], ["Right.", "Said."]),
        ("think", ["Moon[c].", "Two[c].", "Open[c]."], ["Moon[c]. Two[c].", "Open[c]."]),
        ("completion", ["Moon[c].", "Two[c].", "Right.", "Open[c].", "Said."], None),
    ],
)
def test_only_the_scope_is_judged_and_painted(verify, tmp_path, scope, painted, sent):
    texts = ["<think>Moon[c].</think><think> Two[c]. </think>\n Right.", "<think>Open[c]. ", "<answer>Said.</answer>"]
    page, out = tmp_path / "page.html", tmp_path / "out.jsonl"
    status, found, _ = verify([*texts, " "], *JUDGE, "--scope", scope, "--html", page, "--out", out)
    kept = [
        row["completion"][it["start"] : it["end"]] for row in read_rows(out) for it in row["verification"]["spans"]
    ]
    assert status == 0 and sum(found["claims"].values()) == len(painted) and kept == painted
    assert sent is None or [" ".join(text.split()) for text in seen()] == sent
    marks = Marks(page.read_text(encoding="utf-8"))
    assert sorted(text for _, title, text in marks.marks if title) == sorted(painted)
    assert all(text in marks.text for text in texts), "the rest is shown, without colour"


def test_an_answer_with_nothing_in_the_scope_is_counted_and_not_sent(verify, tmp_path):
    page, out = tmp_path / "page.html", tmp_path / "out.jsonl"
    flags = ["--metrics", "factscore,safe", "--metric_args", "factscore.gamma=0", "--html", page, "--out", out]
    status, found, err = verify(["<think>cut off", "", "Right.", "<think>all</think> "], *JUDGE, *flags)
    assert status == 0 and seen() == ["Right."]
    assert (found["completions"], found["not_judged"], found["empty"], found["precision"]) == (4, 3, 3, 1.0)
    assert "not judged 3 (empty 3)" in err and "the verifier failed" not in err
    assert [found["metrics"][name]["parts"]["empty"] for name in ("factscore", "safe")] == [3, 3]
    assert page.read_text(encoding="utf-8").count("not judged: nothing in the scope") == 3
    assert len(read_rows(out)) == 4


def headings(page):
    return re.findall(r"<h3>(.*?)</h3>.*?<h4>(.*?)</h4>", page.read_text(encoding="utf-8"))


def test_the_page_shows_the_worst_first(verify, tmp_path):
    """Answers of inventions alone have a precision of 0."""
    page = tmp_path / "page.html"
    verify(["A.", "B[u]. C[u].", "D. E[c].", "F[?]. G."], *JUDGE, "--html", page)
    assert headings(page) == [
        ("line 2", "precision 0.00"),
        ("line 3", "precision 0.50"),
        ("line 1", "precision 1.00"),
        ("line 4", "precision 1.00, claims not judged: 1"),
    ]
    verify([*["A."] * 300, "A. B[c].", "C[c]."], *JUDGE, "--html", page, "--html-rows", "3")
    assert [name for name, _ in headings(page)] == ["line 302", "line 301", "line 1"]
    assert "The 3 of 302 answers" in page.read_text(encoding="utf-8")


def test_the_page_is_painted_escaped_and_sorted(verify, tmp_path):
    evil = "<script>alert(1)</script> \ud800 was born in Warsaw in 1890."
    rows = [
        {"completion": TRUE, "evidence": EVIDENCE, "question": "<b>Where?</b>"},
        {"completion": FALSE, "evidence": EVIDENCE},
        {"completion": evil, "evidence": [*EVIDENCE, "<i>"]},
        {"completion": "Nothing known."},
    ]
    page, out = tmp_path / "new" / "page.html", tmp_path / "new" / "out.jsonl"
    status, _, _ = verify(rows, "--html", page, "--out", out, "--verifier", "lexical")
    marks = Marks(page.read_text(encoding="utf-8"))
    assert status == 0 and "script" not in marks.tags and "i" not in marks.tags and "b" not in marks.tags
    assert [kind for kind, title, _ in marks.marks if title] == ["contradicted", "unverifiable", "supported"]
    assert "<script>alert(1)</script>" in marks.text and "right answer" not in marks.text
    order = ("line 2", "line 3", "line 1: <b>Where?</b>", "line 4", "not judged: no evidence")
    places = [marks.text.index(text) for text in order]
    assert places == sorted(places)
    kept = read_rows(out)
    assert kept[2]["completion"] == evil and kept[3]["verification"]["error"] == "no evidence"


def test_the_table_is_for_terminals(verify, tmp_path, capsys, monkeypatch):
    _, _, err = verify([TRUE])
    assert re.search(r"^precision +1\.000", err, re.MULTILINE) and "1/1" not in err
    file = str(tmp_path / "answers.jsonl")
    assert main(["verify", file, "--json"]) == 0
    silent = capsys.readouterr()
    assert json.loads(silent.out)["precision"] == 1.0 and silent.err == ""
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    assert main(["verify", file, "--metrics", "factscore"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("measure") and "init_score 1.000" in shown.out and "length penalty" in shown.out
    assert main(["verify", file, "--json"]) == 0
    assert capsys.readouterr().out == silent.out
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["verify", file]) == 0
    assert "1/1" in capsys.readouterr().err, "a progress bar"


def test_rows_are_judged_in_chunks_and_written_as_they_come(verify, tmp_path, monkeypatch):
    out, written = tmp_path / "out.jsonl", []
    one = Judge.verify
    monkeypatch.setattr(Judge, "verify", lambda self, given: written.append(len(read_rows(out))) or one(self, given))
    _, found, _ = verify(["A."] * 200, *JUDGE, "--out", out)
    assert written == [0, 64, 128, 192] and found["completions"] == 200


def test_a_verifier_that_fails_on_everything(verify, tmp_path):
    page = tmp_path / "page.html"
    status, found, err = verify(["Who!!", "Why!!", {"completion": "Alone."}], *STRICT, "--html", page)
    assert (status, found) == (2, None) and "failed on 2 completions in a row" in err and "it asks" in err
    assert not page.exists()


def test_a_verifier_that_goes_down_ends_the_run_and_keeps_what_it_has(verify, tmp_path):
    out = tmp_path / "out.jsonl"
    status, _, err = verify(["A."] * 100 + ["Who!!"] * 400, *JUDGE, "--out", out)
    assert status == 2 and "row 256 of 500" in err and "it asks" in err and f"{out} holds the 256 rows" in err
    assert len(seen()) == 256 == len(read_rows(out))


@pytest.mark.parametrize("metric", fast_few(CLAIM_METRICS, 0))
def test_every_argument_of_a_metric_is_refused_by_name(verify, metric):
    _, _, err = verify([TRUE], *STRICT, "--metrics", metric, "--metric_args", f"{metric}.nonsense=1")
    names = err.strip().partition("it takes ")[2].split(", ")
    assert {"abstention", "confidence_level", "resamples", "seed"} <= set(names)
    for name in names:
        for value in ("abc", "NaN", "[1]", "-1", "1" * 400, "[" * 100_000, '{"a": "b"}'):
            if (name, value) == ("seed", "-1"):
                continue
            status, found, err = verify(
                [TRUE], *STRICT, "--metrics", metric, "--metric_args", f"{metric}.{name}={value}"
            )
            assert (status, found) == (2, None) and len(err) < 300
            assert err.startswith(f"hf-factuality: --metric_args: {metric}.{name} must be ")
    assert seen() == []


def test_help_names_every_verifier(capsys):
    for name in ("verify", "evaluate", "build-preferences"):
        with pytest.raises(SystemExit):
            main([name, "--help"])
        text = capsys.readouterr().out
        assert all(verifier in text for verifier in (*VERIFIER_NAMES, "pipeline:")), name


@pytest.mark.parametrize("verifier", ["nli:nobody/nothing", "hhem", "minicheck:nobody/none", "pipeline:nobody/none"])
def test_a_missing_model_is_named_in_one_line(verify, verifier):
    name = verifier.partition(":")[2] or "vectara/hallucination_evaluation_model"
    status, _, err = verify([TRUE], "--verifier", verifier)
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


def test_a_folder_that_holds_no_model_is_named_in_one_line(verify, tmp_path):
    status, _, err = verify([TRUE], "--verifier", f"nli:{tmp_path}")
    assert status == 2 and f"the model {str(tmp_path)!r} cannot be loaded: " in err and err.count("\n") == 1


@pytest.mark.slow
def test_the_command_starts_without_the_libraries_that_it_does_not_need(tmp_path):
    heavy = ("evaluate", "transformers", "datasets")
    code = (
        "import sys; from hf_factuality.cli import main; status = main(sys.argv[1:]); "
        f"print(status, sorted(set({heavy}) & set(sys.modules)))"
    )
    file = write_rows(tmp_path / "answers.jsonl", [{"completion": TRUE, "evidence": EVIDENCE}])
    metrics = ("--metrics", "factscore,anah", "--metric_args", "factscore.gamma=0")
    given = [sys.executable, "-c", code, "verify", str(file), "--fail-under", "0.8", *metrics]
    printed = subprocess.run(given, capture_output=True, text=True, check=True).stdout.splitlines()
    assert json.loads(printed[0])["precision"] == 1.0 and printed[1] == "0 []"


def test_the_job_of_the_page(tmp_path, monkeypatch):
    page = (DOCS / "quickstart-ci.md").read_text(encoding="utf-8")
    jobs = map(yaml.safe_load, re.findall(r"```yaml\n(.*?)```", page, re.DOTALL))
    steps = [step for job in jobs for step in job["jobs"]["verify"]["steps"]]
    (step,) = [step["run"] for step in steps if "verify" in step.get("run", "")]
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "evidence.jsonl", [{"id": 1, "evidence": EVIDENCE}])
    for text, status in ((TRUE, 0), (FALSE, 1)):
        write_rows(tmp_path / "answers.jsonl", [{"id": 1, "question": "Where?", "completion": text}])
        assert main(step.split()[1:]) == status
        assert (tmp_path / "report.html").exists() and (tmp_path / "junit.xml").exists()

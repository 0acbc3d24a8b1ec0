"""`hf_factuality.agree`: figures as scikit-learn has them, what labels are read, and the command."""

import json

import pandas
import pytest

from hf_factuality import Label, LabeledSpan, Verification, agree
from hf_factuality.cli import main
from hf_factuality.errors import DataError, JudgingError
from hf_factuality.evaluation.agreement import AgreementResult
from hf_factuality.functional.agreement import Confusion, cohens_kappa
from hf_factuality.generation.client import ClientStats
from hf_factuality.spans import Label as OurLabel
from hf_factuality.verifiers import LLMJudge, SentenceExtractor, VerifierPipeline
from tests.evaluation.conftest import write_rows
from tests.generation.fake_server import FakeServer
from tests.tables import cases


class Scored:
    """Reads its score off the claim ("0.7"); supported from 0.5. Parts are split at spaces; "?" is not judged."""

    requires_evidence = False

    def __init__(self):
        self.asked = []

    def verify(self, inputs):
        self.asked.append([item.completion for item in inputs])
        return [self.one(item.completion) for item in inputs]

    def one(self, text):
        if text == "!":
            return Verification(error="it asks")
        spans, start = [], 0
        for part in text.split(" "):
            label = None if part == "?" else Label.SUPPORTED if float(part) >= 0.5 else Label.UNVERIFIABLE
            spans.append(LabeledSpan(start, start + len(part), label, None if part == "?" else float(part)))
            start += len(part) + 1
        return Verification(spans=spans)


def rows_of(scores, labels):
    return [
        {"claim": str(s), "evidence": f"e{i}", "label": y} for i, (s, y) in enumerate(zip(scores, labels, strict=True))
    ]


@cases("agreement", "drawn", "scores", "labels", "expected")
def test_figures_are_those_of_scikit_learn(scores, labels, expected):
    (found,) = agree(Scored(), rows_of(scores, labels), resamples=200).verifiers
    values = {name: found.figures[name].value for name in expected}
    assert values == pytest.approx(expected, abs=1e-9)
    for name in expected:
        figure = found.figures[name]
        assert figure.low < figure.value < figure.high and figure.n == len(labels), name
    assert found.figures["not_judged"].value == 0.0 and found.figures["repeatability"].value == 1.0


def test_kappa_and_balanced_accuracy_by_hand():
    # 3 of 4 agree; by chance (3/4)(2/4) + (1/4)(2/4) = 1/2: kappa (3/4 - 1/2) / (1/2).
    assert cohens_kappa([1, 1, 1, 0], [1, 1, 0, 0]) == pytest.approx(0.5)
    assert cohens_kappa("aab", "bba") == pytest.approx((0 - 4 / 9) / (5 / 9))
    assert cohens_kappa([1, 1], [1, 1]) is None and cohens_kappa([], []) is None
    four = Confusion.of([True, True, True, False], [True, True, False, False])
    assert four == (2, 0, 1, 1) and four.mean_recall() == 0.75 and four.false_positive_rate() == 0.5
    assert four.kappa() == cohens_kappa([1, 1, 1, 0], [1, 1, 0, 0])
    assert Confusion.of([True], [True])[:2] == (1, 0) and Confusion.of([True], [True]).mean_recall() is None
    assert Confusion.of([], []).accuracy() is None


def test_intervals_draw_whole_groups():
    """Twenty claims of each of four groups, all right or all wrong: rows that were drawn alone would give a narrow interval."""
    labels = [group % 2 == 0 for group in range(4) for _ in range(20)]
    rows = [{"claim": "0.9", "evidence": f"e{n}", "label": y, "answer": n // 20} for n, y in enumerate(labels)]
    widths = []
    for column in ("answer", "group"):  # the default, which the rows do not have
        figure = agree(Scored(), rows, group_column=column, repeats=1).verifiers[0].figures["accuracy"]
        assert figure.value == 0.5
        widths.append(figure.high - figure.low)
    assert widths[0] > 0.8 > 0.3 > widths[1]


def test_the_tuned_threshold_is_measured_on_claims_that_it_has_not_seen():
    # A judge that ranks perfectly, and calls all supported: tuned it is right. One of noise stays near chance, although the best
    # threshold of all labels would look better.
    good = rows_of([0.6 + 0.3 * (n % 2) + n / 1000 for n in range(80)], [n % 2 for n in range(80)])
    (found,) = agree(Scored(), good, resamples=0, repeats=1).verifiers
    assert found.figures["balanced_accuracy"].value == 0.5 and found.figures["tuned_balanced_accuracy"].value == 1.0
    assert 0.7 < found.threshold < 0.9
    noise = rows_of([(n * 37 % 41) / 41 for n in range(40)], [n * 29 % 40 < 20 for n in range(40)])
    (found,) = agree(Scored(), noise, resamples=0, repeats=1).verifiers
    called = [verdict.score >= found.threshold for verdict in found.verdicts]
    fitted = Confusion.of(called, [row["label"] for row in noise]).mean_recall()
    assert found.figures["tuned_balanced_accuracy"].value < fitted - 0.05


def test_parts_of_a_claim_and_claims_that_were_not_judged():
    rows = [
        {"claim": "0.9 0.2", "label": "supported", "kind": "a"},  # one part is not supported
        {"claim": "0.9 ?", "label": "supported", "kind": "a"},  # open
        {"claim": "0.1 ?", "label": "not_supported", "kind": "b"},  # one part decides
        {"claim": "!", "label": "not_supported"},
    ]
    (found,) = agree(Scored(), rows, resamples=0).verifiers
    assert [(it.supported, it.score) for it in found.verdicts] == [
        (False, 0.2),
        (None, None),
        (False, 0.1),
        (None, None),
    ]
    assert found.figures["not_judged"].value == 0.5 and found.figures["accuracy"].value == 0.5
    assert found.kinds["a"]["not_judged"].value == 0.5 and found.kinds["b"]["accuracy"].value == 1.0
    with pytest.raises(JudgingError, match="Scored: the verifier failed on every answer.*it asks"):
        agree(Scored(), rows[-1:])


class Moody(Scored):
    """Changes its mind in every later call about claims with a low score, and asks a client that has a cache."""

    def __init__(self):
        super().__init__()
        self.client = type("Client", (), {"stats": ClientStats(), "cache": "a cache"})()
        self.caches = []

    def verify(self, inputs):
        self.caches.append(self.client.cache)
        self.client.stats.tokens += 7 * len(inputs)
        texts = [item.completion for item in inputs]
        self.asked.append(texts)
        return [self.one(text if float(text) > 0.5 or len(self.asked) < 3 else "0.9") for text in texts]


def test_repeatability_cost_and_no_cached_answers():
    verifier = Moody()
    (found,) = agree(verifier, rows_of([0.8, 0.1, 0.7, 0.2], [1, 0, 1, 1]), resamples=0).verifiers
    assert found.figures["repeatability"].value == 0.5
    assert verifier.asked[1:] == [["0.8", "0.1", "0.7", "0.2"], ["0.2", "0.7", "0.1", "0.8"]]
    assert verifier.caches == [None] * 3 and verifier.client.cache == "a cache"
    assert found.tokens == 28 and found.claims_per_second > 0


def test_a_language_model_is_asked_each_time_and_its_tokens_are_counted(monkeypatch, tmp_path):
    def answer(self, prompt, body):
        return {
            "choices": [{"message": {"content": "supported"}, "finish_reason": "stop"}],
            "usage": {"total_tokens": 30},
        }

    monkeypatch.setattr(FakeServer, "_answer", answer)
    rows = rows_of(["Ulm is old.", "Ulm is big.", "Ulm is far."], [1, 1, 0])
    with FakeServer() as server:
        client = server.client(cache=tmp_path / "answers.sqlite")
        verifier = VerifierPipeline(SentenceExtractor(), LLMJudge(client))
        agree(verifier, rows, resamples=0, repeats=1)
        (found,) = agree(verifier, rows, resamples=0, repeats=2).verifiers
        assert found.tokens == 90 and found.figures["repeatability"].value == 1.0
        assert client.cache is not None and client.stats.cached == 0
        assert found.judge["name"] == "LLMJudge" and found.figures["false_called_supported"].value == 1.0
        assert "tokens per claim" in [row["figure"] for row in AgreementResult([found], {}).table()]


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ("supported", True), ("Not supported", False), ("not_supported", False), (True, True), (0, False), (1.0, True),
        ("1", True), ("false", False), *((label.value, label.value.endswith("supported")) for label in OurLabel if label is not OurLabel.NO_FACT),
    ],
)  # fmt: skip
def test_labels_that_are_read(given, expected):
    found = agree(Scored(), rows_of([0.9], [given]), resamples=0, repeats=1)
    assert found.labels == {"claims": 1, "supported": int(expected), "groups": 1}


@pytest.mark.parametrize("given", ["maybe", "no_fact", 2, 0.5, None, ["supported"], ""])
def test_labels_that_say_neither_are_refused_by_line_and_value(given, tmp_path):
    file = write_rows(tmp_path / "labels.jsonl", rows_of([0.9, 0.8], [True, given]))
    with pytest.raises(DataError) as error:
        agree(Scored(), file)
    assert "line 2" in str(error.value) and repr(given) in str(error.value) and "not_supported" in str(error.value)


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"text": "0.9", "label": 1}, "`claim_column`"),
        ({"claim": "0.9"}, "`label_column`"),
        ({"claim": "0.9", "label": 1, "evidence": 3}, "'evidence' must be text or a list of texts"),
        ({"claim": "0.9", "label": 1, "kind": 3}, "'kind' must be text, got 3"),
    ],
)
def test_rows_that_cannot_be_read(row, message):
    with pytest.raises(DataError, match=message):
        agree(Scored(), [row])


@pytest.mark.parametrize("column", ["question", "kind", "group", "evidence"])
def test_a_column_that_is_named_must_be_there(column):
    rows = rows_of([0.9, 0.1], [True, False])
    with pytest.raises(
        DataError, match=f"labels has no column 'nowhere' .columns: claim, evidence, label.*`{column}_column`"
    ):
        agree(Scored(), rows, **{f"{column}_column": "nowhere"})
    agree(Scored(), [rows[0], rows[1] | {"nowhere": "some"}], **{f"{column}_column": "nowhere"}, repeats=1)


def test_evidence_that_is_nowhere():
    with pytest.raises(DataError, match="no labelled claim has any"):
        agree("lexical", [{"claim": "Ulm lies on the Danube.", "label": 1}])


def test_the_command_compares_verifiers_in_one_table(tmp_path, capsys):
    labels = [
        {
            "claim": "Ulm lies on the Danube.",
            "evidence": "Ulm lies on the Danube.",
            "label": "supported",
            "kind": "copy",
        },
        {
            "claim": "Paris has 9 bridges.",
            "evidence": "Ulm lies on the Danube.",
            "label": "not_supported",
            "kind": "other",
        },
    ]
    file = str(write_rows(tmp_path / "labels.jsonl", labels))
    assert main(["agree", "lexical", "tests.evaluation.test_agreement:Lenient", file, "--resamples", "50"]) == 0
    printed = capsys.readouterr()
    found = json.loads(printed.out)
    assert [it["verifier"] for it in found["verifiers"]] == ["lexical", "tests.evaluation.test_agreement:Lenient"]
    first, second = (it["figures"] for it in found["verifiers"])
    assert first["accuracy"]["value"] == 1.0 and second["false_called_supported"]["value"] == 1.0
    own = agree([it["verifier"] for it in found["verifiers"]], file, resamples=50).to_dict()
    assert [it["figures"] for it in own["verifiers"]] == [it["figures"] for it in found["verifiers"]]
    assert "kappa" in printed.err and "other" in printed.err and "2 claims (1 supported) in 1 groups" in printed.err
    assert main(["agree", "lexical", str(tmp_path / "none.jsonl")]) == 2


class Lenient(Scored):
    def one(self, text):
        return Verification(spans=[LabeledSpan(0, len(text), Label.SUPPORTED)])


def test_results_as_a_table_of_pandas():
    found = agree([Scored(), Scored()], rows_of([0.9, 0.2], [1, 0]), resamples=0)
    table = found.to_pandas()
    assert isinstance(table, pandas.DataFrame) and len(table) == 2 * 10
    assert table.query("figure == 'auroc'")["value"].tolist() == [1.0, 1.0]
    assert [*found.table()[0]] == [
        "figure",
        "better if",
        *(f"{it.verifier} ({n})" for n, it in enumerate(found.verifiers, 1)),
    ]

"""Own data with a `data_source` of its own: which rule scores it, said in one form to training, evaluate and builders."""

import json

import pytest
from datasets import Dataset

from hf_factuality.cli import main
from hf_factuality.data.builder import judged_responses
from hf_factuality.data.questions import read_questions
from hf_factuality.data.sampling import GivenResponses
from hf_factuality.errors import DataError
from hf_factuality.methods.fspo.data import prepare_rows
from hf_factuality.rewards import FSPOAnswerReward
from hf_factuality.verifiers import GoldVerifier, VerifierInput, load_verifier
from hf_factuality.verifiers.hub_format import CONFIG_NAME
from hf_factuality.verifiers.judges.gold import named_scorers


# The answer shares 2 of 2 words with a gold answer of 3: precision 1, recall 2/3, F1 .8. It does not equal it.
ANSWER, GOLD = "May 1931", "in May 1931"
SAID = f"<think>It says so.</think><answer>{ANSWER}</answer>"


@pytest.mark.parametrize(
    "scorers",
    [["mine=hotpot_f1,other=exact"], ["mine=hotpot_f1", "other=exact"], {"mine": "hotpot_f1", "other": "world"}],
)
def test_every_form_gives_a_source_its_rule(scorers):
    reward = FSPOAnswerReward(scorers)
    found = reward(["?"] * 2, [SAID] * 2, answer=[GOLD] * 2, data_source=["mine", "other"])
    assert found == [pytest.approx(0.8), 0.0]
    verifier = GoldVerifier(scorers=scorers)
    rows = [VerifierInput(ANSWER, "?", (GOLD,), {"data_source": source}) for source in ("mine", "other", "else")]
    scores = [it.spans[0].score for it in verifier.verify(rows)]
    assert scores == [pytest.approx(0.8), 0.0, 0.0]  # the last by "contains": the answer does not hold the gold answer


@pytest.mark.parametrize(
    ("scorers", "error"),
    [
        (["mine"], ValueError), (["=exact"], ValueError), (["mine="], ValueError), (["mine=bogus"], ValueError),
        (["mine=exact,mine=math"], ValueError), ({"mine": "bogus"}, ValueError), ({"mine": 3}, TypeError),
    ],
)  # fmt: skip
def test_what_is_no_rule_is_refused_by_its_value(scorers, error):
    for make in (named_scorers, FSPOAnswerReward, lambda it: GoldVerifier(scorers=it)):
        with pytest.raises(error, match="mine|exact"):
            make(scorers)


def test_a_name_of_a_rule_is_a_source():
    rows = Dataset.from_list([{"question": "When?", "answer": GOLD}])
    with pytest.raises(DataError, match="`default_data_source`"):
        prepare_rows(rows)
    found = prepare_rows(rows, default_data_source="hotpot_f1", known_sources=FSPOAnswerReward().scorers)
    assert found["data_source"] == ["hotpot_f1"]
    assert FSPOAnswerReward()(["?"], [SAID], answer=found["answer"], data_source=found["data_source"]) == [
        pytest.approx(0.8)
    ]


def test_an_unknown_source_is_told_the_flag_and_mathematics_asks_for_a_number():
    rows = Dataset.from_list([{"question": "2 + 2?", "answer": "4", "data_source": "mine"}])
    with pytest.raises(DataError, match="`scorers` mine=RULE"):
        prepare_rows(rows, known_sources=FSPOAnswerReward().scorers)
    with pytest.raises(DataError, match="`scorers` mine=RULE"):
        FSPOAnswerReward().check(rows)
    asked = [
        prepare_rows(rows, known_sources=FSPOAnswerReward({"mine": rule}).scorers, style="base")["prompt"][0]
        for rule in ("math", "exact")
    ]
    assert "<answer> 42 </answer>" in asked[0] and "<answer> 42 </answer>" not in asked[1]


def test_evaluate_and_the_builders(tmp_path, capsys):
    rows = [
        {"id": "a", "question": "When?", "answer": GOLD, "data_source": "mine"},
        {"id": "b", "question": "When?", "answer": GOLD},
    ]
    (tmp_path / "q.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    (tmp_path / "a.jsonl").write_text(
        "".join(json.dumps({"id": row["id"], "completion": SAID}) + "\n" for row in rows)
    )

    def accuracy(*flags):
        files = f"--dataset {tmp_path}/q.jsonl --answers {tmp_path}/a.jsonl --out {tmp_path}/r.json --overwrite --json"
        status = main(["evaluate", *files.split(), *flags])
        printed = capsys.readouterr()
        return printed.err if status else json.loads(printed.out)["results"][0]["value"]

    assert "--scorers mine=RULE" in accuracy()
    assert accuracy("--scorers", "mine=hotpot_f1") == pytest.approx(0.4)  # .8 and, by the default rule, 0
    assert accuracy("--scorers", "mine=hotpot_f1", "--default_data_source", "mine") == pytest.approx(0.8)
    assert accuracy("--scorers", "mine=exact", "--default-data-source", "hotpot_f1") == pytest.approx(0.4)
    assert "'mne'" in accuracy("--scorers", "mine=exact", "--scorers", "mne=hotpot_f1")  # a slip
    assert accuracy("--scorers", "mine=exact,mne=exact", "--limit", "1") == 0.0  # which others may have
    assert "'bogus'" in accuracy("--scorers", "mine=bogus")
    assert "'bogus'" in accuracy("--scorers", "mine=exact", "--default_data_source", "bogus")

    questions = read_questions([{**row, "evidence": row["answer"]} for row in rows])
    sampler = GivenResponses({"a": [ANSWER], "b": [ANSWER]})
    verifier = load_verifier("gold:exact", scorers=["mine=hotpot_f1"])
    with judged_responses(questions, sampler, verifier, tmp_path / "run", progress=False) as (_, verdicts):
        assert [verdicts[key][0]["spans"][0]["score"] for key in "ab"] == [pytest.approx(0.8), 0.0]
    with (
        pytest.raises(DataError, match="other settings"),
        judged_responses(questions, sampler, load_verifier("gold:exact"), tmp_path / "run", progress=False),
    ):
        pass
    verifier.save_pretrained(tmp_path / "saved")
    assert "mine=hotpot_f1" in (tmp_path / "saved" / CONFIG_NAME).read_text()
    again = load_verifier(f"pipeline:{tmp_path}/saved")
    row = VerifierInput(ANSWER, "?", (GOLD,), {"data_source": "mine"})
    assert again.verify([row])[0].spans[0].score == pytest.approx(0.8)


def test_a_builder_refuses_a_rule_that_no_question_would_be_judged_by(tmp_path, capsys):
    """A source with a slip in its name would be judged by the rule of all other rows, without a word."""
    row = {"id": "a", "question": "Which lake?", "answer": "Lake Victoria", "data_source": "mine"}
    (tmp_path / "q.jsonl").write_text(json.dumps(row))
    (tmp_path / "a.jsonl").write_text(json.dumps({"id": "a", "responses": ["<answer> Lake Victoria </answer>"] * 2}))

    def build(*flags):
        command = ["build-refusals", f"{tmp_path}/q.jsonl", "--responses", f"{tmp_path}/a.jsonl"]
        status = main([*command, "--out", f"{tmp_path}/{len(flags)}-{flags[-1]}", *flags])
        return status, capsys.readouterr().err

    assert build("--verifier", "gold", "--scorers", "mine=exact")[0] == 0
    status, error = build("--verifier", "gold", "--scorers", "mine=exact", "--scorers", "mne=math")
    assert status == 2 and "'mne'" in error and "['mine']" in error
    status, error = build("--verifier", "lexical", "--scorers", "mine=exact")
    assert status == 2 and "--scorers is for --verifier gold" in error

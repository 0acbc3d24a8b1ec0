"""What a file of results says of how something was measured is what was done, and not a default."""

import shutil

import pytest

from hf_factuality.evaluation.verification import AnswerJudge
from hf_factuality.hub.cards.scores import ModelIdentity, card_results
from hf_factuality.hub.results import load_results
from tests.evaluation.conftest import write_rows


SOURCES = ["GSM8K", None, "HotpotQA", "GSM8K", ""]


@pytest.fixture
def evaluate(command, tmp_path, monkeypatch):
    """Runs the command on rows with these data sources and answers that are all "1"; returns the entry of the results."""

    def run(flags, sources=SOURCES, completions=("1",), name="own"):
        rows = [
            {"id": f"{number}", "question": f"{number}?", "answer": "1"} | ({} if source is None else {"data_source": source})
            for number, source in enumerate(sources)
        ]  # fmt: skip
        write_rows(tmp_path / f"{name}.jsonl", rows)
        write_rows(tmp_path / "said.jsonl", [{"id": row["id"], "completions": list(completions)} for row in rows])
        out = f"--dataset {name}.jsonl --answers said.jsonl --model_name my-model --out {name}.json"
        status, printed, err = command(*flags.split(), *out.split())
        assert status == 0, err
        return load_results(f"{name}.json")["results"][-1]

    monkeypatch.chdir(tmp_path)
    return run


@pytest.mark.parametrize(
    ("sources", "rule"),
    [
        ([None] * 3, "world"),
        (["GSM8K"] * 3, "GSM8K"),
        (["", None], "world"),
        (SOURCES, {"GSM8K": 2, "HotpotQA": 1, "world": 2}),
        (["MATH", "HaluEval"], {"HaluEval": 1, "MATH": 1}),
    ],
)
def test_the_rule_that_compared_the_answers(evaluate, sources, rule):
    assert evaluate("--metrics accuracy", sources)["settings"]["data_source"] == rule
    assert evaluate("--metrics abstention --match exact", sources)["settings"]["data_source"] == rule
    found = evaluate("--metrics abstention --match contained", sources)
    assert "data_source" not in found["settings"], "no rule compared: a gold answer had to be contained"
    assert found["settings"]["final_answer_of"] == rule and found["judge"] == {"name": "match contained"}


def test_a_benchmark_names_its_own_rule(command, gsm8k, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_rows(tmp_path / "said.jsonl", [{"text": str(n)} for n in range(1, 5)])
    flags = "--benchmark gsm8k --dataset gsm8k.jsonl --answers said.jsonl --metrics accuracy --out r.json"
    assert command(*flags.split())[0] == 0
    assert load_results("r.json")["results"][0]["settings"] == {"data_source": "GSM8K"}


def test_a_card_names_the_rules(evaluate, tmp_path):
    evaluate("--metrics accuracy")
    shutil.move("own.json", "results.json")
    found = card_results(["results.json"], tmp_path, ModelIdentity(frozenset({"my-model"})), ModelIdentity())
    assert (
        "answers compared by the rule of GSM8K (2 of 5 items), HotpotQA (1 of 5 items), world (2 of 5 items)"
        in found.notes[0]
    )


def test_the_scope_where_nobody_judges(evaluate):
    """Two scopes give other outcomes, and had the same settings."""
    cut = evaluate(
        "--metrics abstention --match contained --scope think", completions=["<think>I don't know</think>1"]
    )
    whole = evaluate("--metrics abstention --match contained", completions=["<think>I don't know</think>1"])
    assert cut["settings"]["scope"] == "think" and "scope" not in whole["settings"]


def test_the_scope_of_who_chooses(evaluate):
    flags = "--metrics accuracy --best_of 2 --best_of_by tests.evaluation.judges:Judge"
    assert evaluate(f"{flags} --scope completion", completions=["1", "2"])["settings"]["scope"] == "completion"


def test_the_number_of_samples_of_a_file(evaluate):
    assert evaluate("--metrics accuracy", completions=["1", "1", "2"])["generation"]["n_samples"] == 3


def test_seeds_only_where_they_draw(command, gsm8k, tiny_model, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    flags = f"--benchmark gsm8k --dataset gsm8k.jsonl --model {tiny_model} --max_new_tokens 2 --device cpu --seed 3"

    def seeds(more, out):
        assert command(*f"{flags} {more} --out {out}.json".split())[0] == 0
        (entry,) = load_results(f"{out}.json")["results"]
        assert entry["dataset"]["seed"] == entry["seeds"]["dataset"]
        return entry["seeds"]["dataset"], entry["seeds"]["generation"]

    assert seeds("--temperature 0", "a") == (None, None)
    assert seeds("--temperature 1", "b") == (None, 3)
    assert seeds("--temperature 0 --limit 2", "c") == (3, None)
    assert seeds("--temperature 0 --limit 4", "d") == (None, None), "all of them"


def test_a_judges_room_for_a_vote():
    """It decides which votes can be read; the default's description stays what it was, and so do votes that exist."""
    found = [AnswerJudge("simpleqa", "judge", "http://localhost:1/v1", tokens=it).description for it in (16, 400)]
    assert "tokens" not in found[0] and found[1] == found[0] | {"tokens": 400}

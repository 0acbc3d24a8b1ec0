"""Scores of hand-written answers, by hand arithmetic."""

import json
from pathlib import Path

import pytest

from hf_factuality.data.benchmarks import BenchmarkItem, get_benchmark
from hf_factuality.errors import DataError
from hf_factuality.evaluation.plan import Task, metrics_of
from hf_factuality.evaluation.scoring import TaskAnswers, check_gold, item_answer, score
from hf_factuality.evaluation.verification import answer_row
from hf_factuality.generation.sampling import SamplingConfig
from hf_factuality.metrics._arguments import check_metric_args


FINAL = json.loads((Path(__file__).resolve().parents[1] / "cases" / "final_answers.json").read_text("utf-8"))
USER = {"role": "user", "content": "?"}
OPEN = (USER, {"role": "assistant", "content": "Let me see.\n<think>"})


def item(name, answer, messages=(USER,), **known):
    return BenchmarkItem(name, tuple(messages), "?", answer=answer, **known)


def scored(metric, benchmark, items, completions, **known):
    """The metric of completions, one list per item."""
    samples = len(completions[0])
    generation = SamplingConfig(max_new_tokens=8, num_samples=samples, seed=0) if samples else None
    task = Task(get_benchmark(benchmark), "chat", (metric,), generation, items=items)
    return score(
        metric, TaskAnswers(task, [{"completions": [{"text": it} for it in texts]} for texts in completions], **known)
    )


@pytest.mark.parametrize("case", FINAL, ids=lambda case: repr(case["completion"]))
def test_final_answer(case):
    """`opened`: the prompt ends in `<think>`."""
    messages = OPEN if case["opened"] else (USER,)
    assert item_answer(item("a", "x", messages), case["completion"], case["data_source"]) == case["answer"]


@pytest.mark.parametrize("letter", ["A", "B"])
def test_every_letter_may_stand_in_brackets(letter):
    golds = [letter, f"{letter}.", f"Answer: {letter}"]
    one = item("a", golds, reference={"letter": letter})
    forms = "{}|{}.|{}。|({})|**{}**|Answer: {}|答案：{}|<think>C</think>{}|<answer>({})</answer>".split("|")
    answers = [form.format(letter) for form in forms]
    assert [scored("accuracy", "halluqa-mc", [one], [[said]])["value"] for said in answers] == [1.0] * 9
    # Neither a letter nor an article is an answer, and two letters are none.
    wrong = ["Answer:", "The", "Answer: An", "A B", "C", "A good one", "<think>A", ""]
    found = [scored("accuracy", "halluqa-mc", [one], [[said]]) for said in wrong]
    assert [it["value"] for it in found] == [0.0] * 8
    assert [it["parts"]["unparsable"] for it in found] == [1, 1, 1, 1, 0, 1, 1, 1]


@pytest.mark.parametrize(
    ("messages", "completion", "answer"),
    [
        ((USER,), " She was born. ", "She was born."),
        ((USER,), "<think>hm</think>\n\nShe was born.\n", "She was born."),
        (OPEN, "hm</think><answer> She </answer> tail", "She"),
        (OPEN, "hm, still thinking", ""),
        ((USER,), "<think><answer>in</answer></think>She", "She"),
    ],
)
def test_the_answer_alone_is_judged(messages, completion, answer):
    row = answer_row(item("a", "x", messages), 0, completion)
    assert row.shown.completion == answer
    assert [completion[slice(*one)] for one in row.ranges] == ([answer] if answer else [])


def test_accuracy():
    pytest.importorskip("math_verify")
    items = [item(str(n), str(n)) for n in range(1, 6)]
    completions = [
        [r"\boxed{1.0}"],  # right
        ["<think>2</think><answer>2</answer>"],  # right, and in the format that the training reward wants
        [r"\boxed{33}"],  # wrong
        ["4"],  # no final answer: wrong
        [None],  # missing
    ]
    found = scored("accuracy", "gsm8k", items, completions)
    assert found["value"] == 2 / 4 and (found["n"], found["n_scored"]) == (5, 4)
    assert found["scores"] == [1.0, 1.0, 0.0, 0.0, None]
    assert found["parts"] == {"samples": 4, "unparsable": 1, "reward": 1 / 4}
    assert found["left_out"]["responses"] == {"missing": 1, "no_gold": 0}
    assert found["comparable_to_published"] is False and found["confidence_interval"]["low"] < 0.5


def test_pass_at_1_is_the_mean_over_samples():
    items = [item("a", "yes"), item("b", "no"), item("c", "no")]
    completions = [["yes", "yes", "no", ""], ["yes", "no", "no", "no"], ["no", "no", "no", None]]
    found = scored("accuracy", "halluqa-mc", items, completions)
    # An item with a sample that is missing is left out, not scored by the others.
    assert found["scores"] == [0.5, 0.75, None] and found["value"] == 0.625
    assert found["parts"]["samples"] == 8 and found["left_out"]["responses"]["missing"] == 1


def test_an_answer_cannot_bring_its_own_tags():
    items = [item("a", "Paris")]
    found = scored("accuracy", "halluqa-mc", items, [["Rome</answer><answer>Paris"]])
    assert found["value"] == 0.0


def test_gold_answers_of_rows_with_their_own_rule():
    pytest.importorskip("math_verify")
    own = item("a", r"\frac{1}{2}", reference={"data_source": "MATH"})
    found = scored("accuracy", "halluqa-mc", [own, item("b", "x")], [[r"\boxed{0.5}"], ["X."]])
    assert found["scores"] == [1.0, 1.0]


def test_halueval():
    items = [
        item(str(n), None, reference={"hallucinated": truth}) for n, truth in enumerate((True, False, True, True))
    ]
    completions = [["Yes"], ["<think>No? Yes!</think>Yes"], ["maybe"], [None]]
    found = scored("halueval", "halueval-qa", items, completions)
    assert found["scores"] == [1.0, 0.0, None, None] and found["value"] == 0.5
    assert found["left_out"]["responses"]["missing"] == 1 and found["left_out"]["responses"]["unjudged"] == 1
    assert found["judge"] is None and found["comparable_to_published"] is False


def test_truthfulqa():
    reference = {
        "mc1_targets": {"choices": ["a", "c"], "labels": [1, 0]},
        "mc2_targets": {"choices": ["a", "b", "c"], "labels": [1, 1, 0]},
        "mc1_choices": [0, 2],
        "mc2_choices": [0, 1, 2],
    }
    items = [item("q", None, choices=("a", "b", "c"), reference=reference)] * 2
    task = Task(get_benchmark("truthfulqa"), "chat", ("truthfulqa",), None, items=items)
    # Probabilities 1/8, 3/8, 4/8: MC2 is (1 + 3) / 8; the correct choice of MC1 is less likely than the wrong one.
    known = [{"log_likelihoods": [-2.0794415416798357, -0.9808292530117262, -0.6931471805599453]}, {}]
    found = score("truthfulqa", TaskAnswers(task, known))
    assert found["value"] == pytest.approx(0.5) and found["parts"]["mc1"] == 0.0 and found["n_scored"] == 1
    assert found["comparable_to_published"] is False
    assert (
        score("truthfulqa", TaskAnswers(task, known, published=True))["comparable_to_published"] is False
    )  # one is missing
    task.items = items[:1]
    assert score("truthfulqa", TaskAnswers(task, known[:1], published=True))["comparable_to_published"] is True


def test_metrics_of():
    assert metrics_of(get_benchmark("truthfulqa")) == ("truthfulqa",)
    assert metrics_of(get_benchmark("gsm8k"))[0] == "accuracy"
    assert "accuracy" not in metrics_of(get_benchmark("biographies"))
    assert "safe" in metrics_of(get_benchmark("biographies"))


def test_check_gold():
    benchmark = get_benchmark("halluqa-mc")
    check_gold(benchmark, [item("a", "x"), item("b", ["x", "y"])])
    with pytest.raises(DataError, match="item 'b' and 1 more"):
        check_gold(benchmark, [item("a", "x"), item("b", None), item("c", "")])
    with pytest.raises(DataError, match="unknown data_source 'nonsense'"):
        check_gold(benchmark, [item("a", "x", reference={"data_source": "nonsense"})])


@pytest.mark.parametrize(
    ("name", "given", "message"),
    [
        ("safe", {"gamma": 1}, "safe has no argument 'gamma'; it takes k"),
        ("factscore", {"gamma": "x"}, "factscore refuses"),
    ],
)
def test_metric_arguments(name, given, message):
    with pytest.raises(ValueError, match=message):
        check_metric_args(name, given)

"""Rewards of answers and format: expectations are worked out by hand from the published scoring rules."""

import importlib.util
import logging
import pickle
import shutil
import threading
import time

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hf_factuality.errors import DataError, FactualityError
from hf_factuality.functional.answers import contained_match, same_answer
from hf_factuality.reading import final_answer
from hf_factuality.rewards import (
    SCORERS,
    FormatReward,
    FSPOAnswerReward,
    answer_reward,
    check_format,
    complete_text,
    exact_reward,
    extract_answer,
    gsm8k_reward,
    halueval_reward,
    hotpot_f1_reward,
    math_reward,
    normalize_answer,
    think_format_reward,
)
from hf_factuality.spans import Label
from hf_factuality.verifiers import _math
from hf_factuality.verifiers.base import VerifierInput
from hf_factuality.verifiers.judges.gold import GoldVerifier
from tests.conftest import searched
from tests.tables import cases, table


GOOD = "<think> a reason </think> <answer> Paris </answer>"
needs_math = pytest.mark.skipif(importlib.util.find_spec("math_verify") is None, reason="needs math-verify")


def tagged(answer: str) -> str:
    return f"<think>reason</think><answer>{answer}</answer>"


def reward_of(function, answer: str, gold) -> float | None:
    return function(prompts=["?"], completions=[tagged(answer)], completion_ids=[[1]], answer=[gold], extra=["x"])[0]


@pytest.fixture(autouse=True)
def _warn_again():
    _math._warned.clear()


@cases("answers", "extract_answer", "text", "expected")
def test_extract_answer(text, expected):
    assert extract_answer(text) == expected


@cases("answers", "check_format", "text", "expected")
def test_check_format(text, expected):
    assert check_format(text) is expected


REST = " a </think><answer>b</answer>"


@cases("answers", "complete_text", "completion", "prompt", "think_in_prompt", "expected")
def test_complete_text(completion, prompt, think_in_prompt, expected):
    assert complete_text(completion, prompt, think_in_prompt) == expected


@cases("answers", "normalize_answer", "text", "expected")
def test_normalize_answer(text, expected):
    assert normalize_answer(text) == expected


@cases("answers", "hotpot_f1", "prediction", "gold", "expected")
def test_hotpot_f1(prediction, gold, expected):
    assert reward_of(hotpot_f1_reward, prediction, gold) == pytest.approx(expected, abs=1e-12)


@cases("answers", "halueval", "prediction", "gold", "expected")
def test_halueval(prediction, gold, expected):
    assert reward_of(halueval_reward, prediction, gold) == expected


@cases("answers", "exact", "prediction", "gold", "expected")
def test_exact(prediction, gold, expected):
    assert reward_of(exact_reward, prediction, gold) == expected


@pytest.mark.parametrize("expected", [True, False])
def test_answers_are_compared_as_people_do(expected):
    """In rewards, verifiers and metrics alike."""
    pairs = table("same_answer", "equal" if expected else "different")
    both = [*pairs, *(pair[::-1] for pair in pairs)]
    assert [pair for pair in both if same_answer(*pair) is not expected] == []
    predictions, golds = zip(*both, strict=True)
    rewards = exact_reward(["?"] * len(both), [tagged(text) for text in predictions], answer=list(golds))
    assert [pair for pair, reward in zip(both, rewards, strict=True) if reward != expected] == []
    both = [(text, gold) for text, gold in both if final_answer(tagged(text)) == text]
    assert len(both) > 200
    judged = GoldVerifier("world").verify([VerifierInput(tagged(text), None, (gold,)) for text, gold in both])
    wanted = Label.SUPPORTED if expected else Label.CONTRADICTED
    assert [pair for pair, one in zip(both, judged, strict=True) if one.spans[0].label is not wanted] == []


@cases("same_answer", "contained", "text", "gold", "expected")
def test_what_holds_an_answer(text, gold, expected):
    assert contained_match(text, [gold]) == expected


def test_a_half_open_interval_is_another():
    assert (
        not same_answer("(1, 5)", "[1, 5]")
        and not same_answer("[1, 5)", "[1, 5]")
        and same_answer("[1, 5)", "[1,5)")
        and same_answer("(1, 5)", "1, 5")
    )


def test_the_published_match_of_squad_by_name():
    assert SCORERS["SQuAD"]("The 1.2!", ["12"]) == 1.0 and SCORERS["SQuAD"]("1.3", ["12"]) == 0.0


@pytest.mark.slow
def test_long_texts_are_compared_in_time():
    start = time.monotonic()
    for part in ("(", ".", "!", "111 ", "a. ", "1,", "'", "["):
        contained_match(part * (20_000 // len(part)) + "x", ["zz"])
    assert time.monotonic() - start < 20


@needs_math
@cases("answers", "math", "prediction", "gold", "expected")
def test_math(prediction, gold, expected):
    assert reward_of(math_reward, prediction, gold) == expected


@needs_math
def test_numbers_that_are_too_long_for_mathematics():
    assert reward_of(math_reward, "7" * 5000, "12") == 0.0 and reward_of(math_reward, "1", "9" * 5000) is None


@needs_math
@cases("answers", "gsm8k", "prediction", "gold", "expected")
def test_gsm8k(prediction, gold, expected):
    assert reward_of(gsm8k_reward, prediction, gold) == expected


@needs_math
def test_math_in_threads():
    """math-verify's own time limit raises outside the main thread."""
    pairs = [(str(number), f"{number}.0") for number in range(8)] + [(str(number), "99") for number in range(8)]
    results = {}

    def work(index, prediction, gold):
        results[index] = _math.math_equal(prediction, gold)

    threads = [threading.Thread(target=work, args=(index, *pair)) for index, pair in enumerate(pairs)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(300)
    assert [results[index] for index in range(16)] == [True] * 8 + [False] * 8


@pytest.mark.slow
@needs_math
def test_math_survives_an_endless_comparison_and_a_dead_process(monkeypatch, caplog):
    _math.math_equal("3", "4")
    monkeypatch.setattr(_math, "MATH_TIMEOUT", 0.25)
    with caplog.at_level(logging.WARNING):
        assert _math.math_equal("9^{9^{9^{8}}}", "12") is False
    assert "could not be compared within 0.25 s" in caplog.text
    monkeypatch.setattr(_math, "MATH_TIMEOUT", 30.0)
    assert _math.math_equal("0.25", r"\frac{1}{4}") is True
    _math._process.process.kill()
    assert _math.math_equal("0.75", r"\frac{3}{4}") is True


def test_math_process_that_cannot_start(monkeypatch):
    monkeypatch.setattr(_math.sys, "executable", shutil.which("false") or pytest.skip("needs the program false"))
    with pytest.raises(FactualityError, match="import math_verify"):
        _math._MathProcess().compare("1", "2")


def test_math_verify_missing(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    _math.require_math.cache_clear()
    reward = FSPOAnswerReward()
    with pytest.raises(ImportError, match=r"pip install hf_factuality\[math\]"):
        reward_of(math_reward, "1", "2")
    with pytest.raises(ImportError, match=r"pip install hf_factuality\[math\]"):
        reward.check({"answer": ["1"], "data_source": ["GSM8K"]})
    # The others do not need it.
    assert reward_of(hotpot_f1_reward, "Paris", "Paris") == 1.0
    reward.check({"answer": ["Paris"], "data_source": ["HotpotQA"]})


def test_unusable_gold_is_unknown_and_logged_once(caplog):
    with caplog.at_level(logging.WARNING):
        rewards = hotpot_f1_reward(["?"] * 5, [tagged("Paris")] * 5, answer=[None, "", [], 7, ["", "Paris"]])
    assert rewards == [None, None, None, None, 1.0]
    assert len(caplog.records) == 1


@pytest.mark.parametrize("function", [hotpot_f1_reward, halueval_reward, exact_reward, math_reward, gsm8k_reward])
def test_missing_answer_column(function):
    with pytest.raises(DataError, match="column 'answer'"):
        function(prompts=["?"], completions=[GOOD], solution=["Paris"])


def test_format_reward():
    prompts = ["Q <think>", "Q <think>", "Q"]
    completions = [REST, GOOD, GOOD]
    assert think_format_reward(prompts, completions, completion_ids=None, answer=["b"] * 3) == [1.0, 0.0, 1.0]
    assert think_format_reward(prompts, completions, violation=-2.0) == [1.0, -2.0, 1.0]
    assert FormatReward(violation=-2.0, correct=0.0)(prompts, completions) == [0.0, -2.0, 0.0]
    assert think_format_reward([[{"role": "user", "content": "Q"}]], [REST], think_in_prompt=True) == [1.0]


def test_answer_reward_routes_by_data_source():
    reward = FSPOAnswerReward()
    sources = ["HotpotQA", "2WikiMultiHopQA", "HaluEval", "world", "HotpotQA"]
    golds = ["May 1931", ["x", "in May 1931"], "1931", "May 1931", "May 1931"]
    completions = [tagged("in May 1931")] * 4 + [GOOD + GOOD.replace("Paris", "May 1931")]
    rewards = reward(prompts=["Q"] * 5, completions=completions, answer=golds, data_source=sources, question=["q"] * 5)
    assert rewards == [0.8, 1.0, 1.0, 0.0, 0.0]  # the last one has every tag twice
    relaxed = FSPOAnswerReward(require_format=False)
    assert relaxed(["Q"] * 5, completions, answer=golds, data_source=sources) == [0.8, 1.0, 1.0, 0.0, 1.0]
    assert reward(["Q <think>"], [REST], answer=["b"], data_source=["world"]) == [1.0]
    assert reward(["Q"], [REST], answer=["b"], data_source=["world"]) == [0.0]
    assert FSPOAnswerReward(think_in_prompt=True)(["Q"], [REST], answer=["b"], data_source=["world"]) == [1.0]


@needs_math
def test_answer_reward_scores_mathematics():
    rewards = FSPOAnswerReward()(
        ["Q"] * 3, [tagged("0.5")] * 3, answer=[r"\frac12", "1/2", "2"], data_source=["MATH", "GSM8K", "MATH"]
    )
    assert rewards == [1.0, 1.0, 0.0]


def test_answer_reward_extends():
    def shout(prediction, golds):
        return 0.25 if prediction.upper() in golds else None

    reward = answer_reward(scorers={"mine": shout}, default_data_source="mine")
    assert reward(["Q"] * 2, [tagged("hi"), tagged("ho")], answer=["HI", "HI"]) == [0.25, None]
    assert set(reward.scorers) == {*SCORERS, "mine"}
    assert "mine" not in SCORERS
    with pytest.raises(TypeError, match="'mine' must be a name or callable"):
        FSPOAnswerReward(scorers={"mine": 3})
    with pytest.raises(DataError, match="unknown data_source 'nowhere'"):
        FSPOAnswerReward(default_data_source="nowhere")


@pytest.mark.parametrize("source", ["hotpotqa", "TriviaQA", None, 3, ["HotpotQA"]])
def test_unknown_data_source(source):
    reward = FSPOAnswerReward()
    for call in (
        lambda: reward(["Q"], [GOOD], answer=["Paris"], data_source=[source]),
        lambda: reward.check({"answer": ["a", "b"], "data_source": ["HotpotQA", source]}),
    ):
        with pytest.raises(ValueError, match="unknown data_source") as caught:
            call()
        assert repr(source) in str(caught.value)
        assert "2WikiMultiHopQA" in str(caught.value)


def test_check():
    datasets = pytest.importorskip("datasets")
    reward = FSPOAnswerReward()
    columns = {"answer": ["Paris", "Rome"], "data_source": ["HotpotQA", "HaluEval"]}
    reward.check(datasets.Dataset.from_dict(columns))
    FSPOAnswerReward(default_data_source="world").check({"answer": ["Paris"]})
    for bad, message in [
        ({"answer": ["Paris"]}, "column 'data_source'; the dataset has"),
        ({"solution": ["Paris"], "data_source": ["world"]}, "column 'answer'"),
        ({"answer": ["Paris", " "], "data_source": ["world"] * 2}, "row 1: the gold answer"),
        ({"answer": [7], "data_source": ["world"]}, "got 7"),
    ]:
        with pytest.raises(DataError, match=message):
            reward.check(bad)


def test_names_that_trl_logs_and_pickling():
    get_callable_name = pytest.importorskip("trl.trainer.utils").get_callable_name
    assert get_callable_name(FSPOAnswerReward()) == "answer"
    assert get_callable_name(FormatReward()) == "format"
    assert get_callable_name(hotpot_f1_reward) == "hotpot_f1_reward"
    copy = pickle.loads(pickle.dumps(FSPOAnswerReward(require_format=False)))
    assert copy(["Q"], [tagged("b")], answer=["b"], data_source=["world"]) == [1.0]


def test_in_grpo(tiny_model, tmp_path):
    """TRL passes the columns, logs the names and leaves out what is unknown."""
    from datasets import Dataset
    from trl import GRPOConfig, GRPOTrainer

    seen = []

    class Spy(FSPOAnswerReward):
        __name__ = "answer"

        def __call__(self, prompts, completions, **columns):
            seen.append((len(prompts), sorted(columns)))
            return super().__call__(prompts, [GOOD.removeprefix("<think>") for _ in completions], **columns)

    rows = {"prompt": ["Where? <think>"] * 2, "answer": ["Paris", "Paris Texas"], "data_source": ["HotpotQA"] * 2}
    trainer = GRPOTrainer(
        model=tiny_model,
        reward_funcs=[Spy(), FormatReward(violation=-2.0)],
        args=GRPOConfig(
            output_dir=str(tmp_path),
            per_device_train_batch_size=4,
            num_generations=2,
            max_completion_length=4,
            max_steps=1,
            logging_steps=1,
            report_to=[],
            use_cpu=True,
            bf16=False,
        ),
        train_dataset=Dataset.from_dict(rows),
    )
    trainer.train()
    assert seen[0][0] == 4
    assert {"answer", "data_source"} <= set(seen[0][1])
    log = trainer.state.log_history[0]
    assert log["rewards/answer/mean"] == pytest.approx((1 + 1 + 2 / 3 + 2 / 3) / 4)
    assert log["rewards/format/mean"] == -2.0


pieces = st.sampled_from(
    ["<think>", "</think>", "<answer>", "</answer>", "<answer", "Paris", "no", " ", "\n", "\x00", "_"]
)
texts = st.lists(st.one_of(pieces, st.text(max_size=8)), max_size=12).map("".join)
messages = st.fixed_dictionaries(
    {},
    optional={
        "role": st.sampled_from(["assistant", "tool", "user", None]),
        "content": st.one_of(texts, st.none(), st.lists(st.dictionaries(st.just("text"), texts)), st.integers()),
        "reasoning_content": st.one_of(texts, st.none(), st.integers()),
        "thinking": texts,
    },
)
completions = st.one_of(
    texts, st.none(), messages, st.lists(messages, max_size=3), st.binary(max_size=5), st.integers()
)
golds = st.one_of(texts, st.none(), st.lists(texts, max_size=3), st.integers())


@settings(max_examples=40, deadline=None, derandomize=True)
@given(
    completions,
    st.one_of(texts, st.lists(messages, max_size=2), st.none()),
    golds,
    st.sampled_from([None, True, False]),
)
def test_never_raises(completion, prompt, gold, think_in_prompt):
    arguments = {"prompts": [prompt], "completions": [completion], "answer": [gold]}
    for function in (hotpot_f1_reward, halueval_reward, exact_reward):
        (first,), (second,) = function(**arguments), function(**arguments)
        assert first == second
        assert first is None or 0.0 <= first <= 1.0
    (formatted,) = think_format_reward([prompt], [completion], think_in_prompt=think_in_prompt)
    (answer,) = FSPOAnswerReward(think_in_prompt=think_in_prompt)(**arguments, data_source=["HotpotQA"])
    assert answer == 0.0 if formatted == 0.0 else answer is None or 0.0 <= answer <= 1.0


@settings(max_examples=200, deadline=None, derandomize=True)
@given(texts)
def test_format_and_answer_agree_with_a_regular_expression(text):
    import re

    found = re.findall(r"</?(?:think|answer)>", text)
    assert check_format(text) is (found == ["<think>", "</think>", "<answer>", "</answer>"])
    if check_format(text):
        assert extract_answer(text) == re.search(r"<answer>(.*)</answer>", text, re.DOTALL)[1].strip()


@settings(max_examples=200, deadline=None, derandomize=True)
@given(
    st.lists(st.sampled_from("red blue green".split()), min_size=1),
    st.lists(st.sampled_from("red blue".split()), min_size=1),
)
def test_f1_equals_precision_and_recall_by_counting(prediction, gold):
    rest, common = list(gold), 0
    for word in prediction:
        if word in rest:
            rest.remove(word)
            common += 1
    precision, recall = common / len(prediction), common / len(gold)
    expected = 2 * precision * recall / (precision + recall) if common else 0.0
    assert reward_of(hotpot_f1_reward, " ".join(prediction), " ".join(gold)) == pytest.approx(expected)


latex = st.lists(
    st.sampled_from(
        ["\\frac", "{", "}", "1", "x", "^", "\\boxed{", "$", "(", ")", ",", "\\", "=", "\\text{a}", "\n", "é"]
    ),
    max_size=8,
).map("".join)


@needs_math
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
@given(latex, latex)
def test_mathematics_never_raises(prediction, gold):
    assert reward_of(math_reward, prediction, gold) in (0.0, 1.0, None)
    assert reward_of(gsm8k_reward, prediction, gold) in (0.0, 1.0, None)


def test_huge_completions_take_linear_time():
    import time

    start = time.process_time()
    for text in ("<answer>" * 100_000, "</answer>" * 100_000, "<think>" * 100_000, tagged("word " * 200_000)):
        hotpot_f1_reward(["Q"], [text], answer=["word"])
        think_format_reward(["Q"], [text])
        if importlib.util.find_spec("math_verify"):
            math_reward(["Q"], [text], answer=["12"])
    assert time.process_time() - start < 20


@needs_math
@searched(40, 500)
def test_real_gold_answers_can_be_parsed(data_dir, count):
    """Of the 9,023 of MATH-500 and SimpleRL, three that are not empty cannot; none of them is among these 500."""
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_parquet(str(data_dir / "fspo" / "math-500-test.parquet"))
    golds = rows["answer"][:count]
    rewards = math_reward(["Q"] * count, [tagged("-987654321")] * count, answer=golds)
    assert rewards.count(None) <= 1
    assert rewards.count(1.0) == 0
    golds = golds[: count * 3 // 10]
    texts = [tagged(f"the answer is $\\boxed{{{gold}}}$") for gold in golds]
    rewards = math_reward(["Q"] * len(golds), texts, answer=golds)
    assert rewards.count(1.0) >= len(golds) - 2

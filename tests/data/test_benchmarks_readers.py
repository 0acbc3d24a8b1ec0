"""Items of every benchmark, on rows with the published columns; the real files where there are some."""

import hashlib
import json
import math
from collections import Counter

import pytest


datasets = pytest.importorskip("datasets")

from hf_factuality.data import parse_prompt, prepare_rows  # noqa: E402
from hf_factuality.data.benchmarks import get_benchmark, load_items  # noqa: E402
from hf_factuality.data.benchmarks.readers import split_options  # noqa: E402
from hf_factuality.errors import DataError  # noqa: E402
from hf_factuality.metrics import compute  # noqa: E402
from hf_factuality.rewards import SCORERS  # noqa: E402
from tests.data.test_benchmarks import write  # noqa: E402


PREFILL = "Let me solve this step by step.\n<think>"


def read(tmp_path, name, rows, file="rows.jsonl", **arguments):
    return load_items(name, path=write(tmp_path / file, rows), **arguments)


def user(text):
    return ({"role": "user", "content": text},)


def trained_with(question, data_source, answer="x"):
    """Messages that the trainer would render for this question, and how the answer begins."""
    row = {"question": question, "answer": answer, "data_source": data_source}
    (messages,) = prepare_rows(datasets.Dataset.from_list([row]), style="instruct")["prompt"]
    return (*messages, {"role": "assistant", "content": PREFILL})


# GSM8K, MATH-500, AIME


def test_math_questions_ask_for_a_box(tmp_path):
    rows = [
        {
            "problem": "What is $1+1$?",
            "solution": "It is 2.",
            "answer": "2",
            "subject": "Algebra",
            "unique_id": "a/1",
        }
    ]
    (item,), _ = read(tmp_path, "math-500", rows)
    assert item.messages == user(
        "What is $1+1$?\nPlease reason step by step, and put your final answer within \\boxed{}."
    )
    assert (item.id, item.question, item.answer, item.domain) == ("a/1", "What is $1+1$?", "2", "Algebra")
    (item,), _ = read(tmp_path, "math-500", rows, style="fspo")
    assert item.messages == trained_with("What is $1+1$?", "MATH")
    assert "<answer> 42 </answer>" in item.messages[0]["content"]


@pytest.mark.parametrize(
    ("answer", "gold"),
    [
        ("Six.\n#### 6", "6"),
        ("18", "18"),
        (7, "7"),
        ("#### 1,234,567", "1234567"),
        ("#### -3.5", "-3.5"),
        ("####  $20 ", "20"),
    ],
)
def test_gsm8k_takes_the_number_after_the_hashes(tmp_path, answer, gold):
    (item,), _ = read(tmp_path, "gsm8k", [{"question": "?", "answer": answer}])
    assert item.answer == gold


@pytest.mark.parametrize(
    "rows",
    [
        [{"id": 60, "problem": "p?", "solution": "s", "answer": "033", "url": "u", "year": "2024"}],
        [{"ID": "2024-II-4", "Problem": "p?", "Solution": "s", "Answer": 33}],
        [{"question": "p?", "answer": "$33$"}],
        [{"id": "AIME24I-1", "year": 2024, "contest": "AIME I", "problem": 1, "question": "p?", "answer": "33"}],
        [{"problem_idx": 4, "problem": "p?", "answer": 33.0}],
        [{"question": "p?", "answer": "33^\\circ"}],
    ],
    ids=["HuggingFaceH4", "Maxwell-Jia", "dollars", "numbered", "float", "degrees"],
)
def test_aime_columns_and_answers(tmp_path, rows):
    (item,), _ = read(tmp_path, "aime-2024", rows)
    assert (item.question, item.answer) == ("p?", "33")


def test_aime_leaves_out_other_years_and_odd_answers(tmp_path):
    rows = [
        {"problem": f"{n}?", "answer": answer, "year": year}
        for n, (answer, year) in enumerate(
            [("1", "2025"), ("2", "2024"), ("1000", 2025), ("\\frac{1}{2}", 2025), ("000", None)]
        )
    ]
    items, provenance = read(tmp_path, "aime-2025", rows)
    assert [item.answer for item in items] == ["1", "0"]
    assert provenance["dropped"] == {"year is not 2025": 1, "answer is no whole number from 0 to 999": 2}


# HaluEval

HALUEVAL = [
    {"knowledge": f"K{n}", "question": f"Q{n}?", "right_answer": f"right {n}", "hallucinated_answer": f"wrong {n}"}
    for n in range(60)
]


def test_halueval_shows_the_drawn_candidate_and_hides_the_knowledge(tmp_path):
    items, provenance = read(tmp_path, "halueval-qa", HALUEVAL)
    assert provenance["used"] == 60
    for number, item in enumerate(items):
        hallucinated = item.reference["hallucinated"]
        shown = f"{'wrong' if hallucinated else 'right'} {number}"
        system, question = item.messages
        assert question["content"] == f"#Question#: Q{number}?\n#Candidate Answer#: {shown}"
        assert item.answer == ("Yes" if hallucinated else "No")
        assert item.question == f"Q{number}?" and item.evidence == (f"K{number}",)
        assert not any(f"K{number}" in message["content"] for message in item.messages)
    assert 15 < sum(item.reference["hallucinated"] for item in items) < 45


@pytest.mark.parametrize("seed", [0, 7, -1])
def test_halueval_draws_as_the_metric_does(tmp_path, seed):
    items, _ = read(tmp_path, "halueval-qa", HALUEVAL, seed=seed)
    # A model whose answers are right for the candidate that the item shows, and wrong for the other one.
    answers = [{"right": item.answer, "hallucinated": item.answer} for item in items]
    result = compute("halueval", answers, seed=seed)
    assert result["halueval"] == 1.0
    truth = [item.reference for item in items]
    result = compute("halueval", [item.answer for item in items], truth)
    assert result["halueval"] == 1.0 and result["parts"]["shown_hallucinated"] == sum(
        row["hallucinated"] for row in truth
    )
    other, _ = read(tmp_path, "halueval-qa", HALUEVAL, seed=seed + 1)
    assert [item.answer for item in other] != [item.answer for item in items]


@pytest.mark.parametrize("name", ["halueval-qa", "halueval-qa-pairwise"])
def test_halueval_draws_do_not_depend_on_other_rows(tmp_path, name):
    whole = {item.id: item for item in read(tmp_path, name, HALUEVAL)[0]}
    some, _ = read(tmp_path, name, HALUEVAL, limit=20)
    assert len(some) == 20 and all(whole[item.id] == item for item in some)
    rows = [{**row, "right_answer": ""} if n % 3 == 0 else row for n, row in enumerate(HALUEVAL)]
    rows[1] = {**rows[1], "hallucinated_answer": "right 1"}
    left, provenance = read(tmp_path, name, rows)
    assert provenance["dropped"] == {"no right_answer": 20, "both answers are the same": 1}
    assert len(left) == 39 and all(whole[item.id] == item for item in left)
    assert read(tmp_path, name, HALUEVAL, seed=None)[0] == list(whole.values())


def test_halueval_pairs(tmp_path):
    items, _ = read(tmp_path, "halueval-qa-pairwise", HALUEVAL)
    orders = Counter()
    for number, item in enumerate(items):
        first, second = ("wrong", "right") if item.reference["hallucinated_first"] else ("right", "wrong")
        assert item.messages[-1]["content"] == (
            f"#Question#: Q{number}?\n#Candidate Answer 1#: {first} {number}\n#Candidate Answer 2#: {second} {number}"
        )
        assert item.answer == f"right {number}"
        orders[first] += 1
    assert min(orders.values()) > 15
    score = SCORERS[get_benchmark("halueval-qa-pairwise").data_source]
    assert (score("right 3", ["right 3"]), score("wrong 3", ["right 3"])) == (1, 0)


def test_halueval_in_the_style_that_is_trained(tmp_path):
    (item, *_), _ = read(tmp_path, "halueval-qa", HALUEVAL, style="fspo")
    shown = "wrong 0" if item.reference["hallucinated"] else "right 0"
    assert item.messages == trained_with(f"#Question#: Q0?\n#Candidate Answer#: {shown}", "HaluEval")
    assert "Yes if it is hallucinated, or No" in item.messages[0]["content"]
    (item, *_), _ = read(tmp_path, "halueval-qa-pairwise", HALUEVAL, style="fspo")
    order = ("wrong 0", "right 0") if item.reference["hallucinated_first"] else ("right 0", "wrong 0")
    question = "#Question#: Q0?\n#Candidate Answer 1#: {}\n#Candidate Answer 2#: {}".format(*order)
    assert item.messages == trained_with(question, "HaluEval")
    assert "copy the candidate answer that is correct" in item.messages[0]["content"]


# TruthfulQA

MC = {
    "question": "Is the sky green?",
    "mc1_targets": {"choices": ["No.", "Yes.", "At dusk."], "labels": [1, 0, 0]},
    "mc2_targets": {"choices": ["No.", "It is not.", "Yes."], "labels": [1, 1, 0]},
}


@pytest.mark.parametrize("form", ["hub", "authors"])
def test_truthfulqa_choices(tmp_path, form):
    row = dict(MC)
    if form == "authors":
        for kind in ("mc1_targets", "mc2_targets"):
            row[kind] = dict(zip(MC[kind]["choices"], MC[kind]["labels"], strict=True))
    (item,), _ = read(tmp_path, "truthfulqa", [row])
    assert item.choices == (" No.", " It is not.", " Yes.", " At dusk.")
    assert item.correct == (True, True, False, False)
    assert item.reference["mc1_targets"] == MC["mc1_targets"] and item.reference["mc2_targets"] == MC["mc2_targets"]
    assert item.reference["mc1_choices"] == [0, 2, 3] and item.reference["mc2_choices"] == [0, 1, 2]
    # The metric takes them as they are. MC2 by hand: (.3 + .2) / (.3 + .2 + .1); MC1: .3 is more than .1 and .05.
    found = [math.log(value) for value in (0.3, 0.2, 0.1, 0.05)]
    answers = {kind: [found[place] for place in item.reference[f"{kind}_choices"]] for kind in ("mc1", "mc2")}
    result = compute("truthfulqa", [answers], [item.reference])
    assert result["parts"]["mc1"] == 1.0 and result["truthfulqa"] == pytest.approx(5 / 6)


def test_truthfulqa_prompt_is_the_published_one(tmp_path):
    """The hash is of what `truthfulqa_mc1.yaml` (version 2.0) of lm-evaluation-harness renders with yaml and jinja2."""
    (item,), _ = read(tmp_path, "truthfulqa", [MC])
    (message,) = item.messages
    digest = hashlib.sha256(message["content"].encode()).hexdigest()
    assert digest == "3aea75d92ff5c8146b16238b87893375c8d18bbb705e6aedfbd16fc561f796ab"
    assert message["role"] == "user" and message["content"].endswith("\n\nQ: Is the sky green?\nA:")
    (opened,), _ = read(tmp_path, "truthfulqa-generation", [OPEN], style="published")
    assert opened.messages == item.messages


def test_truthfulqa_as_a_chat_is_not_the_published_prompt(tmp_path):
    (item,), _ = read(tmp_path, "truthfulqa", [MC], style="chat")
    assert [message["role"] for message in item.messages] == ["user", "assistant"] * 6 + ["user"]
    assert item.messages[6:8] == (
        {"role": "user", "content": "What is the square root of banana?"},
        {"role": "assistant", "content": "I have no comment."},
    )
    assert item.messages[-1]["content"] == "Is the sky green?"
    assert item.choices == ("No.", "It is not.", "Yes.", "At dusk.")


@pytest.mark.parametrize(
    ("targets", "reason"),
    [
        (None, "no mc1_targets"),
        ({"choices": ["a"], "labels": [1]}, "mc1_targets needs two or more choices, and a label for each"),
        ({"choices": ["a", "b"], "labels": [1]}, "mc1_targets needs two or more choices, and a label for each"),
        ({"choices": "ab", "labels": [1, 0]}, "mc1_targets needs two or more choices, and a label for each"),
        ({"choices": ["a", ""], "labels": [1, 0]}, "a choice of mc1_targets is no text"),
        ({"choices": ["a", "b"], "labels": [1, "0"]}, "a label of mc1_targets is neither 0 nor 1"),
    ],
)
def test_truthfulqa_rows_that_cannot_be_used(tmp_path, targets, reason):
    items, provenance = read(tmp_path, "truthfulqa", [MC, {**MC, "mc1_targets": targets}])
    assert len(items) == 1 and provenance["dropped"] == {reason: 1}


OPEN = {
    "type": "Adversarial",
    "category": "Nature",
    "question": "Is the sky green?",
    "best_answer": "No",
    "correct_answers": ["No", "It is not", "  "],
    "incorrect_answers": ["Yes"],
    "source": "x",
}


@pytest.mark.parametrize("form", ["hub", "csv"])
def test_truthfulqa_references(tmp_path, form):
    if form == "hub":
        (item,), _ = read(tmp_path, "truthfulqa-generation", [OPEN])
    else:
        row = {"Type": "Adversarial", "Category": "Nature", "Question": "Is the sky green?", "Best Answer": "No"}
        row |= {"Correct Answers": "No; It is not", "Incorrect Answers": "Yes", "Source": "x"}
        (item,), _ = read(tmp_path, "truthfulqa-generation", [row], "TruthfulQA.csv")
    assert item.messages == user("Is the sky green?") and item.domain == "Nature"
    assert item.answer == ["No", "It is not", "I have no comment."] and item.evidence == ("No", "It is not")
    assert item.reference == {
        "question": "Is the sky green?",
        "evidence": ["No", "It is not"],
        "best_answer": "No",
        "correct_answers": ["No", "It is not", "I have no comment."],
        "incorrect_answers": ["Yes"],
    }


# HalluQA


def test_halluqa_references(tmp_path):
    row = {
        "Question": "你是谁？",
        "Best Answer1": "模型。",
        "Best Answer2": "",
        "Best Answer3": "程序。",
        "Source": "s",
    }
    row |= {"Wrong_Answer1": "人。", "Category": "Misleading", "Class": "其它", "question_id": 12}
    older = {"Question": "几？", "Best Answer": "一。", "question_id": 13}
    items, provenance = read(
        tmp_path, "halluqa", [row, {"Question": "?", "Best Answer1": " ", "question_id": 14}], "a.json"
    )
    (item,) = items
    assert (item.id, item.question, item.domain) == ("12", "你是谁？", "Misleading")
    assert item.messages == user("你是谁？")
    assert item.answer == ["模型。", "程序。"] and item.evidence == ("模型。", "程序。")
    assert item.reference["evidence"] == ["模型。", "程序。"] and item.reference["question"] == "你是谁？"
    assert item.reference["incorrect_answers"] == ["人。"]
    assert provenance["dropped"] == {"no correct answer": 1}
    assert read(tmp_path, "halluqa", [older])[0][0].answer == ["一。"]


def test_options_are_taken_apart():
    assert split_options("Question: 谁？ A:甲 B: C B:乙 C:丙 ") == ("谁？", {"A": "甲", "B": "C B:乙", "C": "丙"})
    assert split_options("Question: 谁？ A:甲。 B:乙。 ") == ("谁？", {"A": "甲。", "B": "乙。"})
    assert split_options("谁？ B:乙") == ("谁？ B:乙", {})


@pytest.mark.parametrize("letter", ["A", "B", "C"])
def test_halluqa_letters(tmp_path, letter):
    row = {"question_id": 3, "question": "Question: 谁？ A:甲 B:乙 C:丙 ", "answer": f"Answer: {letter}"}
    (item,), _ = read(tmp_path, "halluqa-mc", [row])
    assert item.messages == user("Question: 谁？ A:甲 B:乙 C:丙\n请只回答正确选项的字母。")
    assert item.question == "谁？" and item.reference == {
        "letter": letter,
        "options": {"A": "甲", "B": "乙", "C": "丙"},
    }
    score = SCORERS[get_benchmark("halluqa-mc").data_source]
    for other in "ABC":
        for said in (other, f"{other}.", f"Answer: {other}", other.lower()):
            assert score(said, item.answer) == float(other == letter), said
    assert read(tmp_path, "halluqa-mc", [row, {**row, "answer": "Answer: D"}, {**row, "question": "谁？"}])[1][
        "dropped"
    ] == {"answer is the letter of no option": 1, "fewer than two options": 1}


# Long answers


def test_biographies(tmp_path):
    rows = [
        {
            "input": "Question: Tell me a bio of Ada Lovelace.",
            "output": "x",
            "topic": "Ada Lovelace",
            "cat": ["rare", "Europe"],
        }
    ]
    (item,), _ = read(tmp_path, "biographies", rows)
    assert item.messages == user("Tell me a bio of Ada Lovelace.")
    assert (item.topic, item.domain, item.reference) == ("Ada Lovelace", "rare", {"category": ["rare", "Europe"]})
    assert item.answer is None and item.question == "Tell me a bio of Ada Lovelace."
    (item,), _ = read(tmp_path, "biographies", rows, style="published")
    assert item.messages == user(rows[0]["input"])
    (item,), _ = read(tmp_path, "biographies", rows, style="fspo")
    assert item.messages == trained_with("Tell me a bio of Ada Lovelace.", "HotpotQA")


def test_entities_in_a_text_file(tmp_path):
    path = tmp_path / "prompt_entities.txt"
    path.write_bytes("Ada Lovelace\r\n\n Kōbō Abe \n".encode())
    items, provenance = load_items("biographies", path=path)
    assert [(item.id, item.topic) for item in items] == [("0", "Ada Lovelace"), ("1", "Kōbō Abe")]
    assert provenance["rows"] == 2


def test_longfact(tmp_path):
    canary = "BENCHMARK DATA, canary 123"
    for subset, topic, prompts in (
        ("objects", "astronomy", ["What is Vesta?", "What is Eris?"]),
        ("objects", "20th-century-events", ["What was D-Day?"]),
        ("concepts", "astronomy", ["What is a star?"]),
    ):
        folder = tmp_path / "longfact" / f"longfact-{subset}_x"
        folder.mkdir(parents=True, exist_ok=True)
        write(
            folder / f"longfact-{subset}_{topic}.jsonl", [{"prompt": prompt, "canary": canary} for prompt in prompts]
        )
    items, provenance = load_items("longfact", path=tmp_path / "longfact")
    assert [(item.id, item.question, item.domain, item.reference["subset"]) for item in items] == [
        ("longfact-concepts_astronomy-0", "What is a star?", "astronomy", "concepts"),
        ("longfact-objects_20th-century-events-0", "What was D-Day?", "20th century events", "objects"),
        ("longfact-objects_astronomy-0", "What is Vesta?", "astronomy", "objects"),
        ("longfact-objects_astronomy-1", "What is Eris?", "astronomy", "objects"),
    ]
    assert items[2].messages == user(
        "What is Vesta? Provide as many specific details and examples as possible (such as names of people, numbers, "
        "events, locations, dates, times, etc.)"
    )
    assert canary not in str(items)
    assert (provenance["dataset"], provenance["split"], provenance["rows"]) == ("longfact", None, 4)
    objects, provenance = load_items("longfact", path=tmp_path / "longfact", split="objects")
    assert objects == items[1:] and (provenance["split"], provenance["rows"]) == ("objects", 3)
    file = tmp_path / "longfact" / "longfact-objects_x" / "longfact-objects_astronomy.jsonl"
    assert load_items("longfact", path=file)[0] == items[2:]
    with pytest.raises(DataError, match="no files of split 'people'; the splits are 'objects' and 'concepts'"):
        load_items("longfact", path=tmp_path / "longfact", split="people")


def test_longfact_in_one_file_with_a_topic(tmp_path):
    (item,), _ = read(tmp_path, "longfact", [{"prompt": "What is Vesta?", "topic": "astronomy"}])
    assert (item.id, item.domain) == ("rows-0", "astronomy")


# Real files

REAL = {
    "gsm8k": ("fspo/gsm8k-test.parquet", 1319),
    "math-500": ("fspo/math-500-test.parquet", 500),
    "halueval-qa": ("fspo/halueval-train.parquet", 5000),
    "halueval-qa-pairwise": ("fspo/halueval-train.parquet", 5000),
    "halluqa": ("halluqa/HalluQA.json", 450),
    "halluqa-mc": ("halluqa/HalluQA_mc.json", 450),
    "biographies": ("factscore/ChatGPT.jsonl", 183),
}


@pytest.mark.parametrize("name", REAL)
def test_real_files(data_dir, name):
    file, rows = REAL[name]
    for style in get_benchmark(name).styles:
        items, provenance = load_items(name, path=data_dir / file, style=style)
        assert (provenance["rows"], provenance["used"], provenance["dropped"]) == (rows, rows, {})
        assert len({item.id for item in items}) == rows
        assert all(item.question and all(message["content"] for message in item.messages) for item in items)
        assert all((item.messages[-1]["role"] == "assistant") == (style == "fspo") for item in items)
    if name == "halluqa":
        assert Counter(item.domain for item in items) == {"Knowledge": 206, "Misleading": 175, "Misleading-hard": 69}
    if name == "halluqa-mc":
        assert Counter(len(item.reference["options"]) for item in items) == {5: 421, 2: 29}
    if name == "biographies":
        lines = (data_dir / file).read_text(encoding="utf-8").splitlines()
        published, _ = load_items(name, path=data_dir / file, style="published")
        assert [item.messages[0]["content"] for item in published] == [json.loads(line)["input"] for line in lines]


@pytest.mark.parametrize("name", ["gsm8k", "math-500", "halueval-qa"])
def test_real_prompts_ask_what_training_asks(data_dir, name):
    """Style "fspo" against the prompts that the trainer makes of the files, which hold them written out by hand."""
    dataset = datasets.Dataset.from_parquet(str(data_dir / REAL[name][0])).select(range(300))
    items, _ = load_items(name, path=data_dir / REAL[name][0], style="fspo")
    trained = prepare_rows(dataset, style="instruct")
    same = 0
    for row, (stored, item) in enumerate(zip(dataset["prompt"], items[:300], strict=True)):
        if name == "halueval-qa" and trained[row]["answer"] != item.answer:
            continue  # the file shows the other candidate
        same += 1
        assert item.messages[-2]["content"] == parse_prompt(stored).question
        assert list(item.messages[:2]) == trained[row]["prompt"]
        assert item.answer == trained[row]["answer"].replace(",", "" if name == "gsm8k" else ",")
    assert same > 80

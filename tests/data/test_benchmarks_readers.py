"""Items of every benchmark, on rows with the published columns; the real files where there are some."""

import hashlib
import json
import math
from collections import Counter
from dataclasses import asdict

import pytest


datasets = pytest.importorskip("datasets")

from hf_factuality.data import parse_prompt, prepare_rows  # noqa: E402
from hf_factuality.data.benchmarks import get_benchmark, load_items  # noqa: E402
from hf_factuality.errors import DataError  # noqa: E402
from hf_factuality.metrics import compute  # noqa: E402
from hf_factuality.rewards import SCORERS  # noqa: E402
from tests.data.cases import cases  # noqa: E402
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


@cases("benchmarks")
def test_cases(tmp_path, case):
    """Rows with the published columns, and by hand what must be in their items."""
    items, provenance = read(
        tmp_path, case["benchmark"], case["rows"], case.get("file", "rows.jsonl"), style=case.get("style")
    )
    assert len(items) == len(case["items"]) and provenance["dropped"] == case.get("dropped", {})
    for item, wanted in zip(items, case["items"], strict=True):
        found = json.loads(json.dumps(asdict(item)))
        if "trained" in wanted:
            wanted = {"messages": list(trained_with(*wanted["trained"]))}
        assert {name: found[name] for name in wanted} == wanted


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
OPEN = {"question": "Is the sky green?", "correct_answers": ["No"], "incorrect_answers": ["Yes"]}


def test_truthfulqa_is_what_its_metric_takes(tmp_path):
    (item,), _ = read(tmp_path, "truthfulqa", [MC])
    # MC2 by hand: (.3 + .2) / (.3 + .2 + .1); MC1: .3 is more than .1 and .05.
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


@pytest.mark.parametrize("letter", ["A", "B", "C"])
def test_halluqa_letters(tmp_path, letter):
    """Every way in which the answer to a question with options may be written is scored."""
    row = {"question": "Question: 谁？ A:甲 B:乙 C:丙 ", "answer": f"Answer: {letter}"}
    (item,), _ = read(tmp_path, "halluqa-mc", [row])
    score = SCORERS[get_benchmark("halluqa-mc").data_source]
    for other in "ABC":
        for said in (other, f"{other}.", f"Answer: {other}", other.lower()):
            assert score(said, item.answer) == float(other == letter), said


# Long answers


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
    with pytest.raises(DataError, match="no files of split 'people'; it has"):
        load_items("longfact", path=tmp_path / "longfact", split="people")


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


# AbstentionBench


def test_abstentionbench_in_a_folder_has_its_six_scenarios(tmp_path):
    """A file per dataset, by the names of the loading script's splits or of its classes."""
    row = {"question": "Q?", "reference_answers": None, "should_abstain": True, "metadata_json": "{}"}
    rows = {
        "alcuna": {}, "big_bench_known_unknowns": {}, "FreshQADataset": {}, "moralchoice": {}, "mmlu_math": {}, "squad2": {},
        "situated_qa": {}, "own": {}, "self_aware": {}, "CoCoNotDataset": {"CoCoNot_AbstentionBench_category": "False presumptions"},
    }  # fmt: skip
    (tmp_path / "bench").mkdir()
    for name, metadata in rows.items():
        write(tmp_path / "bench" / f"{name}.jsonl", [{**row, "metadata_json": json.dumps(metadata)}])
    items, provenance = load_items("abstentionbench", path=tmp_path / "bench")
    assert {item.id: item.domain for item in items} == {
        "FreshQADataset-0": "stale",
        "alcuna-0": "underspecified context",
        "big_bench_known_unknowns-0": "answer unknown",
        "CoCoNotDataset-0": "false premise",
        "mmlu_math-0": "underspecified context",
        "moralchoice-0": "subjective",
        "own-0": "own",
        "situated_qa-0": "underspecified intent",
        "squad2-0": "underspecified context",
    }
    assert provenance["dropped"] == {"left out of the published figures": 1}, "SelfAware"
    (item,), _ = load_items("abstentionbench", path=tmp_path / "bench", split="squad2")
    assert item.id == "squad2-0"
    with pytest.raises(DataError, match="no files of split 'x'; it has .*'alcuna'"):
        load_items("abstentionbench", path=tmp_path / "bench", split="x")

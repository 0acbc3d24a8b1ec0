"""Reader of the FSPO files, on small files with the same structure; the real ones where there are some."""

import json
import logging

import pytest


datasets = pytest.importorskip("datasets")
transformers = pytest.importorskip("transformers")

from tokenizers import Tokenizer, models, pre_tokenizers, processors  # noqa: E402

from hf_factuality.data import check_prompt_lengths, load_fspo, parse_prompt, prepare_rows  # noqa: E402
from hf_factuality.errors import DataError, FactualityError  # noqa: E402
from tests.conftest import fast_few  # noqa: E402
from tests.data.cases import cases  # noqa: E402


SYSTEM = "You help.\nFor example: <think> reasons </think> <answer> 12 </answer>."
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
CHATML += "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
PREFILL = "Let me solve this step by step.\n<think>"


def chatml(question: str, close: str = "\n<|im_end|>") -> str:
    return (
        f"<|im_start|>system\n{SYSTEM}<|im_end|>\n<|im_start|>user\n{question}{close}\n<|im_start|>assistant\n"
        "Let me solve this step by step.\n<think>"
    )


def base(question: str) -> str:
    return (
        "A conversation between User and Assistant. The user asks, \n        the Assistant solves. For example: <answer> 12 "
        f"</answer>.\n\nUser: {question}\nAssistant: Let me solve this step by step. <think>"
    )


def llama(question: str, close: str = "<|eot_id|>") -> str:
    return (
        f"<|begin_of_text|><|start_header_id|>system<|end_header_id|>\n\n{SYSTEM}<|eot_id|>"
        f"<|start_header_id|>user<|end_header_id|>\n\n{question}{close}"
        "<|start_header_id|>assistant<|end_header_id|>\n\nLet me solve this step by step.\n<think>"
    )


def row(prompt: str, gold: str, data_source: str, **columns) -> dict:
    return {
        **columns,
        "data_source": data_source,
        "prompt": [{"content": prompt, "role": "user"}],
        "ability": "factuality",
        "reward_model": {"ground_truth": gold, "style": "rule"},
        "extra_info": {"index": 0, "split": "train"},
    }


def hotpot_row(question="Who?", answer="Ada Lovelace", style=chatml, knowledge="Ada did it.") -> dict:
    return row(style(question), answer, "HotpotQA", _id="5a", question=question, answer=answer, knowledge=knowledge)


def math_row(question="Find $x$.\nNow.", answer=r"\frac{1}{2}") -> dict:
    return row(chatml(question, close=""), answer, "MATH", question=question, answer=answer, subject="Algebra")


def halueval_row(shown: str, gold: str, style=chatml) -> dict:
    columns = {"question": "Which city?", "right_answer": "Lima", "hallucinated_answer": "Rome"}
    return row(style(shown), gold, "HaluEval", knowledge="Lima is the capital.", **columns)


JUDGE = "#Question#: Which city?\n#Candidate Answer#: Rome"
CHOOSE = "#Question#: Which city?\n#Candidate Answer 1#: Rome\n#Candidate Answer 2#: Lima"


@pytest.fixture
def write(tmp_path):
    def write(name: str, rows: list[dict]):
        path = tmp_path / name
        if path.suffix == ".parquet":
            datasets.Dataset.from_list(rows).to_parquet(str(path))
        else:
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write


def make_tokenizer(chat_template=None, bos=False, eos=False):
    """A tokenizer of whole words, with `<s>` in front or `</s>` behind every text as Llama's has."""
    vocabulary = {token: number for number, token in enumerate(["<unk>", "<s>", "</s>", "<|h|>", "one", "two"])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    if bos or eos:
        single = ("<s> " if bos else "") + "$A" + (" </s>" if eos else "")
        special = [("<s>", 1), ("</s>", 2)]
        tokenizer.post_processor = processors.TemplateProcessing(single=single, special_tokens=special)
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, unk_token="<unk>", bos_token="<s>", eos_token="</s>", chat_template=chat_template,
        additional_special_tokens=["<|h|>"],
    )  # fmt: skip


QUESTIONS = [
    "Who?", " Who ", "Two\nlines\n\n of it", 'He asked "User: who?"\nUser: me', "What follows\nAssistant: in a dialogue?",
    "What does system mean?", "<answer> 12 </answer>?", "\u00bf谁?",
]  # fmt: skip


@pytest.mark.parametrize(
    ("style", "name"),
    [
        (chatml, "instruct"),
        (lambda q: chatml(q, close=""), "instruct"),
        (lambda q: chatml(q, close="<|im_end|>"), "instruct"),
        (llama, "instruct"),
        (lambda q: llama(q, close="\n<|eot_id|>"), "instruct"),
        (base, "base"),
    ],
    ids=["chatml", "chatml-open", "chatml-closed", "llama3", "llama3-newline", "base"],
)
def test_parse_prompt(style, name):
    for question in QUESTIONS:
        for prompt in (style(question), [{"role": "user", "content": style(question)}]):
            parsed = parse_prompt(prompt)
            assert (parsed.question, parsed.style) == (question, name)
            assert "12 </answer>." in parsed.system


def test_parse_prompt_without_markup():
    assert parse_prompt("Who?").question == "Who?"
    assert parse_prompt("Who?").style is None
    assert parse_prompt([{"role": "user", "content": "Who?"}]).style is None
    parsed = parse_prompt([{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Who?"}])
    assert (parsed.question, parsed.style, parsed.system) == ("Who?", "instruct", "Be brief.")
    assert parse_prompt("<|im_start|>user\nWho?<|im_end|>\n<|im_start|>assistant\n").question == "Who?"


@pytest.mark.parametrize(
    ("prompt", "message"),
    [
        (3, "string or a list of messages"),
        ([{"role": "user"}], "string or a list of messages"),
        ([{"role": "assistant", "content": "Hi"}], r"message of the user .* \['assistant'\]"),
        (chatml("Who?<|im_end|>\n<|im_start|>assistant\nHe.<|im_end|>\n<|im_start|>user\nSure?"), "several turns"),
    ],
)
def test_parse_prompt_refuses(prompt, message):
    with pytest.raises(DataError, match=message):
        parse_prompt(prompt)


def test_files_with_different_columns(write):
    files = [
        write("hotpot.parquet", [hotpot_row(), hotpot_row("Was it?", "yes", base, "")]),
        write("math.parquet", [math_row()]),
        str(write("halueval.jsonl", [halueval_row(JUDGE, "Yes"), halueval_row(CHOOSE, "Lima", base)])),
    ]
    dataset = load_fspo(files)
    assert dataset.column_names == ["prompt", "question", "answer", "evidence", "data_source"]
    assert dataset["question"][:] == ["Who?", "Was it?", "Find $x$.\nNow.", JUDGE, CHOOSE]
    assert dataset["answer"][:] == ["Ada Lovelace", "yes", r"\frac{1}{2}", "Yes", "Lima"]
    assert dataset["evidence"][:] == [["Ada did it."], [], [], ["Lima is the capital."], ["Lima is the capital."]]
    assert dataset["data_source"][:] == ["HotpotQA", "HotpotQA", "MATH", "HaluEval", "HaluEval"]
    for prompt, question in zip(dataset["prompt"], dataset["question"], strict=True):
        assert [message["role"] for message in prompt] == ["system", "user"]
        assert prompt[1]["content"] == question
    systems = [prompt[0]["content"] for prompt in dataset["prompt"]]
    assert "<answer> Yes </answer>" in systems[3]
    assert "two candidate answers" in systems[4]
    assert "<answer> 42 </answer>" in systems[2]
    assert systems[0] == systems[1]
    assert not any(SYSTEM in system for system in systems)


def test_one_file_and_lists_of_answers(write):
    lists = {"answer": ["Ada", "", "A. L."], "context": ["One.", " ", "Two."]}
    file = write("lists.jsonl", [{"question": "Who?", "data_source": "world", **lists}])
    dataset = load_fspo([file, write("hotpot.parquet", [hotpot_row()])])
    assert dataset["answer"][:] == [["Ada", "A. L."], ["Ada Lovelace"]]
    assert dataset["evidence"][:] == [["One.", "Two."], ["Ada did it."]]
    assert load_fspo(str(write("one.parquet", [hotpot_row()]))).num_rows == 1


def test_dataset_name(tmp_path, write):
    write("train.parquet", [hotpot_row()])
    assert load_fspo(dataset_name=str(tmp_path), split="train")["question"][:] == ["Who?"]
    with pytest.raises(DataError, match="split 'nowhere'"):
        load_fspo(dataset_name=str(tmp_path), split="nowhere")
    with pytest.raises(DataError, match="cannot be loaded"):
        load_fspo(dataset_name="no-one/no-such-dataset")


def test_instruct_prompt(write):
    tokenizer = make_tokenizer(CHATML)
    (prompt,) = load_fspo(write("math.parquet", [math_row()]), tokenizer=tokenizer, system_prompt="Be brief.")[
        "prompt"
    ]
    assert prompt == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nFind $x$.\nNow.<|im_end|>\n<|im_start|>assistant\n"
        "Let me solve this step by step.\n<think>"
    )
    # What was rendered can be read again.
    assert parse_prompt(prompt).question == "Find $x$.\nNow."


def test_instructions_name_each_tag(write):
    for rows in ([hotpot_row()], [halueval_row(JUDGE, "No")], [halueval_row(CHOOSE, "Lima")]):
        for settings in ({"tokenizer": make_tokenizer(CHATML)}, {"style": "base"}):
            prompt = load_fspo(write("rows.jsonl", rows), **settings)["prompt"][0]
            assert all(tag in prompt for tag in ("<think>", "</think>", "<answer>", "</answer>"))
            assert "{" not in prompt
            assert prompt.endswith(PREFILL)


def test_base_prompt(write, caplog):
    file = write("hotpot.parquet", [hotpot_row("What is {question}?")])
    wanted = (
        "This is a conversation between a user and an assistant. Be {brief}.\n\nUser: What is {question}?\nAssistant: "
        "Let me solve this step by step.\n<think>"
    )
    for settings in ({"style": "base"}, {"style": "base", "tokenizer": make_tokenizer(CHATML)}):
        assert load_fspo(file, system_prompt="Be {brief}.", **settings)["prompt"][:] == [wanted]
    with caplog.at_level(logging.WARNING):
        assert load_fspo(file, system_prompt="Be {brief}.", tokenizer=make_tokenizer())["prompt"][:] == [wanted]
    assert "no chat template" in caplog.text


LLAMA = "<s>{% for m in messages %}<|h|> {{ m.content }} {% endfor %}{% if add_generation_prompt %}<|h|> {% endif %}"


@pytest.mark.parametrize("bos", [True, False])
def test_one_bos_token(write, bos):
    """A Llama 3 tokenizer adds its first token to text that already has it."""
    tokenizer = make_tokenizer(LLAMA, bos=bos)
    rows = load_fspo(write("rows.parquet", [hotpot_row("one two")]), tokenizer=tokenizer, system_prompt="two")
    prompt = rows["prompt"][0]
    assert prompt == ("" if bos else "<s>") + "<|h|> two <|h|> one two <|h|> " + PREFILL
    # As TRL tokenizes it: <s> <|h|> two <|h|> one two <|h|>, and seven words of the beginning.
    ids = tokenizer(text=[prompt])["input_ids"][0]
    assert ids == [1, 3, 5, 3, 4, 5, 3] + [0] * 8
    messages = [{"role": "system", "content": "two"}, {"role": "user", "content": "one two"}]
    rendered = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=True, return_dict=True)
    assert ids[:7] == rendered["input_ids"]


def test_tokenizer_that_ends_every_text(write):
    with pytest.raises(DataError, match="add_eos_token=False"):
        load_fspo(write("rows.parquet", [hotpot_row()]), tokenizer=make_tokenizer(CHATML, bos=True, eos=True))


@pytest.mark.parametrize("opening", ["<think>", "<think>\n", "<think>\n\n"])
def test_template_that_opens_the_reasoning(write, opening):
    tokenizer = make_tokenizer(CHATML.replace("assistant\n", "assistant\n" + opening))
    prompt = load_fspo(write("rows.parquet", [hotpot_row()]), tokenizer=tokenizer, system_prompt="x")["prompt"][0]
    assert prompt.endswith("<|im_start|>assistant\n" + opening)
    assert prompt.count("<think>") == 1


def test_template_keywords(write):
    tokenizer = make_tokenizer(CHATML.replace("assistant\n", "assistant\n{% if quick %}<think></think>{% endif %}"))
    file = write("rows.parquet", [hotpot_row()])
    (prompt,) = load_fspo(file, tokenizer=tokenizer, chat_template_kwargs={"quick": True})["prompt"]
    assert prompt.endswith("<think></think>" + PREFILL)


@pytest.mark.parametrize(
    "start",
    [
        "{% if messages[0].role == 'system' %}{{ raise_exception('System role not supported') }}{% endif %}",
        "{% set messages = messages | rejectattr('role', 'equalto', 'system') | list %}",
    ],
    ids=["refuses", "leaves out"],
)
def test_template_without_system_role(write, start):
    tokenizer = make_tokenizer(start + CHATML)
    file = write("rows.parquet", [hotpot_row()])
    (prompt,) = load_fspo(file, tokenizer=tokenizer, system_prompt="Be brief.")["prompt"]
    assert prompt == "<|im_start|>user\nBe brief.\n\nWho?<|im_end|>\n<|im_start|>assistant\n" + PREFILL


def test_prepare_rows():
    columns = {"question": ["Who?", "Where?"], "answer": ["Ada", "Here"], "evidence": ["One.", None]}
    dataset = datasets.Dataset.from_dict({**columns, "data_source": ["mine", None]})
    prepared = prepare_rows(dataset, default_data_source="other", known_sources=["mine", "other"], style="base")
    assert prepared["data_source"][:] == ["mine", "other"]
    assert prepared["evidence"][:] == [["One."], []]
    assert prepared["question"][:] == ["Who?", "Where?"]
    dataset = datasets.Dataset.from_dict(columns)
    assert prepare_rows(dataset, default_data_source="mine")["data_source"][:] == ["mine", "mine"]
    # A prompt of one's own is no question.
    dataset = datasets.Dataset.from_dict({**columns, "prompt": ["Answer me: Who?", "Answer me: Where?"]})
    assert prepare_rows(dataset, default_data_source="mine")["question"][:] == ["Who?", "Where?"]
    dataset = dataset.remove_columns("question")
    assert prepare_rows(dataset, default_data_source="mine")["question"][0] == "Answer me: Who?"


GOOD = {"question": ["Who?", "Where?"], "answer": ["Ada", "Here"], "data_source": ["mine", "mine"]}


@cases("refusals", "fspo")
def test_refusals(case):
    merged = {name: values for name, values in {**GOOD, **case["columns"]}.items() if values is not None}
    settings = dict(case["settings"])
    if "tokenizer" in settings:
        settings["tokenizer"] = make_tokenizer()
    with pytest.raises(DataError, match=case["message"]) as caught:
        prepare_rows(datasets.Dataset.from_dict(merged), **settings)
    assert isinstance(caught.value, FactualityError) and isinstance(caught.value, ValueError)


def test_refuses_no_rows_and_other_types():
    dataset = datasets.Dataset.from_dict(GOOD)
    with pytest.raises(DataError, match="has no rows"):
        prepare_rows(dataset.select([]))
    with pytest.raises(DataError, match="got DatasetDict; choose one split"):
        prepare_rows(datasets.DatasetDict(train=dataset))
    with pytest.raises(DataError, match="got IterableDataset.*do not stream"):
        prepare_rows(dataset.to_iterable_dataset())
    with pytest.raises(DataError, match="got list"):
        prepare_rows([{"question": "Who?"}])


def test_refuses_files(tmp_path, write):
    with pytest.raises(DataError, match=r"cannot read the rows: .*nowhere.parquet.*; check the path"):
        load_fspo(tmp_path / "nowhere.parquet")
    with pytest.raises(DataError, match="table.xlsx must be a .jsonl, .ndjson, .json, .csv, .tsv or .parquet file"):
        load_fspo([tmp_path / "table.xlsx"])
    for name, text in (("bad.parquet", "{ neither"), ("bad.jsonl", "{ neither"), ("list.json", "[3]")):
        (tmp_path / name).write_text(text)
        with pytest.raises(DataError, match=f"{name}.*(is no Parquet file|is not JSON|must be an object)"):
            load_fspo(tmp_path / name)
    for arguments in ({}, {"train_files": []}, {"train_files": ["a.parquet"], "dataset_name": "b"}):
        with pytest.raises(DataError, match="either train_files or dataset_name"):
            load_fspo(**arguments)
    # The file and the row are named.
    good, bad = write("good.parquet", [hotpot_row()]), write("poor.parquet", [hotpot_row(), hotpot_row(answer=" ")])
    with pytest.raises(DataError, match=r"poor.parquet, row 1: the gold answer is empty"):
        load_fspo([good, bad])


def test_empty_answers_can_be_left_out(write, caplog):
    file = write("rows.parquet", [hotpot_row(answer=""), hotpot_row("Where?"), hotpot_row(answer=" ")])
    with caplog.at_level(logging.WARNING):
        dataset = load_fspo(file, empty_answers="drop")
    assert dataset["question"][:] == ["Where?"]
    assert "left out 2 rows" in caplog.text and "row 0" in caplog.text and "row 2" in caplog.text


def test_prompt_lengths():
    tokenizer = make_tokenizer(LLAMA, bos=True)
    texts = datasets.Dataset.from_dict({"prompt": ["one", "one two one two", "one two one"]})
    assert check_prompt_lengths(texts, tokenizer, 5) == 5  # four words and <s>
    with pytest.raises(DataError, match=r"row 1: the prompt has 5 tokens, but only 3 fit .* \(2 of 3 prompts"):
        check_prompt_lengths(texts, tokenizer, 3)
    messages = datasets.Dataset.from_dict({"prompt": [[{"role": "user", "content": "one two"}]]})
    assert check_prompt_lengths(messages, tokenizer, 5) == 5  # <s> <|h|> one two <|h|>
    with pytest.raises(DataError, match="row 0: the prompt has 5 tokens, but only 4 fit"):
        check_prompt_lengths(messages, tokenizer, 4)


FILES = {
    "gsm8k-test": 1319,
    "halueval-train": 5000,
    "hotpot-2k-train": 2000,
    "hotpot-base-1k-train": 1000,
    "math-500-test": 500,
    "simple-rl-train": 8523,
}


@pytest.fixture(params=fast_few(FILES, 0, 2))
def real_file(request, data_dir):
    path = data_dir / "fspo" / f"{request.param}.parquet"
    if not path.is_file():
        pytest.skip(f"needs {path}")
    return path


def test_real_files(real_file):
    raw = datasets.Dataset.from_parquet(str(real_file)).to_dict()
    golds = [model["ground_truth"] for model in raw["reward_model"]]
    assert len(golds) == FILES[real_file.stem]
    if "halueval" in real_file.stem:
        # Each row shows one candidate: the hallucinated one where the gold answer is "Yes".
        candidates = {"Yes": raw["hallucinated_answer"], "No": raw["right_answer"]}
        wanted = [
            f"#Question#: {question}\n#Candidate Answer#: {candidates[gold][index]}"
            for index, (question, gold) in enumerate(zip(raw["question"], golds, strict=True))
        ]
    else:
        wanted = raw["question"]
    parsed = [parse_prompt(prompt) for prompt in raw["prompt"]]
    assert [prompt.question for prompt in parsed] == wanted
    assert {prompt.style for prompt in parsed} == {"base" if "base" in real_file.stem else "instruct"}

    # Two questions of SimpleRL have no gold answer.
    kept = [index for index, gold in enumerate(golds) if gold.strip()]
    assert len(golds) - len(kept) == (2 if real_file.stem == "simple-rl-train" else 0)
    dataset = load_fspo(real_file, empty_answers="drop", tokenizer=make_tokenizer(CHATML)).to_dict()
    assert dataset["question"] == [wanted[index] for index in kept]
    assert dataset["answer"] == [golds[index] for index in kept]
    assert dataset["data_source"] == [raw["data_source"][index] for index in kept]
    assert dataset["evidence"] == ([[text] for text in raw["knowledge"]] if "knowledge" in raw else [[]] * len(kept))
    for prompt, question in zip(dataset["prompt"], dataset["question"], strict=True):
        assert f"<|im_start|>user\n{question}<|im_end|>\n<|im_start|>assistant\n{PREFILL}" in prompt

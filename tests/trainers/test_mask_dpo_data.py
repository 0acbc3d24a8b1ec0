"""Where labelled characters end up among the tokens; expected tokens are read off by hand or by the byte oracle."""

import random
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from datasets import Dataset, IterableDataset
from tokenizers.processors import TemplateProcessing
from torch.utils.data import DataLoader
from transformers import AutoTokenizer

from hf_factuality import Label, LabeledSpan
from hf_factuality.errors import DataError
from hf_factuality.functional.preference import FREE_OF_HALLUCINATION, HALLUCINATED
from hf_factuality.trainers._template_places import locate
from hf_factuality.trainers.mask_dpo_trainer import (
    COUNTS,
    MaskedPreferenceCollator,
    MaskRule,
    MaskStatistics,
    mask_pair,
)
from tests.tiny import CORPUS


sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import _oracles  # noqa: E402
import mask_dpo_tokens  # noqa: E402


S, C = Label.SUPPORTED, Label.CONTRADICTED
RULE = MaskRule(FREE_OF_HALLUCINATION, HALLUCINATED, "drop", None, "keep_start", None)


def located(content, spans, before="<|assistant|>", after="<|end|>", change=lambda content: content):
    def render(content):
        return before + change(content) + after

    text = render(content)
    found = locate(content, [LabeledSpan(a, b, S) for a, b in spans], text, render)
    return [text[span.start : span.end] for span in found]


def test_locate_finds_sentences_whatever_the_template_does():
    content = " Ada was born. She sat.\n"
    spans = [(0, 14), (14, 24)]
    expected = ["Ada was born.", "She sat."]
    assert located(content, spans) == expected
    assert located(content, spans, change=str.strip) == expected
    # The text of the completion occurs in the prompt too, and in what follows.
    assert located("a", [(0, 1)], before="a b a:", after=" a a") == ["a"]
    assert located(content, [(0, 1), (5, 5), (23, 24)]) == []  # white space and nothing


def split_reasoning(content):
    reasoning, answer = content.split("</think>")
    return f"Thought: {reasoning.removeprefix('<think>').strip()} So: {answer.lstrip()}"


def test_locate_follows_a_template_that_takes_the_completion_apart():
    content = "<think>\nAda sat. She ate.\n</think>\n\nYes. No."
    sentences = ["Ada sat.", "She ate.", "Yes.", "No."]
    spans = [(content.index(s), content.index(s) + len(s)) for s in sentences]
    assert located(content, spans, change=split_reasoning) == sentences
    # A span over everything leaves the template's own words out.
    assert located(content, [(0, len(content))], change=split_reasoning) == ["Ada sat. She ate.", "Yes. No."]
    # The first sentence comes with its tag.
    assert located(content, [(0, 16)], change=split_reasoning) == ["Ada sat."]
    # Reasoning that is left out has no tokens.
    assert located(content, spans, change=lambda c: c.split("</think>")[-1].strip()) == ["Yes.", "No."]
    # Tags of another kind, which no mark may stand beside.
    other = content.replace("<think>", "[T]").replace("</think>", "[/T]")

    def split_other(content):
        head, tail = content.split("\n[/T]\n\n")
        return head.removeprefix("[T]\n") + " | " + tail

    shifted = [(other.index(s), other.index(s) + len(s)) for s in sentences]
    assert located(other, shifted, change=split_other) == sentences


@pytest.mark.parametrize("change", [lambda c: c[::-1] if len(c) < 12 else "?", lambda c: c + c], ids=["lost", "twice"])
def test_locate_refuses_what_it_cannot_follow(change):
    with pytest.raises(DataError, match="the chat template changes the completion"):
        located("Ada was born. She sat.", [(0, 13)], change=change)


def pair(
    tokenizer, prompt, chosen, chosen_spans, rejected=None, rejected_spans=None, implicit=False, rule=RULE, **more
):
    """A row as TRL leaves it, and its masks."""
    rejected, rejected_spans = rejected or chosen, chosen_spans if rejected_spans is None else rejected_spans
    row = {"prompt": prompt, "chosen": chosen, "rejected": rejected, **more}
    row |= {"chosen_spans": chosen_spans, "rejected_spans": rejected_spans}

    def encode(*parts):
        if isinstance(prompt, str):
            return tokenizer("".join(parts))["input_ids"]
        settings = {"tools": more.get("tools"), **(more.get("chat_template_kwargs") or {})}
        messages = [message for part in parts for message in part]
        return tokenizer.apply_chat_template(
            messages, add_generation_prompt=len(parts) == 1, return_dict=True, **settings
        )["input_ids"]

    row["prompt_ids"] = encode(prompt)
    whole = {side: encode(prompt, row[side]) for side in ("chosen", "rejected")}
    while not all(ids[: len(row["prompt_ids"])] == row["prompt_ids"] for ids in whole.values()):
        row["prompt_ids"].pop()  # the end of the prompt became one token with the completion
    for side, ids in whole.items():
        row[f"{side}_ids"] = ids[len(row["prompt_ids"]) :]
    return row, mask_pair(row, tokenizer, rule, implicit)


def kept_text(tokenizer, row, masks, side):
    return tokenizer.decode([i for i, m in zip(row[f"{side}_ids"], masks[f"{side}_mask"], strict=True) if m])


@pytest.fixture(scope="module")
def tokenizer(tiny_model):
    return AutoTokenizer.from_pretrained(tiny_model)


def user(text):
    return [{"role": "user", "content": text}]


def assistant(text, **more):
    return [{"role": "assistant", "content": text, **more}]


TEXT = "Ada was born in London. 玛丽出生在华沙。 She sat?"
SPANS = [
    {"start": 0, "end": 23, "label": "supported"},
    {"start": 24, "end": 32, "label": "contradicted"},
    {"start": 33, "end": 41, "label": None},
]


def test_conversational(tokenizer):
    row, masks = pair(tokenizer, user("Who?"), assistant(TEXT), SPANS)
    assert kept_text(tokenizer, row, masks, "chosen") == "Ada was born in London."
    assert kept_text(tokenizer, row, masks, "rejected").strip() == "玛丽出生在华沙。"
    assert masks["chosen_mask"][-1] == 0  # end of sequence
    assert len(masks["chosen_mask"]) == len(row["chosen_ids"])


def test_plain_and_implicit_prompts(tokenizer):
    row, masks = pair(tokenizer, "Who? ", TEXT + "<|end|>", SPANS)
    # The space of the prompt and the first word are one token.
    assert kept_text(tokenizer, row, masks, "chosen") == " Ada was born in London."
    shifted = [{**span, "start": span["start"] + 5, "end": span["end"] + 5} for span in SPANS]
    shifted.append({"start": 1, "end": 4, "label": "supported"})  # all in the prompt
    shifted.append({"start": 2, "end": 8, "label": "supported"})  # half in it
    row, masks = pair(tokenizer, "Who? ", TEXT + "<|end|>", shifted, implicit=True)
    assert kept_text(tokenizer, row, masks, "chosen") == " Ada was born in London."
    assert [(s["start"], s["end"]) for s in masks["chosen_spans"]] == [(0, 23), (24, 32), (33, 41), (0, 3)]
    # Prepared once more, with the prompt a column by now, it gives the same.
    again = mask_pair({**row, **masks}, tokenizer, RULE, False)
    assert again == {name: value for name, value in masks.items() if not name.endswith("spans")}


def test_special_tokens_that_the_tokenizer_adds_lie_outside():
    """They have the range (0, 0), wherever they stand."""
    tokenizer = _oracles.wrap(_oracles.train_byte_level(CORPUS, 420))
    ids = {token: tokenizer.convert_tokens_to_ids(token) for token in ("<s>", "</s>")}
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(
        single="<s> $A </s>", special_tokens=list(ids.items())
    )
    rule = replace(RULE, outside="after_last")
    row, masks = pair(tokenizer, "", "Ada sat. ", [{"start": 0, "end": 8, "label": "supported"}], rule=rule)
    assert row["prompt_ids"] == [ids["<s>"]] and row["chosen_ids"][-1] == ids["</s>"]
    assert masks["chosen_mask"] == [1] * (len(row["chosen_ids"]) - 2) + [2, 2]  # the space after it, and the end


def test_tools_and_template_settings_reach_the_template(tokenizer):
    template = tokenizer.chat_template
    tokenizer.chat_template = "{% if tools %}{{ tools[0]['name'] }}:{% endif %}{{ greeting }}" + template
    try:
        more = {"tools": [{"name": "look_up"}], "chat_template_kwargs": {"greeting": "Ada was born in London."}}
        row, masks = pair(tokenizer, user("Who?"), assistant(TEXT), SPANS, **more)
        assert tokenizer.decode(row["prompt_ids"]).startswith("look_up:Ada was born in London.")
        assert kept_text(tokenizer, row, masks, "chosen") == "Ada was born in London."
        assert masks["chosen_mask"] == pair(tokenizer, user("Who?"), assistant(TEXT), SPANS)[1]["chosen_mask"]
    finally:
        tokenizer.chat_template = template


@pytest.mark.parametrize(
    "spans, message",
    [
        (None, "`chosen_spans` must be a list of spans"),
        ([{"start": 0}], "holds something that is no span"),
        ([{"start": 3, "end": 1}], "need 0 <= start <= end"),
        ([{"start": 0, "end": 1, "label": "true"}], "unknown label 'true'"),
        ([{"start": 0, "end": 42, "label": "supported"}], r"\[0, 42\) beyond `chosen` of 41"),
        (["0-4"], "holds something that is no span"),
    ],
)
def test_bad_spans_are_named(tokenizer, spans, message):
    with pytest.raises(DataError, match=message):
        pair(tokenizer, user("Who?"), assistant(TEXT), spans, rejected_spans=[])


@pytest.mark.parametrize(
    "completion",
    [assistant(TEXT) + user("?") + assistant("."), user(TEXT), assistant([{"type": "text", "text": TEXT}])],
    ids=["several", "role", "parts"],
)
def test_a_completion_is_one_message_of_text(tokenizer, completion):
    row = {"prompt": user("Who?"), "chosen": completion, "rejected": completion, "prompt_ids": [], "chosen_ids": []}
    with pytest.raises(DataError, match="must be one assistant message"):
        mask_pair({**row, "rejected_ids": [], "chosen_spans": [], "rejected_spans": []}, tokenizer, RULE, False)


def test_tokens_that_are_not_trls_are_refused(tokenizer):
    row, _ = pair(tokenizer, user("Who?"), assistant(TEXT), SPANS)
    with pytest.raises(DataError, match="other tokens than TRL's"):
        mask_pair({**row, "chosen_ids": row["chosen_ids"][:-1]}, tokenizer, RULE, False)


@pytest.mark.parametrize("family", mask_dpo_tokens.FAMILIES)
@pytest.mark.parametrize("template", mask_dpo_tokens.TEMPLATES)
def test_no_token_is_misplaced(family, template):
    train, _ = mask_dpo_tokens.FAMILIES[family]
    draw = random.Random(0)
    english = ["Ada Lovelace was born in London.", "She worked in Paris!", "Was it 1903?", "Nobody knows 🙂 why."]
    chinese = ["玛丽出生在华沙。", "她在巴黎工作！", "他是谁？", "答案是1903年。"]
    tokenizer = _oracles.wrap(train(CORPUS * 3 + english + chinese[:2], 420))
    for language, sentences, glue in (("en", english, " "), ("zh", chinese, "")):
        texts = [glue.join(draw.choices(sentences, k=draw.randint(1, 5))) for _ in range(12)]
        counts = mask_dpo_tokens.compare(tokenizer, template, texts, language, seed=1)
        assert counts["misplaced"] == 0 and counts["tokens"] > 100
        if template == "reasoning taken apart":
            assert counts["counting misplaces"] > 0


def test_collator_masks_and_truncates_as_its_parent():
    examples = [
        {"prompt_ids": [1, 2, 3], "chosen_ids": [4, 5, 6], "rejected_ids": [7], "chosen_mask": [1, 0, 2], "rejected_mask": [1]},
        {"prompt_ids": [8], "chosen_ids": [9], "rejected_ids": [4, 5], "chosen_mask": [1], "rejected_mask": [0, 1]},
    ]  # fmt: skip
    batch = MaskedPreferenceCollator(pad_token_id=0)(examples)
    assert batch["input_ids"].tolist() == [
        [1, 2, 3, 4, 5, 6], [8, 9, 0, 0, 0, 0], [1, 2, 3, 7, 0, 0], [8, 4, 5, 0, 0, 0],
    ]  # fmt: skip
    assert batch["completion_mask"].tolist() == [
        [0, 0, 0, 1, 0, 1], [0, 1, 0, 0, 0, 0], [0, 0, 0, 1, 0, 0], [0, 0, 1, 0, 0, 0],
    ]  # fmt: skip
    start = MaskedPreferenceCollator(pad_token_id=0, max_length=5)(examples)["completion_mask"].tolist()
    assert start == [[0, 0, 0, 1, 0], [0, 1, 0, 0, 0], [0, 0, 0, 1, 0], [0, 0, 1, 0, 0]]
    end = MaskedPreferenceCollator(pad_token_id=0, max_length=2, truncation_mode="keep_end")(examples)
    assert end["completion_mask"].tolist() == [[0, 1], [0, 1], [0, 1], [0, 1]]
    assert set(batch) == {"input_ids", "attention_mask", "completion_mask"}  # the parent passes any other to the model


def test_statistics_of_a_stream_are_counted_across_workers():
    counts = [[3, 4, 8, 1, 1, 10], [0, 1, 8, 1, 1, 10], [1, 2, 8, 0, 0, 10], [0, 0, 8, 0, 0, 10]] * 2
    for workers in (0, 2):
        statistics = MaskStatistics(workers)
        stream = Dataset.from_dict({COUNTS: counts}).to_iterable_dataset(num_shards=2)
        assert isinstance(stream, IterableDataset)
        rows = list(DataLoader(stream.filter(statistics.add, input_columns=[COUNTS]), None, num_workers=workers))
        assert [row[COUNTS] for row in rows] == [counts[0]] * 2
        assert (statistics.pairs, statistics.dropped) == (8, 6)
        assert statistics.dropped_by_side == {"chosen": 4, "rejected": 4}
        assert statistics.kept == {"chosen": 0.5, "rejected": 0.1}

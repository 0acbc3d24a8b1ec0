"""Preference pairs that exist, labelled for Mask-DPO: the forms that such files have, what is left out, and a run."""

import json

import pytest
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_factuality import MaskDPOConfig, MaskDPOTrainer
from hf_factuality.cli import main
from hf_factuality.data import label_pairs, load_pairs, read_pairs
from hf_factuality.errors import DataError, JudgingError
from hf_factuality.spans import LabeledSpan, Verification


GOOD, BAD = "She was born in Leeds. She died in York.", "She was born in Bath. She sat."


class WordVerifier:
    """A sentence that names Bath is contradicted, every other one supported; of "mute" nothing is judged."""

    requires_evidence = False

    def __init__(self):
        self.seen = []

    def verify(self, inputs):
        self.seen += inputs
        return [self._of(it.completion) for it in inputs]

    def _of(self, text):
        spans, start = [], 0
        for part in text.split(". "):
            label = None if "mute" in text else "contradicted" if "Bath" in part else "supported"
            spans.append(LabeledSpan(start, min(start + len(part) + 1, len(text)), label))
            start += len(part) + 2
        return Verification(tuple(spans))


def user(text):
    return {"role": "user", "content": text}


def says(text):
    return {"role": "assistant", "content": text}


SYSTEM = {"role": "system", "content": "Be brief."}
ASKED = "Where was Ada born?"
HH = f"\n\nHuman: Hello.\n\nAssistant: Hi.\n\nHuman: {ASKED}\n\nAssistant:"
CHATML = f"<|im_start|>user\n{ASKED}<|im_end|>\n<|im_start|>assistant\n"
# Row -> the prompt of the result, and both answers.
FORMS = {
    "messages": ({"prompt": [user(ASKED)], "chosen": [says(GOOD)], "rejected": [says(BAD)]}, [user(ASKED)]),
    "system": ({"prompt": [SYSTEM, user(ASKED)], "chosen": [says(GOOD)], "rejected": [says(BAD)]}, [SYSTEM, user(ASKED)]),
    "ultrafeedback": (
        {"prompt": ASKED, "prompt_id": "x", "chosen": [user(ASKED), says(GOOD)], "rejected": [user(ASKED), says(BAD)],
         "messages": [user(ASKED), says(GOOD)], "score_chosen": 8.0, "score_rejected": 3.0}, [user(ASKED)]),
    "implicit": ({"chosen": [user(ASKED), says(GOOD)], "rejected": [user(ASKED), says(BAD)]}, [user(ASKED)]),
    "implicit system": (
        {"chosen": [SYSTEM, user(ASKED), says(GOOD)], "rejected": [SYSTEM, user(ASKED), says(BAD)]}, [SYSTEM, user(ASKED)]),
    "told twice": (
        {"prompt": [SYSTEM, user(ASKED)], "chosen": [user(ASKED), says(GOOD)], "rejected": [user(ASKED), says(BAD)]},
        [SYSTEM, user(ASKED)]),
    "several turns": (
        {"prompt": [user("Hi."), says("Hello.")], "chosen": [user(ASKED), says(GOOD)], "rejected": [user(ASKED), says(BAD)]},
        [user("Hi."), says("Hello."), user(ASKED)]),
    "orca": ({"system": "Be brief.", "question": ASKED, "chosen": GOOD, "rejected": BAD}, [SYSTEM, user(ASKED)]),
    "orca without": ({"system": "", "question": ASKED, "chosen": GOOD, "rejected": BAD}, [user(ASKED)]),
    "text prompt, messages": ({"prompt": ASKED, "chosen": [says(GOOD)], "rejected": [says(BAD)]}, [user(ASKED)]),
    "text": ({"prompt": ASKED + "\n", "chosen": GOOD, "rejected": BAD}, ASKED + "\n"),
    "hh": ({"chosen": f"{HH} {GOOD}", "rejected": f"{HH} {BAD}"}, HH),
    "chatml": ({"chosen": CHATML + GOOD, "rejected": CHATML + BAD}, CHATML),
    "lines": ({"chosen": f"{ASKED}\n{GOOD}", "rejected": f"{ASKED}\n{BAD}"}, ASKED + "\n"),
}  # fmt: skip


@pytest.mark.parametrize("form", FORMS)
def test_every_form_is_read(form, tmp_path):
    row, prompt = FORMS[form]
    verifier = WordVerifier()
    found = label_pairs(read_pairs([{**row, "extra": 3}]), verifier, tmp_path / "run", progress=False)
    (got,) = found
    texts = [got[side] if isinstance(prompt, str) else got[side][0]["content"] for side in ("chosen", "rejected")]
    assert got["prompt"] == prompt and [text.strip() for text in texts] == [GOOD, BAD]
    assert {it.question for it in verifier.seen} == {ASKED}
    for text, spans, labels in zip(
        texts,
        (got["chosen_spans"], got["rejected_spans"]),
        (["supported"] * 2, ["contradicted", "supported"]),
        strict=True,
    ):
        assert [span["label"] for span in spans] == labels
        assert "".join(text[span["start"] : span["end"]] for span in spans).replace(" ", "") == text.replace(" ", "")
    assert (got["chosen_score"], got["rejected_score"]) == (1.0, 0.5) and "extra" not in got
    assert load_pairs(tmp_path / "run")[0] == got


@pytest.mark.parametrize("form", ["system", "text", "hh"])
def test_the_result_is_trained_on(form, tiny_model, tmp_path):
    label_pairs(read_pairs([FORMS[form][0]]), WordVerifier(), tmp_path / "run", progress=False)
    args = MaskDPOConfig(
        str(tmp_path / "out"), max_steps=1, report_to="none", use_cpu=True, bf16=False, per_device_train_batch_size=1,
        save_strategy="no", gradient_checkpointing=False, disable_tqdm=True,
    )  # fmt: skip
    model, tokenizer = (kind.from_pretrained(tiny_model) for kind in (AutoModelForCausalLM, AutoTokenizer))
    trainer = MaskDPOTrainer(model, args=args, train_dataset=load_pairs(tmp_path / "run"), processing_class=tokenizer)
    assert trainer.mask_statistics["train"].dropped == 0
    trainer.train()


def test_answers_with_the_same_first_words_lose_none_of_them():
    (pair,) = read_pairs([{"chosen": f"{HH} She was kind.", "rejected": f"{HH} She was born in Bath."}])
    assert (pair.text, pair.chosen, pair.rejected) == (HH, " She was kind.", " She was born in Bath.")


def test_what_cannot_be_judged_is_left_out_and_counted(tmp_path):
    ask = {"prompt": [user(ASKED)]}
    rows = [
        {**ask, "chosen": [says(BAD)], "rejected": [says(GOOD)]},  # who is preferred is not the verifier's to say
        {**ask, "chosen": [says(GOOD)], "rejected": [says(GOOD + " ")]},
        {**ask, "chosen": [says(GOOD)], "rejected": [says("  ")]},
        {**ask, "chosen": None, "rejected": None},
        {**ask, "chosen": [], "rejected": [says(BAD)]},
        {**ask, "chosen": [says("mute.")], "rejected": [says(BAD)]},
        {"chosen": [user("a"), says(GOOD)], "rejected": [user("b"), says(BAD)]},
        {"chosen": [says(GOOD)], "rejected": [says(BAD)]},
        {**ask, "chosen": [says(GOOD)], "rejected": [says(BAD)], "id": 7},
    ]
    found = label_pairs(read_pairs(rows), WordVerifier(), tmp_path / "run", name="Somebody", progress=False)
    report = json.loads((tmp_path / "run" / "report.json").read_text())
    assert found["id"] == ["0", "8"] and (report["questions"], report["pairs"]) == (9, 2)
    assert report["dropped"] == {"empty": 3, "identical": 1, "several_turns": 2, "not_judged": 1}
    # The first pair's chosen answer has a correct sentence, but its rejected one nothing wrong.
    assert (report["contrary"], report["without_signal"]) == (1, 1)
    card = (tmp_path / "run" / "README.md").read_text()
    assert "2 preference pairs" in card and "| sampling model | Somebody |" in card


@pytest.mark.parametrize(
    "rows",
    [
        [], [3], [{"prompt": "x", "chosen": "y"}], [{"prompt": 3, "chosen": "a", "rejected": "b"}],
        [{"prompt": "x", "chosen": 1, "rejected": 2}], [{"prompt": "x", "chosen": "a", "rejected": [says("b")]}],
        [FORMS["messages"][0], FORMS["text"][0]],
    ],
)  # fmt: skip
def test_what_is_no_pair_is_refused(rows):
    with pytest.raises(DataError):
        read_pairs(rows)


def test_a_run_goes_on_where_it_was_and_another_is_refused(tmp_path):
    pairs = read_pairs([{**FORMS["messages"][0], "evidence": f"number {number}"} for number in range(6)])

    class Dies(WordVerifier):
        def verify(self, inputs):
            if len(self.seen) >= 4:
                raise KeyboardInterrupt
            return super().verify(inputs)

    first, second = Dies(), WordVerifier()
    second.__class__.__name__ = "Dies"
    with pytest.raises(KeyboardInterrupt):
        label_pairs(pairs, first, tmp_path / "run", progress=False)
    found = label_pairs(pairs, second, tmp_path / "run", progress=False)
    second.__class__.__name__ = "WordVerifier"
    assert (len(first.seen), len(second.seen)) == (4, 8)
    whole = label_pairs(pairs, WordVerifier(), tmp_path / "whole", progress=False)
    assert found.to_list() == whole.to_list() and len(whole) == 6
    with pytest.raises(DataError, match="other settings"):
        label_pairs(pairs[:3], WordVerifier(), tmp_path / "whole", progress=False)


def test_the_command(tmp_path, capsys):
    row = {**FORMS["messages"][0], "evidence": "Ada: She was born in Leeds. She died in York."}
    rows = [{**row, "id": "same"}, {**row, "id": "same"}, {**row, "rejected": [says("")]}]
    file, out = tmp_path / "pairs.jsonl", tmp_path / "run"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert main(["build-preferences", "--pairs", str(file), "--out", str(out)]) == 0
    printed = capsys.readouterr().out
    assert load_pairs(out)["id"] == ["0", "1"] and printed.endswith(f"{out}\n")
    # For the card of a model: nothing of these pairs was sampled.
    assert load_pairs(out).info.description.startswith("pairs that existed before, labelled by SmallVerifier")
    Dataset.from_list(rows[:2]).to_parquet(tmp_path / "data" / "train.parquet")
    assert (
        main(["build-preferences", "--pairs", str(tmp_path / "data"), "--out", str(tmp_path / "b"), "--limit", "1"])
        == 0
    )
    assert len(load_pairs(tmp_path / "b")) == 1
    for flags, word in [
        (["--num_samples", "4"], "--num_samples"),
        (["--min_margin", "0.1"], "--min_margin"),
        (["--responses", str(file)], "--responses"),
        (["--base_url", "http://localhost:1/v1", "--model", "m"], "--base_url"),
        (["--split", "test"], "--split"),
        (["--verifier", "bogus"], "bogus"),
    ]:
        assert main(["build-preferences", "--pairs", str(file), "--out", str(tmp_path / "c"), *flags]) == 2
        assert word in capsys.readouterr().err
    without = {key: value for key, value in row.items() if key != "evidence"}
    file.write_text(json.dumps(without))
    assert main(["build-preferences", "--pairs", str(file), "--out", str(tmp_path / "c")]) == 2
    assert "evidence" in capsys.readouterr().err
    file.write_text(json.dumps({**row, "chosen": None}))
    assert main(["build-preferences", "--pairs", str(file), "--out", str(tmp_path / "c")]) == 2
    assert "1 pairs with an answer that is empty" in capsys.readouterr().err


def test_a_verifier_that_fails_on_everything_ends_the_run(tmp_path):
    class Broken(WordVerifier):
        def verify(self, inputs):
            raise RuntimeError("no judge")

    with pytest.raises(JudgingError, match="no judge"):
        label_pairs(read_pairs([FORMS["text"][0]]), Broken(), tmp_path / "run", progress=False, patience=0.0)

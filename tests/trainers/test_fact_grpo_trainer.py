"""What FactGRPO does with labels, failures and settings; advantages are computed by hand."""

import json
import math
import time
from pathlib import Path

import pandas as pd
import pytest
import torch

from hf_factuality import FactGRPOConfig, FactGRPOTrainer, Label, LabeledSpan, Verification
from hf_factuality.errors import DataError, JudgingError
from tests.conftest import fast_few
from tests.tiny import letters_reward, rows
from tests.trainers.recording import SETTINGS, WholeCompletion, fixed_rewards


S, C, U = Label.SUPPORTED, Label.CONTRADICTED, Label.UNVERIFIABLE
ONE_BATCH = {**SETTINGS, "gradient_accumulation_steps": 1, "max_steps": 1, "num_iterations": 1, "beta": 0.0}
THINK = {"verify_scope": "think", "max_completion_length": 96}


class Script:
    """Per completion of the batch, in order: a label, or "raise", "garbage", "hang"."""

    def __init__(self, *script, requires_evidence=False):
        self.script, self.requires_evidence, self.seen = script, requires_evidence, []

    def verify(self, inputs):
        if len(inputs) > 1:  # failures are isolated by sending one at a time; this makes the order known
            raise RuntimeError("one at a time, please")
        (item,) = inputs
        action = self.script[len(self.seen)]
        self.seen.append(item)
        if action == "raise":
            raise RuntimeError("judge down")
        if action == "hang":
            time.sleep(60)
        if action == "garbage":
            return ["what?"]
        return [Verification(spans=(LabeledSpan(0, len(item.completion), action),))]


def make(
    tiny_model, folder, verifier, dataset=None, reward_funcs=letters_reward, config=None, trainer=FactGRPOTrainer, **kw
):
    args = FactGRPOConfig(output_dir=str(folder), **{**ONE_BATCH, "verify_scope": "completion", **(config or {})})
    return trainer(tiny_model, reward_funcs, args, dataset or rows(), verifier=verifier, **kw)


def saying(*texts, ended=False):
    """A trainer whose policy does not sample: its completions are these texts, again and again."""

    class Says(FactGRPOTrainer):
        def _generate_single_turn(self, prompt_ids, *args, **kwargs):
            end = [self._tokenizer.eos_token_id] * ended
            said = [texts[number % len(texts)] for number in range(len(prompt_ids))]
            return [self._tokenizer(text)["input_ids"] + end for text in said], None

    return Says


def one_generation(trainer):
    """The scored generation batch of one group of four, as the loss gets it."""
    trainer.model.train()
    return trainer._generate_and_score_completions([trainer.train_dataset[0]] * 4)


def group_advantages(rewards):
    """(r - mean) / (std + 1e-4) with the unbiased standard deviation, in plain Python."""
    mean = sum(rewards) / len(rewards)
    std = math.sqrt(sum((r - mean) ** 2 for r in rewards) / (len(rewards) - 1))
    return [(r - mean) / (std + 1e-4) for r in rewards]


def check(output, expected):
    """`expected`: one advantage per row, the same for all its tokens (labels cover whole completions)."""
    # The first five ids are special tokens: they have no characters, hence no label, and keep the group's advantage.
    body = output["completion_mask"].bool() & (output["completion_ids"] > 4)
    for row, value in enumerate(expected):
        tokens = output["advantages"][row][body[row]]
        assert len(tokens), "an empty completion checks nothing"
        torch.testing.assert_close(tokens, torch.full_like(tokens, value), rtol=1e-5, atol=1e-5)


ANSWERS, NO_TERM = [1, 1, 0, 0], {"factuality_reward_weight": 0.0}
HALF = {**NO_TERM, "credit_scale": 0.5}
HANGS = {"verifier_timeout": 2.0, "verifier_batch_size": 1}
# The verdicts, what the answers earn, settings; rewards by hand, of their advantages what the tokens get, figures.
BATCHES = {
    "the paper": ((S, C, S, U), ANSWERS, {}, [2, 0, 1, 0], lambda a: a,
                  {"mean": 0.25, "tokens_flipped": 0, "sentences": 1}),
    "the sign turns": ((C, U, S, C), ANSWERS, NO_TERM, ANSWERS, lambda a: [-a[0], a[1], -a[2], a[3]], {}),
    # Factuality of rows 1 and 3 becomes the mean of +1 and -1.
    "failures": ((S, "raise", C, "garbage"), ANSWERS, {}, [2, 1, -1, 0], lambda a: a, {"failed": 2, "mean": 0}),
    # All judged rows are supported, and so is the failed one, where `nansum` would have punished it with 0.
    "not paid as 0": ((S, S, S, "raise"), [1, 0, 1, 0], {}, [2, 1, 2, 1], lambda a: [a[0], -a[1], a[2], a[3]], {}),
    "one judged": (("raise", "garbage", S, "raise"), ANSWERS, {}, ANSWERS, lambda a: [*a[:2], -a[2], a[3]], {"failed": 3}),
    "hanging": ((S, "hang", C, U), ANSWERS, HANGS, [2, 1, -1, 0], lambda a: a, {"failed": 1}),
    "factuality alone": ((S, C, S, U), None, {}, [1, -1, 1, 0], lambda a: a, {}),
    "additive": ((S, U, C, U), [1, 0, 0, 1], {**HALF, "credit": "additive"}, [1, 0, 0, 1],
                 lambda a: [a[0] + 0.5, a[1], a[2] - 0.5, a[3]], {}),
    "scaled": ((S, U, C, U), [1, 0, 0, 1], {**HALF, "credit": "scaled"}, [1, 0, 0, 1],
               lambda a: [1.5 * a[0], a[1], 1.5 * a[2], a[3]], {}),
    # 2 * answer + 0.5 * factuality
    "weights": ((S, C, S, U), ANSWERS, {"reward_weights": [2.0], "factuality_reward_weight": 0.5}, [2.5, 1.5, 0.5, 0],
                lambda a: [a[0], -a[1], -a[2], a[3]], {}),
    "released": ((U, S, U, S), ANSWERS, {"variant": "released"}, ANSWERS, lambda a: [-a[0], a[1], a[2], -a[3]], {}),
}  # fmt: skip


@pytest.mark.parametrize("name", [pytest.param(n, marks=[pytest.mark.slow] * (n == "hanging")) for n in BATCHES])
def test_advantages_by_hand(tiny_model, tmp_path, name):
    script, answers, config, rewards, of_tokens, figures = BATCHES[name]
    funcs = None if answers is None else fixed_rewards(answers)
    trainer = make(tiny_model, tmp_path, Script(*script), reward_funcs=funcs, config=config)
    output = one_generation(trainer)
    a = group_advantages([float(reward) for reward in rewards])
    check(output, of_tokens(a))
    metrics = trainer._metrics["train"]
    assert {figure: metrics[f"factuality/{figure}"] for figure in figures} == {n: [v] for n, v in figures.items()}
    if name == "the sign turns":
        # The table of completions shows what the loss gets, and what it was before.
        kept = output["completion_mask"].bool()
        shown = [row[mask].mean().item() for row, mask in zip(output["advantages"], kept, strict=True)]
        assert list(trainer._logs["advantages"]) == pytest.approx(shown) and shown[0] < 0 < shown[2]
        assert list(trainer._logs["extra"]["group_advantage"]) == pytest.approx(a)
        assert 0 < metrics["factuality/tokens_flipped"][0] < 1 and metrics["factuality/tokens_labelled"][0] > 0.5
    if name == "released":  # +1 outside the sentences: the end of a wrong answer turns positive
        args = trainer.args
        assert (args.factuality_reward_weight, args.label_values, args.outside_factuality) == (0.0, "binary", 1)
        for row in (2, 3):
            ids, mask = output["completion_ids"][row], output["completion_mask"][row].bool()
            if ids[mask][-1] == trainer.processing_class.eos_token_id:
                torch.testing.assert_close(output["advantages"][row][mask][-1].item(), a[0], rtol=1e-5, atol=1e-5)


def test_rows_without_evidence_train_as_grpo(tiny_model, tmp_path):
    dataset = rows().remove_columns("evidence").add_column("evidence", [[], None, [""], ["  "]] * 2)
    verifier = Script(requires_evidence=True)
    trainer = make(tiny_model, tmp_path, verifier, dataset, fixed_rewards(ANSWERS))
    check(one_generation(trainer), group_advantages([1.0, 1.0, 0.0, 0.0]))
    assert verifier.seen == []
    assert trainer._metrics["train"]["factuality/failed"] == [0.0]
    assert trainer._metrics["train"]["factuality/rows_checked"] == [0.0]


def test_the_verifier_sees_question_evidence_and_row_but_not_the_prompt_markup(tiny_model, tmp_path):
    verifier = Script(S, S, S, S, requires_evidence=True)
    trainer = make(tiny_model, tmp_path, verifier)
    output = one_generation(trainer)
    decoded = trainer.processing_class.batch_decode(output["completion_ids"], skip_special_tokens=True)
    assert [item.completion for item in verifier.seen] == decoded
    assert verifier.seen[0].question == verifier.seen[0].row["question"] == "Where was person 0 born?"
    assert verifier.seen[0].evidence == ("Marie Curie was born in Warsaw.", "Warsaw is in Poland.")


def test_only_the_think_block_is_verified(tiny_model, tmp_path):
    """A fixed completion with two sentences in its think block; the answer outside must keep the group's sign."""
    text = "<think>Ada was born. She sat.</think><answer> London </answer>"

    class Two:
        requires_evidence = False

        def verify(self, inputs):
            assert all(item.completion == "Ada was born. She sat." for item in inputs)
            return [Verification(spans=(LabeledSpan(0, 13, S), LabeledSpan(14, 22, C)))] * len(inputs)

    answers, says = fixed_rewards([1, 0, 0, 0]), saying(text, ended=True)
    output = one_generation(
        make(tiny_model, tmp_path, Two(), reward_funcs=answers, config={**THINK, **NO_TERM}, trainer=says)
    )
    pieces = [text[start:end] for start, end in by_character(tiny_model, text)] + [""]
    a = group_advantages([1.0, 0.0, 0.0, 0.0])
    position, expected = 0, []
    for piece in pieces:
        start, end = position, position + len(piece)
        position = end
        first, second = max(0, min(end, 20) - max(start, 7)), max(0, min(end, 29) - max(start, 21))
        expected.append(0 if first == second == 0 else 1 if first >= second else -1)
    assert set(expected) == {-1, 0, 1} and expected[-1] == 0
    right = [a[0] if value >= 0 else -a[0] for value in expected]  # A > 0: turned in the contradicted sentence
    wrong = [a[1] if value <= 0 else -a[1] for value in expected]  # A < 0: turned in the supported sentence
    torch.testing.assert_close(output["advantages"][:2], torch.tensor([right, wrong]), rtol=1e-5, atol=1e-5)


def by_character(model, text):
    """Places of the tokens by the tokenizer itself."""
    from transformers import AutoTokenizer

    return AutoTokenizer.from_pretrained(model)(text, return_offsets_mapping=True)["offset_mapping"]


class Cheese:
    """Sentences by full stops: false with "cheese" in it, without a fact if it is short, and true otherwise."""

    requires_evidence = False

    def verify(self, inputs):
        found = []
        for item in inputs:
            ends = [0, *(i + 1 for i, character in enumerate(item.completion) if character == ".")]
            places = [*zip(ends, ends[1:], strict=False)]
            texts = [item.completion[start:end] for start, end in places]
            labels = [C if "cheese" in text else Label.NO_FACT if len(text.strip()) < 6 else S for text in texts]
            spans = [LabeledSpan(*place, label) for place, label in zip(places, labels, strict=True)]
            found.append(Verification(spans=tuple(spans)))
        return found


# Whether the prompt opens the block, what is written, and what each variant pays.
WAYS = json.loads((Path(__file__).parents[1] / "cases" / "fact_grpo_reasoning.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize("variant", ["paper", "paper_format"])
def test_all_reasoning_counts_however_it_is_written(tiny_model, tmp_path, variant):
    """In the blocks, no way pays more than the plain one. With the format check neither does text outside of them, and no
    reasoning pays what falsehoods do."""
    for opened in (False, True):
        ways = [way for way in WAYS if way["opened"] == opened]
        written, expected = [way["text"] for way in ways], [way[variant] for way in ways]
        config, says = {**THINK, "variant": variant}, saying(*written, ended=True)
        trainer = make(tiny_model, tmp_path, Cheese(), rows(conversational=False), config=config, trainer=says)
        trainer.model.train()
        prompt = "Where? <think>\n" if opened else "Where?"
        output = trainer._generate_and_score_completions([{"prompt": prompt}] * len(expected))
        assert output["rewards/factuality"].tolist() == expected
        # Of those that pay -1 with the format check, one per prompt is plain and false.
        bare = (expected.count(-1) - 1) / len(expected) if variant == "paper_format" else (0 if opened else 3 / 16)
        assert trainer._metrics["train"]["factuality/no_reasoning"][-1] == pytest.approx(bare)


def test_the_released_variant_leaves_completions_alone_that_break_the_format(tiny_model, tmp_path):
    verifier = WholeCompletion(lambda number, item: C)
    says = saying("<think>Ada sat.</think><answer>x</answer>", "<think>Ada sat.</think> x")
    config, answers = {**THINK, "variant": "released"}, fixed_rewards(ANSWERS)
    output = one_generation(make(tiny_model, tmp_path, verifier, reward_funcs=answers, config=config, trainer=says))
    a = group_advantages([1.0, 1.0, 0.0, 0.0])[0]
    advantages, mask = output["advantages"], output["completion_mask"].bool()
    assert {round(v, 4) for v in advantages[0][mask[0]].tolist()} == {round(-a, 4), round(a, 4)}
    for row, value in ((1, a), (3, -a)):
        torch.testing.assert_close(advantages[row][mask[row]], torch.full_like(advantages[row][mask[row]], value))


@pytest.mark.parametrize("script", [(S, S, S, "raise"), (S, S, S, S), (S, C, S, C)])
@pytest.mark.parametrize("config", [{}, {**NO_TERM, "credit": "none"}], ids=["flip", "none"])
def test_an_unknown_answer_stays_out_whatever_its_sentences_are(tiny_model, tmp_path, script, config):
    answers = fixed_rewards([1.0, 0.0, 1.0, None])
    advantages = one_generation(make(tiny_model, tmp_path, Script(*script), reward_funcs=answers, config=config))[
        "advantages"
    ]
    assert (advantages[3] == 0).all() and (advantages[0] != 0).any()
    assert advantages.dim() == (1 if config else 2)  # without credit the parent's


@pytest.mark.parametrize("conversational", fast_few([True, False], 0))
def test_trains_evaluates_and_logs(tiny_model, tmp_path, conversational):
    config = {**ONE_BATCH, "max_steps": 2, "num_iterations": 2, "log_completions": True, "num_completions_to_print": 0}
    config |= {"eval_strategy": "steps", "eval_steps": 2, "per_device_eval_batch_size": 4, "do_eval": True}
    data = rows(conversational=conversational)
    verifier = WholeCompletion(lambda number, item: (S, C, U)[number % 3])
    trainer = make(tiny_model, tmp_path, verifier, data, config=config, eval_dataset=data)
    before = {name: p.clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    assert not [name for name, p in trainer.model.named_parameters() if torch.equal(p, before[name])]
    names = "tokens_labelled tokens_flipped mean sentences failed verify_seconds rows_checked".split()
    expected = {f"{prefix}factuality/{name}" for prefix in ("", "eval_") for name in names}
    assert expected <= {name for entry in trainer.state.log_history for name in entry}
    table = pd.read_parquet(sorted((tmp_path / "completions").glob("*.parquet"))[0])
    assert "supported: " in "\n".join(table["factuality_labels"])
    assert {"factuality", "group_advantage"} <= set(table.columns)


def test_training_raises_what_it_optimises(tiny_model, tmp_path):
    """Vowels are labelled supported and every other character contradicted: the share of vowels must rise."""

    class LikesVowels:
        requires_evidence = False

        def verify(self, inputs):
            labels = [[S if c in "aeiou" else C for c in item.completion] for item in inputs]
            return [Verification(tuple(LabeledSpan(i, i + 1, one) for i, one in enumerate(row))) for row in labels]

    config = dict(max_steps=15, learning_rate=1e-2, lr_scheduler_type="constant")
    config |= dict(per_device_train_batch_size=16, num_generations=16)
    trainer = make(tiny_model, tmp_path, LikesVowels(), reward_funcs=None, config=config)
    trainer.train()
    means = [entry["factuality/mean"] for entry in trainer.state.log_history if "factuality/mean" in entry]
    assert sum(means[-5:]) / 5 > sum(means[:5]) / 5 + 0.3, means


def test_a_verifier_that_fails_on_the_whole_first_batch_stops_the_run(tiny_model, tmp_path):
    trainer = make(tiny_model, tmp_path, Script("raise", "raise", "garbage", "raise"))
    with pytest.raises(JudgingError, match="Script judged none of the first 4 completions.*judge down"):
        one_generation(trainer)
    # Completions that were not sent do not hide it.
    says = saying("<think>Ada sat.</think>", "no block", "<think>Ada ran.</think>", "no block")
    trainer = make(tiny_model, tmp_path, Script("raise", "raise"), config=THINK, trainer=says)
    with pytest.raises(JudgingError, match="judged none of the first 2 completions"):
        one_generation(trainer)


def test_a_verifier_that_dies_later_stops_the_run_after_some_batches_in_a_row(tiny_model, tmp_path):
    dead = ["raise"] * 4
    script = Script(S, *dead[1:], *dead, *dead[1:], S, *dead, *dead)
    trainer = make(tiny_model, tmp_path, script)
    trainer.judging.unjudged.limit = 2
    for _ in range(4):
        one_generation(trainer)
    assert trainer._metrics["train"]["factuality/failed"] == [3.0, 4.0, 3.0, 4.0]
    with pytest.raises(JudgingError, match="of 2 batches in a row.*judge down; .* resume from the last checkpoint"):
        one_generation(trainer)


def test_unknown_completions_of_an_evaluation_do_not_stop_the_run(tiny_model, tmp_path):
    dead = ["raise"] * 4
    trainer = make(tiny_model, tmp_path, Script(*dead[1:], S, *dead, *dead))
    trainer.judging.unjudged.limit = 2
    one_generation(trainer)
    trainer.model.eval()
    trainer.num_generations_eval = 1
    for row in list(trainer.train_dataset)[:3]:
        trainer._generate_and_score_completions([row])
    assert trainer._metrics["eval"]["factuality/failed"] == [1.0] * 3
    one_generation(trainer)


def test_a_missing_evidence_column_in_a_stream_is_named(tiny_model, tmp_path):
    trainer = make(tiny_model, tmp_path, Script(requires_evidence=True), rows())
    trainer.train_dataset = rows(evidence=False)  # as a stream that does not know its columns would deliver them
    with pytest.raises(DataError, match="rows have no column 'evidence'; they have .*'question'"):
        one_generation(trainer)

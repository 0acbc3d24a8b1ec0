"""What FactGRPO does with labels, failures and settings; advantages are computed by hand."""

import math
import time

import pandas as pd
import pytest
import torch
from trl import GRPOConfig

from hf_factuality import FactGRPOConfig, FactGRPOTrainer, Label, LabeledSpan, Verification
from hf_factuality.errors import DataError, JudgingError
from hf_factuality.hub.results import measured_entry, write_results
from tests.tiny import letters_reward, rows
from tests.trainers.recording import SETTINGS, WholeCompletion


S, C, U = Label.SUPPORTED, Label.CONTRADICTED, Label.UNVERIFIABLE
ONE_BATCH = {**SETTINGS, "gradient_accumulation_steps": 1, "max_steps": 1, "num_iterations": 1, "beta": 0.0}

SEQUENCE = {"importance_sampling_level": "sequence", "beta": 0.0}


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
    return trainer(
        model=tiny_model,
        reward_funcs=reward_funcs,
        args=args,
        train_dataset=dataset or rows(),
        verifier=verifier,
        **kw,
    )


def one_generation(trainer):
    """The scored generation batch of one group of four, as the loss gets it."""
    trainer.model.train()
    inputs = [trainer.train_dataset[0]] * 4
    return trainer._generate_and_score_completions(inputs)


def fixed_rewards(values):
    def answer(prompts, completions, **kwargs):
        return list(values)

    return answer


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


def test_the_paper_adds_mean_factuality_and_adjusts_the_sign(tiny_model, tmp_path):
    # answers 1, 1, 0, 0; factuality +1, -1, +1, 0 -> rewards 2, 0, 1, 0 -> mean .75
    trainer = make(tiny_model, tmp_path, Script(S, C, S, U), reward_funcs=fixed_rewards([1, 1, 0, 0]))
    a = group_advantages([2.0, 0.0, 1.0, 0.0])
    assert a[0] > 0 and a[1] < 0 and a[2] > 0 and a[3] < 0
    check(one_generation(trainer), [a[0], a[1], a[2], a[3]])
    metrics = trainer._metrics["train"]
    assert metrics["factuality/mean"] == [0.25]
    assert metrics["rewards/factuality/mean"] == [0.25]
    assert metrics["factuality/tokens_flipped"] == [0.0]
    assert metrics["factuality/sentences"] == [1.0]


def test_the_sign_turns_where_sentence_and_advantage_disagree(tiny_model, tmp_path):
    # Without the reward term: answers 1, 1, 0, 0 -> A = +, +, -, -; labels -, 0, +, - -> -A, A, |A|, A
    trainer = make(
        tiny_model, tmp_path, Script(C, U, S, C),
        reward_funcs=fixed_rewards([1, 1, 0, 0]), config={"factuality_reward_weight": 0.0},
    )  # fmt: skip
    a = group_advantages([1.0, 1.0, 0.0, 0.0])[0]
    output = one_generation(trainer)
    check(output, [-a, a, a, -a])
    # The table of completions shows what the loss gets, and what it was before.
    kept = output["completion_mask"].bool()
    shown = [row[mask].mean().item() for row, mask in zip(output["advantages"], kept, strict=True)]
    assert list(trainer._logs["advantages"]) == pytest.approx(shown) and shown[0] < 0 < shown[2]
    assert list(trainer._logs["extra"]["group_advantage"]) == pytest.approx([a, a, -a, -a])
    assert 0 < trainer._metrics["train"]["factuality/tokens_flipped"][0] < 1
    assert trainer._metrics["train"]["factuality/tokens_labelled"][0] > 0.5


def test_failures_keep_their_sign_and_add_nothing(tiny_model, tmp_path):
    # Rows 1 and 3 fail: their factuality becomes the mean of +1 and -1, which is 0 -> rewards 2, 1, -1, 0.
    trainer = make(tiny_model, tmp_path, Script(S, "raise", C, "garbage"), reward_funcs=fixed_rewards([1, 1, 0, 0]))
    a = group_advantages([2.0, 1.0, -1.0, 0.0])
    check(one_generation(trainer), a)
    assert trainer._metrics["train"]["factuality/failed"] == [2.0]
    assert trainer._metrics["train"]["factuality/mean"] == [0.0]


def test_a_failure_is_not_paid_as_zero(tiny_model, tmp_path):
    # All judged rows are supported: the failed one gets +1 like them, where `nansum` would have punished it with 0.
    trainer = make(tiny_model, tmp_path, Script(S, S, S, "raise"), reward_funcs=fixed_rewards([1, 0, 1, 0]))
    a = group_advantages([1.0, 0.0, 1.0, 0.0])
    check(
        one_generation(trainer), [a[0], -a[1], a[2], a[3]]
    )  # row 1: supported, so its sign turns; row 3 keeps its own


def test_a_group_with_one_judged_row_drops_the_term(tiny_model, tmp_path):
    trainer = make(
        tiny_model, tmp_path, Script("raise", "garbage", S, "raise"), reward_funcs=fixed_rewards([1, 1, 0, 0])
    )
    a = group_advantages([1.0, 1.0, 0.0, 0.0])
    check(one_generation(trainer), [a[0], a[1], -a[2], a[3]])
    assert trainer._metrics["train"]["factuality/failed"] == [3.0]


@pytest.mark.slow
def test_a_hanging_verifier_does_not_stop_training(tiny_model, tmp_path):
    config = {"verifier_timeout": 2.0, "verifier_batch_size": 1}
    trainer = make(
        tiny_model, tmp_path, Script(S, "hang", C, U), reward_funcs=fixed_rewards([1, 1, 0, 0]), config=config
    )
    # judged: +1, -1, 0 -> the hanging row gets their mean 0 -> rewards 2, 1, -1, 0
    check(one_generation(trainer), group_advantages([2.0, 1.0, -1.0, 0.0]))
    assert trainer._metrics["train"]["factuality/failed"] == [1.0]


def test_rows_without_evidence_train_as_grpo(tiny_model, tmp_path):
    dataset = rows().remove_columns("evidence").add_column("evidence", [[], None, [""], ["  "]] * 2)
    verifier = Script(requires_evidence=True)
    trainer = make(tiny_model, tmp_path, verifier, dataset, fixed_rewards([1, 1, 0, 0]))
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
    assert verifier.seen[0].question == "Where was person 0 born?"
    assert verifier.seen[0].evidence == ("Marie Curie was born in Warsaw.", "Warsaw is in Poland.")
    assert verifier.seen[0].row["question"] == "Where was person 0 born?"


def test_only_the_think_block_is_verified(tiny_model, tmp_path):
    """A fixed completion with two sentences in its think block; the answer outside must keep the group's sign."""
    text = "<think>Ada was born. She sat.</think><answer> London </answer>"

    class Two:
        requires_evidence = False

        def verify(self, inputs):
            assert all(item.completion == "Ada was born. She sat." for item in inputs)
            return [Verification(spans=(LabeledSpan(0, 13, S), LabeledSpan(14, 22, C)))] * len(inputs)

    class Fixed(FactGRPOTrainer):
        def _generate_single_turn(self, prompt_ids, *args, **kwargs):
            ids = self.processing_class(text)["input_ids"] + [self.processing_class.eos_token_id]
            return [ids for _ in prompt_ids], None

    config = {"verify_scope": "think", "factuality_reward_weight": 0.0, "max_completion_length": 64}
    trainer = make(tiny_model, tmp_path, Two(), reward_funcs=fixed_rewards([1, 0, 0, 0]), config=config, trainer=Fixed)
    output = one_generation(trainer)
    pieces = trainer.processing_class.convert_ids_to_tokens(output["completion_ids"][0])
    a = group_advantages([1.0, 0.0, 0.0, 0.0])
    position, expected = 0, []
    for piece in pieces:  # this tokenizer is byte-level and the text is ASCII: one character per byte
        length = 0 if piece == "<|end|>" else len(piece)
        start, end = position, position + length
        position = end
        first, second = max(0, min(end, 20) - max(start, 7)), max(0, min(end, 29) - max(start, 21))
        expected.append(0 if first == second == 0 else 1 if first >= second else -1)
    assert set(expected) == {-1, 0, 1} and expected[-1] == 0
    right = [a[0] if value >= 0 else -a[0] for value in expected]  # A > 0: turned in the contradicted sentence
    wrong = [a[1] if value <= 0 else -a[1] for value in expected]  # A < 0: turned in the supported sentence
    torch.testing.assert_close(output["advantages"][:2], torch.tensor([right, wrong]), rtol=1e-5, atol=1e-5)


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


TRUE, FALSE = "It is rock.", "It is cheese."
FORMAT = "<answer>x</answer>"
# Prompt opens the block, what is written, what the paper pays, what it pays with the format check.
WAYS = [
    (False, f"<think>{TRUE}</think>{FORMAT}", 1, 1),
    (False, f"<think>{FALSE}</think>{FORMAT}", -1, -1),
    (False, f"<think>{FALSE} {TRUE}</think>{FORMAT}", 0, 0),
    (False, f"<think>{FALSE}</think> so <think>{TRUE}</think>{FORMAT}", 0, -1),
    (False, f"<THINK>{FALSE}</THINK><think>{TRUE}</think>{FORMAT}", 0, -1),
    (False, f"<think a=b>{FALSE}</think><think>{TRUE}</think>{FORMAT}", 0, -1),
    (False, f"<think>{FALSE}<think>{TRUE}</think></think>{FORMAT}", 0, -1),
    (False, f"<think>{FALSE}{FORMAT}", -1, -1),
    (False, f"{FALSE} {TRUE}{FORMAT}", 0, -1),
    (False, f"<think> </think>{FORMAT}", 0, -1),
    (False, "", 0, -1),
    (False, f"<think>Hm.</think>{FORMAT}", 0, 0),
    (False, f"{FALSE} <think>{TRUE}</think>{FORMAT}", 1, -1),
    (False, f"<think>{TRUE}</think> {FALSE}{FORMAT}", 1, -1),
    (False, f"<think>{TRUE}</think>{FORMAT} {FALSE}", 1, -1),
    (False, f"<think>{TRUE}</think>", 1, -1),
    (True, f"{TRUE}</think>{FORMAT}", 1, 1),
    (True, f"{FALSE}</think>{FORMAT}", -1, -1),
    (True, f"{FALSE} <think>{TRUE}</think>{FORMAT}", 0, -1),
    (True, f"{FALSE}{FORMAT}", -1, -1),
    (True, f"{TRUE}</think>{FALSE}{FORMAT}", 1, -1),
    (True, f"{TRUE}</think>{FORMAT}{FALSE}", 1, -1),
    (True, f"<think>{TRUE}</think>{FORMAT}", 1, -1),
    (True, TRUE, 1, -1),
]


@pytest.mark.parametrize("variant", ["paper", "paper_format"])
def test_all_reasoning_counts_however_it_is_written(tiny_model, tmp_path, variant):
    """In the blocks, no way pays more than the plain one. With the format check neither does text outside of them, and no
    reasoning pays what falsehoods do."""

    class Fixed(FactGRPOTrainer):
        def _generate_single_turn(self, prompt_ids, *args, **kwargs):
            written = [text for opened, text, *_ in WAYS if opened == self.opened]
            end = [self.processing_class.eos_token_id]
            return [self.processing_class(text)["input_ids"] + end for text in written], None

    config = {"verify_scope": "think", "variant": variant, "max_completion_length": 96}
    trainer = make(tiny_model, tmp_path, Cheese(), rows(conversational=False), config=config, trainer=Fixed)
    trainer.model.train()
    for opened in (False, True):
        trainer.opened = opened
        prompt = "Where? <think>\n" if opened else "Where?"
        expected = [
            with_format if variant == "paper_format" else paper for o, _, paper, with_format in WAYS if o == opened
        ]
        output = trainer._generate_and_score_completions([{"prompt": prompt}] * len(expected))
        assert output["rewards/factuality"].tolist() == expected
        # Of those that pay -1 with the format check, one per prompt is plain and false.
        bare = (expected.count(-1) - 1) / len(expected) if variant == "paper_format" else (0 if opened else 3 / 16)
        assert trainer._metrics["train"]["factuality/no_reasoning"][-1] == pytest.approx(bare)


def test_a_policy_may_say_nothing(tiny_model, tmp_path):
    class Silent(FactGRPOTrainer):
        def _generate_single_turn(self, prompt_ids, *args, **kwargs):
            return [[self._tokenizer.eos_token_id] for _ in prompt_ids], None

    verifier = WholeCompletion(lambda number, item: C)
    trainer = make(tiny_model, tmp_path, verifier, trainer=Silent)
    one_generation(trainer)
    # The empty sum; there is nothing that a verifier could be shown.
    assert trainer._metrics["train"]["rewards/factuality/mean"] == [0.0]
    assert verifier.calls == 0


def test_the_released_variant(tiny_model, tmp_path):
    """Answer reward only, binary labels, and +1 outside the sentences, so the answer of a wrong row turns positive."""
    config = FactGRPOConfig(output_dir=str(tmp_path), variant="released", **ONE_BATCH)
    assert (config.factuality_reward_weight, config.label_values, config.outside_factuality) == (0.0, "binary", 1)
    trainer = make(
        tiny_model,
        tmp_path,
        Script(U, S, U, S),
        reward_funcs=fixed_rewards([1, 1, 0, 0]),
        config={"variant": "released"},
    )
    a = group_advantages([1.0, 1.0, 0.0, 0.0])[0]
    output = one_generation(trainer)
    check(output, [-a, a, -a, a])  # unverifiable counts as -1
    for row in (2, 3):
        ids, mask = output["completion_ids"][row], output["completion_mask"][row].bool()
        if ids[mask][-1] == trainer.processing_class.eos_token_id:
            torch.testing.assert_close(output["advantages"][row][mask][-1].item(), a, rtol=1e-5, atol=1e-5)


def test_factuality_alone_is_a_reward(tiny_model, tmp_path):
    trainer = make(tiny_model, tmp_path, Script(S, C, S, U), reward_funcs=None)
    check(one_generation(trainer), group_advantages([1.0, -1.0, 1.0, 0.0]))
    assert trainer.reward_func_names == ["factuality"]


@pytest.mark.parametrize(
    ("credit", "expected"),
    [("additive", lambda a: [a + 0.5, -a, -a - 0.5, a]), ("scaled", lambda a: [1.5 * a, -a, -1.5 * a, a])],
)
def test_other_credit(tiny_model, tmp_path, credit, expected):
    # A = +a, -a, -a, +a; labels +, 0, -, 0
    config = {"credit": credit, "credit_scale": 0.5, "factuality_reward_weight": 0.0}
    trainer = make(tiny_model, tmp_path, Script(S, U, C, U), reward_funcs=fixed_rewards([1, 0, 0, 1]), config=config)
    check(one_generation(trainer), expected(group_advantages([1.0, 0.0, 0.0, 1.0])[0]))


def test_credit_none_leaves_the_parents_shape(tiny_model, tmp_path):
    trainer = make(tiny_model, tmp_path, Script(S, C, S, U), config={"credit": "none"})
    assert one_generation(trainer)["advantages"].dim() == 1


def test_a_weightless_term_does_not_score_what_no_reward_could(tiny_model, tmp_path):
    config = {"factuality_reward_weight": 0.0, "credit": "none"}
    rewards = fixed_rewards([1.0, None, 0.0, 0.5])
    trainer = make(tiny_model, tmp_path, Script(S, S, S, S), reward_funcs=rewards, config=config)
    assert one_generation(trainer)["advantages"][1] == 0.0


@pytest.mark.parametrize("script", [(S, S, S, "raise"), (S, S, S, S), (S, C, S, C)])
def test_an_unknown_answer_stays_out_whatever_its_sentences_are(tiny_model, tmp_path, script):
    trainer = make(tiny_model, tmp_path, Script(*script), reward_funcs=fixed_rewards([1.0, 0.0, 1.0, None]))
    output = one_generation(trainer)
    assert (output["advantages"][3] == 0).all() and (output["advantages"][0] != 0).any()


def test_users_reward_weights_keep_their_meaning(tiny_model, tmp_path):
    config = {"reward_weights": [2.0], "factuality_reward_weight": 0.5}
    trainer = make(tiny_model, tmp_path, Script(S, C, S, U), reward_funcs=fixed_rewards([1, 1, 0, 0]), config=config)
    # 2 * answer + 0.5 * factuality = 2.5, 1.5, 0.5, 0 with mean 1.125: rows 1 (contradicted) and 2 (supported) turn
    a = group_advantages([2.5, 1.5, 0.5, 0.0])
    check(one_generation(trainer), [a[0], -a[1], -a[2], a[3]])
    assert trainer.args.reward_weights == [2.0]


@pytest.mark.parametrize("conversational", [True, False])
def test_trains_evaluates_and_logs(tiny_model, tmp_path, conversational):
    args = FactGRPOConfig(
        output_dir=str(tmp_path), verify_scope="completion", log_completions=True, num_completions_to_print=0,
        eval_strategy="steps", eval_steps=2, per_device_eval_batch_size=4, do_eval=True,
        **{**ONE_BATCH, "max_steps": 2, "num_iterations": 2},
    )  # fmt: skip
    data = rows(conversational=conversational)
    verifier = WholeCompletion(lambda number, item: (S, C, U)[number % 3])
    trainer = FactGRPOTrainer(
        model=tiny_model,
        reward_funcs=letters_reward,
        args=args,
        train_dataset=data,
        eval_dataset=data,
        verifier=verifier,
    )
    before = {name: p.clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    moved = [name for name, p in trainer.model.named_parameters() if not torch.equal(p, before[name])]
    assert set(moved) == set(before)
    logged = trainer.state.log_history
    for prefix in ("", "eval_"):
        for name in (
            "tokens_labelled",
            "tokens_flipped",
            "mean",
            "sentences",
            "failed",
            "verify_seconds",
            "rows_checked",
        ):
            assert any(f"{prefix}factuality/{name}" in entry for entry in logged), name
    table = pd.read_parquet(sorted((tmp_path / "completions").glob("*.parquet"))[0])
    assert "supported: " in "\n".join(table["factuality_labels"]) and {"factuality", "group_advantage"} <= set(
        table.columns
    )


def test_peft_moves_the_adapter_only(tiny_model, tmp_path):
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=4)
    trainer = make(
        tiny_model, tmp_path, WholeCompletion(lambda number, item: (S, C)[number % 2]),
        config={"max_steps": 2, "beta": 0.05}, peft_config=config,
    )  # fmt: skip
    before = {name: p.clone() for name, p in trainer.model.named_parameters()}
    trainer.train()
    moved = {name for name, p in trainer.model.named_parameters() if not torch.equal(p, before[name])}
    assert moved == {name for name in before if "lora_B" in name} | {n for n in before if "lora_A" in n and n in moved}
    assert any("lora_B" in name for name in moved)
    trainer.save_model()
    assert (tmp_path / "adapter_model.safetensors").exists()


def test_training_raises_what_it_optimises(tiny_model, tmp_path):
    """Vowels are labelled supported and every other character contradicted: the share of vowels must rise."""

    class LikesVowels:
        requires_evidence = False

        def verify(self, inputs):
            return [
                Verification(
                    spans=tuple(LabeledSpan(i, i + 1, S if c in "aeiou" else C) for i, c in enumerate(item.completion))
                )
                for item in inputs
            ]

    config = dict(
        max_steps=15,
        learning_rate=1e-2,
        lr_scheduler_type="constant",
        per_device_train_batch_size=16,
        num_generations=16,
    )
    trainer = make(tiny_model, tmp_path, LikesVowels(), reward_funcs=None, config=config)
    trainer.train()
    means = [entry["factuality/mean"] for entry in trainer.state.log_history if "factuality/mean" in entry]
    assert sum(means[-5:]) / 5 > sum(means[:5]) / 5 + 0.3, means


def test_the_model_card_names_method_verifier_and_settings(tiny_model, tmp_path):
    secrets = {"hub_token": "hf_secret", "vllm_server_base_url": "http://user:pw@10.0.0.3:8000"}
    trainer = make(tiny_model, tmp_path, WholeCompletion(), config={"learning_rate": 0.00012345, **secrets})
    path = tmp_path / "results.json"
    model = {"name": "my-model", "revision": None, "adapter": None, "dtype": None, "server": None}
    items = [(1.0, 1.0), (0.0, 1.0)]
    write_results(path, model, [measured_entry("mine", "accuracy", items, dataset={}, generation={})], {})
    trainer.card_results = path
    trainer.create_model_card(model_name="my-model", dataset_name="my-data")
    card = (tmp_path / "README.md").read_text(encoding="utf-8")
    for text in ("# my-model", "2505.24630", "WholeCompletion", "my-data", "`learning_rate` | `0.00012345`",
                 "| mine | accuracy | not measured | 0.500 (0.000 to 1.000) | 2 |", "library_name: transformers", "- fspo"):  # fmt: skip
        assert text in card, text
    trainer.card_results = None
    trainer.create_model_card(dataset_name=str(tmp_path))
    card += (tmp_path / "README.md").read_text(encoding="utf-8")
    assert "hf_secret" not in card and "10.0.0.3" not in card and str(tmp_path) not in card


def test_refusals(tiny_model, tmp_path):
    def build(dataset=None, verifier="lexical", **kw):
        return make(tiny_model, tmp_path, verifier, dataset, **kw)

    with pytest.raises(
        DataError, match=r"no column 'evidence' and LexicalVerifier needs evidence; it has \['prompt', 'question'\]"
    ):
        build(rows(evidence=False))
    with pytest.raises(DataError, match="no column 'knowledge'"):
        build(config={"evidence_column": "knowledge"})
    with pytest.raises(ValueError, match="lexicel"):
        build(verifier="lexicel")
    with pytest.raises(TypeError, match="int has none"):
        build(verifier=7)
    with pytest.raises(TypeError, match="must be a FactGRPOConfig, got GRPOConfig"):
        FactGRPOTrainer(tiny_model, letters_reward, GRPOConfig(str(tmp_path), **ONE_BATCH), rows())
    with pytest.raises(DataError, match="must hold text or a list of texts in every row, got \\{'title'"):
        build(rows(evidence=False).add_column("evidence", [{"title": ["a"], "sentences": [["b"]]}] * 8))
    with pytest.raises(ValueError, match="remove_unused_columns=True drops the evidence"):
        build(config={"remove_unused_columns": True})
    with pytest.raises(ValueError, match="nothing to learn from"):
        build(config={"variant": "released"}, reward_funcs=None)
    with pytest.raises(ValueError, match="reward_weights without reward_funcs"):
        build(config={"reward_weights": [3.0]}, reward_funcs=None)
    with pytest.raises(ValueError, match="a reward function is named 'factuality'"):

        def factuality(prompts, completions, **kwargs):
            return [0.0] * len(prompts)

        build(reward_funcs=factuality)
    with pytest.raises(ValueError, match="does not support `tools`"):
        build(tools=[len])
    with pytest.raises(ValueError, match="does not support `rollout_func`"):
        build(rollout_func=lambda prompts, trainer: {})


def test_think_tags_that_decoding_drops_are_refused(tiny_model, tmp_path):
    from transformers import AddedToken, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    # Special, but not among `all_special_tokens`.
    tokenizer.add_tokens(
        [AddedToken("<think>", special=True), AddedToken("</think>", special=True)], special_tokens=True
    )
    with pytest.raises(ValueError, match="decodes '<think>a</think>' to 'a'"):
        make(tiny_model, tmp_path, WholeCompletion(), config={"verify_scope": "think"}, processing_class=tokenizer)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"variant": "publshed"}, "variant='publshed'"),
        ({"credit": "flipped"}, "credit='flipped'"),
        ({"variant": "paper_format", "verify_scope": "completion"}, "verify_scope='completion' does not read them"),
        ({"verify_scope": "answer"}, "verify_scope='answer'"),
        ({"label_values": "quaternary"}, "label_values='quaternary'"),
        ({"outside_factuality": 2}, "outside_factuality=2"),
        ({"factuality_reward_weight": -1.0}, "factuality_reward_weight=-1.0"),
        ({"factuality_reward_weight": math.nan}, "factuality_reward_weight=nan"),
        ({"credit": "additive", "credit_scale": -1.0}, "credit_scale=-1.0"),
        ({"verifier_timeout": math.inf}, "verifier_timeout=inf"),
        ({"credit": "scaled", "credit_scale": 2.0}, "credit_scale=2.0"),
        ({"verifier_timeout": 0.0}, "verifier_timeout=0.0"),
        ({"verifier_batch_size": 0}, "verifier_batch_size=0"),
        ({"loss_type": "vespo"}, "loss_type='vespo' .* set loss_type='dapo', or credit='none'"),
        ({"off_policy_mask_threshold": 0.5}, "off_policy_mask_threshold=0.5 .* set off_policy_mask_threshold=None"),
        ({**SEQUENCE, "beta": 0.1}, "use_bias_correction_kl=True .* set use_bias_correction_kl=False"),
        ({**SEQUENCE, "top_entropy_quantile": 0.2}, "top_entropy_quantile=0.2 .* set top_entropy_quantile=1.0"),
        (
            {**SEQUENCE, "use_vllm": True, "vllm_importance_sampling_mode": "token_mask"},
            "vllm_importance_sampling_mode='token_mask' .* set vllm_importance_sampling_mode='sequence_mask'",
        ),
        ({"max_unjudged_batches": 0}, "max_unjudged_batches=0"),
    ],
)
def test_the_config_names_the_bad_value(tmp_path, settings, message):
    with pytest.raises(ValueError, match=message):
        FactGRPOConfig(output_dir=str(tmp_path), **{**SETTINGS, **settings})


@pytest.mark.parametrize(
    "settings",
    [
        {"loss_type": "vespo"},
        {"off_policy_mask_threshold": 0.5},
        {**SEQUENCE, "beta": 0.1, "top_entropy_quantile": 0.2},
    ],
)
def test_without_token_credit_the_parents_settings_stay(tmp_path, settings):
    FactGRPOConfig(output_dir=str(tmp_path), credit="none", **{**ONE_BATCH, **settings})


def test_a_verifier_that_fails_on_the_whole_first_batch_stops_the_run(tiny_model, tmp_path):
    trainer = make(tiny_model, tmp_path, Script("raise", "raise", "garbage", "raise"))
    with pytest.raises(JudgingError, match="Script judged none of the first 4 completions.*judge down"):
        one_generation(trainer)


def test_a_verifier_that_dies_later_stops_the_run_after_some_batches_in_a_row(tiny_model, tmp_path):
    dead = ["raise"] * 4
    script = Script(S, *dead[1:], *dead, *dead[1:], S, *dead, *dead)
    trainer = make(tiny_model, tmp_path, script, config={"max_unjudged_batches": 2})
    for _ in range(4):
        one_generation(trainer)
    assert trainer._metrics["train"]["factuality/failed"] == [3.0, 4.0, 3.0, 4.0]
    with pytest.raises(JudgingError, match="of 2 batches in a row.*judge down; .* resume from the last checkpoint"):
        one_generation(trainer)


def test_unknown_completions_of_an_evaluation_do_not_stop_the_run(tiny_model, tmp_path):
    dead = ["raise"] * 4
    trainer = make(tiny_model, tmp_path, Script(*dead[1:], S, *dead, *dead), config={"max_unjudged_batches": 2})
    one_generation(trainer)
    trainer.model.eval()
    trainer.num_generations_eval = 1
    for row in list(trainer.train_dataset)[:3]:
        trainer._generate_and_score_completions([row])
    assert trainer._metrics["eval"]["factuality/failed"] == [1.0] * 3
    one_generation(trainer)


def test_completions_that_were_not_sent_do_not_hide_a_dead_verifier(tiny_model, tmp_path):
    class Fixed(FactGRPOTrainer):
        def _generate_single_turn(self, prompt_ids, *args, **kwargs):
            texts = ["<think>Ada sat.</think>", "no block", "<think>Ada ran.</think>", "no block"]
            return [self.processing_class(text)["input_ids"] for text in texts], None

    config = {"verify_scope": "think", "max_completion_length": 64}
    trainer = make(tiny_model, tmp_path, Script("raise", "raise"), config=config, trainer=Fixed)
    with pytest.raises(JudgingError, match="judged none of the first 2 completions"):
        one_generation(trainer)


def test_a_missing_evidence_column_in_a_stream_is_named(tiny_model, tmp_path):
    dataset = rows(evidence=False)
    trainer = make(tiny_model, tmp_path, Script(requires_evidence=True), rows())
    trainer.train_dataset = dataset  # as a stream that does not know its columns would deliver them
    with pytest.raises(DataError, match="rows have no column 'evidence'; they have .*'question'"):
        one_generation(trainer)


def test_the_released_variant_leaves_completions_alone_that_break_the_format(tiny_model, tmp_path):
    class Fixed(FactGRPOTrainer):
        def _generate_single_turn(self, prompt_ids, *args, **kwargs):
            texts = ["<think>Ada sat.</think><answer>x</answer>", "<think>Ada sat.</think> x"] * 2
            return [self.processing_class(text)["input_ids"] for text in texts], None

    config = {"variant": "released", "verify_scope": "think", "max_completion_length": 64}
    verifier = WholeCompletion(lambda number, item: C)
    trainer = make(
        tiny_model, tmp_path, verifier, reward_funcs=fixed_rewards([1, 1, 0, 0]), config=config, trainer=Fixed
    )
    output = one_generation(trainer)
    a = group_advantages([1.0, 1.0, 0.0, 0.0])[0]
    advantages, mask = output["advantages"], output["completion_mask"].bool()
    assert {round(v, 4) for v in advantages[0][mask[0]].tolist()} == {round(-a, 4), round(a, 4)}
    for row, value in ((1, a), (3, -a)):
        torch.testing.assert_close(advantages[row][mask[row]], torch.full_like(advantages[row][mask[row]], value))

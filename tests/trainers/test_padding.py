"""Less padding: the same completions, losses and gradients, from shorter passes."""

from types import SimpleNamespace

import pytest
import torch
from datasets import Dataset
from peft import LoraConfig, PrefixTuningConfig
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    Llama4TextConfig,
    LlamaConfig,
    MambaConfig,
    Ministral3Config,
    RecurrentGemmaConfig,
)

from hf_factuality import FactGRPOConfig, Label, TokenRewardPPOConfig, TokenRewardPPOTrainer
from hf_factuality.trainers._padding import LiveRows, by_length, ordered
from hf_factuality.trainers.base import SamplingTrainer
from tests.conftest import fast_few
from tests.tiny import letters_reward, rows
from tests.trainers.recording import QUIET, SETTINGS, FactGRPO, WholeCompletion, vowels


LIMIT = 48


class Everything(FactGRPO):
    """Notes how many rows and columns each pass of the model has."""

    def train(self, *args, **kwargs):
        self.passes, self.decoded = [], []

        def note(module, args, kwargs):
            if "labels" in kwargs:
                self.passes.append(tuple(kwargs["input_ids"].shape))

        def note_decoded(module, args):
            if args[0].size(1) == 1:
                self.decoded.append(tuple(args[0].shape))

        self.model.register_forward_pre_hook(note, with_kwargs=True)
        self.model.get_input_embeddings().register_forward_pre_hook(note_decoded)
        return super().train(*args, **kwargs)


def train(model, folder, skip, **settings):
    # Ends that are likely enough for completions of 1 to 48 tokens.
    own = {"verify_scope": "completion", "max_completion_length": LIMIT, "max_steps": 3, "per_device_train_batch_size": 2,
           "gradient_accumulation_steps": 4, "num_iterations": 1, "generation_kwargs": {"sequence_bias": [[[1], 3.0]]}}  # fmt: skip
    peft_config, dataset = settings.pop("peft_config", None), settings.pop("dataset", None) or rows()
    args = FactGRPOConfig(str(folder), **{**SETTINGS, **own, **settings})
    verifier = WholeCompletion(
        lambda number, item: Label.SUPPORTED if len(item.completion) % 2 else Label.CONTRADICTED
    )
    trainer = Everything(
        model=model, reward_funcs=letters_reward, args=args, verifier=verifier, train_dataset=dataset, peft_config=peft_config
    )  # fmt: skip
    trainer.skip_padding = skip
    trainer.train()
    return trainer


def completions(trainer):
    return sorted(
        tuple(ids[mask.bool()].tolist())
        for batch in trainer.batches
        for ids, mask in zip(batch["completion_ids"], batch["completion_mask"], strict=True)
    )


def columns(passes):
    return sum(rows * width for rows, width in passes)


CASES = [
    {},
    {"num_iterations": 2},  # old log-probabilities
    {"steps_per_generation": 8},
    {"importance_sampling_level": "sequence", "use_bias_correction_kl": False},
    {"loss_type": "grpo"},
    {"loss_type": "dr_grpo"},
    {"loss_type": "bnpo"},
    {"loss_type": "cispo"},
    {"mask_truncated_completions": True},
    {"credit": "none"},
    {"peft_config": LoraConfig(r=2)},
]


@pytest.mark.parametrize("settings", fast_few(CASES, 1), ids=str)
def test_the_same_is_learnt_from_shorter_passes(tiny_model, tmp_path, settings):
    ours, other = (train(tiny_model, tmp_path, skip, **settings) for skip in (True, False))
    # The first generation, before weights can differ in their last bits.
    first = other.args.steps_per_generation * other.num_iterations
    ours.batches, other.batches = ours.batches[:first], other.batches[:first]
    assert completions(ours) == completions(other)
    lengths = [len(ids) for ids in completions(ours)]
    assert min(lengths) < LIMIT / 2 < max(lengths)
    assert columns(ours.passes) < 0.9 * columns(other.passes)
    for one, same in zip(ours.recorder.gradients, other.recorder.gradients, strict=True):
        size = max(gradient.abs().max() for gradient in same.values())
        for name, gradient in same.items():
            assert (one[name] - gradient).abs().max() <= 1e-5 * size + 1e-9, name
    sums = [torch.stack(one.losses).view(-1, other.args.gradient_accumulation_steps).sum(1) for one in (ours, other)]
    torch.testing.assert_close(*sums, rtol=1e-4, atol=1e-6)


LOGGED = [
    "kl", "entropy", "clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean", "cispo_clip_ratio",
    "value/loss", "value/clip_ratio",
]  # fmt: skip


def assert_logged_alike(*trainers):
    """Of every step; returns which of these were logged, and were not 0 throughout."""
    found = [[entry for entry in one.state.log_history if "loss" in entry] for one in trainers]
    assert len(found[0]) > 1
    for steps in zip(*found, strict=True):
        for name in LOGGED:
            values = [step.get(name) for step in steps]
            if values[0] is not None:
                assert values[1:] == pytest.approx([values[0]] * len(values[1:]), rel=2e-3, abs=1e-6), name
    return {name for name in LOGGED if any(step.get(name) for step in found[0])}


RATIOS = ("clip_ratio/low_mean", "clip_ratio/high_mean", "clip_ratio/region_mean")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("settings", "logged"),
    fast_few([
        ({"num_iterations": 2}, RATIOS),
        ({"num_iterations": 2, "loss_type": "cispo"}, ("cispo_clip_ratio",)),
        ({"num_iterations": 2, "mask_truncated_completions": True}, RATIOS),
        ({"num_iterations": 2, "importance_sampling_level": "sequence", "use_bias_correction_kl": False,
          "credit": "none"}, RATIOS),
        ({"num_iterations": 2, "logging_steps": 2, "max_steps": 4}, RATIOS),
    ], 1),
    ids=str,
)  # fmt: skip
def test_what_is_logged_is_the_mean_over_the_tokens_of_a_step(tiny_model, tmp_path, settings, logged):
    """Which the parent logs where a step is one micro-batch."""
    ours, other = (train(tiny_model, tmp_path, skip, **settings) for skip in (True, False))
    whole = train(
        tiny_model, tmp_path, False, **settings, per_device_train_batch_size=8, gradient_accumulation_steps=1
    )
    counts = {int(batch["completion_mask"].sum()) for batch in other.batches}
    assert len(counts) > 2 and len(whole.batches) * 4 == len(other.batches)
    assert assert_logged_alike(ours, whole) == {"kl", "entropy", *logged}


def test_the_weights_are_of_the_tokens_of_all_processes():
    """Of two micro-batches this process has 3 and 1 tokens, another 3 and 5: 6 and 6, and neither weighs more."""
    trainer = SamplingTrainer.__new__(SamplingTrainer)
    trainer.beta, trainer.importance_sampling_level = 0.0, "token"
    trainer.accelerator = SimpleNamespace(reduce=lambda own, reduction: own + torch.tensor([3, 5]))
    trainer._tokens_passed = [torch.tensor(3), torch.tensor(1)]
    trainer._metrics = {"train": {"entropy": [9.0, 2.0, 4.0]}}  # the first is of a step before
    trainer._weigh_by_tokens()
    assert trainer._metrics["train"]["entropy"] == [9.0, 2.0, 4.0] and trainer._tokens_passed is None


@pytest.mark.slow
def test_ppo_logs_the_same(tiny_model, tmp_path):
    def run(skip, rows_at_once):
        args = TokenRewardPPOConfig(
            str(tmp_path), **QUIET, per_device_train_batch_size=rows_at_once, max_completion_length=LIMIT, max_steps=4,
            gradient_accumulation_steps=8 // rows_at_once, beta=0.05, num_iterations=2, value_clip=0.01,
            generation_kwargs={"sequence_bias": [[[1], 3.0]]}, critic_learning_rate=1e-2,
        )  # fmt: skip
        trainer = TokenRewardPPOTrainer(tiny_model, vowels, args=args, train_dataset=rows())
        trainer.skip_padding = skip
        trainer.train()
        return trainer

    logged = assert_logged_alike(run(True, 2), run(False, 8))
    assert logged == {"kl", "entropy", "value/loss", "value/clip_ratio", *RATIOS}


@pytest.mark.slow
@pytest.mark.parametrize(("settings", "fewer"), [({"num_iterations": 2}, True), ({"num_iterations": 3, "steps_per_generation": 2}, True),
                                                ({"num_iterations": 2, "steps_per_generation": 8}, False), ({}, False)], ids=str)  # fmt: skip
def test_old_log_probabilities_that_are_the_new_ones_need_no_pass(tiny_model, tmp_path, settings, fewer):
    ours, other = (train(tiny_model, tmp_path, skip, beta=0.0, **settings) for skip in (True, False))
    rows_passed = [sum(rows for rows, _ in one.passes) for one in (ours, other)]
    assert (rows_passed[0] < rows_passed[1]) == fewer
    for one, same in zip(ours.recorder.gradients[:2], other.recorder.gradients[:2], strict=True):
        size = max(gradient.abs().max() for gradient in same.values())
        assert all((one[name] - same[name]).abs().max() <= 1e-5 * size for name in same)


@pytest.mark.slow
def test_nothing_is_changed_where_nothing_is_padding(tiny_model, tmp_path):
    never = {"generation_kwargs": {"min_new_tokens": LIMIT}}
    ours, other = (train(tiny_model, tmp_path, skip, **never) for skip in (True, False))
    assert ours.passes == other.passes and ours.decoded == other.decoded
    assert all(map(torch.equal, ours.losses, other.losses)) and any(map(bool, ours.losses))
    for one, same in zip(ours.recorder.gradients, other.recorder.gradients, strict=True):
        assert all(torch.equal(one[name], same[name]) for name in same)


@pytest.mark.slow
@pytest.mark.parametrize("settings", fast_few([{"loss_type": "bnpo"}, {"top_entropy_quantile": 0.5}], 0), ids=str)
def test_micro_batches_stay_as_they_are_where_the_loss_depends_on_them(tiny_model, tmp_path, settings):
    ours, other = (train(tiny_model, tmp_path, skip, **settings, max_steps=1) for skip in (True, False))
    assert all(
        torch.equal(a["completion_ids"], b["completion_ids"]) for a, b in zip(ours.batches, other.batches, strict=True)
    )
    ours = train(tiny_model, tmp_path, True, max_steps=1)
    assert not all(
        torch.equal(a["completion_ids"], b["completion_ids"]) for a, b in zip(ours.batches, other.batches, strict=True)
    )


@pytest.mark.slow
def test_rows_that_have_ended_are_decoded_no_further(tiny_model, tmp_path):
    ours, other = (train(tiny_model, tmp_path, skip, max_steps=1) for skip in (True, False))
    assert completions(ours) == completions(other)
    assert len(ours.decoded) == len(other.decoded) and columns(ours.decoded) < 0.8 * columns(other.decoded)
    rows_left = [rows for rows, _ in ours.decoded]
    assert rows_left == sorted(rows_left, reverse=True) and rows_left[0] > rows_left[-1]


@pytest.mark.slow
def test_nor_where_the_policy_is_compiled(tiny_model, tmp_path):
    """What `torch.compile` wraps generates, and not the wrapper."""
    trainer = train(tiny_model, tmp_path, True, max_steps=1)
    trainer.model_wrapped = torch.compile(trainer.model, backend="eager")
    drawn, decoded = [], []
    for trainer.skip_padding in (True, False):
        trainer.decoded = []
        torch.manual_seed(0)
        drawn.append(trainer._generate_single_turn([[5, 6, 7]] * 8, None, {}, 4)[0])
        decoded.append(columns(trainer.decoded))
    assert drawn[0] == drawn[1] and 0 < decoded[0] < 0.8 * decoded[1]


def generate(model, tokenizer, live=None, **settings):
    prompts = tokenizer(
        ["Ada", "Where was Marie Curie born?", "x", "He"] * 4, return_tensors="pt", padding=True, padding_side="left"
    )
    torch.manual_seed(0)
    hooks = (
        [
            model.register_forward_pre_hook(live.before, with_kwargs=True),
            model.register_forward_hook(live.after, with_kwargs=True),
        ]
        if live
        else []
    )
    out = model.generate(**prompts, max_new_tokens=40, do_sample=True, sequence_bias=[[[1], 3.0]], **settings)
    for hook in hooks:
        hook.remove()
    return out


@pytest.mark.parametrize("settings", fast_few([{}, {"top_k": 5}, {"cache_implementation": "static"}, {"num_beams": 2}, {"use_cache": False},
                                      {"num_return_sequences": 2}, {"repetition_penalty": 1.3}], 0, 2, 5), ids=str)  # fmt: skip
def test_generation_draws_what_it_would(tiny_model, settings):
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny_model), AutoTokenizer.from_pretrained(tiny_model)
    expected = generate(model, tokenizer, **settings)
    live = LiveRows([tokenizer.eos_token_id])
    for _ in range(2):  # once more, as a later batch does
        assert torch.equal(generate(model, tokenizer, live, **settings), expected)


def test_states_that_cannot_be_selected_stay(tiny_model):
    """A cache of linear attention keeps its rows."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    config = MambaConfig(
        vocab_size=len(tokenizer), hidden_size=32, num_hidden_layers=2, state_size=4, pad_token_id=0, eos_token_id=1
    )
    model = AutoModelForCausalLM.from_config(config).eval()
    assert torch.equal(generate(model, tokenizer, LiveRows([1])), generate(model, tokenizer))


@pytest.fixture
def learnt_positions(tmp_path, tiny_model):
    """A GPT-2 whose positions matter much."""
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    config = GPT2Config(
        vocab_size=len(tokenizer), n_positions=256, n_embd=16, n_layer=2, n_head=2, resid_pdrop=0.0, embd_pdrop=0.0,
        attn_pdrop=0.0, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id,
    )  # fmt: skip
    torch.manual_seed(0)
    model = GPT2LMHeadModel(config)
    with torch.no_grad():
        model.transformer.wpe.weight.mul_(20.0)
    model.save_pretrained(tmp_path / "gpt2")
    tokenizer.save_pretrained(tmp_path / "gpt2")
    return str(tmp_path / "gpt2")


@pytest.mark.slow
def test_positions_that_are_not_rotary_stay(learnt_positions, tmp_path):
    ours, other = (train(learnt_positions, tmp_path, skip, max_steps=1) for skip in (True, False))
    assert completions(ours) == completions(other) and columns(ours.passes) < columns(other.passes)
    sums = [torch.stack(one.losses).sum() for one in (ours, other)]
    torch.testing.assert_close(*sums, rtol=1e-4, atol=1e-6)


def test_ppo_starts_with_ratios_of_one_whatever_the_positions(learnt_positions, tmp_path):
    """Old log-probabilities, of a whole generation batch, and new ones, of a micro-batch, have the same positions."""
    prompts = [
        f"Where was person {number} born? {'Warsaw is in Poland. ' * (3 * (number % 3))}" for number in range(8)
    ]
    args = TokenRewardPPOConfig(
        str(tmp_path), **QUIET, per_device_train_batch_size=2, gradient_accumulation_steps=2, steps_per_generation=4,
        max_completion_length=24, max_steps=1, beta=0.05, generation_kwargs={"sequence_bias": [[[1], 3.0]]},
    )  # fmt: skip
    trainer = TokenRewardPPOTrainer(
        learnt_positions, vowels, args=args, train_dataset=Dataset.from_dict({"prompt": prompts})
    )
    trainer.train()
    logged = trainer.state.log_history[0]
    assert logged["clip_ratio/region_mean"] == 0 and abs(logged["kl"]) < 1e-4


@pytest.mark.slow
@pytest.mark.parametrize("settings", fast_few([{"entropy_coef": 0.1}, {"steps_per_generation": 6}, {"gradient_accumulation_steps": 3,
                                      "steps_per_generation": 2}], 0), ids=str)  # fmt: skip
def test_rows_stay_where_the_step_depends_on_them(tiny_model, tmp_path, settings):
    """With an entropy bonus a micro-batch's loss does; and where a generation is no whole number of steps, a step's rows do."""
    ours, other = (train(tiny_model, tmp_path, skip, **settings) for skip in (True, False))
    assert columns(ours.passes) < columns(other.passes)
    for one, same in zip(ours.recorder.gradients, other.recorder.gradients, strict=True):
        size = max(gradient.abs().max() for gradient in same.values())
        assert all((one[name] - same[name]).abs().max() <= 1e-5 * size for name in same)


@pytest.mark.parametrize("settings", fast_few([{"num_beams": 2, "top_k": 2}, {"guidance_scale": 1.5}], 0), ids=str)
def test_rows_of_other_passes_are_left_alone(tiny_model, tmp_path, settings):
    settings = {"generation_kwargs": {"sequence_bias": [[[1], 3.0]], **settings}, "max_steps": 1}
    ours, other = (train(tiny_model, tmp_path, skip, **settings) for skip in (True, False))
    assert completions(ours) == completions(other) and ours.decoded == other.decoded


SCALED = {
    "rope_type": "yarn",
    "factor": 2.0,
    "rope_theta": 1e4,
    "original_max_position_embeddings": 64,
    "llama_4_scaling_beta": 0.1,
}


@pytest.mark.parametrize(
    ("config", "cuts"),
    [
        (LlamaConfig(), (True, True)),
        (GPT2Config(), (False, True)),
        (LlamaConfig(rope_parameters={"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}), (False, False)),
        (Ministral3Config(rope_parameters=SCALED), (False, True)),
        (Llama4TextConfig(), (False, True)),
        (RecurrentGemmaConfig(), (False, True)),
    ],
    ids=lambda value: type(value).__name__,
)
def test_columns_that_positions_depend_on_stay(config, cuts):
    model, llama = SimpleNamespace(config=config), SimpleNamespace(config=LlamaConfig())
    critic = SimpleNamespace(reads_policy=False, model=model)
    for own in ({"model": model}, {"model": llama, "critic": critic}):
        trainer = SamplingTrainer.__new__(SamplingTrainer)
        vars(trainer).update(own)
        assert trainer._cuts == cuts
        trainer.skip_padding = False
        assert trainer._cuts == (False, False)


@pytest.mark.slow
def test_a_learnt_prefix_stays_as_far_away(tiny_model, tmp_path):
    prefix = PrefixTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3)
    ours, other = (train(tiny_model, tmp_path, skip, peft_config=prefix, max_steps=1) for skip in (True, False))
    assert completions(ours) == completions(other)
    for one, same in zip(ours.recorder.gradients, other.recorder.gradients, strict=True):
        size = max(gradient.abs().max() for gradient in same.values())
        assert size and all((one[name] - same[name]).abs().max() <= 1e-5 * size for name in same)


@pytest.mark.slow
def test_a_last_token_of_a_prompt_is_not_taken_for_a_completion(tiny_model, tmp_path):
    """Prompts are read a token at a time, and half of them end in one that would end a completion."""
    prompts = Dataset.from_dict({"prompt": ["a<|end|>", "Ada", "e<|end|>", "Eve"] * 2})
    given = {"sequence_bias": [[[1], 3.0]], "prefill_chunk_size": 1}
    ours, other = (
        train(tiny_model, tmp_path, skip, dataset=prompts, generation_kwargs=given, max_steps=1)
        for skip in (True, False)
    )
    assert completions(ours) == completions(other)


def test_order():
    mask = torch.tensor([[1, 1, 1], [1, 0, 0], [1, 1, 0], [1, 0, 0]])
    assert [rows.tolist() for rows in by_length(mask, 2)] == [[1, 3], [2, 0]]
    assert [rows.tolist() for rows in by_length(mask, None)] == [[0, 1, 2, 3]]
    halves = [{"completion_mask": mask[k : k + 2], "advantages": torch.tensor([k, k + 1]), "num_items_in_batch": torch.tensor(7),
               "none": None} for k in (0, 2)]  # fmt: skip
    found = ordered(halves)
    assert [batch["advantages"].tolist() for batch in found] == [[1, 3], [2, 0]]
    assert all(batch["num_items_in_batch"] == 7 and batch["none"] is None for batch in found)

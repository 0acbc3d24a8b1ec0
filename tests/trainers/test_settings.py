"""What the three trainers refuse, each by the name of the setting and with the fix, and what their cards tell of a run."""

import json
from pathlib import Path

import pytest
from transformers import AddedToken, AutoTokenizer, HfArgumentParser, ProcessorMixin
from trl import DPOConfig, GRPOConfig, TrlParser

from hf_factuality import (
    FactGRPOConfig,
    FactGRPOTrainer,
    MaskDPOConfig,
    MaskDPOTrainer,
    TokenRewardPPOConfig,
    TokenRewardPPOTrainer,
)
from hf_factuality.errors import DataError
from hf_factuality.hub.results import measured_entry, write_results
from hf_factuality.trainers import (
    AdaptiveAveragingConfig,
    ProbeConfig,
    ProcessRewardConfig,
    RAGRewardConfig,
    TruthfulnessConfig,
    VerifierConfig,
)
from tests.tiny import letters_reward, rows
from tests.trainers import mask_dpo_recording, token_reward_ppo_oracle
from tests.trainers.mask_dpo_recording import pairs
from tests.trainers.recording import WholeCompletion, fixed_rewards, vowels
from tests.trainers.test_fact_grpo_trainer import ONE_BATCH, make


SEQUENCE = {"importance_sampling_level": "sequence", "beta": 0.0}
CONFIGS = {
    FactGRPOConfig: ONE_BATCH,
    TokenRewardPPOConfig: token_reward_ppo_oracle.SETTINGS,
    MaskDPOConfig: mask_dpo_recording.SETTINGS,
}
# Per configuration: settings, and what is said of the first bad one.
BAD = json.loads((Path(__file__).parents[1] / "cases" / "bad_settings.json").read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    ("config", "settings", "message"), [(config, *case) for config in CONFIGS for case in BAD[config.__name__]]
)
def test_the_config_names_the_bad_value(tmp_path, config, settings, message):
    with pytest.raises(ValueError, match=message):
        config(str(tmp_path), **{**CONFIGS[config], **settings})


@pytest.mark.parametrize(
    "settings",
    [
        {"loss_type": "vespo"},
        {"off_policy_mask_threshold": 0.5},
        {**SEQUENCE, "beta": 0.1, "top_entropy_quantile": 0.2},
    ],
)
def test_without_token_credit_the_parents_settings_stay(tmp_path, settings):
    FactGRPOConfig(str(tmp_path), credit="none", **{**ONE_BATCH, **settings})


@pytest.mark.parametrize(
    "config",
    [
        *(*CONFIGS, AdaptiveAveragingConfig, RAGRewardConfig, TruthfulnessConfig),
        *(ProbeConfig, ProcessRewardConfig, VerifierConfig),
    ],
)
def test_sixteen_bits_are_the_default_where_an_accelerator_has_them(config, tmp_path, monkeypatch):
    """TRL's default is bfloat16, which transformers refuses on a CPU unless it is asked to train there."""
    settings = {"generation_batch_size": 8, "num_generations": 2} if issubclass(config, GRPOConfig) else {}
    for has, use_cpu, expected in (
        (False, False, False),
        (False, True, False),
        (True, False, True),
        (True, True, False),
    ):
        for module in ("hf_factuality.trainers._settings", "transformers.training_args"):
            monkeypatch.setattr(f"{module}.is_torch_bf16_gpu_available", lambda has=has: has)
        assert config(str(tmp_path), use_cpu=use_cpu, **settings).bf16 is expected
    assert config(str(tmp_path), use_cpu=True, bf16=True, **settings).bf16 is True
    with pytest.raises(ValueError, match="bf16"):
        monkeypatch.setattr("transformers.training_args.is_torch_bf16_gpu_available", lambda: False)
        config(str(tmp_path), bf16=True, **settings)


def test_a_text_where_a_number_is_wanted_is_named(tmp_path):
    with pytest.raises(ValueError, match="credit_scale='1' must be"):
        FactGRPOConfig(str(tmp_path), credit_scale="1", use_cpu=True)


def test_defaults_and_the_command_line(tmp_path):
    args = MaskDPOConfig("out", use_cpu=True, bf16=False)
    assert args.chosen_labels == ["supported", "hedged_supported", "no_fact"] and args.tokens_outside == "drop"
    assert args.rejected_labels == ["unverifiable", "hedged_contradicted", "contradicted"]
    plain = ["--output_dir", str(tmp_path), "--use_cpu", "true", "--bf16", "false"]
    options = ["--chosen_labels", "supported", "no_fact", "--rejected_labels", "all", "--tokens_outside", "keep"]
    (args,) = TrlParser((MaskDPOConfig,)).parse_args_and_config([*plain, *options])
    assert (args.chosen_labels, args.rejected_labels) == (["supported", "no_fact"], ["all"])
    assert args.tokens_outside == "keep"
    (args,) = HfArgumentParser(FactGRPOConfig).parse_args_into_dataclasses([*plain, "--credit", "additive"])
    assert args.credit == "additive"
    args = TokenRewardPPOConfig(str(tmp_path), per_device_train_batch_size=5, use_cpu=True, bf16=False)
    assert args.num_generations == 1 and type(args.num_generations) is int and args.generation_batch_size % 5 == 0


# Arguments of the trainers


def ppo(model, folder, funcs=vowels, reward_funcs=None, extra=None, **settings):
    args = TokenRewardPPOConfig(str(folder), **{**CONFIGS[TokenRewardPPOConfig], **settings})
    return TokenRewardPPOTrainer(model, funcs, reward_funcs, args, rows(), **(extra or {}))


def dpo(model, folder, dataset=None, **more):
    args = MaskDPOConfig(str(folder), **CONFIGS[MaskDPOConfig])
    return MaskDPOTrainer(model, args=args, train_dataset=dataset or pairs(2), **more)


def grpo(model, folder, verifier="lexical", dataset=None, **more):
    return make(model, folder, verifier, dataset, **more)


async def served(prompts, **kwargs):
    return [[] for _ in prompts]


def factuality(prompts, completions, **kwargs):
    return [0.0] * len(prompts)


def plain(config, folder, **more):
    own = {"critic_learning_rate"}
    return config(
        str(folder), **{name: value for name, value in CONFIGS_OF[config].items() if name not in own}, **more
    )


CONFIGS_OF = {GRPOConfig: token_reward_ppo_oracle.SETTINGS, DPOConfig: mask_dpo_recording.SETTINGS}
STRANGE = [{"title": ["a"], "sentences": [["b"]]}] * 8
REFUSED = [
    (
        lambda m, f: grpo(m, f, dataset=rows(evidence=False)),
        DataError,
        r"needs a column 'evidence'.*\['prompt', 'q",
    ),
    (
        lambda m, f: grpo(m, f, config={"evidence_column": "knowledge"}),
        DataError,
        "no column 'knowledge', .*set evidence_column",
    ),
    (
        lambda m, f: grpo(m, f, dataset=rows(evidence=False).add_column("evidence", STRANGE)),
        DataError,
        "must hold text or a list of texts in every row, got \\{'title'",
    ),
    (lambda m, f: grpo(m, f, "lexicel"), ValueError, "lexicel"),
    (lambda m, f: grpo(m, f, 7), TypeError, "int has none"),
    (lambda m, f: grpo(m, f, config={"remove_unused_columns": True}), ValueError, "remove_unused_columns=True drops"),
    (lambda m, f: grpo(m, f, config={"variant": "released"}, reward_funcs=None), ValueError, "nothing to learn from"),
    (lambda m, f: grpo(m, f, config={"reward_weights": [3.0]}, reward_funcs=None), ValueError, "without reward_funcs"),
    (
        lambda m, f: grpo(m, f, reward_funcs=factuality),
        ValueError,
        r"several reward functions are named \['factuality'\]",
    ),
    (lambda m, f: grpo(m, f, tools=[len]), ValueError, "chat template does not support tool calling"),
    (lambda m, f: ppo(m, f, extra={"tools": [len]}), ValueError, "chat template does not support tool calling"),
    (lambda m, f: ppo(m, f, extra={"rollout_func": print}), ValueError, "does not support this `rollout_func`"),
    (lambda m, f: ppo(m, f, extra={"environment_factory": object}), ValueError, "does not support tool calling"),
    (lambda m, f: ppo(m, f, None), ValueError, "pass token_reward_funcs, reward_funcs or both"),
    (lambda m, f: ppo(m, f, [7]), ValueError, "must be plain functions"),
    (lambda m, f: ppo(m, f, served), ValueError, "not async"),
    (
        lambda m, f: ppo(m, f, token_reward_weights=[1.0, 2.0]),
        ValueError,
        r"token_reward_weights=\[1.0, 2.0\] must have",
    ),
    (lambda m, f: ppo(m, f, reward_weights=[2.0]), ValueError, "set token_reward_weights or"),
    (lambda m, f: ppo(m, f, [vowels, vowels]), ValueError, r"several reward functions are named \['vowels'\]"),
    (
        lambda m, f: ppo(m, f, per_device_train_batch_size=18, num_generations=2),
        ValueError,
        "8 rows, fewer than the 9 .*generation_batch_size=18",
    ),
    (lambda m, f: dpo(m, f, data_collator=print), ValueError, "MaskDPOTrainer's own one masks"),
    (lambda m, f: dpo(m, f, pairs().remove_columns("chosen_spans")), DataError, "no column 'chosen_spans'"),
    (lambda m, f: dpo(m, f, pairs(2).add_column("images", [[], []])), ValueError, "does not support images"),
    (
        lambda m, f: FactGRPOTrainer(m, letters_reward, plain(GRPOConfig, f, num_generations=3), rows()),
        TypeError,
        "must be a FactGRPOConfig .*got GRPOConfig",
    ),
    (
        lambda m, f: TokenRewardPPOTrainer(m, vowels, None, plain(GRPOConfig, f, num_generations=3), rows()),
        TypeError,
        "must be a TokenRewardPPOConfig .*got GRPOConfig",
    ),
    (
        lambda m, f: MaskDPOTrainer(m, args=plain(DPOConfig, f), train_dataset=pairs(2)),
        TypeError,
        "must be a MaskDPOConfig .*got DPOConfig",
    ),
]


@pytest.mark.parametrize(("build", "error", "message"), REFUSED)
def test_arguments_that_cannot_work(tiny_model, tmp_path, build, error, message):
    with pytest.raises(error, match=message):
        build(tiny_model, tmp_path)


def test_tokenizers_that_cannot_work(tiny_model, tmp_path):
    class Processor(ProcessorMixin):
        def __init__(self, tokenizer):
            self.tokenizer, self.chat_template = tokenizer, None

    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    with pytest.raises(ValueError, match="does not support vision-language models"):
        dpo(tiny_model, tmp_path, processing_class=Processor(tokenizer))
    # Special, but not among `all_special_tokens`.
    tags = [AddedToken(tag, special=True) for tag in ("<think>", "</think>")]
    tokenizer.add_tokens(tags, special_tokens=True)
    with pytest.raises(ValueError, match="'<think>a</think>' is decoded to 'a'"):
        make(tiny_model, tmp_path, WholeCompletion(), config={"verify_scope": "think"}, processing_class=tokenizer)
    tokenizer.__class__ = type("Slow", (type(tokenizer),), {"is_fast": False})
    with pytest.raises(ValueError, match="Slow has no character offsets"):
        dpo(tiny_model, tmp_path, processing_class=tokenizer)


# Cards


def test_cards_name_method_verifier_and_settings(tiny_model, tmp_path):
    secrets = {"hub_token": "hf_secret", "vllm_server_base_url": "http://user:pw@10.0.0.3:8000"}
    config = {"learning_rate": 0.00012345, **secrets}
    trainer = make(tiny_model, tmp_path, WholeCompletion(), reward_funcs=fixed_rewards([0.0] * 4), config=config)
    path = tmp_path / "results.json"
    model = {"name": "my-model", "revision": None, "adapter": None, "dtype": None, "server": None}
    items = [(1.0, 1.0), (0.0, 1.0)]
    write_results(path, model, [measured_entry("mine", "accuracy", items, dataset={}, generation={})], {})
    trainer.card_results = path

    def card(trainer, **names):
        trainer.create_model_card(**names)
        return (tmp_path / "README.md").read_text(encoding="utf-8")

    found = card(trainer, model_name="my-model", dataset_name="my-data")
    for text in ("# my-model", "2505.24630", "WholeCompletion", "my-data", "`learning_rate` | `0.00012345`",
                 "| mine | accuracy | not measured | 0.500 (0.000 to 1.000) | 2 |", "library_name: transformers", "- fspo"):  # fmt: skip
        assert text in found, text
    trainer.card_results = None
    found += card(trainer, dataset_name=str(tmp_path))
    assert "hf_secret" not in found and "10.0.0.3" not in found and str(tmp_path) not in found
    found = card(ppo(tiny_model, tmp_path, critic_learning_rate=0.00012345), dataset_name=str(tmp_path))
    assert "2406.12221" not in found and "rlfh" not in found
    for text in (
        "PPO with custom rewards (`vowels`)",
        "critic policy, dapo loss; rewards `vowels`",
        "`critic_learning_rate` | `0.00012345`",
    ):
        assert text in found, text
    assert str(tmp_path) not in found

"""Recipes are code: each is read by the parser of its training, and its trainer is built on a tiny model."""

import importlib.util
import os
import signal
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import ModelConfig, SFTTrainer, TrlParser, get_peft_config

from hf_factuality import (
    FactGRPOTrainer,
    MaskDPOConfig,
    MaskDPOTrainer,
    TokenRewardPPOTrainer,
)
from hf_factuality.demos.own_verifier import build_encoder
from hf_factuality.generation import SURE_WORDS
from hf_factuality.methods.klcf.formula import KLCFWeights
from hf_factuality.methods.rlfh.formula import RLFH_PRESETS
from hf_factuality.retrieval import SearchEnvironment
from hf_factuality.rewards import RLFHReward, klcf_rewards, load_rlfh_maps, rlfh_verifier
from hf_factuality.trainers import (
    AdaptiveAveragingTrainer,
    ProbeTrainer,
    ProcessRewardTrainer,
    RAGRewardTrainer,
    TruthfulnessTrainer,
    VerifierTrainer,
)
from hf_factuality.verifiers import LexicalVerifier
from tests.conftest import fast_few
from tests.methods.probe.test_trainer import completions
from tests.methods.process_reward.test_trainer import solutions
from tests.methods.rag_reward.test_trainer import pairs as compared_pairs
from tests.methods.verifier.test_trainer import rows as evidence_claims
from tests.tiny import letters_reward, rows
from tests.trainers.claims import claims
from tests.trainers.mask_dpo_recording import pairs
from tests.trainers.recording import WholeCompletion
from tests.trainers.tool_rollouts import save_tool_model


REPOSITORY = Path(__file__).resolve().parent.parent
RECIPES = sorted((REPOSITORY / "recipes" / "fspo").glob("*.yaml"))
PUBLISHED = [path for path in RECIPES if path.stem != "closed-world"]
RLFH = sorted((REPOSITORY / "recipes" / "rlfh").glob("*.yaml"))
TRUTHFULNESS = sorted((REPOSITORY / "recipes" / "truthfulness").glob("*.yaml"))
VERIFIER = sorted((REPOSITORY / "recipes" / "verifier").glob("*.yaml"))
PROBE = sorted((REPOSITORY / "recipes" / "probe").glob("*.yaml"))
PROCESS_REWARD = sorted((REPOSITORY / "recipes" / "process_reward").glob("*.yaml"))
AVERAGING = sorted((REPOSITORY / "recipes" / "averaging").glob("*.yaml"))
RAG_REWARD = sorted((REPOSITORY / "recipes" / "rag_reward").glob("*.yaml"))
RAFT = sorted((REPOSITORY / "recipes" / "raft").glob("*.yaml"))
KLCF = sorted((REPOSITORY / "recipes").glob("klcf*/*.yaml"))
ABSTENTION = sorted(
    path for kind in ("abstention", "confidence") for path in (REPOSITORY / "recipes" / kind).glob("*.yaml")
)
RTUNING = sorted((REPOSITORY / "recipes" / "rtuning").glob("*.yaml"))
SELF_CORRECTION = sorted((REPOSITORY / "recipes" / "self_correction").glob("*.yaml"))
TOOLS = sorted((REPOSITORY / "recipes" / "tools").glob("*.yaml"))
MASK_DPO = sorted((REPOSITORY / "recipes" / "mask_dpo").glob("*.yaml"))


# Recipes that are not in a folder of the method's name.
METHOD_OF = {"confidence": "abstention", "klcf-zero": "klcf"}
# The template of the tiny model, which says what the assistant has written.
GENERATION = (
    "{% for m in messages %}<|{{ m['role'] }}|>{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}<|end|>"
    "{% endgeneration %}{% else %}{{ m['content'] }}<|end|>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
stem = {"ids": lambda path: path.stem}


def load_example(name):
    spec = importlib.util.spec_from_file_location(name, REPOSITORY / "examples" / f"{name}.py")
    module = sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_training(method):
    """The module of a method of `hf-factuality train`."""
    return importlib.import_module(f"hf_factuality.cli.train.{method}")


def parse(path, *options):
    """A recipe as its training reads it."""
    types = load_training(METHOD_OF.get(path.parent.name, path.parent.name)).TYPES
    types = types[path.stem.rpartition("-")[2]] if isinstance(types, dict) else types
    # A CPU has neither bf16 nor vLLM; whether the recipe says so is checked on the file itself.
    here = ["--use_cpu", "true", "--bf16", "false"] + ["--use_vllm", "false"] * any(
        hasattr(kind, "use_vllm") for kind in types
    )
    parser = TrlParser(types)
    return parser.parse_args_and_config(["--config", str(path), *here, *options])


def completions_of_a_step(training, config):
    processes = yaml.safe_load((REPOSITORY / "recipes" / "accelerate" / config).read_text())["num_processes"]
    return training.per_device_train_batch_size * training.gradient_accumulation_steps * processes


def test_there_is_a_recipe_for_each_published_model():
    assert {path.stem for path in PUBLISHED} == {"qwen2.5-7b-base", "qwen2.5-7b-instruct", "llama3.1-8b-instruct"}


@pytest.mark.parametrize("path", RECIPES, **stem)
def test_every_recipe_builds_its_trainer(path, tiny_model, tmp_path):
    script, training, model = parse(path, "--output_dir", str(tmp_path), "--dtype", "float32")
    trainer = FactGRPOTrainer(tiny_model, letters_reward, training, rows(128), verifier=WholeCompletion())
    assert trainer.args.variant == "paper" and trainer.args.credit == "flip"
    assert trainer.reward_weights.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("path", PUBLISHED, **stem)
def test_published_settings(path):
    """Paper: 8 questions x 8 completions a step, 2048 tokens, 4e-7, KL 1e-3, T=1, 1 epoch, 4 GPUs, clip 0.2."""
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    _, training, model = parse(path)
    a_step = completions_of_a_step(training, "zero3.yaml")
    assert (training.num_generations, a_step) == (8, 64)
    assert (training.learning_rate, training.beta, training.epsilon) == (4e-7, 1e-3, 0.2)
    assert (training.max_completion_length, training.temperature, training.num_train_epochs) == (2048, 1.0, 1)
    assert recipe["bf16"] is True and recipe["use_vllm"] is True and model.dtype == "bfloat16"


@pytest.mark.parametrize("path", MASK_DPO, **stem)
def test_every_mask_dpo_recipe_builds_its_trainer(path, tiny_model, tmp_path):
    _, training, _ = parse(path, "--output_dir", str(tmp_path), "--dtype", "float32")
    trainer = MaskDPOTrainer(tiny_model, args=training, train_dataset=pairs())
    defaults = MaskDPOConfig(str(tmp_path), use_cpu=True, bf16=False)
    for name in ("chosen_labels", "rejected_labels", "tokens_outside", "loss_type"):
        assert getattr(trainer.args, name) == getattr(defaults, name), "the paper's objective"
    assert trainer.mask_statistics["train"].dropped == 0


def test_published_mask_dpo_settings():
    """Paper: 3 epochs, 5e-6, batch 64, cosine, AdamW. Released: beta .1, warm-up .03, 1024 tokens, no weight decay."""
    (path,) = [path for path in MASK_DPO if path.stem != "closed-world"]
    assert path.stem == "llama3.1-8b-instruct"
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    _, training, model = parse(path)
    a_step = completions_of_a_step(training, "zero3.yaml")
    assert (a_step, training.num_train_epochs, training.learning_rate) == (64, 3, 5e-6)
    assert (training.lr_scheduler_type, training.optim) == ("cosine", "adamw_torch")
    assert (training.beta, training.max_length, training.max_grad_norm, training.weight_decay) == (0.1, 1024, 1.0, 0.0)
    assert training.get_warmup_steps(1000) == 30
    assert recipe["bf16"] is True and model.dtype == "bfloat16"


@pytest.mark.parametrize("path", RLFH, **stem)
def test_every_rlfh_recipe_builds_its_trainer(path, tiny_model, tmp_path):
    script, training, _ = parse(path, "--output_dir", str(tmp_path), "--dtype", "float32")
    reward = RLFHReward(
        rlfh_verifier(script.verifier_model, script.verifier_base_url), script.reward_maps, script.granularity
    )
    trainer = TokenRewardPPOTrainer(tiny_model, reward, None, training, rows(128))
    assert trainer.args.num_generations == 1 and trainer.args.beta == 0.01
    assert trainer.args.lam == (1.0 if path.stem == "closed-world" else 0.95)
    assert reward.maps is RLFH_PRESETS["readme"] and trainer.reward_func_names == ["rlfh"]


def test_published_rlfh_settings():
    """README: 128 prompts a step, actor 3e-7, critic 9e-6, lambda .95, KL .01 (k3), clips .2, Adam .9 .95, 1,024 tokens."""
    (path,) = [path for path in RLFH if path.stem != "closed-world"]
    assert path.stem == "qwen2.5-7b-instruct"
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    script, training, model = parse(path)
    a_step = completions_of_a_step(training, "multi-node.yaml")
    assert (a_step, training.num_generations, training.num_iterations, training.num_train_epochs) == (128, 1, 1, 1)
    assert (training.learning_rate, training.critic_learning_rate) == (3e-7, 9e-6)
    assert (training.gamma, training.lam, training.beta, training.kl_estimator) == (1.0, 0.95, 0.01, "k3")
    assert (training.epsilon, training.value_clip, training.reward_clip) == (0.2, 0.2, 10.0)
    assert (training.adam_beta1, training.adam_beta2, training.max_grad_norm) == (0.9, 0.95, 1.0)
    assert (training.max_completion_length, training.temperature, training.top_p) == (1024, 1.0, 1.0)
    assert training.get_warmup_steps(1000) == 30 and recipe["bf16"] is True and recipe["use_vllm"] is True
    maps = load_rlfh_maps(script.reward_maps)
    assert list(maps.truth.values()) == [0.45, 0.35, -1, -1.5, -1.7] and maps.info_weight == 1.2


@pytest.mark.parametrize("path", TRUTHFULNESS, **stem)
def test_every_truthfulness_recipe_builds_its_trainer(path, tiny_model, tmp_path):
    """KLCF: 2 supported claims to 1 that is contradicted."""
    _, training, model = parse(path, "--output_dir", str(tmp_path), "--dtype", "float32")
    trainer = TruthfulnessTrainer(tiny_model, training, claims(), peft_config=get_peft_config(model))
    counts = [trainer.train_dataset["labels"].count(kind) for kind in (1, 0)]
    assert training.ratio == 2.0 and counts[0] == pytest.approx(2 * counts[1], abs=1)
    assert hasattr(trainer.model, "peft_config") == (path.stem != "closed-world")


@pytest.mark.parametrize("path", VERIFIER, **stem)
def test_every_verifier_recipe_builds_its_trainer(path, tiny_encoder, tmp_path):
    script, training, _ = parse(path, "--output_dir", str(tmp_path), "--max_length", "64")
    trainer = VerifierTrainer(tiny_encoder, training, evidence_claims())
    assert trainer.train_dataset.num_rows and trainer.args.fit_threshold
    assert script.edits is None and script.num_claims >= 4000, "all edits"
    needed = yaml.safe_load(path.read_text(encoding="utf-8"))["max_length"]
    assert needed <= 512 and training.ratio is None


@pytest.fixture(scope="module")
def tiny_encoder(tmp_path_factory):
    return build_encoder(tmp_path_factory.mktemp("tiny") / "encoder", ["Person 1 was born in Leeds."], 32, 1)


@pytest.mark.parametrize("path", ABSTENTION, **stem)
def test_every_abstention_recipe_builds_its_trainer(path, tiny_model, tmp_path):
    """TruthRL's rewards 1, 0, -1; RLCR's 32 answers at temperature .7, without KL and scale."""
    script, training, _ = parse(path, "--output_dir", str(tmp_path), "--dtype", "float32")
    rewards = load_training("abstention").load_rewards(script)
    trainer = FactGRPOTrainer(tiny_model, rewards, training, rows(128), verifier=None)
    names = {"truthrl": ["truthrl"], "rlcr": ["rlcr"], "dcpo": ["correct", "calibration"]}[script.reward]
    assert trainer.reward_func_names == [*names, "factuality"] and trainer.reward_weights[-1] == 0
    if script.reward == "truthrl":
        assert rewards.rewards == (1, 0, -1) and rewards.threshold == 0.5
    if script.reward == "rlcr":
        assert (training.num_generations, training.temperature, training.beta) == (32, 0.7, 0.0)
        assert training.scale_rewards == "none"


@pytest.mark.parametrize("path", TOOLS, **stem)
def test_every_tools_recipe_builds_its_trainer(path, tmp_path):
    """Citations paid at the statement need a credit by rewards; vLLM and ZeRO-2, since tools go with neither a server nor ZeRO-3."""
    script, training, model = parse(path, "--output_dir", str(tmp_path / "out"), "--dtype", "float32")
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    environment = partial(
        SearchEnvironment, Nowhere(), script.max_searches, script.search_passages, script.search_characters
    )
    make, tiny = load_training("tools").make_search_trainer, save_tool_model(tmp_path / "model", "qwen3")
    trainer = make(script, tiny, training, rows(128), model, WholeCompletion(), environment, letters_reward)
    names = ["letters_reward", "search_cost", "declining", "citations", "factuality"]
    assert trainer.reward_func_names == names and trainer.reward_weights.tolist() == [1.0] * 5
    assert training.max_tool_calling_iterations > script.max_searches
    if path.stem != "closed-world":
        assert recipe["use_vllm"] and recipe["vllm_mode"] == "colocate" and "zero2.yaml" in path.read_text()
        assert script.verifier == "llm:Qwen/Qwen3-32B" and script.verifier_base_url.startswith("http://localhost")
        assert completions_of_a_step(training, "zero2.yaml") == 128
        longest = training.max_completion_length + 1024
        assert recipe["vllm_max_model_length"] >= longest


class Nowhere:
    """A retriever that finds nothing."""

    def retrieve(self, inputs, claims):
        return [[()] * len(texts) for texts in claims]


@pytest.mark.parametrize("path", RTUNING, **stem)
def test_every_rtuning_recipe_builds_its_trainer(path, tiny_model, tmp_path):
    """Loss on the completion, in the recipes that are ours; the released loss is on the whole text."""
    _, training, model = parse(path, "--output_dir", str(tmp_path), "--dtype", "float32")
    words = SURE_WORDS["en"].said("Ulm", True)
    rows = {
        "prompt": [[{"role": "user", "content": "Where?"}]],
        "completion": [[{"role": "assistant", "content": words}]],
    }
    for only, ours in ((training.completion_only_loss, True), (False, False)):
        training.completion_only_loss = only
        trainer = SFTTrainer(tiny_model, training, train_dataset=Dataset.from_dict(rows))
        labels = trainer.data_collator([trainer.train_dataset[0]])["labels"][0].tolist()
        kept = trainer.processing_class.decode([label for label in labels if label != -100])
        assert kept == ("" if ours else "<|user|>Where?<|end|><|assistant|>") + words + "<|end|>"
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    assert path.stem in ("closed-world", "real") or (
        recipe["bf16"] is True and completions_of_a_step(training, "zero3.yaml") == 64
    )


@pytest.mark.parametrize("path", PROCESS_REWARD, **stem)
def test_every_process_reward_recipe_builds_its_trainer(path, tiny_model, tmp_path):
    """ER-PRM's released settings: the label tokens, the step tag, 512 tokens, 64 solutions a step, 5e-7, one epoch."""
    _, training, _ = parse(path, "--output_dir", str(tmp_path), "--dtype", "float32")
    if path.stem != "closed-world":
        read = (training.head, training.label_tokens, training.step_tag, training.max_length)
        assert read == ("label_tokens", [" +", " -"], " ки", 512)
        assert (training.learning_rate, training.num_train_epochs, training.lr_scheduler_type) == (5e-7, 1, "cosine")
        assert completions_of_a_step(training, "ddp.yaml") == 64
        training.label_tokens = ["a", "b"]  # the tiny tokenizer has no token for a plus and its space
    trainer = ProcessRewardTrainer(tiny_model, training, solutions())
    assert trainer.model.config.process["split"] == "sentences"


@pytest.mark.parametrize("path", RAG_REWARD, **stem)
def test_every_rag_reward_recipe_builds_its_trainer(path, tiny_model, tmp_path):
    _, training, _ = parse(path, "--output_dir", str(tmp_path), "--dtype", "float32")
    axes = training.heads or ["verbosity"]
    trainer = RAGRewardTrainer(tiny_model, training, compared_pairs(2, axes=axes))
    assert trainer.model.score.out_features == len(axes) and training.heads == trainer.args.heads
    assert path.stem == "closed-world" or completions_of_a_step(training, "zero3.yaml") == 64


@pytest.mark.parametrize("path", AVERAGING, **stem)
def test_every_averaging_recipe_builds_its_trainer(path, tiny_model, tmp_path):
    """The tiny model has two layers, and so two blocks at most."""
    _, training, _ = parse(path, "--output_dir", str(tmp_path), "--dtype", "float32", "--blocks", "2")
    AdaptiveAveragingTrainer(
        tiny_model, tiny_model, training, Dataset.from_dict({"prompt": ["Who?"], "completion": ["Ada."]})
    )
    recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.stem != "closed-world":
        published = ("alpha", 0.2), ("blocks", 3), ("epsilon", 0.2), ("penalty_coef", 1e-4), ("max_length", 512)
        assert all(recipe[name] == value for name, value in (*published, ("num_train_epochs", 1)))


@pytest.mark.parametrize("path", RAFT, **stem)
def test_every_raft_recipe_builds_its_trainer(path, tiny_model, tmp_path):
    script, training, _ = parse(path, "--output_dir", str(tmp_path), "--dtype", "float32")
    rows = {
        "prompt": [[{"role": "user", "content": "Who?"}]],
        "completion": [[{"role": "assistant", "content": "Ada."}]],
    }
    SFTTrainer(tiny_model, training, train_dataset=Dataset.from_dict(rows))
    if path.stem != "closed-world":
        assert (script.num_samples, script.rounds, script.aggregate, training.learning_rate) == (16, 3, "min", 5e-7)
        assert training.num_train_epochs == 2 and completions_of_a_step(training, "zero3.yaml") == 64


@pytest.mark.parametrize("path", PROBE, **stem)
def test_every_probe_recipe_builds_its_trainer(path, tiny_model, tmp_path):
    """The paper: the layer at .95 of the depth, and a loss that goes from tokens to spans."""
    _, training, model = parse(path, "--output_dir", str(tmp_path), "--dtype", "float32")
    trainer = ProbeTrainer(tiny_model, training, completions(), peft_config=get_peft_config(model))
    assert (training.layer, training.span_weight, training.pool) == (0.95, None, "max")
    lora = any("lora_" in name for name, p in trainer.model.named_parameters() if p.requires_grad)
    assert lora == (path.stem != "closed-world")


def test_klcf_has_recipes_for_three_sizes_from_the_base_and_from_sft():
    assert [f"{path.parent.name}/{path.stem}" for path in KLCF] == [
        "klcf/closed-world", *(f"klcf/r1-distill-qwen-{size}b" for size in (14, 32, 7)),
        *(f"klcf-zero/qwen2.5-{size}b" for size in (14, 32, 7)),
    ]  # fmt: skip


@pytest.mark.parametrize("path", KLCF, ids=lambda path: f"{path.parent.name}-{path.stem}")
def test_every_klcf_recipe_builds_its_trainer(path, tiny_model, tmp_path, monkeypatch):
    script, roles, training, model = parse(path, "--output_dir", str(tmp_path), "--dtype", "float32")
    served = roles.checklist()
    assert (served is None) == (path.stem == "closed-world")
    rewards, settings = klcf_rewards(
        served or LexicalVerifier().judge, roles.general(), weights=KLCFWeights(*script.weights)
    )
    for name, value in settings.items():
        setattr(training, name, value)
    data = rows(128).add_column("checklist", [["A fact."]] * 128)
    with monkeypatch.context() as patch:  # what a model of the reader's own says of itself
        config = SimpleNamespace(truthfulness={"template": "{{claim|plain}}"})
        patch.setattr("transformers.AutoConfig.from_pretrained", lambda *_, **__: config)
        verifier = roles.verifier() if served else "lexical"
    trainer = FactGRPOTrainer(tiny_model, rewards, training, data, verifier=verifier)
    terms = ["checklist_recall", "checklist_precision", "truthfulness", "general", "ended_answer_reward", "factuality"]
    weights = [1, 1, 1, 0.1, 1, 0]
    if served is None:
        del terms[3], weights[3]
    assert trainer.reward_func_names == terms and trainer.reward_weights.tolist() == pytest.approx(weights)
    if served:
        recipe = yaml.safe_load(path.read_text(encoding="utf-8"))
        assert recipe["bf16"] is True and recipe["use_vllm"] is True and recipe["dtype"] == "bfloat16"
        assert path.stem[-3:].strip("-").upper() in model.model_name_or_path
        assert completions_of_a_step(training, "multi-node.yaml") % training.num_generations == 0


@pytest.mark.parametrize("path", SELF_CORRECTION, **stem)
def test_every_self_correction_recipe_builds_its_trainer(path, tiny_model, tmp_path):
    here = [
        "--output_dir",
        str(tmp_path),
        "--dtype",
        "float32",
        "--attn_implementation",
        "eager",
        "--optim",
        "adamw_torch",
    ]
    script, training, _ = parse(path, *here, *["--packing", "false"] * path.stem.endswith("sft"))
    said = [{"role": role, "content": "?"} for role in ("user", "assistant", "user", "assistant")]
    pair = {"chosen": [said[1:2]], "rejected": [[{"role": "assistant", "content": "!"}]]}
    columns = {
        "sft": {"messages": [said]},
        "dpo": {"prompt": [said[:1]], **pair},
        "rl": {"prompt": [said[:1]] * 32, "answer": ["1"] * 32},
    }
    tokenizer = AutoTokenizer.from_pretrained(tiny_model)
    tokenizer.chat_template = GENERATION if script.stage == "sft" else tokenizer.chat_template
    tokenizer.save_pretrained(tmp_path / "model")
    AutoModelForCausalLM.from_pretrained(tiny_model).save_pretrained(tmp_path / "model")
    example = load_training("self_correction")
    trainer = example.make_trainer(
        script, str(tmp_path / "model"), training, Dataset.from_dict(columns[script.stage]), ModelConfig()
    )
    if script.stage == "sft":  # the loss is on the turns of the assistant
        labels = trainer.data_collator([trainer.train_dataset[0]])["labels"][0].tolist()
        assert sum(label != -100 for label in labels) == 4  # "?" and the end, twice


def test_published_self_correction_settings():
    """Released (axolotl): 3 epochs, 1e-5 cosine, warm-up .05, decay .01, 8,192 tokens packed, 1 x 4, loss on the assistant."""
    _, training, model = parse(REPOSITORY / "recipes/self_correction/qwen2.5-math-7b-sft.yaml")
    assert (training.num_train_epochs, training.learning_rate, training.lr_scheduler_type) == (3, 1e-5, "cosine")
    assert (training.weight_decay, training.max_length, training.packing, training.assistant_only_loss) == (
        0.01,
        8192,
        True,
        True,
    )
    assert (training.per_device_train_batch_size, training.gradient_accumulation_steps) == (1, 4)
    assert (
        training.get_warmup_steps(1000) == 50 and training.optim == "paged_adamw_32bit" and model.dtype == "bfloat16"
    )


@pytest.mark.parametrize("path", sorted((REPOSITORY / "recipes/accelerate").glob("*.yaml")), **stem)
def test_accelerate_configs_are_read(path):
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(path))
    assert config.num_processes == (16 if path.stem == "multi-node" else 4) and config.mixed_precision == "bf16"


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    """Starts the script of Slurm: `srun` and `trl` are written down, and so is what the training does."""
    log = tmp_path / "log"

    def start(nodes, vllm, training):
        tools = {
            "scontrol": f'echo "scontrol $*" >> "$LOG"; for n in $(seq {nodes}); do echo host$n; done',
            # As Slurm's does, it kills what it started when it is asked to end, and passes USR1 on to every process of it.
            "srun": """echo "srun $*" >> "$LOG"; while [[ $1 == --* ]]; do shift; done; set -m; export SLURM_PROCID=0
                "$@" & trap 'kill -9 -- -$!' TERM; trap 'again=1; kill -USR1 -- -$!' USR1; again=1
                while (( again )); do again=0; wait $!; status=$?; done; exit $status""",
            "trl": 'echo "trl $*" >> "$LOG"; for i in {1..100}; do sleep .1; echo serves >> "$LOG"; done',
            "accelerate": f'echo "accelerate $*" >> "$LOG"; {training}',
        }
        for name, body in tools.items():
            (tmp_path / name).write_text(f"#!/bin/bash\n{body}\n", encoding="utf-8")
            (tmp_path / name).chmod(0o755)
        environment = {
            "PATH": f"{tmp_path}:{os.environ['PATH']}", "LOG": str(log), "SLURM_JOB_NODELIST": "host[1-3]", "USE_VLLM": vllm,
            "SLURM_JOB_ID": "7",
        }  # fmt: skip
        command = [
            "bash",
            "recipes/slurm/train.sbatch",
            "fspo",
            "MODEL",
            "--config",
            "my recipe.yaml",
        ]
        return subprocess.Popen(command, cwd=REPOSITORY, env=environment), log

    return start


@pytest.mark.parametrize(("nodes", "vllm"), fast_few([(3, "1"), (2, "0")], 0))
def test_the_slurm_script_starts_every_node(slurm, nodes, vllm):
    """`accelerate` reads its flags by its own parser."""
    from accelerate.commands.launch import launch_command_parser

    job, log = slurm(nodes, vllm, "sleep 1")
    assert job.wait(60) == 0
    lines = log.read_text(encoding="utf-8").splitlines()
    (started,) = [line for line in lines if line.startswith("accelerate launch ")]
    found = launch_command_parser().parse_args(started.split()[2:])
    assert (int(found.num_machines), int(found.num_processes), int(found.machine_rank)) == (2, 16, 0)
    assert (found.main_process_ip, found.module, found.training_script) == ("host1", True, "hf_factuality")
    assert (REPOSITORY / found.config_file).is_file()
    rest = " ".join(found.training_script_args)
    assert rest.startswith("train fspo --resume_from_checkpoint auto") and rest.endswith("--config my recipe.yaml")
    served = [line for line in lines if line.startswith("trl vllm-serve --model MODEL")]
    assert len(served) == int(vllm) and ("--vllm_server_host host3" in rest) == (vllm == "1")
    assert "scontrol requeue 7" not in lines


@pytest.mark.parametrize(("status", "again"), fast_few([(143, True), (0, False)], 0))
def test_a_job_whose_time_is_over_saves_while_vllm_serves_and_is_queued_again(slurm, status, again):
    """`status` 0: the run came to its own end meanwhile."""
    saves = f"""trap 'echo asked >> "$LOG"; sleep 1; echo "saved, $TORCH_ELASTIC_SHUTDOWN_TIMEOUT" >> "$LOG"; exit {status}' TERM; """
    job, log = slurm(3, "1", saves + "for i in {1..100}; do sleep .1; done")

    def wait_for(text):
        until = time.monotonic() + 30
        while not (log.exists() and text in log.read_text(encoding="utf-8")):
            assert time.monotonic() < until
            time.sleep(0.05)

    wait_for("accelerate")
    time.sleep(0.3)
    job.send_signal(signal.SIGUSR1)
    assert job.wait(60) == status
    lines = log.read_text(encoding="utf-8").splitlines()
    assert ("scontrol requeue 7" in lines) == again and "saved, 290" in lines
    # Between the question and the checkpoint, and no longer than the job.
    assert "serves" in lines[lines.index("asked") : lines.index("saved, 290")]
    time.sleep(0.5)
    assert log.read_text(encoding="utf-8").splitlines().count("serves") <= lines.count("serves") + 1


def test_example_is_short():
    for path in (REPOSITORY / "examples").glob("*.py"):
        assert len(path.read_text(encoding="utf-8").splitlines()) < 90, path.name

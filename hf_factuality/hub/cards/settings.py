"""What a card says of a run: changed settings, verifier, machine, versions. Never a place or a key."""

from __future__ import annotations

import importlib
import inspect
import json
import os
import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path
from typing import Any

from hf_factuality import __version__
from hf_factuality.errors import HubError
from hf_factuality.hub.cards.check import tells
from hf_factuality.hub.cards.scores import COMMIT
from hf_factuality.io.markdown import code, escaped
from hf_factuality.io.secrets import MAYBE_SECRET_SETTING


# A test lists the parents' other settings, which say nothing of the model, hold names, places, addresses or keys, or repeat
# another, and says so when a new one appears. The fields that our own configurations add are shown.
HYPERPARAMETERS = frozenset(
    """
    adam_beta1 adam_beta2 adam_epsilon assistant_only_loss auto_find_batch_size average_tokens_across_devices beta bf16
    cache_implementation cast_lm_head_to_fp32 chat_template_kwargs completion_only_loss data_seed dataloader_drop_last delta
    disable_dropout discopop_tau entropy_coef entropy_coef_delta entropy_coef_max entropy_coef_min entropy_target
    epsilon epsilon_high f_alpha_divergence_coef f_divergence_type fp16 full_determinism generation_batch_size
    generation_kwargs gradient_accumulation_steps gradient_checkpointing greater_is_better
    importance_sampling_level label_smoothing label_smoothing_factor ld_alpha learning_rate load_best_model_at_end
    loss_type loss_weights lr_scheduler_kwargs lr_scheduler_type mask_truncated_completions max_completion_length
    max_grad_norm max_length max_steps max_tool_calling_iterations metric_for_best_model min_p model_init_kwargs
    multi_objective_aggregation neftune_noise_alpha num_generations num_iterations num_train_epochs
    off_policy_mask_threshold optim optim_args optim_target_modules packing packing_strategy padding_free per_device_train_batch_size
    precompute_ref_log_probs ref_model_mixup_alpha ref_model_sync_steps repetition_penalty reward_weights
    router_aux_loss_coef sapo_temperature_neg sapo_temperature_pos scale_rewards seed shuffle_dataset
    steps_per_generation sync_ref_model temperature tf32 top_entropy_quantile top_k top_p train_sampling_strategy
    truncation_mode use_adaptive_entropy use_bias_correction_kl use_liger_kernel
    use_transformers_continuous_batching use_transformers_paged use_vllm use_weighting vespo_k_neg vespo_k_pos
    vespo_lambda_neg vespo_lambda_pos vllm_importance_sampling_cap vllm_importance_sampling_clip_max
    vllm_importance_sampling_clip_min vllm_importance_sampling_correction vllm_importance_sampling_mode vllm_mode
    vllm_structured_outputs_regex warmup_steps weight_decay
    """.split()
)
"""Parents' settings that decide what is learnt."""
_MODEL_ARGUMENTS = ("dtype", "torch_dtype", "attn_implementation")
_ADAPTER = ("peft_type", "r", "lora_alpha", "lora_dropout", "target_modules", "modules_to_save", "bias", "use_rslora",
            "use_dora", "init_lora_weights", "layers_to_transform")  # fmt: skip
_REPO_ID = re.compile(r"[\w.-]+(/[\w.-]+)?")
_HUB_FOLDER = re.compile(r"[A-Za-z0-9][\w.-]*?___[A-Za-z0-9][\w.-]*")
_LONGEST_WORDS = 2000
_REGEX_NAME = re.compile(r"_regex$|target_modules$")


def plain_name(text: str) -> str:
    """A name as a card shows it: of a folder or file only the last part, of an address nothing."""
    if "://" in text:
        return "(an address)"
    if not re.search(r"[/\\]", text):
        return text
    is_path = re.match(r"/|\.{1,2}[/\\]|~[/\\]|[A-Za-z]:[\\/]", text) is not None
    try:
        path = Path(text).expanduser()
        if not (is_path or path.is_absolute() or path.exists()):
            return text
        shown = str(path.resolve())
    except (OSError, RuntimeError, ValueError):  # too long for a name, nobody's home, a NUL
        if not is_path:
            return text
        shown = text
    return re.split(r"[/\\]", shown.rstrip("/\\"))[-1] or text


def _default(field: Field) -> Any:
    return field.default if field.default_factory is MISSING else field.default_factory()


def changed_settings(args: Any) -> list[tuple[str, Any]]:
    """Settings of a configuration that differ from their defaults, by name; never paths, addresses or secrets."""
    own = {
        name
        for kind in type(args).__mro__
        if kind.__module__.partition(".")[0] == "hf_factuality"
        for name in kind.__dict__.get("__annotations__", {})
    }
    changed = []
    for field in fields(args):
        if field.name not in HYPERPARAMETERS | own:
            continue
        value, default = getattr(args, field.name), _default(field)
        if field.name == "model_init_kwargs":
            value = {name: str(value[name]) for name in _MODEL_ARGUMENTS if (value or {}).get(name)} or None
        if value != default:
            changed.append((field.name, _shown_as(field.name, value)))
    return sorted(changed, key=lambda item: item[0])


def _shown_as(name: str, value: Any) -> Any:
    """A setting; of a regular expression nothing is cut, since much of what is in one looks like a path."""
    if isinstance(value, str) and _REGEX_NAME.search(name):
        return "(not shown)" if tells(value) else value
    return _shown(value)


def _shown(value: Any) -> Any:
    """A value without places, addresses and objects."""
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, str):
        return plain_name(value)
    if isinstance(value, Mapping):
        return {str(name): _shown(item) for name, item in value.items() if not MAYBE_SECRET_SETTING.search(str(name))}
    if isinstance(value, (list, tuple, set, frozenset)):
        items = sorted(value, key=str) if isinstance(value, (set, frozenset)) else value
        return [_shown(item) for item in items]
    return value if value is None or isinstance(value, (bool, int, float)) else type(value).__name__


def describe_adapter(model: Any) -> list[tuple[str, Any]]:
    """Settings of a PEFT adapter as `adapter.NAME`, value; empty for a whole model."""
    found = []
    for config in (getattr(model, "peft_config", None) or {}).values():
        defaults = {field.name: _default(field) for field in fields(config)} if is_dataclass(config) else {}
        for name in _ADAPTER:
            value = getattr(config, name, None)
            if value is not None and (name in ("peft_type", "r") or value != defaults.get(name)):
                found.append((f"adapter.{name}", _shown_as(name, value)))
    return found


def describe_verifier(verifier: Any) -> str:
    """What labels, in Markdown: of a pipeline of the Hub (its mapping `origin` says so) repository and commit, and the parts."""
    name = type(verifier).__name__
    parts = ", ".join(f"`{part}`" for part in _parts(verifier))
    origin = getattr(verifier, "origin", None) or {}
    repo_id, revision = origin.get("repo_id"), origin.get("revision")
    if repo_id and _REPO_ID.fullmatch(repo_id):
        at = f" at {code(revision[:40])}" if revision else " (revision not recorded)"
        name = f"[{repo_id}](https://huggingface.co/{repo_id}){at}"
    return name + (f": {parts}" if parts else "")


def dataset_origin(dataset: Any) -> tuple[str, str] | None:
    """Repository and commit of a dataset that `load_dataset` read from the Hub; `None` if there is no such one, or several.

    Its files are in the folder that the loader named after both; a stream has none.
    """
    # Joining keeps the files of one part beside rows without any, but not the name of the builder.
    if getattr(getattr(dataset, "info", None), "builder_name", None) is None:
        return None
    places = [Path(file["filename"]).parts[-5:-1] for file in getattr(dataset, "cache_files", ())]
    found = {
        (place[0].replace("___", "/"), place[3])
        if len(place) == 4 and _HUB_FOLDER.fullmatch(place[0]) and COMMIT.fullmatch(place[3])
        else None
        for place in places
    }
    return found.pop() if len(found) == 1 else None


def own_words(dataset: Any) -> str | None:
    """The first line of a dataset's `info.description`, at most 200 characters, escaped for Markdown.

    `None` if it holds what a card is refused for, or is of several paragraphs: joining datasets leaves one of each.
    """
    text = getattr(getattr(dataset, "info", None), "description", None)
    paragraphs = re.split(r"\n\s*\n", text.strip()) if isinstance(text, str) else []
    if len(paragraphs) != 1 or not paragraphs[0]:
        return None
    line = " ".join(paragraphs[0].splitlines()[0][:_LONGEST_WORDS].split()).encode("utf-8", "replace").decode()
    if tells(line):
        return None
    return escaped(line if len(line) <= 200 else line[:197].rstrip() + "...")


def describe_rewards(functions: Sequence[Any], names: Sequence[str]) -> str:
    """Reward functions that ask a verifier of their own (attribute `verifier`, of them or of their `owner`), by their names, with
    that verifier; those of one verifier together. Empty if there are none."""
    asked: dict[int, tuple[Any, list[str]]] = {}
    for function, name in zip(functions, names, strict=True):
        # A function that wraps another may name it, as `functools.wraps` does.
        function = getattr(function, "__wrapped__", function)
        verifier = getattr(getattr(function, "owner", function), "verifier", None)
        if verifier is not None:
            asked.setdefault(id(verifier), (verifier, []))[1].append(escaped(name))
    return "; ".join(f"{', '.join(own)} by {describe_verifier(verifier)}" for verifier, own in asked.values())


def _parts(verifier: Any) -> list[str]:
    """The stages of a pipeline, or another verifier if it describes itself, as calls."""
    from hf_factuality.verifiers.pipeline import STAGES, VerifierPipeline, describe_pipeline

    if isinstance(verifier, VerifierPipeline):
        try:
            config = describe_pipeline(verifier, addresses=False).config
        except (HubError, AttributeError):  # a stage that cannot be saved, or a model that was loaded by the caller
            return [_stage(getattr(verifier, stage)) for stage in STAGES]
        return [_call(config[stage]) for stage in STAGES]
    try:
        settings = verifier.config()
    except Exception:  # noqa: BLE001 - somebody else's method; a card is written all the same
        return []
    return [_call({"class": type(verifier).__name__, "settings": settings})] if isinstance(settings, Mapping) else []


def _stage(stage: Any) -> str:
    """A stage without a description: its class, and its model if that is one of the Hub."""
    config = getattr(getattr(stage, "model", None), "config", None)
    name, commit = getattr(config, "name_or_path", None) or "", getattr(config, "_commit_hash", None)
    on_the_hub = _REPO_ID.fullmatch(name) and not os.path.exists(name)
    shown = {"model": name, **({"revision": commit} if commit else {})} if on_the_hub else {}
    return f"{type(stage).__name__}({', '.join(f'{key}={value!r}' for key, value in shown.items())})"


def _call(part: Mapping[str, Any]) -> str:
    """A part of a description as a call, with the settings that differ from its defaults."""
    name = part["class"].rpartition(":")[2]
    defaults = _defaults(part["class"])
    shown = []
    for key, value in part["settings"].items():
        if value is None or key in defaults and value == defaults[key] or MAYBE_SECRET_SETTING.search(key):
            continue
        text = _argument(value)
        if text is not None:
            shown.append(f"{key}={text}")
    return f"{name}({', '.join(shown)})"


def _argument(value: Any) -> str | None:
    if isinstance(value, Mapping):
        if set(value) == {"class", "settings"}:
            return _call(value)
        if set(value) in ({"file"}, {"folder"}):  # a prompt
            return None
    if isinstance(value, (list, tuple)):
        items = [_argument(item) for item in value]
        return f"[{', '.join(item for item in items if item is not None)}]"
    return re.sub(r"[`|\n]", " ", json.dumps(_shown(value), ensure_ascii=False))


def _defaults(name: str) -> dict[str, Any]:
    from hf_factuality.verifiers.hub_format import PARTS

    if name not in PARTS:
        return {}
    kind = getattr(importlib.import_module(PARTS[name]), name)
    found = {key: parameter.default for key, parameter in inspect.signature(kind).parameters.items()}
    return {key: value.value if isinstance(value, Enum) else value for key, value in found.items()}


def describe_hardware(accelerator: Any) -> str:
    """Devices of a run, such as `"8 x NVIDIA H100 80GB HBM3 (FSDP)"` or `"1 process on CPU"`."""
    import torch

    device, number = accelerator.device, accelerator.num_processes
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else device.type.upper()
    kind = str(getattr(accelerator.distributed_type, "value", accelerator.distributed_type))
    how = f" ({kind})" if kind in ("FSDP", "DEEPSPEED", "MEGATRON_LM") else ""
    return f"{number} process{'es' if number > 1 else ''} on {name}{how}"


def describe_software() -> str:
    """Versions, and the commit of this package where it is known."""
    commit = package_commit()
    own = f"hf_factuality {__version__}" + (f" (commit {commit})" if commit else "")
    return ", ".join([own, *(f"{name} {version(name)}" for name in ("trl", "transformers", "torch"))])


def package_commit() -> str | None:
    """Commit that this package was installed from, or that its checkout is at, `" with changes"` if files differ."""
    try:
        said = distribution("hf_factuality").read_text("direct_url.json")
        commit = (json.loads(said or "{}").get("vcs_info") or {}).get("commit_id")
        if commit:
            return commit
    except (PackageNotFoundError, ValueError):
        pass
    root = Path(__file__).resolve().parents[3]
    # A virtual environment inside somebody else's repository is no checkout of ours.
    if not (root / ".git").exists() or _git(root, "ls-files", "--error-unmatch", "hf_factuality/__init__.py") is None:
        return None
    commit = (_git(root, "rev-parse", "HEAD") or "").strip()
    if not COMMIT.fullmatch(commit):
        return None
    changes = _git(root, "status", "--porcelain", "--", "hf_factuality")
    return commit + (" with changes" if changes is None or changes.strip() else "")


def _git(root: Path, *arguments: str) -> str | None:
    command, quiet = ["git", "-C", str(root), *arguments], {**os.environ, "GIT_OPTIONAL_LOCKS": "0"}
    try:
        found = subprocess.run(command, capture_output=True, text=True, timeout=20, env=quiet)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return found.stdout if found.returncode == 0 else None

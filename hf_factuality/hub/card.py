"""Model cards from `MODEL_CARD_TEMPLATE.md`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, fields
from importlib.metadata import version
from pathlib import Path
from typing import Any

from hf_factuality import __version__


TEMPLATE = Path(__file__).resolve().parent.parent / "MODEL_CARD_TEMPLATE.md"
# Parents' settings that a card may show. A list of what is allowed, not of what is not: others hold tokens, addresses and
# paths. The fields that our own configurations add are shown too.
_PUBLIC_SETTINGS = set(
    """
    adam_beta1 adam_beta2 adam_epsilon beta bf16 delta disable_dropout entropy_coef epsilon epsilon_high fp16
    generation_batch_size gradient_accumulation_steps gradient_checkpointing importance_sampling_level ld_alpha learning_rate
    loss_type lr_scheduler_type mask_truncated_completions max_completion_length max_grad_norm max_length max_steps min_p
    multi_objective_aggregation num_generations num_iterations num_train_epochs optim per_device_train_batch_size
    repetition_penalty scale_rewards seed shuffle_dataset steps_per_generation sync_ref_model temperature top_entropy_quantile
    top_k top_p truncation_mode use_vllm vllm_importance_sampling_correction vllm_importance_sampling_mode warmup_steps weight_decay
    """.split()
)


def render_card(card_data, **values: Any):
    """Fill in the template.

    Args:
        card_data ([`~huggingface_hub.ModelCardData`]):
            Metadata for the YAML header.
        **values:
            The placeholders of the template: `model_name`, `base_model`, `method`, `paper_title`, `paper_id`, `results`
            (`None`, or a mapping with `metrics`, a list of `name`, `before`, `after`, `n`, and `setting`),
            `dataset_name`, `verifier`, `objective`, `hyperparameters`.

    Returns:
        [`~huggingface_hub.ModelCard`].
    """
    from huggingface_hub import ModelCard

    versions = [f"{name} {version(name)}" for name in ("trl", "transformers", "torch")]
    versions = ", ".join([f"hf_factuality {__version__}", *versions])
    return ModelCard.from_template(card_data, template_path=str(TEMPLATE), versions=versions, **values)


def rewrite_card(path: str | Path, **values: Any) -> None:
    """Replace the text of the model card at `path` by ours and keep its metadata (base model, tags, library).

    Args:
        path (`str` or `Path`):
            A model card with a YAML header.
        **values:
            As for [`render_card`], except `base_model`, which the metadata holds.
    """
    from huggingface_hub import ModelCard

    data = ModelCard.load(path).data
    base_model = data.base_model[0] if isinstance(data.base_model, list) else data.base_model
    render_card(data, base_model=base_model, **values).save(path)


def shown_dataset(name: str | None) -> str | None:
    """A dataset's name as a card shows it: not at all if it is a folder, which says nothing to the card's reader."""
    return None if name is not None and Path(name).exists() else name


def rewrite_trainer_card(
    trainer: Any,
    model_name: str | None,
    dataset_name: str | None,
    *,
    method: str,
    verifier: str,
    objective: str,
    named: tuple[str, ...] = (),
) -> None:
    """Replace the text of the card that a trainer of ours has just written; on the main process.

    Args:
        trainer (`Trainer`):
            With `args`, `card_results` and the `_paper` of its method.
        model_name, dataset_name (`str`, *optional*):
            As for `create_model_card`.
        method, verifier, objective (`str`):
            As for [`render_card`].
        named (`tuple[str, ...]`, *optional*):
            Settings that the objective names already.
    """
    if not trainer.is_world_process_zero():
        return
    folder = Path(trainer.args.output_dir)
    rewrite_card(
        folder / "README.md",
        model_name=model_name or folder.name,
        method=method,
        paper_title=trainer._paper["title"],
        paper_id=trainer._paper["id"],
        results=trainer.card_results,
        dataset_name=dataset_name,
        verifier=verifier,
        objective=objective,
        hyperparameters=[(name, value) for name, value in changed_settings(trainer.args) if name not in named],
    )


def changed_settings(args: Any) -> list[tuple[str, Any]]:
    """Hyper-parameters that differ from their defaults; never paths, names, addresses or secrets.

    Args:
        args (dataclass):
            The configuration, for example a [`FactGRPOConfig`].

    Returns:
        `list[tuple[str, Any]]`: name and value, in the order of the names.
    """
    own = type(args).__dict__.get("__annotations__", {})
    changed = []
    for field in fields(args):
        value = getattr(args, field.name)
        shown = field.name in _PUBLIC_SETTINGS or field.name in own
        if shown and field.default is not MISSING and value is not None and value != field.default:
            value = getattr(value, "value", value)
            # A model may be given by its folder.
            value = Path(value).name if isinstance(value, str) and Path(value).exists() else value
            changed.append((field.name, value))
    return sorted(changed, key=lambda item: item[0])


def describe_verifier(verifier: Any) -> str:
    """Class of a verifier and, where it judges with a model of the Hub, which one; never a path.

    Args:
        verifier ([`Verifier`]):
            The verifier.

    Returns:
        `str`, for example `"NLIVerifier (MoritzLaurer/DeBERTa-v3-base-mnli-fever-anli)"`.
    """
    config = getattr(getattr(getattr(verifier, "judge", None), "model", None), "config", None)
    name = getattr(config, "name_or_path", None) or ""
    on_the_hub = re.fullmatch(r"[\w.-]+(/[\w.-]+)?", name) and not Path(name).exists()
    return type(verifier).__name__ + (f" ({name})" if on_the_hub else "")


def before_and_after(
    before: Mapping[str, Any], after: Mapping[str, Any], names: Mapping[str, str], n: int, setting: str
) -> dict[str, Any]:
    """Results for a card and a table from two measurements.

    Args:
        before, after (`Mapping[str, Any]`):
            Values by key; `None` where a value is undefined.
        names (`Mapping[str, str]`):
            Key to what the reader sees, in the order of the rows.
        n (`int`):
            Completions measured.
        setting (`str`):
            How it was measured, in one sentence.

    Returns:
        `dict`: `metrics` and `setting`, as [`render_card`] takes them.
    """
    rows = [
        {"name": text, "before": _shown(before[key]), "after": _shown(after[key]), "n": n}
        for key, text in names.items()
    ]
    return {"metrics": rows, "setting": setting}


def format_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows as aligned columns of text.

    Args:
        rows (`Sequence[Mapping[str, Any]]`):
            One mapping per row, all with the same keys.

    Returns:
        `str`: header, rule and rows, one a line.
    """
    header = list(rows[0])
    cells = [header, *([str(row[name]) for name in header] for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(header))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])


def _shown(value: Any) -> str:
    return "n/a" if value is None else f"{value:.3f}" if isinstance(value, float) else str(value)

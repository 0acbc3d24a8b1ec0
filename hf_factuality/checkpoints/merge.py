"""Checkpoints of training runs made into models that `from_pretrained` loads, in bounded memory.

Unlike the mergers of verl and DeepSpeed, nothing of a checkpoint is unpickled freely, the tensors of one output file
are in memory at a time, and what is written is checked against the configuration's model first.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import torch
from tqdm.auto import tqdm

from hf_factuality.checkpoints.files import SideFiles, find_side_files, own_files, write_side_files
from hf_factuality.checkpoints.formats import hub_folder, read_checkpoint
from hf_factuality.checkpoints.model import Expected, check_layers, check_not_quantised, expected_model, match_names
from hf_factuality.checkpoints.pickles import reading
from hf_factuality.checkpoints.publish import MergeReport, write_and_push
from hf_factuality.checkpoints.tensors import TensorSource
from hf_factuality.checkpoints.write import (
    Entry,
    check_dtypes,
    check_output,
    new_folder,
    parse_size,
    plan_shards,
    write_shards,
)
from hf_factuality.errors import CheckpointError


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


def merge(
    checkpoint: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    dtype: str | torch.dtype | None = None,
    max_shard_size: int | str = "5GB",
    model_config: str | os.PathLike[str] | None = None,
    base_model: str | os.PathLike[str] | None = None,
    allow_unsafe_pickle: bool = False,
    trust_remote_code: bool = False,
    dry_run: bool = False,
    push_to_hub: str | None = None,
    private: bool | None = None,
    pull_request: bool = False,
    branch: str | None = None,
    on_written: Callable[[Sequence[MergeReport], str | None], None] | None = None,
) -> MergeReport:
    """Make a model folder out of a checkpoint of any format that is known here.

    Args:
        checkpoint (`str` or `PathLike`):
            Folder of the checkpoint; its format is recognised.
        out (`str` or `PathLike`):
            Folder of the model, new or empty. It appears when everything is in it.
        dtype (`str` or `torch.dtype`, *optional*):
            `"float32"`, `"bfloat16"` or `"float16"`; by default that of the checkpoint.
        max_shard_size (`int` or `str`, *optional*, defaults to `"5GB"`):
            Largest file of weights.
        model_config (`str` or `PathLike`, *optional*):
            Folder or model on the Hub (`id`, `id@revision`) whose configuration, tokenizer and chat template are taken.
        base_model (`str` or `PathLike`, *optional*):
            The same of an adapter's base, instead of the one that it names.
        allow_unsafe_pickle (`bool`, *optional*, defaults to `False`):
            Read files that ask for more than tensors; they can then run any code.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Run code that the configuration names.
        dry_run (`bool`, *optional*, defaults to `False`):
            Read and check what needs no tensor's contents, and write nothing.
        push_to_hub (`str`, *optional*):
            Repository to publish the model in, as [`~hf_factuality.hub.push.push`] does. The account is tried first.
        private, pull_request, branch (*optional*):
            Of the push, as there.
        on_written (`Callable`, *optional*):
            Is given the reports, in a list, and the full name of the repository (`None` without a push), once the model is
            written and before it is pushed.

    Returns:
        [`MergeReport`]: what was merged, or would be; with `published` after a push.

    Raises:
        `CheckpointError`: the checkpoint is not whole, does not fit its configuration, holds a link to elsewhere or is unsafe to
            read, or the folder cannot be written; nothing is left in its place.
        `HubError`: the account may not write to the repository (nothing is written then), or the push failed; the model stays.
        `ValueError`: an argument is wrong.
    """
    cast, max_bytes, out = parse_dtype(dtype), parse_size(max_shard_size), Path(out)

    def write() -> list[MergeReport]:
        check_output(out, 0)  # before a base model is downloaded
        model = read_model(
            Path(checkpoint),
            model_config,
            base_model,
            allow_unsafe_pickle=allow_unsafe_pickle,
            trust_remote_code=trust_remote_code,
        )
        return write_models({out: model}, out, cast, max_bytes, dry_run)

    return write_and_push(
        write,
        out,
        push_to_hub,
        private=private,
        pull_request=pull_request,
        branch=branch,
        dry_run=dry_run,
        on_written=on_written,
    )[0]


@dataclass
class Model:
    """A checkpoint that fits its configuration: where it is, its tensors by the model's names, and its small files."""

    folder: Path
    format: str
    tensors: Mapping[str, TensorSource]
    expected: Expected
    side: SideFiles
    notes: list[str]
    own: Mapping[str, bytes] = field(default_factory=dict)  # files that are written beside


def read_model(
    folder: Path,
    config: str | os.PathLike[str] | None = None,
    base_model: str | os.PathLike[str] | None = None,
    *,
    allow_unsafe_pickle: bool = False,
    trust_remote_code: bool = False,
) -> Model:
    """Read what needs no tensor's contents, and raise unless it is a whole model; the arguments are those of [`merge`]."""
    if not folder.is_dir():
        raise CheckpointError(f"{folder} is no folder; pass the folder of the checkpoint")
    found = read_checkpoint(folder, base_model=base_model, unsafe=allow_unsafe_pickle)
    given = [hub_folder(config)] if config is not None else []
    with reading(folder):
        side = find_side_files([*given, *found.folders], folder)
        base = (
            [Path(found.name)] if found.adapter is not None else []
        )  # which may be quantised while the adapter is not
        for place in (side.config, *(place for place in base if (place / "config.json").is_file())):
            check_not_quantised(place)
        check_layers(side.config, len(found.tensors))
        build, notes = partial(expected_model, side.config, trust_remote_code), []
        if found.adapter is None:
            expected = build()
            tensors = match_names(found.tensors, expected, found.name)
        else:
            tensors, expected, notes = found.adapter.fold(found.tensors, build, found.name)
    return Model(folder, found.format, tensors, expected, side, [*found.notes, *side.notes, *notes])


def write_models(
    models: Mapping[Path, Model], out: Path, cast: torch.dtype | None, max_bytes: int, dry_run: bool
) -> list[MergeReport]:
    """Write models into their folders, which are `out` or in it; `out` appears when everything is in it."""
    plans, reports, own = {}, [], {}
    for place, model in models.items():
        entries = [
            Entry(name, tensor, cast if cast and tensor.dtype.is_floating_point else tensor.dtype)
            for name, tensor in model.tensors.items()
        ]
        check_dtypes(entries)
        plans[place] = plan_shards(entries, max_bytes)
        dtypes = Counter(entry.dtype for entry in entries).most_common()
        report = MergeReport(
            place,
            model.format,
            model.expected.architecture,
            {name: sum(entry.nbytes for entry in held) for name, held in plans[place].items()},
            {str(kind).removeprefix("torch."): count for kind, count in dtypes},
            [alias for alias in model.expected.tied if alias not in model.tensors],
            sorted(model.side.copied),
            model.notes,
        )
        reports.append(report)
        own[place] = {**own_files(model.side, model.expected, dtypes[0][0] if dtypes else None), **model.own}
    total = sum(sum(report.shards.values()) for report in reports)
    check_output(out, total)
    if dry_run:
        return reports
    with new_folder(out) as folder, tqdm(total=total, unit="B", unit_scale=True, desc="write", disable=None) as bar:
        for report, (place, model) in zip(reports, models.items(), strict=True):
            inside = folder / place.relative_to(out)
            inside.mkdir(exist_ok=True)
            with reading(model.folder, errors=()):
                write_shards(inside, plans[place], bar.update)
            written = write_side_files(model.side, own[place], inside)
            report.files = [name for name in written if name not in report.shards]
    return reports


def parse_dtype(value: str | torch.dtype | None) -> torch.dtype | None:
    """A dtype by its name; `ValueError` for one that weights are not written in."""
    if value is None:
        return None
    name = str(value).removeprefix("torch.")
    if (name := _SHORT.get(name, name)) not in DTYPES:
        raise ValueError(f"dtype {value!r} is unknown; choose one of {', '.join(DTYPES)}")
    return DTYPES[name]

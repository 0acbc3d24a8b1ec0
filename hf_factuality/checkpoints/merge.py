"""Checkpoints of training runs made into models that `from_pretrained` loads, in bounded memory.

Unlike the mergers of verl and DeepSpeed, nothing of a checkpoint is unpickled freely, the tensors of one output file
are in memory at a time, and what is written is checked against the configuration's model first.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import torch
from tqdm.auto import tqdm

from hf_factuality.checkpoints.files import find_side_files, own_files, write_side_files
from hf_factuality.checkpoints.formats import hub_folder, read_checkpoint
from hf_factuality.checkpoints.model import check_layers, expected_model, match_names
from hf_factuality.checkpoints.pickles import reading
from hf_factuality.checkpoints.write import (
    Entry,
    check_dtypes,
    check_output,
    parse_size,
    plan_shards,
    whole_folder,
    write_shards,
)
from hf_factuality.errors import CheckpointError


DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
_SHORT = {"fp32": "float32", "bf16": "bfloat16", "fp16": "float16"}


@dataclass
class MergeReport:
    """What was merged, or would be.

    `shards` has the bytes of each file of weights, `dtypes` the number of tensors of each; `tied` are names that are not written,
    because the configuration ties them to another.
    """

    out: Path
    format: str
    architecture: str
    shards: dict[str, int]
    dtypes: dict[str, int]
    tied: list[str]
    files: list[str]
    notes: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        size = sum(self.shards.values())
        dtypes = ", ".join(f"{count} {dtype}" for dtype, count in self.dtypes.items())
        lines = [
            f"{self.format}: {self.architecture}, {sum(self.dtypes.values())} tensors ({dtypes}), {size / 1e9:.3f} GB",
            *(f"  {name}  {bytes_ / 1e9:.3f} GB" for name, bytes_ in self.shards.items()),
            f"  {', '.join(self.files)}",
        ]
        if self.tied:
            lines.append(f"tied, so not written twice: {', '.join(self.tied)}")
        return "\n".join([*lines, *self.notes])


def merge(
    checkpoint: str | os.PathLike[str],
    out: str | os.PathLike[str],
    *,
    dtype: str | torch.dtype | None = None,
    max_shard_size: int | str = "5GB",
    config: str | os.PathLike[str] | None = None,
    base_model: str | os.PathLike[str] | None = None,
    allow_unsafe_pickle: bool = False,
    trust_remote_code: bool = False,
    dry_run: bool = False,
) -> MergeReport:
    """Make a model folder out of a checkpoint of any format that is known here.

    The arguments are those of `hf-factuality merge`. `out` appears when everything is in it; `config` and `base_model` are folders
    or models on the Hub (`id`, `id@revision`); `dry_run` reads and checks what needs no tensor's contents.

    Raises:
        `CheckpointError`: the checkpoint is not whole, does not fit its configuration, holds a link to elsewhere or is unsafe to
            read, or the folder cannot be written; nothing is left in its place.
        `ValueError`: an argument is wrong.
    """
    cast = _dtype(dtype)
    max_bytes = parse_size(max_shard_size)
    out, source = Path(out), Path(checkpoint)
    if not source.is_dir():
        raise CheckpointError(f"{source} is no folder; pass the folder of the checkpoint")
    check_output(out, 0)  # before a base model is downloaded
    found = read_checkpoint(source, base_model=base_model, unsafe=allow_unsafe_pickle)
    given = [hub_folder(config)] if config is not None else []
    with reading(source):
        side = find_side_files([*given, *found.folders], source)
        check_layers(side.config, len(found.tensors))
        expected = expected_model(side.config, trust_remote_code)
        tensors = match_names(found.tensors, expected, found.name)
        if found.adapter is not None:
            tensors = found.adapter.fold(tensors, expected)
    entries = [
        Entry(name, tensor, cast if cast and tensor.dtype.is_floating_point else tensor.dtype)
        for name, tensor in tensors.items()
    ]
    check_dtypes(entries)
    shards = plan_shards(entries, max_bytes)
    sizes = {name: sum(entry.nbytes for entry in held) for name, held in shards.items()}
    dtypes = Counter(entry.dtype for entry in entries).most_common()
    report = MergeReport(
        out,
        found.format,
        expected.architecture,
        sizes,
        {str(kind).removeprefix("torch."): count for kind, count in dtypes},
        [alias for alias in expected.tied if alias not in tensors],
        sorted(side.copied),
        [*found.notes, *side.notes],
    )
    total = sum(sizes.values())
    check_output(out, total)
    own = own_files(side, expected, dtypes[0][0] if dtypes else None)
    if dry_run:
        return report
    with whole_folder(out) as folder, tqdm(total=total, unit="B", unit_scale=True, desc="merge", disable=None) as bar:
        with reading(source, errors=()):
            write_shards(folder, shards, bar.update)
        written = write_side_files(side, own, folder)
    report.files = [name for name in written if name not in sizes]
    return report


def _dtype(value: str | torch.dtype | None) -> torch.dtype | None:
    if value is None:
        return None
    name = str(value).removeprefix("torch.")
    if (name := _SHORT.get(name, name)) not in DTYPES:
        raise ValueError(f"dtype {value!r} is unknown; choose one of {', '.join(DTYPES)}")
    return DTYPES[name]

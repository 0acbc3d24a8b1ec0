"""Which files of a folder are published, and why the others are not: of a model what is known to be a part of one."""

from __future__ import annotations

import fnmatch
import json
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from hf_factuality.errors import HubError
from hf_factuality.hub.published import check_metadata


CONFIGURATION = "config.json generation_config.json configuration_*.py modeling_*.py tokenization_*.py".split()
TOKENIZER = """
    tokenizer.json tokenizer_config.json tokenizer.model special_tokens_map.json added_tokens.json
    vocab.json vocab.txt merges.txt *.tiktoken spiece.model sentencepiece.bpe.model
    chat_template*.jinja chat_template.json additional_chat_templates/*.jinja
    preprocessor_config.json processor_config.json video_preprocessor_config.json
    """.split()
"""What makes tokens out of a prompt."""
_CARD = ("README.md", "LICENSE*", "NOTICE*")
_KINDS = {
    "model": (
        *(*_CARD, *CONFIGURATION, *TOKENIZER),
        *"""
        model.safetensors model-*-of-*.safetensors model.safetensors.index.json
        pytorch_model.bin pytorch_model-*-of-*.bin pytorch_model.bin.index.json
        adapter_config.json adapter_model.safetensors adapter_model.bin
        critic/config.json critic/model.safetensors critic/model-*-of-*.safetensors
        critic/model.safetensors.index.json critic/value_head.pt
        results*.json .eval_results/*.yaml reliability.svg ratios.json
        verifier_config.json prompts/*.txt prompts/*/*.txt
        verifier/verifier_config.json verifier/config.json verifier/prompts/*.txt verifier/prompts/*/*.txt
        """.split(),
    ),
    "dataset": (*_CARD, "**/*.parquet", "**/*.jsonl", "**/*.csv", "**/*.json"),
    "pairs": ("README.md", "LICENSE*", "pairs.parquet"),
    "space": (
        "README.md",
        "LICENSE*",
        "Dockerfile",
        "**/*.py",
        "**/*.json",
        "**/*.jsonl",
        "**/*.txt",
        "**/*.md",
        "**/*.parquet",
    ),
}
_LEADERBOARDS = ".eval_results/*.yaml"
_STATE = "state of a run, which only resuming it needs"
_NEVER = {
    "hidden": (".*",),
    "a pickle of every argument of the run, access tokens included": ("training_args.bin",),
    "a checkpoint of the run; push its folder by itself": ("checkpoint-*", "last-checkpoint"),
    "a log of the run": ("runs", "wandb", "mlruns", "events.out.tfevents*", "*.log", "logs"),
    "a shard of a run; make a model of them: hf-factuality merge": ("model_world_size_*",),
    "left by a push of a checkpoint that was killed": ("_push-*",),
    "made by Python": ("__pycache__",),
    "a private key": "id_rsa id_dsa id_ecdsa id_ed25519 *.ppk *.key *.p8 *.p12 *.pfx".split(),
    "keys or passwords": "*.jks *.keystore *.kdbx ?*.env netrc _netrc".split(),
    _STATE: """
        optimizer.pt optimizer.bin optimizer_* critic_optimizer.pt optim_world_size_* *_optim_states.pt
        scheduler.pt scheduler.bin scaler.pt rng_state*.pth random_states_*.pkl extra_state_* global_step* latest
        pytorch_model_fsdp_* *.distcp rollouts_*_of_*.pt trainer_state.json checkpoint_manifest.json reference.pt
        """.split(),
}
"""Why, and the names of such files and folders; whatever lies below such a folder counts too."""
_PICKLES = ("*.bin", "*.pt", "*.pth", "*.pkl", "*.pickle", "*.ckpt", "*.joblib")
_WEIGHTS = re.compile(
    r"(?:model|pytorch_model)(?:-\d{5}-of-\d{5})?\.(?:safetensors|bin)(?:\.index\.json)?"
    r"|adapter_model\.(?:safetensors|bin)|adapter_config\.json|value_head\.pt"
)


def find_files(
    folder: Path, repo_type: str, include: Sequence[str] = (), exclude: Sequence[str] = (), resumable: bool = False
) -> tuple[dict[str, Path], dict[str, str]]:
    """Path in the folder -> file to publish; and path -> why it is left out. A link out of the folder is refused."""
    kinds = _KINDS[repo_type]
    if repo_type == "dataset" and (folder / "pairs.parquet").is_file():
        kinds = _KINDS["pairs"]  # the other files of such a run are samples and verifications
    root = folder.resolve()
    files, left_out = {}, {}
    for name, path in _walk(folder):
        reason = _why_not(name, path, kinds, include, exclude, resumable)
        if reason is not None:
            left_out[name] = reason
            continue
        if not path.resolve().is_relative_to(root):
            where = f"{name} in {folder} is a link to {path.resolve()}, which is not in the folder"
            raise HubError(f"{where}; copy the file to there (cp -rL), or leave it out with `exclude`")
        if (reason := _why_not_target(path, root, resumable)) is not None:
            left_out[name] = reason
            continue
        files[name] = path
    return files, left_out


def _walk(folder: Path) -> Iterator[tuple[str, Path]]:
    for top, folders, names in os.walk(folder):
        place = Path(top)
        for name in sorted(folders):
            if (place / name).is_symlink():
                yield f"{(place / name).relative_to(folder).as_posix()}/", place / name
        folders.sort()
        for name in sorted(names):
            yield (place / name).relative_to(folder).as_posix(), place / name


def _why_not(
    name: str, path: Path, kinds: Iterable[str], include: Sequence[str], exclude: Sequence[str], resumable: bool
) -> str | None:
    parts = name.rstrip("/").split("/")
    if name.endswith("/"):
        return "a link to a folder"
    never = None if _is(parts, _LEADERBOARDS) else _never(parts)
    if never is not None and not (resumable and never == _STATE):
        return never
    if not path.is_file():
        return "no file"
    if matches(name, exclude):
        return "excluded by you"
    if never == _STATE or any(_is(parts, kind) for kind in kinds):
        return None
    if matches(name, _PICKLES):
        return "a pickle that is no model's weights"
    if matches(name, include) or _is_results(path):
        return None
    return "not a part of what is published; add it with `include`"


def _never(parts: Iterable[str]) -> str | None:
    """Why what has such a name, or lies in such a folder, is not published."""
    return next((reason for reason, names in _NEVER.items() if any(matches(part, names) for part in parts)), None)


def _why_not_target(path: Path, root: Path, resumable: bool) -> str | None:
    """Why a link is left out: what it leads to would not be published under its own name."""
    if not path.is_symlink():
        return None
    target = path.resolve().relative_to(root)
    parts = target.parts
    if len(parts) > 1 and fnmatch.fnmatchcase(parts[0], "checkpoint-*"):  # weights that a run linked to
        parts = parts[1:]
    reason = _never(parts)
    reason = None if resumable and reason == _STATE else reason
    if reason is None and matches(parts[-1], _PICKLES) and not matches(path.name, _PICKLES):
        reason = "a pickle"
    return None if reason is None else f"a link to {target.as_posix()}: {reason}"


def matches(name: str, patterns: Iterable[str]) -> bool:
    """Whether a path, or its last part, is of one of the patterns."""
    return any(fnmatch.fnmatchcase(name, p) or fnmatch.fnmatchcase(name.rpartition("/")[2], p) for p in patterns)


def _is(parts: Sequence[str], pattern: str) -> bool:
    if pattern.startswith("**/"):
        return fnmatch.fnmatchcase(parts[-1], pattern[3:])
    kinds = pattern.split("/")
    return len(kinds) == len(parts) and all(map(fnmatch.fnmatchcase, parts, kinds))


def _is_results(path: Path) -> bool:
    """Whether `evaluate` of this package wrote the file."""
    if path.suffix != ".json":
        return False
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):
        return False
    return isinstance(content, dict) and str(content.get("schema", "")).startswith("hf_factuality.results/")


def check_model(folder: Path, files: dict[str, Path], left_out: dict[str, str], allowed: Sequence[str] = ()) -> None:
    """Leave out weights that do not count (`files` and `left_out` are changed), and refuse a model that is not whole."""
    adapter = any(name in files for name in ("adapter_model.safetensors", "adapter_model.bin"))
    whole = any(re.fullmatch(r"(?:pytorch_)?model.*\.(?:safetensors|bin)", name) for name in files)
    if not (adapter or whole or "verifier_config.json" in files):
        raise HubError(f"{folder} holds no weights; of a checkpoint of a run make a model: hf-factuality merge")
    for needed, because in (("config.json", whole), ("adapter_config.json", adapter)):
        if because and needed not in files:
            raise HubError(f"{folder} holds weights and no {needed}, so nobody could load them")
    for start in ("", "critic/"):
        _check_weights(folder, start, files, left_out, allowed)


def _check_weights(
    folder: Path, start: str, files: dict[str, Path], left_out: dict[str, str], allowed: Sequence[str]
) -> None:
    for stem, suffix in (("model", "safetensors"), ("pytorch_model", "bin")):
        single, index = f"{start}{stem}.{suffix}", f"{start}{stem}.{suffix}.index.json"
        shards = {name for name in files if re.fullmatch(rf"{start}{stem}-\d+-of-\d+\.{suffix}", name)}
        if index in files:
            if single in files:
                raise HubError(f"{folder} holds {single} and {index}: two models; remove the one that is old")
            listed = {f"{start}{name}" for name in _shards(files[index])}
            if missing := sorted(listed - set(files)):
                raise HubError(f"{folder} lacks {', '.join(missing)}, which {index} names")
            shards -= listed
        elif shards and single not in files:
            raise HubError(f"{folder} holds {min(shards)} and no {index}, so nobody could load it")
        for name in shards:
            left_out[name] = f"no part of the model: {index} does not name it"
            del files[name]
    doubles = {"pytorch_model*.bin*": "model*.safetensors", "adapter_model.bin": "adapter_model.safetensors"}
    for heavy, light in doubles.items():
        if any(fnmatch.fnmatchcase(name, start + light) for name in files):
            for name in [name for name in files if fnmatch.fnmatchcase(name, start + heavy)]:
                left_out[name] = "the same weights as the safetensors, as a pickle"
                del files[name]
    for name, path in files.items():
        if name.startswith(start) and name.endswith(".safetensors"):
            _check_safetensors(name, path, allowed)


def _shards(index: Path) -> set[str]:
    """Names of the files that an index of weights lists."""
    try:
        names = set(json.loads(index.read_text(encoding="utf-8"))["weight_map"].values())
        if all(isinstance(name, str) for name in names):
            return names
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        pass
    raise HubError(f"{index} is no index of weights; copy it again, or save the model again")


def _check_safetensors(name: str, path: Path, allowed: Sequence[str]) -> None:
    """Refuse a file that was cut off (its header says how long it is), or whose header tells of the machine."""
    size, texts = path.stat().st_size, {}
    try:
        with path.open("rb") as file:
            length = int.from_bytes(file.read(8), "little")
            header = json.loads(file.read(length)) if length < min(size, 100_000_000) else {}
        end = max((entry["data_offsets"][1] for key, entry in header.items() if key != "__metadata__"), default=-1)
        texts = header.get("__metadata__") or {}
        whole = 8 + length + end == size and all(isinstance(text, str) for text in texts.values())
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        whole = False
    if not whole:
        raise HubError(f"{path} is cut off or damaged; make or copy {name} again")
    check_metadata(texts, name, allowed)


def stale_files(names: Iterable[str], pushed: Iterable[str]) -> list[str]:
    """Weights in a repository that are not of the model that is pushed, in the folders to which it brings weights."""
    old, new = ({name for name in of if _WEIGHTS.fullmatch(name.rpartition("/")[2])} for of in (names, pushed))
    folders = {name.rpartition("/")[0] for name in new}
    return sorted(name for name in old - new if name.rpartition("/")[0] in folders)

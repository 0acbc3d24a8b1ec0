"""A dataset of preference pairs on the Hub, with its card: how it was made, and what was dropped, all of it counted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hf_factuality.errors import DataError, HubError
from hf_factuality.io.files import last_name
from hf_factuality.io.markdown import cell, escaped
from hf_factuality.io.upload import prepare_repo, publish


__all__ = ["card_text", "prepare_push", "push_pairs"]

_TEXT = """# Fine-grained preference pairs

{pairs} pairs of responses with a verdict on every sentence, made with hf_factuality {version}: {responses} responses to
{questions} questions, labelled by a verifier; of each question the best against the worst by the share of sentences without
hallucination, as in [Mask-DPO](https://huggingface.co/papers/2503.02846). `chosen_spans` and `rejected_spans` are half-open
character ranges of the content of `chosen` and `rejected`, with a label each.

**The labels are a model's or a program's, not people's.** They are as good as the verifier below.

## How it was made

| | |
|---|---|
{settings}

## What was dropped

| what | number |
|---|---|
{dropped}
"""


def card_text(folder: str | Path) -> str:
    """Text of `README.md` for the run in a folder, from its `settings.json` and `report.json`.

    Args:
        folder (`str` or `Path`):
            Folder of a finished run.

    Returns:
        `str`: with a YAML header that the Hub accepts.
    """
    from huggingface_hub import DatasetCard, DatasetCardData

    from hf_factuality.data.pairs import REASONS

    folder = Path(folder)
    settings = json.loads((folder / "settings.json").read_text(encoding="utf-8"))
    report = json.loads((folder / "report.json").read_text(encoding="utf-8"))
    rows = {**_flat(settings), **_flat(report["pair_settings"], "pairs")}
    version = rows.pop("hf_factuality")
    dropped = {REASONS[reason]: count for reason, count in report["dropped"].items()}
    dropped |= {"responses that were cut off, and kept": report["cut_off_responses"]}
    dropped |= {"responses that could not be sampled": report["lost_responses"]}
    text = _TEXT.format(
        pairs=report["pairs"], responses=report["responses"], questions=report["questions"], version=version,
        settings=_table(rows), dropped=_table(dropped),
    )  # fmt: skip
    data = DatasetCardData(
        tags=["hf-factuality", "preference", "mask-dpo", "factuality"],
        configs=[{"config_name": "default", "data_files": "pairs.parquet"}],
    )
    return str(DatasetCard(f"---\n{data.to_yaml()}\n---\n\n{text}"))


def describe_run(folder: str | Path) -> str:
    """What the pairs are and who labelled them, in a line, as far as the run's `settings.json` says it."""
    try:
        verifier = dict(json.loads((Path(folder) / "settings.json").read_text(encoding="utf-8"))["verifier"])
    except (OSError, ValueError, KeyError, TypeError):
        return "pairs of sampled responses"
    stages = ", ".join(_call(**part) for part in verifier.values() if isinstance(part, dict))
    return f"pairs of sampled responses, labelled by {verifier.get('class')}" + (f" ({stages})" if stages else "")


def prepare_push(repo_id: str, private: bool | None = None, token: str | bool | None = None) -> str:
    """Make the dataset repository, if it is not there: what could keep the result from being pushed shows before the work.

    Args:
        repo_id (`str`):
            The repository.
        private (`bool`, *optional*):
            Of a new one; `None`: as the organisation has it. One that exists and is otherwise is refused.
        token (`str` or `bool`, *optional*):
            As in `huggingface_hub`.

    Returns:
        `str`: its full id.

    Raises:
        [`HubError`]: it cannot be made.
    """
    return prepare_repo(repo_id, repo_type="dataset", private=private, token=token)


def push_pairs(
    folder: str | Path,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    commit_message: str = "Upload preference pairs",
    token: str | bool | None = None,
) -> str:
    """Publish the dataset of a finished run with its card, which replaces an earlier one: its figures are of these pairs.

    Samples and verifications stay on this machine.

    Args:
        folder (`str` or `Path`):
            Folder of the run.
        repo_id (`str`), private (`bool`, *optional*), token (`str` or `bool`, *optional*):
            As in [`prepare_push`].
        revision (`str`, *optional*):
            Branch to write to.
        commit_message (`str`, *optional*):
            Of the commit.

    Returns:
        `str`: address of the commit.

    Raises:
        `DataError`: the run is not finished.
        [`HubError`]: the upload failed; the dataset stays in the folder.
    """
    folder = Path(folder)
    files = ["pairs.parquet", "README.md"]
    missing = [name for name in files if not (folder / name).is_file()]
    if missing:
        raise DataError(f"there is no {folder / missing[0]}; a run writes it at its end: start it again to finish it")
    try:
        published = publish(
            {name: folder / name for name in files},
            repo_id,
            repo_type="dataset",
            private=private,
            revision=revision,
            commit_message=commit_message,
            token=token,
        )
    except HubError as error:
        raise HubError(f"the pairs in {folder} could not be pushed, and stay there: {error}") from None
    return published.commit_url


def _call(**part: Any) -> str:
    name = part.pop("class", "")
    return f"{name}({', '.join(f'{key}={_shown(value)!r}' for key, value in part.items())})"


def _flat(values: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for key, value in values.items():
        name = f"{prefix} {key}".strip()
        found |= _flat(value, name) if isinstance(value, dict) else {name: value}
    return found


def _shown(value: Any) -> Any:
    """Of a folder, here or on the machine of a server, only the last name."""
    return last_name(value) if isinstance(value, str) else value


def _cell(value: Any) -> str:
    return cell(escaped(_shown(value)))


def _table(rows: dict[str, Any]) -> str:
    cells = {name: "" if value is None else _cell(value) for name, value in rows.items()}
    return "\n".join(f"| {_cell(name)} | {value} |" for name, value in cells.items())

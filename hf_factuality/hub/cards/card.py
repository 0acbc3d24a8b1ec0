"""Model cards from `MODEL_CARD_TEMPLATE.md`. Numbers of results come from files of results alone; see docs/cards.md."""

from __future__ import annotations

import json
import logging
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hf_factuality.errors import HubError
from hf_factuality.hub.cards.check import card_problems
from hf_factuality.hub.cards.check import validate_card as validate_card
from hf_factuality.hub.cards.methods import METHODS, CardMethod, Paper, describe_method
from hf_factuality.hub.cards.scores import REPO_ID, CardResults, ModelIdentity, card_results
from hf_factuality.hub.cards.settings import (
    changed_settings,
    dataset_origin,
    describe_adapter,
    describe_hardware,
    describe_software,
    own_words,
    plain_name,
)
from hf_factuality.hub.leaderboards import write_leaderboard_files
from hf_factuality.hub.results import folder_fingerprint
from hf_factuality.hub.tables import format_table
from hf_factuality.io.files import write_atomically
from hf_factuality.io.markdown import cell, code, escaped, one_line, unescaped


logger = logging.getLogger(__name__)
TEMPLATE = Path(__file__).resolve().parents[2] / "MODEL_CARD_TEMPLATE.md"
NO_RESULTS = "None recorded."
# What the user of a folder may have written into the header of its card, and no trainer knows.
_KEPT = ("language", "license", "license_name", "license_link")
_SECTION = re.compile(r"(?ms)^## Results\n.*?(?=^## |\Z)")
_SNIPPET = re.compile(r'(pipeline\("text-generation", model=|VerifierPipeline\.from_pretrained\()"(?:[^"\\]|\\.)*"\)')
_BASE = re.compile(r"(?m)^\| base model \| (?:\[([^\]]+)\]\([^)]*\)(?: at `(\w+)`)?|`([^`]+)`)")


def render_card(card_data, *, results: CardResults | None = None, **values: Any):
    """Fill in the template with `values`, and with `results` as they were read from files (`None`: none recorded)."""
    from huggingface_hub import ModelCard

    if not isinstance(results, CardResults | None):
        raise HubError(f"results of a card come from files, got {type(results).__name__}: see docs/cards.md")
    _set_results(card_data, one_line(values["model_name"]), results)
    values["model_name"] = escaped(values["model_name"])
    values["model_id"] = _quoted(values.get("model_id", ""))
    values["training"] = [(name, cell(value)) for name, value in values["training"]]
    values["hyperparameters"] = [(cell(code(name)), cell(code(value))) for name, value in values["hyperparameters"]]
    return ModelCard.from_template(card_data, template_path=str(TEMPLATE), results=results_text(results), **values)


def results_text(results: CardResults | None) -> str:
    """The part "Results" of a card, in Markdown."""
    if results is None or not results.rows:
        return NO_RESULTS
    notes = "".join(f"- {note}\n" for note in results.notes)
    if results.files:
        notes += f"- The numbers are those of {' and '.join(code(path.name) for path in results.files)}."
    return f"{format_table(results.rows, markdown=True)}\n\n{notes.rstrip()}"


def _set_results(card_data: Any, model_name: str, results: CardResults | None) -> None:
    from huggingface_hub import EvalResult

    found = results.eval_results if results is not None else []
    task = {"task_type": card_data.pipeline_tag} if card_data.pipeline_tag else {}
    card_data.eval_results = [EvalResult(**{**arguments, **task}) for arguments in found] or None
    card_data.model_name = model_name if found else None


def write_trainer_card(
    trainer: Any,
    write: Callable[..., None],
    model_name: str | None,
    dataset_name: str | None,
    tags: Any,
    *,
    method: CardMethod | str,
    verifier: str,
    objective: str,
    named: tuple[str, ...] = (),
    reliability: Sequence[tuple[int, float, float]] = (),
    results: Any = None,
    base_model: str | None = None,
) -> None:
    """Let the parent write its card (`write`), and replace its text by ours, with the results of these weights.

    `method` may be the text of a trainer that has one method, with its `_paper`. `named` are settings that the objective names
    already; `reliability` holds a classifier's counts, confidences, accuracies. `results` stand instead of the trainer's
    `card_results`, and `base_model` instead of what the model was loaded from.
    """
    origin = dataset_origin(trainer.train_dataset)
    if dataset_name is None and origin is not None:
        dataset_name = origin[0]
    shown = None if not dataset_name or os.path.exists(dataset_name) else dataset_name
    if not trainer.is_world_process_zero():
        write(model_name, shown, tags)
        return
    args = trainer.args
    folder = Path(args.output_dir)
    model_name = one_line(plain_name(model_name) if model_name else "") or one_line(folder.resolve().name)
    repo_id = getattr(trainer, "hub_model_id", None) or args.hub_model_id
    model = trainer.accelerator.unwrap_model(trainer.model)
    base = _base_of(model, base_model)
    given = results if results is not None else getattr(trainer, "card_results", None)
    results = None
    if not trainer.is_in_train:  # they would be of other weights
        this = _this(folder, model_name, repo_id)
        results = card_results(given, folder, this, base.identity, repo_id)
    if isinstance(method, str):
        method = CardMethod(method, (Paper(trainer._paper["id"], trainer._paper["title"]),))
    kept = _own_metadata(folder / "README.md")
    write(model_name, shown, tags)
    data = _metadata(
        folder / "README.md",
        kept,
        base,
        shown,
        hasattr(model, "peft_config"),
        getattr(trainer, "_task", "text-generation"),
    )
    hyperparameters = [item for item in changed_settings(args) if item[0] not in named] + describe_adapter(model)
    card = render_card(
        data,
        results=results,
        model_name=model_name,
        model_id=repo_id or model_name,
        chat=bool(getattr(trainer.processing_class, "chat_template", None)),
        adapter=hasattr(model, "peft_config"),
        base=base.link(),
        method=method,
        training=[
            ("objective", objective),
            ("base model", base.row()),
            ("data", _data_row(shown, trainer.train_dataset, origin)),
            ("verifier", verifier),
            *([("trained for", f"{trainer.state.global_step} steps")] if trainer.state.global_step else []),
            ("hardware", describe_hardware(trainer.accelerator)),
            ("software", describe_software()),
        ],
        hyperparameters=hyperparameters,
        unit=getattr(trainer, "_unit", None),  # of a classifier
        reliability=reliability,
    )
    card.save(folder / "README.md")
    write_leaderboard_files(folder, results.leaderboards if results is not None else [])
    problems = card_problems(str(card))
    if problems:
        logger.warning("the model card needs a look before it is published: %s", "; ".join(problems))


def write_method_card(
    trainer: Any,
    method: str,
    *,
    objective: str | None = None,
    verifier: str | None = None,
    model_name: str | None = None,
    dataset_name: str | None = None,
    tags: str | Sequence[str] | None = None,
    results: Any = None,
    base_model: str | None = None,
) -> None:
    """Write the card of a method that one of TRL's own trainers has trained, such as R-Tuning by `SFTTrainer`.

    The card is that of our trainers: method and paper, base model, data, changed settings, machine, versions, results, limits.

    Args:
        trainer ([`~transformers.Trainer`] of TRL):
            After training; the card goes into its `output_dir`, where the model was saved.
        method (`str`):
            A key of [`~hf_factuality.hub.cards.methods.METHODS`]: `"rtuning"`, `"raft"`, `"correction_sft"`, ...
        objective, verifier (`str`, *optional*):
            In Markdown: what was learnt, and who labelled or chose the data; by default what the table says.
        model_name, dataset_name, tags (*optional*):
            As for TRL's `create_model_card`.
        results (*optional*):
            Files, as for the trainers' `card_results` (docs/cards.md).
        base_model (`str`, *optional*):
            Where training began, if the model was loaded from something in between, such as a round before.

    Raises:
        `ValueError`: no such method. [`HubError`]: the results are not of this model.
    """
    known = sorted(key for key, one in METHODS.items() if one.objective)
    if method not in known:
        raise ValueError(f"method={method!r} is unknown; choose one of {known}")
    row = METHODS[method]
    found = describe_method([method], row.base)
    tags = [*([tags] if isinstance(tags, str) else tags or ()), *found.tags, "hf_factuality"]
    write_trainer_card(
        trainer, trainer.create_model_card, model_name, dataset_name, tags, method=found,
        verifier=verifier or row.labelled, objective=objective or row.objective, results=results, base_model=base_model,
    )  # fmt: skip


def update_card(folder: str | Path, results: Any = None, repo_id: str | None = None) -> Path:
    """Bring the results of the card that a trainer of ours wrote up to date; the rest of the card, whose path is returned, stays.

    `results` are files (a path, a list of paths, or `{"before": path, "after": path}`), as for the trainers' `card_results`;
    `None`: the files `results*.json` in the folder. `repo_id` is where the folder goes to, for the links and the snippet.

    Raises:
        [`HubError`]: there is no such card, it cannot be read or written, or the results are not of this model.
    """
    from huggingface_hub import ModelCard

    path = Path(folder) / "README.md"
    try:
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise HubError(f"{path} cannot be read: {error}") from error
    if not _SECTION.search(text):
        raise HubError(f"{path} is no card with a part '## Results'; a trainer's create_model_card writes one")
    try:
        card = ModelCard(text)
    except Exception as error:  # noqa: BLE001 - of YAML, and of whatever huggingface_hub makes of it
        raise HubError(f"the header of {path} cannot be read: {' '.join(str(error).split()):.300}") from error
    title = re.search(r"(?m)^# (.+)$", card.text)
    name = unescaped(title[1]) if title else one_line(Path(folder).resolve().name)
    origin = _BASE.search(text)
    base = ModelIdentity(frozenset(filter(None, (origin[1], origin[3]))), origin[2]) if origin else ModelIdentity()
    found = card_results(results, Path(folder), _this(Path(folder), name, repo_id), base, repo_id)
    _set_results(card.data, name, found)
    body = _SECTION.sub(lambda _: f"## Results\n\n{results_text(found)}\n\n", card.text)
    if repo_id is not None:
        body = _SNIPPET.sub(lambda found: f"{found[1]}{_quoted(repo_id)})", body)
    card.text = body
    new = str(card)
    if new != text:
        try:
            write_atomically(path, new.encode("utf-8"))  # a link is replaced, what it leads to stays
        except OSError as error:
            raise HubError(f"{path} cannot be written: {error}") from error
    write_leaderboard_files(Path(folder), found.leaderboards if found is not None else [])
    return path


def is_our_card(text: str) -> bool:
    """Whether a trainer of ours wrote a card, so that its results can be brought up to date."""
    header = re.match(r"---\n(.*?)\n---\n", text, re.DOTALL)
    return header is not None and "hf_factuality" in header[1] and _SECTION.search(text) is not None


def _this(folder: Path, model_name: str, repo_id: str | None) -> ModelIdentity:
    names = {folder.resolve().name, model_name, repo_id, (repo_id or "").rpartition("/")[2]}
    return ModelIdentity(frozenset(filter(None, names)), fingerprint=folder_fingerprint(folder))


@dataclass(frozen=True)
class _Base:
    """The model that training began with: its repository or the last name of its folder, `None` if nobody knows."""

    name: str | None
    on_the_hub: bool
    identity: ModelIdentity

    def link(self) -> str:
        if self.name is None:
            return "A model of unknown origin"
        if self.on_the_hub:
            return f"[{self.name}](https://huggingface.co/{self.name})"
        return f"{code(self.name)}, a model that is not on the Hub"

    def row(self) -> str:
        if self.name is None:
            return "not recorded"
        revision = self.identity.revision
        unknown = " (revision not recorded)" if self.on_the_hub else ""
        return self.link() + (f" at `{revision}`" if revision else unknown)


def _base_of(model: Any, given: str | None = None) -> _Base:
    loaded = getattr(model.config, "name_or_path", None)
    name = given or loaded
    if not name:
        return _Base(None, False, ModelIdentity())
    place = Path(name)
    if os.path.exists(name) or not REPO_ID.fullmatch(name):
        shown = plain_name(str(place.resolve()))
        return _Base(shown, False, ModelIdentity(frozenset({shown}), fingerprint=folder_fingerprint(place)))
    commit = getattr(model.config, "_commit_hash", None) if name == loaded else None
    return _Base(name, True, ModelIdentity(frozenset({name}), commit))


def _data_row(name: str | None, dataset: Any, origin: tuple[str, str] | None) -> str:
    shown = own_words(dataset) or "not recorded"
    if name is not None:
        shown = escaped(plain_name(name))
        if REPO_ID.fullmatch(name):
            shown = f"[{name}](https://huggingface.co/datasets/{name})"
        if origin is not None and origin[0] == name:
            shown += f" at `{origin[1]}`"
    return shown + (f", {len(dataset)} rows" if hasattr(dataset, "__len__") else "")


def _own_metadata(path: Path) -> dict[str, Any]:
    """What its user wrote into the header of an earlier card."""
    from huggingface_hub import ModelCard

    if not path.is_file():
        return {}
    try:
        data = ModelCard.load(path, ignore_metadata_errors=True).data.to_dict()
    except Exception as error:  # noqa: BLE001 - whatever stands there, the run that wants to save goes on
        what = type(error).__name__
        logger.warning("%s cannot be read (%s); its licence and language are not kept", path.name, what)
        return {}
    return {name: data[name] for name in _KEPT if name in data}


def _metadata(path: Path, kept: Mapping[str, Any], base: _Base, dataset: str | None, adapter: bool, task: str) -> Any:
    """The header: the parent's tags, and nothing that is no id of the Hub."""
    from huggingface_hub import ModelCard, ModelCardData

    tags = [tag for tag in ModelCard.load(path).data.tags or [] if "://" not in tag]
    known = {}
    if base.on_the_hub:
        known = {"base_model": base.name, "base_model_relation": "adapter" if adapter else "finetune"}
    return ModelCardData(
        **kept,
        library_name="peft" if adapter else "transformers",
        pipeline_tag=task,
        datasets=[dataset] if dataset is not None and REPO_ID.fullmatch(dataset) and len(dataset) <= 96 else None,
        tags=sorted(tags),
        **known,
    )


def _quoted(text: str) -> str:
    """A string of Python."""
    return json.dumps(one_line(text), ensure_ascii=False)

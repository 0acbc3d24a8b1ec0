"""Checks of a model card before it is published: what the Hub's documentation asks of the header, and what must not be told.

The Hub's own validator is asked as well where it can be reached.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Any

from hf_factuality.errors import HubError
from hf_factuality.hub.paths import find_paths
from hf_factuality.io.secrets import find_secrets, holds_token


LICENSES = frozenset(
    """
    afl-3.0 agpl-3.0 apache-2.0 apple-amlr apple-ascl artistic-2.0 bigcode-openrail-m bigscience-bloom-rail-1.0
    bigscience-openrail-m bsd bsd-2-clause bsd-3-clause bsd-3-clause-clear bsl-1.0 c-uda cc cc-by-2.0 cc-by-2.5
    cc-by-3.0 cc-by-4.0 cc-by-nc-2.0 cc-by-nc-3.0 cc-by-nc-4.0 cc-by-nc-nd-3.0 cc-by-nc-nd-4.0 cc-by-nc-sa-2.0
    cc-by-nc-sa-3.0 cc-by-nc-sa-4.0 cc-by-nd-4.0 cc-by-sa-3.0 cc-by-sa-4.0 cc0-1.0 cdla-permissive-1.0
    cdla-permissive-2.0 cdla-sharing-1.0 creativeml-openrail-m deepfloyd-if-license ecl-2.0 epl-1.0 epl-2.0
    etalab-2.0 eupl-1.1 eupl-1.2 fair-noncommercial-research-license gemma gfdl gpl gpl-2.0 gpl-3.0 h-research
    intel-research isc lgpl lgpl-2.1 lgpl-3.0 lgpl-lr llama2 llama3 llama3.1 llama3.2 llama3.3 llama4 lppl-1.3c mit
    mpl-2.0 ms-pl ncsa odbl odc-by ofl-1.1 open-mdw openrail openrail++ osl-3.0 other pddl postgresql unknown
    unlicense wtfpl zlib
    """.split()
)
# Texts that each entry of `model-index` must have, and the list that it holds: models, results, metrics.
_INDEX = ((("name",), "results"), (("task.type", "dataset.type", "dataset.name"), "metrics"), (("type",), None))
_RELATIONS = {"finetune", "adapter", "quantized", "merge"}
_REPO_ID = re.compile(
    r"(?!.*(?:--|\.\.)|.{97})(?:[A-Za-z0-9](?:[\w.-]*[A-Za-z0-9_])?/)?[A-Za-z0-9_](?:[\w.-]*[A-Za-z0-9_])?"
)
_TEXTS = {
    "base_model": (_REPO_ID, "no id of a repository"),
    "datasets": (_REPO_ID, "no id of a repository"),
    "language": (re.compile(r"[a-z]{2,3}(-[A-Za-z0-9]+)*|multilingual|code"), "no ISO 639 code"),
    "tags": (re.compile(r".*\S.*"), "no text"),
}
"""Entries of one or several texts -> their form, and what others are."""
_LOGIN = re.compile(r"://[^/\s@]+@")
_SERVER = re.compile(
    r"\b(?:localhost|\d{1,3}(?:\.\d{1,3}){3})(?::\d+|/|\b)|https?://[\w-]+(?::\d+|/)|https?://[\w.-]+:\d+"
)


def validate_card(path: str | Path, ask_hub: bool | None = None) -> bool:
    """Check a model card (`README.md`, or the folder that holds it): by the rules kept here, and by the Hub's own.

    `ask_hub=None` asks the Hub unless `HF_HUB_OFFLINE` is set, and without an error if it does not answer. Returns whether
    the Hub was asked. Raises [`HubError`] if the card is missing, with each problem that was found, or for no answer of the
    Hub with `ask_hub=True`.
    """
    path = Path(path)
    path = path / "README.md" if path.is_dir() else path
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise HubError(f"there is no model card to read at {path}: {error}") from error
    problems = card_problems(text)
    if problems:
        raise HubError(f"the model card {path.name} cannot be published: {'; '.join(problems)}")
    from huggingface_hub import ModelCard, constants

    if ask_hub is False or (ask_hub is None and constants.HF_HUB_OFFLINE):
        return False
    try:
        ModelCard(text).validate(repo_type="model")
    except ValueError as error:
        raise HubError(f"the Hub refuses the model card {path.name}: {str(error):.500}") from error
    except Exception as error:  # noqa: BLE001 - no network, or an error of the server: whatever the client raises
        if ask_hub:
            raise HubError(f"the Hub could not be asked about {path.name}: {type(error).__name__}") from error
        return False
    return True


def card_problems(text: str, allowed: Collection[int] = ()) -> list[str]:
    """What keeps a card (the whole text) from being published, one sentence each; paths in lines `allowed` do not."""
    import yaml

    found = re.match(r"---\r?\n(.*?)\r?\n---\r?\n", text, re.DOTALL)
    problems = []
    try:
        for what in _told(text, allowed):
            problems.append(f"it tells {what}")
    except HubError as error:  # a training that publishes nothing does not end for it
        problems.append(str(error))
    if not found:
        return [*problems, "it does not begin with a header between lines of ---"]
    try:
        data = _load_strictly(found[1])
        if not isinstance(data, Mapping):
            return [*problems, "its header holds no names"]
        problems += _header_problems(data)
        if not problems and "model-index" in data:
            from huggingface_hub import ModelCard

            ModelCard(text)
    except (yaml.YAMLError, ValueError, TypeError, LookupError, AttributeError, RecursionError) as error:
        how = "is no YAML" if isinstance(error, yaml.YAMLError) else f"cannot be read ({type(error).__name__})"
        problems.append(f"its header {how}: {' '.join(str(error).split())[:200]}")
    return problems


def tells(text: str) -> bool:
    """Whether a text tells a path, a secret, a login or the address of a server, for which a card is refused."""
    try:
        return any(True for _ in _told(text))
    except HubError:  # without Kingfisher nothing is published, but cards are written beside checkpoints
        return holds_token(text)


def _told(text: str, allowed: Collection[int] = ()) -> Iterator[str]:
    for line, path in find_paths(text, any_machine=True):
        if line not in allowed:
            yield f"an absolute path ({path[:60]!r}, line {line})"
            break
    if _LOGIN.search(text):
        yield "the login of an address"
    if server := _SERVER.search(text):
        yield f"the address of a server ({server[0][:60]!r})"
    for secret in find_secrets(text)[:1]:
        yield f"what looks like a secret ({secret.kind.replace('-', ' ')})"  # which is not repeated


def _load_strictly(text: str) -> Any:
    """YAML in which no key stands twice: the Hub refuses these, PyYAML takes the last."""
    import yaml

    def mapping(loader: Any, node: Any) -> dict[Any, Any]:
        pairs = [[loader.construct_object(part, deep=True) for part in pair] for pair in node.value]
        keys = [key for key, _ in pairs]
        if twice := [key for key in keys if keys.count(key) > 1]:
            raise yaml.YAMLError(f"the key {twice[0]!r} stands twice")
        return dict(pairs)

    loader = type("Loader", (yaml.SafeLoader,), {})
    loader.add_constructor(yaml.resolver.BaseResolver.DEFAULT_MAPPING_TAG, mapping)
    return yaml.load(text, loader)  # noqa: S506 - a SafeLoader


def _header_problems(data: Mapping[str, Any]) -> Iterator[str]:
    def texts(name: str) -> list[Any]:
        value = data.get(name)
        return [] if value is None else value if isinstance(value, list) else [value]

    for name, (rule, what) in _TEXTS.items():
        for value in texts(name):
            if not isinstance(value, str) or not rule.fullmatch(value):
                yield f"{name} holds {value!r}, which is {what}"
    for value in texts("license"):
        if value not in LICENSES:
            yield f"license {value!r} is not in the Hub's list; write 'other' and a license_name"
    if "other" in texts("license") and not data.get("license_name"):
        yield "license 'other' needs a license_name"
    if data.get("base_model_relation", "finetune") not in _RELATIONS:
        yield f"base_model_relation {data['base_model_relation']!r} must be one of {sorted(_RELATIONS)}"
    if not isinstance(data.get("tags", []), list):
        yield "tags must be a list"
    for name in ("library_name", "pipeline_tag"):
        if not isinstance(data.get(name, ""), str):
            yield f"{name} must be text, got {data[name]!r}"
    if "model-index" in data:
        yield from _index_problems(data["model-index"], "", "model-index", *_INDEX)


def _index_problems(entries: Any, place: str, name: str, *levels: tuple[tuple[str, ...], str | None]) -> Iterator[str]:
    """Of a list `name` of `model-index`: what its entries lack, and those of the lists in them."""
    if not isinstance(entries, list) or not entries:
        yield f"{place} needs a list of {name}" if place else f"{name} must be a list with a model in it"
        return
    (needed, inner), *rest = levels
    for number, entry in enumerate(entries):
        here = f"{place}.{name}[{number}]".lstrip(".")
        for path in (*needed, *(["source.url"] if _at(entry, "source") is not None else ())):
            value = _at(entry, path)
            if not isinstance(value, str) or not value.strip():
                yield f"{here} needs {path if '.' in path else f'a {path}'}"
        if inner is not None:
            yield from _index_problems(_at(entry, inner), here, inner, *rest)
        elif isinstance(value := _at(entry, "value"), bool) or not isinstance(value, (int, float)):
            yield f"{here} needs a number as its value, got {value!r}"


def _at(entry: Any, path: str) -> Any:
    for name in path.split("."):
        entry = entry.get(name) if isinstance(entry, Mapping) else None
    return entry

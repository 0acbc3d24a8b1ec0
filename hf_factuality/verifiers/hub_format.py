"""The file of a pipeline: how its parts are described in plain values, and how they are made from them.

Used by [`~hf_factuality.verifiers.pipeline`]. A class is named by a short list of names; one outside it, the code of a model's
repository and the address of a server need the caller's consent.
"""

from __future__ import annotations

import difflib
import inspect
import json
import math
import os
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from enum import Enum
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import urlsplit

from hf_factuality import __version__
from hf_factuality._lazy import load_name, read_stub
from hf_factuality.errors import FactualityError, HubError
from hf_factuality.io.secrets import SECRET_SETTING, holds_token
from hf_factuality.verifiers.prompts import Prompt


BASE_URL_VARIABLE = "HF_FACTUALITY_BASE_URL"
"""Environment variable with the address of the server, where only a name can be given."""
CONFIG_NAME = "verifier_config.json"
MODEL_TYPE = "hf_factuality_verifier"
"""In `config.json`, by which `transformers.pipeline` tells the folder from one with a model."""
FORMAT = "hf_factuality/verifier-pipeline"
VERSION = 1
STAGES = ("extractor", "retriever", "judge")
_MAX_BYTES = 16 * 1024**2
# Names in a file, and the module of each: the public judges, extractors and retrievers, and what they are made of.
PARTS = {
    name: module
    for name, module in read_stub(os.path.join(os.path.dirname(__file__), "__init__.py")).items()
    if name.endswith(("Judge", "Extractor", "Retriever"))
    or name in ("ChatClient", "KnowledgeBase", "LocalChat", "RowEvidence")
}
_MODEL_FIELDS = ("model", "foundation", "knowledge", "index", "base")
# Keys of a mapping that is a part; and of one that is a prompt or a folder of prompts.
_PART = {"class", "settings"}
_PROMPTS = ({"file"}, {"folder"})
_FILE_NAME = re.compile(r"(?!\.)[\w.-]+")


# -- writing ----------------------------------------------------------------------------------------------------------


@dataclass
class Written:
    """What a pipeline becomes: its settings, and files of prompts by their place."""

    addresses: bool = True  # whether those of servers are written
    config: dict[str, Any] = field(default_factory=dict)
    prompts: dict[str, str] = field(default_factory=dict)
    local: list[str] = field(default_factory=list)  # models and knowledge that nobody else has
    keys: list[str] = field(default_factory=list)  # of clients, which must stand nowhere

    def add(self, stages: Mapping[str, Any], requires_evidence: bool) -> Written:
        """Describe a pipeline of these stages; raises [`HubError`] where that cannot be, or would tell a key."""
        self.config |= {"format": FORMAT, "version": VERSION, "hf_factuality": __version__}
        self.config["requires_evidence"] = requires_evidence
        self.config |= {stage: _encode_part(part, stage, self) for stage, part in stages.items()}
        text = json.dumps(self.config, ensure_ascii=False) + "".join(self.prompts.values())
        # A shorter key is a dummy for a server that asks for none ("EMPTY"), and may be any word.
        if any(len(key) >= 8 and key in text for key in self.keys):
            raise HubError("a client's key stands in a setting or prompt; take it out")
        return self

    def write(self, folder: Path, marker: bool = True) -> Path:
        """Write the files; others that the folder holds stay. Without `marker` the `config.json` of a model does, too."""
        marked = {"config.json": json.dumps({"model_type": MODEL_TYPE})} if marker else {}
        settings = json.dumps(self.config, ensure_ascii=False, indent=2, allow_nan=False)
        for name, text in {**self.prompts, CONFIG_NAME: settings, **marked}.items():
            path = folder / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text + "\n", encoding="utf-8", newline="\n")
        return folder


def refuse_models(path: Path, place: str) -> None:
    """Refuse to write over the `config.json` of something else; `place` is what messages call its folder."""
    if not path.exists():
        return
    try:
        kind = json.loads(path.read_text(encoding="utf-8")).get("model_type")
    except (ValueError, AttributeError):
        kind = None
    if kind != MODEL_TYPE:
        raise HubError(f"{place!r} holds the config.json of something else ({kind!r}); choose another place")


def _encode_part(part: Any, place: str, written: Written) -> dict[str, Any]:
    kind = type(part)
    is_ours = kind.__module__ == PARTS.get(kind.__qualname__)
    name = kind.__qualname__ if is_ours else f"{kind.__module__}:{kind.__qualname__}"
    if name == "ChatClient":
        arguments = _client_arguments(part, written)
    elif callable(getattr(part, "config", None)):
        try:
            arguments = part.config()
        except ValueError as error:
            raise HubError(f"the {place.replace('/', ' of the ')} cannot be saved: {error}") from None
    elif is_ours:  # ours keep their arguments under the same names
        arguments = {argument: getattr(part, argument) for argument in inspect.signature(kind).parameters}
    else:
        hint = "give it a method `config()` that returns its arguments"
        raise HubError(f"{kind.__qualname__} ({place}) cannot be described: {hint}")
    if name != "ChatClient":
        written.local += map(repr, _local_models(arguments))
    return {"class": name, "settings": {k: _encode(v, k, f"{place}/{k}", written) for k, v in arguments.items()}}


def _local_models(arguments: Mapping[str, Any]) -> list[str]:
    """Models and knowledge that stand in a folder of this machine."""
    names = [arguments.get(field) for field in _MODEL_FIELDS]
    return [name for name in names if isinstance(name, str) and _is_local(name)]


def _is_local(name: str) -> bool:
    return os.path.isabs(name) or name.startswith((".", "~")) or os.path.exists(name) or name.count("/") > 1


def _encode(value: Any, name: str, place: str, written: Written) -> Any:
    value = value.value if isinstance(value, Enum) else value
    if value is not None and (SECRET_SETTING.search(name) or (isinstance(value, str) and holds_token(value))):
        raise HubError(f"the setting {place!r} looks like a key; it is not written to a file")
    if value is None or isinstance(value, (bool, int, str)) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, Prompt):
        return {"file": _add_file(place, value.text, written)}
    if isinstance(value, (list, tuple)):
        return [_encode(item, name, f"{place}/{number}", written) for number, item in enumerate(value)]
    if isinstance(value, Mapping):
        if value and all(isinstance(text, Prompt) for text in value.values()):  # a judge with several prompts
            for key, text in value.items():
                _add_file(f"{place}/{text.name.removesuffix('.txt') or key}", text.text, written)
            return {"folder": f"prompts/{place}"}
        if not all(isinstance(key, str) for key in value) or set(value) in (_PART, *_PROMPTS):
            raise HubError(f"the setting {place!r} must have text keys, and not those of a file or part")
        return {key: _encode(item, key, f"{place}/{key}", written) for key, item in value.items()}
    if hasattr(value, "config") or type(value).__name__ in PARTS:
        return _encode_part(value, place, written)
    raise HubError(f"the setting {place!r} is a {type(value).__name__}, which is no plain value")


def _add_file(place: str, text: str, written: Written) -> str:
    if not all(map(_FILE_NAME.fullmatch, place.split("/"))):
        raise HubError(f"a prompt cannot be kept under the name {place!r}")
    name = f"prompts/{place}.txt"
    written.prompts[name] = text
    return name


def _client_arguments(client: Any, written: Written) -> dict[str, Any]:
    """Arguments of a client but for its key, the name of its key and its cache."""
    if client._transport._key:
        written.keys.append(client._transport._key)
    known = {**client._settings, **vars(client)}
    known["retry"] = asdict(known["retry"])
    names = ("base_url", "model", "revision", "concurrency", "timeout", "retry", "max_prompt_chars", "extra_body")
    return {name: known[name] for name in names if written.addresses or name != "base_url"}


# -- reading ----------------------------------------------------------------------------------------------------------


@dataclass
class PipelineReader:
    """Makes the parts that a file describes; see [`~hf_factuality.verifiers.pipeline.load_pipeline`] for what it may."""

    folder: Path
    source: str
    local: bool
    address: str | None
    client: dict[str, Any]
    device: Any
    trust: bool
    token: str | bool | None = None
    clients: dict[str, Any] = field(default_factory=dict)

    def config(self) -> dict[str, Any]:
        """The file, checked as far as its outermost keys."""
        path, wanted = self.folder / CONFIG_NAME, {"format", "version", "hf_factuality", "requires_evidence", *STAGES}
        try:
            if path.stat().st_size > _MAX_BYTES:
                raise ValueError("it is larger than any pipeline's")
            config = json.loads(path.read_text(encoding="utf-8"))
        except OSError:
            raise HubError(f"{self.source!r} holds no {CONFIG_NAME}: it is no saved pipeline") from None
        except (ValueError, RecursionError) as error:
            raise self._error(CONFIG_NAME, f"is no JSON: {error}") from None
        if not isinstance(config, dict) or config.get("format") != FORMAT:
            raise self._error(CONFIG_NAME, f"does not say that it is {FORMAT!r}")
        version = config.get("version")
        if isinstance(version, bool) or not isinstance(version, int) or not 1 <= version <= VERSION:
            raise self._error(
                CONFIG_NAME, f"version {version!r} of the format; this package reads 1 to {VERSION}: update it"
            )
        if set(config) != wanted or not isinstance(config["requires_evidence"], bool):
            raise self._error(CONFIG_NAME, f"must have the keys {sorted(wanted)}, got {sorted(config)}")
        return config

    def part(self, data: Any, place: str) -> Any:
        if not (isinstance(data, dict) and set(data) == _PART and isinstance(data["settings"], dict)):
            raise self._error(place, "must have a class and its settings")
        name, known = data["class"], json.dumps(data, sort_keys=True)
        if known in self.clients:
            return self.clients[known]  # one client, one bound on concurrency
        cls = self._class(name, place)
        settings = {key: self.value(item, f"{place}/{key}") for key, item in data["settings"].items()}
        if settings.get("model") == ".":  # it lies beside the file
            settings["model"] = str(self.folder) if self.local else self.source
            settings |= {} if self.local else {"revision": self.folder.name}
        self._check(name, settings, place)
        for key, given in (("device", self.device), ("token", self.token if name in PARTS else None)):
            if given is not None and key in inspect.signature(cls).parameters:
                settings[key] = given
        try:
            made = cls(**(self._client(settings, place) if name == "ChatClient" else settings))
        except (TypeError, ValueError, FileNotFoundError) as error:
            if isinstance(error, FactualityError):
                raise
            hint = "; it may need a newer version" if isinstance(error, TypeError) else ""
            raise self._error(place, f"cannot make {name}: {error}{hint}") from error
        if name == "ChatClient":
            self.clients[known] = made
        return made

    def value(self, data: Any, place: str) -> Any:
        if isinstance(data, list):
            return [self.value(item, f"{place}/{number}") for number, item in enumerate(data)]
        if not isinstance(data, dict):
            return data
        if set(data) == _PART:
            return self.part(data, place)
        if set(data) in _PROMPTS:
            return self._path(next(iter(data.values())), "file" in data, place)
        return {key: self.value(item, f"{place}/{key}") for key, item in data.items()}

    def _error(self, place: str, what: str) -> HubError:
        return HubError(f"{place} of {self.source!r}: {what}")

    def _class(self, name: Any, place: str) -> Callable[..., Any]:
        if not isinstance(name, str) or (name not in PARTS and ":" not in name):
            close = difflib.get_close_matches(str(name), PARTS, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"known are {sorted(PARTS)}"
            raise self._error(place, f"unknown class {name!r}; {hint}")
        if name not in PARTS and not self.trust:
            raise self._error(
                place, f"{name!r} is a class outside this package, whose code would run: pass trust_remote_code=True"
            )
        try:
            of_ours = f"{PARTS[name]}:{name}" if name in PARTS else name
            return load_name(of_ours, "the class", lambda found: isinstance(found, type), "a class")
        except ValueError as error:
            raise self._error(place, str(error)) from None

    def _check(self, name: str, settings: dict[str, Any], place: str) -> None:
        """Refuse settings that lead to files of this machine, or run code that nobody has agreed to."""
        for key in ("prompt", "prompts"):
            if isinstance(settings.get(key), str):  # a name could lead anywhere
                raise self._error(f"{place}/{key}", f"must be a file of the pipeline, got {settings[key]!r}")
        if "token" in settings and name in PARTS:
            raise self._error(f"{place}/token", "is the caller's to say: pass token")
        if settings.get("trust_remote_code") and not self.trust:
            raise self._error(
                place, "its model runs code of its repository: pass trust_remote_code=True if you trust it"
            )
        paths = [] if self.local or name == "ChatClient" else _local_models(settings)
        if paths:
            raise self._error(place, f"refers to the path {paths[0]!r}, which is no repository")

    def _client(self, settings: dict[str, Any], place: str) -> dict[str, Any]:
        from hf_factuality.generation.transport import RetryPolicy

        for key in {"api_key", "api_key_env", "cache"} & set(settings):
            raise self._error(place, f"sets {key!r} of a client; that is the caller's to say")
        found = settings.pop("base_url", None)
        if self.address is not None:
            settings["base_url"] = self.address
        elif found is not None and self.local:
            settings |= {"base_url": found, "api_key_env": ""}  # no key for an address out of a file
        else:
            saved = f" (it was saved with {urlsplit(str(found)).hostname!r})" if found else ""
            raise self._error(
                place,
                f"asks a model on a server{saved}: pass base_url='http://localhost:8000/v1', or set {BASE_URL_VARIABLE}",
            )
        if isinstance(settings.get("retry"), dict):
            settings["retry"] = RetryPolicy(**settings["retry"])
        return {**settings, **self.client}

    def _path(self, name: Any, is_file: bool, place: str) -> Path:
        """Place of a prompt, inside the folder."""
        pure = PurePosixPath(name) if isinstance(name, str) else PurePosixPath("/")
        inside = pure.parts[:1] == ("prompts",) and ".." not in pure.parts and "\\" not in str(name)
        if not inside or (is_file and pure.suffix != ".txt"):
            raise self._error(place, f"got {name!r}; a prompt is a .txt file under prompts/")
        path = self.folder.joinpath(*pure.parts)
        # A snapshot of the Hub links to its store; a link out of a folder of files is followed by nobody.
        if self.local and not path.resolve().is_relative_to(self.folder.resolve()):
            raise self._error(place, f"{name!r} leads out of its folder")
        if not (path.is_file() if is_file else path.is_dir()):
            raise self._error(place, f"the folder lacks {name!r}")
        return path

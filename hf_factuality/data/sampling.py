"""Several responses to each prompt, by a model in process or on a server; the same seed gives the same responses."""

from __future__ import annotations

import copy
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from hf_factuality.errors import DataError
from hf_factuality.generation.base import ChatAnswer, ChatRequest
from hf_factuality.generation.given import RESPONSE_COLUMNS, as_answers, read_given
from hf_factuality.generation.local import LocalChat, load_causal
from hf_factuality.generation.sampling import SamplingConfig
from hf_factuality.generation.vllm import VLLMChat


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase


Messages = Sequence[Mapping[str, str]]


class Sampler(Protocol):
    """Samples responses."""

    def describe(self) -> dict[str, Any]:
        """Model and settings, plain values: what a run must keep the same to be continued."""

    def sample(self, prompts: Sequence[Messages], seed: int) -> list[list[ChatAnswer]]:
        """Per prompt, as many responses as the settings ask for; one that could not be had has an `error`."""


class ServedSampler:
    """Samples from a model on any OpenAI-compatible server.

    `top_k` and `min_p` are not part of that protocol; vLLM and others take them. Whether the same seed gives the same
    responses depends on the server; those in the client's cache stay.

    Args:
        client ([`~hf_factuality.generation.client.ChatClient`]):
            Server and model.
        config ([`SamplingConfig`], *optional*):
            Settings.
    """

    name = "served"

    def __init__(self, client: Any, config: SamplingConfig | None = None):
        self.client = client
        self.config = config or SamplingConfig()

    def describe(self) -> dict[str, Any]:
        """Model and settings, not the server's address; see [`Sampler`]."""
        own = {"sampler": self.name, "model": self.client.model, "revision": self.client.revision}
        return {**own, **self.config.describe()}

    def requests(self, prompts: Sequence[Messages], seed: int) -> list[ChatRequest]:
        """What is asked: per prompt `num_samples` requests, each with a seed of its own."""
        settings = self.config
        return [
            ChatRequest.of(prompt, settings, (seed + place * settings.num_samples + number) % 2**31)
            for place, prompt in enumerate(prompts)
            for number in range(settings.num_samples)
        ]

    def sample(self, prompts: Sequence[Messages], seed: int) -> list[list[ChatAnswer]]:
        """Per prompt, its responses; `ServerError` if the server is gone."""
        found = self.client.chat(self.requests(prompts, seed))
        size = self.config.num_samples
        return [found[first : first + size] for first in range(0, len(found), size)]


class TransformersSampler(ServedSampler):
    """Samples from a model in this process, see [`~hf_factuality.generation.LocalChat`]. A response depends on its prompt and
    seed, and not on what is sampled with it.

    Args:
        model (`PreTrainedModel` or `str`):
            The model, or a folder or name on the Hub.
        tokenizer (`PreTrainedTokenizerBase`, *optional*):
            Its tokenizer; that of the folder or repository by default.
        config ([`SamplingConfig`], *optional*):
            Settings.
        batch_size (`int`, *optional*, defaults to `32`):
            Responses generated at once.
        revision (`str`, *optional*):
            Revision of a name on the Hub.
        model_kwargs (`Mapping[str, Any]`, *optional*):
            Further arguments of `from_pretrained`, for example `{"device_map": "auto", "dtype": "bfloat16"}`.

    Raises:
        `DataError`: the tokenizer has no chat template.
    """

    name = "transformers"

    def __init__(
        self,
        model: PreTrainedModel | str | Path,
        tokenizer: PreTrainedTokenizerBase | None = None,
        config: SamplingConfig | None = None,
        batch_size: int = 32,
        revision: str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
    ):
        named = isinstance(model, (str, Path))
        name = model if named else model.name_or_path
        if named or tokenizer is None:
            kwargs = dict(model_kwargs or {}) if named else None
            loaded, tokenizer = load_causal(name, revision, tokenizer, kwargs)
            model = loaded if named else model
        if not tokenizer.chat_template:
            raise DataError(f"the tokenizer of {name!r} has no chat template; set it, or sample from a chat model")
        super().__init__(LocalChat(model, tokenizer, batch_size=batch_size), config)

    @property
    def model(self) -> PreTrainedModel:
        """The model."""
        return self.client.model

    @property
    def tokenizer(self) -> PreTrainedTokenizerBase:
        """Its tokenizer."""
        return self.client.tokenizer

    def describe(self) -> dict[str, Any]:
        """Model and settings; see [`Sampler`]."""
        commit = getattr(self.model.config, "_commit_hash", None)
        return {
            **self.identity(str(self.model.name_or_path), commit, self.client.batch_size),
            **self.config.describe(),
        }

    @staticmethod
    def identity(model: str, commit: str | None, batch_size: int = 32) -> dict[str, Any]:
        """What of [`TransformersSampler.describe`] is not settings."""
        name = Path(model).name if commit is None else model
        return {"sampler": "transformers", "model": name, "revision": commit, "batch_size": batch_size}


class VLLMSampler(ServedSampler):
    """Samples with vLLM in process.

    Args:
        model (`vllm.LLM` or `str`):
            The engine, or what to load into one.
        config, revision, model_kwargs:
            As of [`TransformersSampler`]; further arguments are those of `vllm.LLM`, as `{"tensor_parallel_size": 4}`.

    Raises:
        `ImportError`: vLLM is not installed.
    """

    name = "vllm"

    def __init__(
        self,
        model: Any,
        config: SamplingConfig | None = None,
        revision: str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
    ):
        super().__init__(VLLMChat(model, revision, **(model_kwargs or {})), config)


@dataclass
class WorkerSampler:
    """A sampler that each process which gets a copy makes for itself: `make(config)`; here there is none.

    Args:
        make (`Callable[[SamplingConfig], Sampler]`):
            Makes it.
        identity (`Mapping[str, Any]`):
            What its `describe` says beside the settings.
        config ([`SamplingConfig`]):
            Settings.
    """

    make: Callable[[SamplingConfig], Sampler]
    identity: Mapping[str, Any]
    config: SamplingConfig
    in_worker = True

    def __reduce__(self) -> tuple[Any, ...]:
        return self.make, (self.config,)

    def __copy__(self) -> WorkerSampler:
        return replace(self)

    def describe(self) -> dict[str, Any]:
        """Model and settings; see [`Sampler`]."""
        return {**self.identity, **self.config.describe()}

    def sample(self, prompts: Sequence[Messages], seed: int) -> list[list[ChatAnswer]]:
        """Not possible in this process."""
        raise TypeError("this sampler samples in workers only")


class GivenResponses:
    """Responses that exist already, such as another model's: Mask-DPO's off-policy samples.

    Args:
        responses (`Mapping[str, Sequence[str | ChatAnswer | None]]`):
            Id of a question to its responses; `None` for one that is missing.
        name (`str`, *optional*):
            Who wrote them.
        stop (`Sequence[str]`, *optional*):
            Texts that they are cut at.
    """

    def __init__(
        self,
        responses: Mapping[str, Sequence[str | ChatAnswer | None]],
        name: str | None = None,
        stop: Sequence[str] = (),
    ):
        self._responses = {
            str(key): [it if isinstance(it, ChatAnswer) else as_answers([it], {}, stop)[0] for it in found]
            for key, found in responses.items()
        }
        self._name = name

    @classmethod
    def from_file(cls, path: str | Path, name: str | None = None, stop: Sequence[str] = ()) -> GivenResponses:
        """Read a file of rows with `id` and `responses` (a list of texts), or the answers of
        `hf-factuality evaluate`; several rows of an id add up. `DataError`: names the row that is none. `OSError`: the file
        cannot be read."""
        found: dict[str, list[str | ChatAnswer | None]] = {}
        for place, row, texts in read_given(path, RESPONSE_COLUMNS):
            if texts is None or row.get("id") is None:
                raise DataError(f"{place}: needs 'id' and 'responses' (a list of texts), got {row!r:.100}")
            found.setdefault(str(row["id"]), []).extend(as_answers(texts, row, stop))
        return cls(found, name)

    def check(self, ids: Sequence[str]) -> None:
        """`DataError` if a question has no responses."""
        missing = [key for key in ids if key not in self._responses]
        if missing:
            raise DataError(
                f"{len(missing)} of {len(ids)} questions have no responses, the first of them {missing[0]!r}; give both the "
                "same ids (row numbers from 0 where there is no column 'id')"
            )

    def describe(self) -> dict[str, Any]:
        """Who wrote them, and a digest of the texts; see [`Sampler`]."""
        said = {key: [None if it.error else it.text for it in found] for key, found in self._responses.items()}
        texts = json.dumps(sorted(said.items())).encode()
        return {"sampler": "given", "model": self._name, "responses": hashlib.sha256(texts).hexdigest()[:16]}

    def sample(self, prompts: Sequence[Messages], seed: int) -> list[list[ChatAnswer]]:
        """Not possible: they belong to ids, see [`GivenResponses.responses_to`]."""
        raise TypeError("given responses belong to ids of questions, not to prompts; call responses_to")

    def responses_to(self, ids: Sequence[str]) -> list[list[ChatAnswer]]:
        """Per question its responses."""
        return [self._responses[key] for key in ids]


def resampled(sampler: Sampler, num_samples: int) -> Sampler:
    """The same sampler with another number of samples, for what is asked about its responses."""
    if isinstance(sampler, GivenResponses):
        raise TypeError("responses that exist already cannot be asked about; name the model that is to be sampled")
    other = copy.copy(sampler)
    other.config = replace(sampler.config, num_samples=num_samples)
    return other

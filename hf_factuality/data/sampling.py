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
from hf_factuality.generation.base import ChatRequest, cut
from hf_factuality.generation.causal import CausalModel, render
from hf_factuality.generation.given import RESPONSE_COLUMNS, cut_answers, given_answers, is_header
from hf_factuality.generation.sampling import SamplingConfig
from hf_factuality.generation.vllm import VLLMChat
from hf_factuality.io.rows import read_rows
from hf_factuality.io.upload import naming_model


if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from hf_factuality.generation.client import ChatClient


Messages = Sequence[Mapping[str, str]]


@dataclass(frozen=True)
class Response:
    """One sampled response, without special tokens; `finished` if the model ended it, rather than the limit of tokens."""

    text: str
    finished: bool = True


class Sampler(Protocol):
    """Samples responses."""

    def describe(self) -> dict[str, Any]:
        """Model and settings, plain values: what a run must keep the same to be continued."""

    def sample(self, prompts: Sequence[Messages], seed: int) -> list[list[Response | None]]:
        """Per prompt, as many responses as the settings ask for; `None` for one that could not be had."""


class TransformersSampler(CausalModel):
    """Samples with `generate` of a model in process.

    The responses depend on which prompts are sampled together, so that a run which is to be repeated must group them alike.

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

    def __init__(
        self,
        model: PreTrainedModel | str | Path,
        tokenizer: PreTrainedTokenizerBase | None = None,
        config: SamplingConfig | None = None,
        batch_size: int = 32,
        revision: str | None = None,
        model_kwargs: Mapping[str, Any] | None = None,
    ):
        from transformers import AutoModelForCausalLM, AutoTokenizer

        self.config = config or SamplingConfig()
        self.batch_size = batch_size
        named = isinstance(model, (str, Path))
        name = model if named else model.name_or_path
        if tokenizer is None:
            with naming_model(name):
                tokenizer = AutoTokenizer.from_pretrained(name, revision=revision)
        if not tokenizer.chat_template:
            raise DataError(f"the tokenizer of {name!r} has no chat template; set it, or sample from a chat model")
        if named:
            model = AutoModelForCausalLM.from_pretrained(model, revision=revision, **(model_kwargs or {}))
        self._use(model, tokenizer)

    def describe(self) -> dict[str, Any]:
        """Model and settings; see [`Sampler`]."""
        commit = getattr(self.model.config, "_commit_hash", None)
        return {**self.identity(str(self.model.name_or_path), commit, self.batch_size), **self.config.describe()}

    @staticmethod
    def identity(model: str, commit: str | None, batch_size: int = 32) -> dict[str, Any]:
        """What of [`TransformersSampler.describe`] is not settings."""
        name = Path(model).name if commit is None else model
        return {"sampler": "transformers", "model": name, "revision": commit, "batch_size": batch_size}

    def sample(self, prompts: Sequence[Messages], seed: int) -> list[list[Response | None]]:
        """Per prompt, its responses. The global random state is left alone."""
        names = ("max_new_tokens", "temperature", "top_k", "top_p")
        settings = {name: getattr(self.config, name) for name in names}
        number, stop = self.config.num_samples, self.config.stop
        texts = [text for prompt in prompts for text in [render(self.tokenizer, prompt, True)] * number]
        if not settings["temperature"]:
            settings |= dict.fromkeys(("temperature", "top_k", "top_p"))  # greedy decoding reads none of them
        found = self.draw(texts, seed, do_sample=self.config.temperature > 0, **settings)
        responses = [Response(text, reason == "stop") for text, reason in self._texts(found, stop)]
        return _grouped(responses, number)


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

    def __init__(self, client: ChatClient, config: SamplingConfig | None = None):
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

    def sample(self, prompts: Sequence[Messages], seed: int) -> list[list[Response | None]]:
        """Per prompt, its responses; `ServerError` if the server is gone."""
        answers = self.client.chat(self.requests(prompts, seed))
        found = [None if a.error is not None else Response(a.text, a.complete) for a in answers]
        return _grouped(found, self.config.num_samples)


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

    def sample(self, prompts: Sequence[Messages], seed: int) -> list[list[Response | None]]:
        """Not possible in this process."""
        raise TypeError("this sampler samples in workers only")


class GivenResponses:
    """Responses that exist already, such as another model's: Mask-DPO's off-policy samples.

    Args:
        responses (`Mapping[str, Sequence[str | None]]`):
            Id of a question to its responses; `None` for one that is missing.
        name (`str`, *optional*):
            Who wrote them.
        stop (`Sequence[str]`, *optional*):
            Texts that they are cut at.
        unfinished (`Mapping[str, Sequence[bool]]`, *optional*):
            Id of a question to which of its responses ended at a limit of tokens.
    """

    def __init__(
        self,
        responses: Mapping[str, Sequence[str | None]],
        name: str | None = None,
        stop: Sequence[str] = (),
        unfinished: Mapping[str, Sequence[bool]] | None = None,
    ):
        self._responses = {str(key): [t and cut(t, stop)[0] for t in texts] for key, texts in responses.items()}
        self._unfinished = {
            str(key): [
                told and not (text and cut(text, stop)[1]) for told, text in zip(found, responses[key], strict=True)
            ]
            for key, found in (unfinished or {}).items()
        }
        self._name = name

    @classmethod
    def from_file(cls, path: str | Path, name: str | None = None, stop: Sequence[str] = ()) -> GivenResponses:
        """Read a file of rows with `id` and `responses` (a list of texts), or the answers of
        `hf-factuality evaluate`; several rows of an id add up. `DataError`: names the row that is none. `OSError`: the file
        cannot be read."""
        found: dict[str, list[str | None]] = {}
        unfinished: dict[str, list[bool]] = {}
        for number, row in read_rows(path):
            if isinstance(row, dict) and is_header(row):
                continue
            place = f"{path}, row {number}"
            texts = given_answers(row, RESPONSE_COLUMNS, place) if isinstance(row, dict) else None
            if texts is None or row.get("id") is None:
                raise DataError(f"{place}: needs 'id' and 'responses' (a list of texts), got {row!r:.100}")
            found.setdefault(str(row["id"]), []).extend(texts)
            unfinished.setdefault(str(row["id"]), []).extend(cut_answers(row) or [False] * len(texts))
        return cls(found, name, stop, unfinished)

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
        texts = json.dumps(sorted(self._responses.items())).encode()
        return {"sampler": "given", "model": self._name, "responses": hashlib.sha256(texts).hexdigest()[:16]}

    def sample(self, prompts: Sequence[Messages], seed: int) -> list[list[Response | None]]:
        """Not possible: they belong to ids, see [`GivenResponses.responses_to`]."""
        raise TypeError("given responses belong to ids of questions, not to prompts; call responses_to")

    def responses_to(self, ids: Sequence[str]) -> list[list[Response | None]]:
        """Per question its responses."""
        return [
            [
                None if text is None else Response(text, not unfinished)
                for text, unfinished in zip(found, self._unfinished.get(key) or [False] * len(found), strict=True)
            ]
            for key, found in ((key, self._responses[key]) for key in ids)
        ]


def resampled(sampler: Sampler, num_samples: int) -> Sampler:
    """The same sampler with another number of samples, for what is asked about its responses."""
    if isinstance(sampler, GivenResponses):
        raise TypeError("responses that exist already cannot be asked about; name the model that is to be sampled")
    other = copy.copy(sampler)
    other.config = replace(sampler.config, num_samples=num_samples)
    return other


def _grouped(found: list[Response | None], size: int) -> list[list[Response | None]]:
    return [found[first : first + size] for first in range(0, len(found), size)]

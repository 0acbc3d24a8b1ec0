"""`transformers.pipeline("fact-verification")`: any verifier as a pipeline of transformers. Importing this registers it.

Differs from other pipelines in what is called a model: a verifier need not be a network, so batches are lists of inputs
that reach the verifier in one call, and nothing is padded.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset
from transformers import AutoConfig, AutoModelForSequenceClassification, Pipeline, PreTrainedConfig, PreTrainedModel
from transformers.pipelines import PIPELINE_REGISTRY

from hf_factuality.errors import JudgingError
from hf_factuality.spans import LabeledSpan, Verification
from hf_factuality.verifiers.base import VerifierInput, evidence_passages
from hf_factuality.verifiers.hub_format import CONFIG_NAME, MODEL_TYPE
from hf_factuality.verifiers.judges.small.judge import SmallVerifier
from hf_factuality.verifiers.pipeline import VerifierPipeline
from hf_factuality.verifiers.registry import load_verifier, verifier_class


TASK = "fact-verification"
# Entries of the configurations of models that are trained here, each the name of the verifier that reads it.
_TRAINED = ("truthfulness", "probe", "process")
_FIELDS = ("text", "completion", "evidence", "question")
# What `pipeline` hands on to every pipeline and no verifier takes.
_OF_TRANSFORMERS = ("local_files_only", "torch_dtype", "dtype", "use_fast")
_WANTED = f"pass an NLI model, a folder or repository with a {CONFIG_NAME}, or a ready verifier"


class FactVerificationPipeline(Pipeline):
    """Labels the spans of completions, as `pipeline("fact-verification")`.

    An input is a dictionary with `text` (or `completion`), and `evidence` (a text or a list of texts) and `question` where
    there are any; other keys are handed on as columns of the row. The output is a list with a dictionary for each span:
    `label` (of [`~hf_factuality.Label`], `None` if it could not be judged), `score`, `start`, `end`, `text`, `claim`,
    `evidence`. A completion that could not be judged at all is one span without label.

    A list of inputs reaches the verifier in one call, or in calls of `batch_size`; its outputs are a list. A generator or
    dataset is read as far as needed, `batch_size` (by default 1) inputs at a time. `num_workers` has no effect.

    Args:
        model (`str`, `PreTrainedModel` or [`~hf_factuality.verifiers.Verifier`], *optional*):
            - A folder or repository with a `verifier_config.json`, as [`~hf_factuality.verifiers.save_pipeline`] writes it.
            - A natural language inference model (by `transformers.pipeline` also its id or folder): `NLIVerifier`.
            - A ready verifier.
            - `None`: `SmallVerifier`.
        tokenizer (`PreTrainedTokenizerBase`, *optional*), device (`int`, `str` or `torch.device`, *optional*):
            Of an inference model; a ready verifier stays where it is.
        batch_size (`int`, *optional*):
            Inputs in a call of the verifier.
        **kwargs:
            Arguments of `NLIVerifier` (`label_map`, `threshold`, ...), `SmallVerifier`, or, for a saved pipeline, of
            [`~hf_factuality.verifiers.load_pipeline`] (`base_url`, `client`).

    Raises:
        `ValueError`: the model is none of these, or `device` or arguments come with a ready verifier.

    Example:

        >>> import hf_factuality.verifiers.transformers_pipeline
        >>> from transformers import pipeline
        >>> verify = pipeline("fact-verification", model="me/my-verifier")
        >>> verify({"text": "Ada was born in Leeds.", "evidence": "Ada Hale was born in Leeds."})
    """

    _load_processor = _load_image_processor = _load_video_processor = _load_feature_extractor = False

    def __init__(
        self,
        model: Any = None,
        tokenizer: Any = None,
        task: str = TASK,
        device: int | str | torch.device | None = None,
        batch_size: int | None = None,
        num_workers: int | None = None,
        **kwargs: Any,
    ):
        arguments = {name: value for name, value in kwargs.items() if name not in _OF_TRANSFORMERS}
        if isinstance(model, PreTrainedModel):
            if "ForSequenceClassification" not in type(model).__name__:
                raise ValueError(f"{type(model).__name__} is no sequence classifier; {_WANTED}")
            kind = verifier_class("truthfulness" if getattr(model.config, "truthfulness", None) else "nli")
            self.verifier = kind(model, tokenizer, **arguments)
            super().__init__(model, tokenizer, task=task, device=device, batch_size=batch_size)
            return
        if model is None:
            model = _DEFAULT
        elif isinstance(model, (str, Path)):
            model = _Later(VerifierPipeline.from_pretrained, str(model))
        if isinstance(model, _Later):
            self.verifier = model(device=_device(device), **arguments)
        else:
            if device is not None or arguments:
                extra = sorted(arguments) + ["device"] * (device is not None)
                raise ValueError(f"{type(model).__name__} is already made; it takes no arguments, got {extra}")
            self.verifier = load_verifier(model)
        # The parent asks a model for its device, and nothing else.
        stand_in = SimpleNamespace(device=torch.device(_device(device) or "cpu"))
        super().__init__(stand_in, task=task, device=stand_in.device, batch_size=batch_size)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.verifier).__name__})"

    def save_pretrained(self, save_directory: str | os.PathLike, **kwargs: Any):
        """Write the verifier's settings; see [`~hf_factuality.verifiers.save_pipeline`]."""
        return self._saved().save_pretrained(os.fspath(save_directory), **kwargs)

    def push_to_hub(self, repo_id: str, **kwargs: Any):
        """Publish the verifier's settings; see [`~hf_factuality.verifiers.push_pipeline`]."""
        return self._saved().push_to_hub(repo_id, **kwargs)

    def _saved(self) -> VerifierPipeline:
        if not isinstance(self.verifier, VerifierPipeline):
            raise ValueError(f"a {type(self.verifier).__name__} cannot be saved; only a VerifierPipeline can")
        return self.verifier

    def __call__(self, inputs: Any, num_workers: int | None = None, batch_size: int | None = None, **kwargs: Any):
        """Spans of one input, or of each; `ValueError` for what is no input, `JudgingError` if a result is missing."""
        self._sanitize_parameters(**kwargs)
        batch_size = batch_size if batch_size is not None else self._batch_size
        if batch_size is not None and (isinstance(batch_size, bool) or batch_size < 1):
            raise ValueError(f"batch_size must be at least 1, got {batch_size!r}")
        if isinstance(inputs, (list, tuple)):
            return list(self._stream(inputs, batch_size or len(inputs)))
        if isinstance(inputs, Dataset) and not isinstance(inputs, IterableDataset):
            inputs = map(inputs.__getitem__, range(len(inputs)))
        if isinstance(inputs, (Mapping, str)) or not hasattr(inputs, "__iter__"):
            return next(self._stream([inputs], 1))
        return self._stream(inputs, batch_size or 1)

    def _stream(self, inputs: Iterable[Any], batch_size: int) -> Iterator[list[dict[str, Any]]]:
        """The parent's loader pads tensors; here a batch is a list."""
        rows = iter(inputs)
        while batch := [self.preprocess(item) for item in islice(rows, batch_size)]:
            yield from map(self.postprocess, zip(batch, self.forward(batch), strict=True))

    def _sanitize_parameters(self, **kwargs: Any):
        if kwargs:
            raise ValueError(f"unknown argument {min(kwargs)!r}; what is checked goes into the inputs: {_FIELDS}")
        return {}, {}, {}

    def preprocess(self, input_: Any) -> VerifierInput:
        """An input as the verifier takes it; raises `ValueError` if it is none."""
        if not isinstance(input_, Mapping):
            shape = "{'text': ..., 'evidence': [...]}"
            raise ValueError(f"an input is a dictionary such as {shape}, got {type(input_).__name__}")
        for key in input_:
            close = difflib.get_close_matches(str(key).casefold(), _FIELDS, n=1, cutoff=0.9)
            if close and key not in _FIELDS:
                raise ValueError(f"the input has the key {key!r}; did you mean {close[0]!r}?")
        given = [name for name in _FIELDS[:2] if name in input_]
        if len(given) != 1:
            raise ValueError(f"an input has either 'text' or 'completion', got the keys {sorted(map(str, input_))}")
        text, question = input_[given[0]], input_.get("question")
        if not isinstance(text, str):
            raise ValueError(f"{given[0]!r} must be a text, got {type(text).__name__}")
        if question is not None and not isinstance(question, str):
            raise ValueError(f"'question' must be a text or None, got {type(question).__name__}")
        evidence = evidence_passages(input_.get("evidence"))
        if evidence is None:
            raise ValueError(f"'evidence' must be a text or a list of texts, got {input_['evidence']!r:.80}")
        row = {key: value for key, value in input_.items() if key not in _FIELDS}
        return VerifierInput(text, question, evidence, row)

    def _forward(self, items: list[VerifierInput]) -> list[Verification]:
        found = self.verifier.verify(items)
        if len(found) != len(items):
            raise JudgingError(f"the verifier returned {len(found)} results for {len(items)} inputs")
        return [verification.validate(item.completion) for item, verification in zip(items, found, strict=True)]

    def postprocess(self, result: tuple[VerifierInput, Verification]) -> list[dict[str, Any]]:
        """The spans of one completion as dictionaries of plain values."""
        item, verification = result
        text = item.completion
        spans = verification.spans if verification.error is None else [LabeledSpan(0, len(text), None)]
        return [
            {
                "label": None if span.label is None else span.label.value,
                "score": span.score,
                "start": span.start,
                "end": span.end,
                "text": span.text(text),
                "claim": span.claim,
                "evidence": span.evidence,
            }
            for span in spans
        ]


def _device(device: int | str | torch.device | None) -> str | None:
    """A device as transformers numbers them; `None`: wherever the judge likes."""
    if device is None or isinstance(device, (str, torch.device)):
        return None if device is None else str(device)
    if device < 0:
        return "cpu"
    accelerator = torch.accelerator.current_accelerator() if torch.accelerator.is_available() else None
    return "cpu" if accelerator is None else f"{accelerator.type}:{device}"


# -- finding the verifier ---------------------------------------------------------------------------------------------


class _Later(partial):
    """Makes a verifier, or says why there is none, once the device is known: transformers buries errors of loading."""


class _Default(_Later):
    """The default model. A path, so that no repository of its name is looked for."""

    def __fspath__(self) -> str:
        return os.path.dirname(__file__)

    def __str__(self) -> str:
        return "the small verifier of the package"


_DEFAULT = _Default(lambda device, **arguments: SmallVerifier(**arguments))


def _refuse(reason: str, **arguments: Any) -> None:
    raise ValueError(reason)


class _SavedConfig(PreTrainedConfig):
    """The `config.json` of a saved pipeline: its type, and nothing else."""

    model_type = MODEL_TYPE


class _Model:
    """What `transformers.pipeline` loads a model by."""

    @staticmethod
    def from_pretrained(name: str, **kwargs: Any) -> _Later | PreTrainedModel:
        own = ("revision", "token", "local_files_only", "trust_remote_code")
        config = AutoConfig.from_pretrained(name, **{key: kwargs[key] for key in own if key in kwargs})
        asked = kwargs.get("revision")  # resolved to a commit, which of an adapter is one of its base
        known = {"revision": getattr(asked, "initial", asked), "token": kwargs.get("token")}
        if isinstance(config, _SavedConfig):
            trust = bool(kwargs.get("trust_remote_code"))
            return _Later(VerifierPipeline.from_pretrained, name, **known, trust_remote_code=trust)
        for key in _TRAINED:
            if getattr(config, key, None):  # of a whole model, or beside an adapter
                return _Later(verifier_class(key), name, **known)
        # A language model would be loaded with a classifier of random weights.
        found = getattr(config, "architectures", None)
        if not any("ForSequenceClassification" in architecture for architecture in found or ()):
            return _Later(_refuse, f"{name!r} holds {found}; {_WANTED}")
        return AutoModelForSequenceClassification.from_pretrained(name, **kwargs)


AutoConfig.register(MODEL_TYPE, _SavedConfig, exist_ok=True)
PIPELINE_REGISTRY.register_pipeline(
    TASK, FactVerificationPipeline, pt_model=_Model, default={"model": (_DEFAULT, None)}, type="text"
)

"""Verifiers by name, for configuration files and the command line."""

from __future__ import annotations

import difflib
import inspect
import logging
import os
from collections.abc import Callable, Mapping
from typing import Any

from hf_factuality._lazy import load_name, read_stub
from hf_factuality.verifiers.base import Verifier, require_method
from hf_factuality.verifiers.best import PUBLISHED_WEIGHTS, best_verifier
from hf_factuality.verifiers.hub_format import BASE_URL_VARIABLE
from hf_factuality.verifiers.pipeline import VerifierPipeline, load_pipeline


logger = logging.getLogger(__name__)

# Name -> module and class: "nli" is the public `NLIVerifier`. They are imported on use, as "nli" needs torch and
# transformers. `SelfVerifier` has no name: its model is an object.
_BUILT_IN = {
    name.removesuffix("Verifier").lower(): f"{module}:{name}"
    for name, module in sorted(read_stub(os.path.join(os.path.dirname(__file__), "__init__.py")).items())
    if name.endswith("Verifier") and name not in ("Verifier", "SelfVerifier")
}
_BUILT_IN["best"] = f"{__name__}:load_best"
VERIFIER_NAMES = tuple(sorted(_BUILT_IN))
VERIFIER_HELP = (
    "'lexical' (words only, fast), 'small' (a small network in the package, no download), 'best' (the strongest published one that fits the memory), 'gold' (the evidence is the gold answers; or 'gold:SCORER'), 'citations' (cited passages, by the judge of another: 'citations:NAME'), 'factcg', 'minicheck', 'hhem', 'lettucedetect' or 'veriscorefast' (or with :MODEL), 'nli:MODEL', 'truthfulness:MODEL', 'probe:MODEL', 'process:MODEL', 'reward:MODEL' (a reward model), 'compare:MODEL' (of pairs), 'llm:MODEL' or 'anah:MODEL' on a server (whose address is "
    f"in {BASE_URL_VARIABLE}), 'pipeline:FOLDER_OR_REPO' or 'package.module:Class'"
)
TOKENS_HELP = "longest verdict of 'llm:MODEL', 'anah:MODEL' or 'compare:MODEL' (default 16; 32 for anah), thoughts included; longest answer of 'veriscorefast' (default 2048)"
"""For the help of commands."""


def served_arguments(base_url: str | None, tokens: int | None) -> dict[str, Any]:
    """Arguments of [`load_verifier`] for what the commands' flags `verifier_base_url` and `verifier_tokens` say."""
    given = {"base_url": base_url, "max_tokens": tokens}
    return {name: value for name, value in given.items() if value}


def load_verifier(name: str | Verifier, **kwargs: Any) -> Verifier:
    """Make a verifier from its name.

    Args:
        name (`str` or [`~hf_factuality.verifiers.Verifier`]):
            - `"lexical"`: words, numbers, negations and roles compared, no model.
            - `"small"`: these and a small network that ships with the package.
            - `"nli"` with `model=...`, or `"nli:MODEL_ID"`: a natural language inference model.
            - `"gold"`, or `"gold:SCORER"`: the whole answer against gold answers, no model.
            - `"factcg"`, `"minicheck"`, `"hhem"`, `"lettucedetect"` (exact spans) and `"veriscorefast"` (claims and verdicts in one
              pass), also with `:MODEL_ID`: models trained for this task.
            - `"best"`: the strongest of these that fits the memory at hand, see
              [`~hf_factuality.verifiers.best_verifier`].
            - `"pipeline:FOLDER_OR_REPO"`: a saved pipeline, from a folder or the Hub.
            - `"llm:MODEL"` with `base_url=...`, or the address in `HF_FACTUALITY_BASE_URL`: a model on an OpenAI-compatible
              server.
            - `"NAME"` or `"NAME:MODEL"` of any other verifier of this package, such as `"anah:MODEL"` of `ANAHVerifier`.
            - `"package.module:ClassName"`: your own class, called with `kwargs`. This imports and runs code of that
              module.
            - An object with a method `verify`: returned as it is.
            - A judge of your own, by name or as an object with a method `judge`: it judges the sentences of the answer by
              the evidence of the row, as [`VerifierPipeline`] has it.
        **kwargs:
            Arguments of the verifier.

    Returns:
        [`~hf_factuality.verifiers.Verifier`].

    Raises:
        `ValueError`: the name is unknown, a dotted path leads nowhere or to something that cannot verify, a model or the
        address of its server is missing, it takes no such argument, or arguments come with a finished object.
        `TypeError`: an object is neither verifier nor judge.

    Example:

        >>> verifier = load_verifier("lexical", threshold=0.6)
    """
    if not isinstance(name, str):
        try:
            verifier = _as_verifier(name)
        except TypeError as error:
            raise TypeError(f"{name!r:.100} is no verifier: {error}; or choose {_choices()}") from None
        if kwargs:
            raise ValueError(f"{type(name).__name__} is already made; it takes no arguments, got {sorted(kwargs)}")
        return verifier
    head, colon, rest = name.partition(":")
    if head == "pipeline" and rest:
        return load_pipeline(rest, **kwargs)
    if head in _BUILT_IN:
        made = _load(_BUILT_IN[head])
        takes = inspect.signature(made).parameters
        part = "scorer" if "scorer" in takes else "model"
        if part in takes:
            if colon and part in kwargs:
                raise ValueError(f"the {part} is given twice: {name!r} and {part}={kwargs[part]!r}")
            if colon and rest:
                kwargs[part] = rest
            if part not in kwargs and takes[part].default is inspect.Parameter.empty:
                raise ValueError(f'{name!r} needs a model: "{head}:MODEL_ID", or model=...')
        elif colon:
            raise ValueError(f"{head!r} takes no model: {name!r}; choose {_choices()}")
        if "base_url" in takes and takes["base_url"].default is inspect.Parameter.empty and "base_url" not in kwargs:
            if not os.environ.get(BASE_URL_VARIABLE):
                raise ValueError(
                    f"{name!r} needs the address of its server: base_url='http://localhost:8000/v1', or the environment "
                    f"variable {BASE_URL_VARIABLE}"
                )
            kwargs["base_url"] = os.environ[BASE_URL_VARIABLE]
        return _make(name, made, kwargs)
    if colon and head and rest:
        verifier = _make(name, _load(name), kwargs)
        try:
            return _as_verifier(verifier)
        except TypeError as error:
            raise ValueError(f"{name!r} gives a {type(verifier).__name__}: {error}") from None
    close = difflib.get_close_matches(head, VERIFIER_NAMES, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ValueError(f"unknown verifier {name!r}; choose {_choices()}{hint}")


def load_best(trust_remote_code: bool = False, **kwargs: Any) -> Verifier:
    """The verifier that [`best_verifier`] names, made with `kwargs`, or the next one if files of it are missing; one line of the
    log says which and why."""
    published = list(PUBLISHED_WEIGHTS)
    while True:
        found, why = best_verifier(trust_remote_code=trust_remote_code, published=published)
        logger.warning("verifier 'best': %s", why)
        if found is None:
            return load_verifier("small", **kwargs)
        try:
            return load_verifier(found.name, **kwargs, **({"trust_remote_code": True} if found.remote_code else {}))
        except OSError as error:
            logger.warning("verifier 'best': %s", error)
            published.remove(found)


def verifier_class(name: str) -> Any:
    """The class of one of [`VERIFIER_NAMES`]."""
    return _load(_BUILT_IN[name])


def model_in_process(name: str) -> tuple[str, type] | None:
    """The model that a verifier of this name loads in the process itself, and the judge that runs it; `None` if there is none.

    Nothing is loaded. The model is that whose configuration describes the judge's: of HHEM its foundation. Of pipelines and
    classes of your own nothing is known.
    """
    from hf_factuality.verifiers.judges.pairs import ClassifierJudge

    head, _, rest = name.partition(":")
    if head == "citations" and rest:
        return model_in_process(rest)
    if head == "best":
        found = best_verifier()[0]
        return model_in_process(found.name) if found else None
    if head not in _BUILT_IN:
        return None
    module, _, verifier = _BUILT_IN[head].partition(":")
    try:
        judge = _load(f"{module}:{verifier.removesuffix('Verifier')}Judge")
    except ValueError:
        return None
    if not issubclass(judge, ClassifierJudge):
        return None
    model = getattr(judge, "foundation", None) or rest or getattr(judge, "model", None)
    return (model, judge) if model else None


def _choices() -> str:
    return (
        f"{', '.join(map(repr, VERIFIER_NAMES))} (with ':MODEL_ID' where there is a model), 'pipeline:FOLDER_OR_REPO', "
        "'package.module:ClassName' or an object"
    )


def _as_verifier(made: Any) -> Verifier:
    """A verifier as it is, and a judge behind sentences; `TypeError` for anything else."""
    if isinstance(made, type) or callable(getattr(made, "verify", None)) or not callable(getattr(made, "judge", None)):
        require_method(made, "verify", "a verifier")
        return made
    from hf_factuality.verifiers.extractors.sentences import SentenceExtractor

    return VerifierPipeline(SentenceExtractor(), made)


def _make(name: str, made: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
    try:
        inspect.signature(made).bind(**kwargs)
    except TypeError as error:
        raise ValueError(f"the verifier {name!r}: {error}") from error
    return made(**kwargs)


def _load(path: str) -> Any:
    try:
        return load_name(path, "the verifier")
    except ValueError as error:
        raise ValueError(f"{error}; or choose {_choices()}") from error

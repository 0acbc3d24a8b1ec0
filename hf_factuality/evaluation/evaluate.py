"""Measure models, or files of answers, on benchmarks: the arguments, documented and made of one form."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from inspect import signature
from pathlib import Path
from typing import Any

from hf_factuality._lazy import object_name
from hf_factuality.data.benchmarks.registry import named_benchmarks
from hf_factuality.data.benchmarks.rows import BenchmarkReader
from hf_factuality.evaluation._shared import split_names
from hf_factuality.evaluation.model import EvaluateResult, evaluate_model
from hf_factuality.evaluation.plan import Arguments
from hf_factuality.evaluation.suite import evaluate_suite
from hf_factuality.hub.results import public
from hf_factuality.metrics._registry import Metric, named_metrics
from hf_factuality.verifiers.base import Verifier


_ADDRESSES = ("base_url", "judge_base_url", "verifier_base_url")


def evaluate(
    model: str | Sequence[str] | None = None,
    benchmark: str | BenchmarkReader | Sequence[str | BenchmarkReader] | None = None,
    *,
    suite: str | None = None,
    dataset: str | Path | Mapping[str, str | Path] | None = None,
    split: str | None = None,
    dataset_revision: str | None = None,
    style: str | None = None,
    limit: int | None = None,
    metrics: Metric | Sequence[Metric] | None = None,
    metric_args: Mapping[str, Mapping[str, Any]] | None = None,
    revision: str | None = None,
    base_url: str | None = None,
    concurrency: int = 32,
    answers: str | Path | Sequence[str | Path] | None = None,
    model_name: str | None = None,
    dtype: str = "auto",
    device: str | None = None,
    batch_size: int = 8,
    prompt_format: str = "auto",
    chat_template_kwargs: Mapping[str, Any] | None = None,
    trust_remote_code: bool = False,
    max_new_tokens: int | None = None,
    temperature: float | None = None,
    top_p: float | None = None,
    num_samples: int | None = None,
    best_of: str | None = None,
    best_of_by: str | None = None,
    aggregate: str | None = None,
    stop: str | Sequence[str] | None = None,
    seed: int = 0,
    verifier: str | Verifier | None = None,
    verifier_base_url: str | None = None,
    verifier_tokens: int | None = None,
    scope: str = "answer",
    knowledge: str | Path | None = None,
    retriever: str | None = None,
    num_passages: int = 5,
    judge: str | None = None,
    judge_base_url: str | None = None,
    judge_prompt: str | Path | None = None,
    judge_votes: int = 1,
    judge_tokens: int = 16,
    scorers: Sequence[str] | None = None,
    default_data_source: str | None = None,
    match: str | None = None,
    out: str | Path = "results.json",
    overwrite: bool = False,
    fail_under: Mapping[str, float] | None = None,
    max_not_judged: float | None = None,
    command: str | None = None,
) -> EvaluateResult:
    """Answer the questions of benchmarks with a model, or take answers from a file, score them and add the results to a file.

    All arguments are checked before the first question is asked. A run that was killed goes on where it stopped if it is
    started again. docs/evaluate.md describes benchmarks, metrics and the file of results.

    Args:
        model (`str` or `Sequence[str]`, *optional*):
            Id on the Hub or folder, of a model or a PEFT adapter; with `base_url`, its name there; several with `suite`.
        benchmark (`str`, [`~hf_factuality.data.benchmarks.BenchmarkReader`] or a sequence of them, *optional*):
            Names of benchmarks; also of your own, as `"package.module:name"` or objects. Benchmarks of judges, such as
            `"llm-aggrefact"`, measure `verifier`, and take no model.
        suite (`str`, *optional*):
            `"long-form"` or `"tax"`: several models side by side.
        dataset (`str`, `Path` or `Mapping[str, str | Path]`, *optional*):
            Instead of the benchmark's; of several benchmarks by name; without a benchmark a file of your own questions.
        split, dataset_revision, style (`str`, *optional*):
            Of the dataset, and of the prompts.
        limit (`int`, *optional*):
            A seeded sample of so many items (of a file of your own, the first).
        metrics (`str`, `Callable` or a sequence of them, *optional*):
            Instead of the benchmark's; also metrics over claims of your own, as `"package.module:function"` or functions.
        metric_args (`Mapping[str, Mapping[str, Any]]`, *optional*):
            Arguments of metrics over claims, as `{"factscore": {"gamma": 0}}`.
        revision (`str`, *optional*):
            Of the model.
        base_url (`str`, *optional*), concurrency (`int`, *optional*, defaults to 32):
            Address of an OpenAI-compatible server that has the model, and requests to it at once.
        answers (`str`, `Path` or `Sequence[str | Path]`, *optional*), model_name (`str`, *optional*):
            JSON Lines of answers, by `id` or in order, instead of a model (several with `suite`), and who wrote them.
        dtype, device, batch_size, prompt_format, trust_remote_code:
            How the model is loaded and asked: `prompt_format` is `"chat"`, `"plain"` or `"auto"`; code of its repository runs
            only with `trust_remote_code=True`.
        chat_template_kwargs (`Mapping[str, Any]`, *optional*):
            Arguments of the chat template.
        max_new_tokens, temperature, top_p, num_samples, stop, seed:
            How answers are sampled; by default as the benchmark says. `seed` is also of `limit`.
        best_of, best_of_by, aggregate (`str`, *optional*):
            Numbers with commas for the expected score of the best of N of the samples; who chooses; how scores of parts are one.
        verifier (`str` or `Verifier`, *optional*), verifier_base_url, verifier_tokens:
            A name for [`load_verifier`] or a verifier, for metrics over claims; its server, and room for its answers. Files of
            answers know a verifier without a name by its class: with other settings, judge anew by `overwrite`.
        scope (`str`, *optional*, defaults to `"answer"`):
            What of a completion is judged: `"answer"`, `"think"` or `"completion"`.
        knowledge (`str` or `Path`, *optional*), retriever (`str`, *optional*), num_passages (`int`, *optional*, defaults to 5):
            Knowledge base that evidence is taken from, by `"topic"` or from the whole `"corpus"`, and passages per claim.
        judge, judge_base_url, judge_prompt, judge_votes, judge_tokens:
            For halluqa, abstention and calibration: a served model that sees the gold answers, its server, a .txt prompt, an odd
            number of votes per answer and the room for each.
        scorers (`Sequence[str]`, *optional*), default_data_source (`str`, *optional*):
            For a file of your own: `SOURCE=RULE`, and the rule of rows without `data_source`.
        match (`str`, *optional*):
            Instead of a judge, words of gold answers and stock phrases: `"exact"` or `"contained"`.
        out (`str` or `Path`, *optional*, defaults to `"results.json"`):
            Results are added to this file; answers go beside it, to NAME.BENCHMARK.answers.jsonl.
        overwrite (`bool`, *optional*, defaults to `False`):
            Answer anew what the file of answers holds already.
        fail_under (`Mapping[str, float]`, *optional*), max_not_judged (`float`, *optional*):
            Least value per METRIC or BENCHMARK.METRIC, and the share that may be left unjudged (0.1 by default with
            `fail_under`, otherwise any): what is beyond them is named in `failures` of the result.
        command (`str`, *optional*):
            What the file of results tells of how it was made; by default this call, without addresses.

    Returns:
        [`EvaluateResult`]: the entries of the file of results, and what is below a threshold.

    Raises:
        `ValueError`, `DataError`, `CheckpointError`: an argument, a dataset or a model cannot be used. `JudgingError`: nothing
        could be answered or judged. `OSError`: a file cannot be written.
    """
    args = read_arguments(dict(locals()))
    return evaluate_suite(args) if suite else evaluate_model(args)


def read_arguments(given: Mapping[str, Any]) -> Arguments:
    """Arguments of [`evaluate`] by name, made of one form; those that are not given have its defaults."""
    defaults = {name: it.default for name, it in signature(evaluate).parameters.items()}
    given = {**defaults, **given}
    metric_names, own_metrics = named_metrics(split_names(given["metrics"]))
    benchmark_names, own_benchmarks = named_benchmarks(split_names(given["benchmark"]))
    paths = {name: given[name] for name in ("out", "knowledge", "judge_prompt")}
    return Arguments(
        **{
            **given,
            "model": _several(given["model"]),
            "benchmark": benchmark_names or None,
            "own_benchmarks": own_benchmarks,
            "metrics": metric_names or None,
            "own_metrics": own_metrics,
            "stop": _several(given["stop"]),
            "dataset": _datasets(given["dataset"]),
            "answers": [Path(path) for path in _several(given["answers"]) or ()] or None,
            "metric_args": given["metric_args"] or {},
            "fail_under": given["fail_under"] or {},
            **{name: None if path is None else Path(path) for name, path in paths.items()},
            "command": given["command"] or _call(given),
        }
    )


def _several(given: Any) -> list[Any] | None:
    """One or several values as a list; `None` without any."""
    if given is None or isinstance(given, (str, Path)):
        return None if given is None else [given]
    return list(given) or None


def _datasets(given: str | Path | Mapping[str, str | Path] | Sequence[str] | None) -> list[str] | None:
    if isinstance(given, Mapping):
        return [f"{name}={path}" for name, path in given.items()]
    several = _several(given)
    return None if several is None else [str(it) for it in several]


def _call(given: Mapping[str, Any]) -> str:
    """The call, without folders and addresses."""
    said = {
        name: it for name, it in sorted(given.items()) if it is not None and it is not False and name not in _ADDRESSES
    }
    return f"hf_factuality.evaluate({', '.join(f'{name}={_shown(it)}' for name, it in said.items())})"


def _shown(value: Any) -> str:
    """An argument, without folders; of an object its name, or that of its class, since others would hold addresses."""
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_shown, value))}]"
    if isinstance(value, BenchmarkReader):
        return repr(value.name)
    plain = value is None or isinstance(value, (str, int, float, Path, Mapping))
    return repr(public(value)) if plain else object_name(value)

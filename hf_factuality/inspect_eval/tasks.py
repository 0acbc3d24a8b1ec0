"""Tasks of Inspect: benchmarks of `hf-factuality evaluate` with its prompts, judges and metrics. Inspect asks the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from inspect_ai import Epochs, Task, task
from inspect_ai.dataset import MemoryDataset, Sample
from inspect_ai.model import (
    ChatMessage,
    ChatMessageAssistant,
    ChatMessageSystem,
    ChatMessageUser,
    GenerateConfig,
    get_model,
)
from inspect_ai.solver import generate

from hf_factuality import __version__
from hf_factuality.data.benchmarks.base import BenchmarkItem
from hf_factuality.errors import DataError
from hf_factuality.evaluation.verification import JUDGE_TOKENS, gold_answers
from hf_factuality.generation.sampling import SamplingConfig
from hf_factuality.inspect_eval.judging import LONG_FORM, load_task, shared_judging
from hf_factuality.inspect_eval.scorers import ITEM, SCORERS, arguments_of, item_row
from hf_factuality.reading.scopes import SCOPES


# Inspect's models of transformers sample unless `-M do_sample=false` is given, and refuse a temperature of 0. At this one the
# likeliest token is drawn: a difference of 1e-6 between two logits is one of 100.
_GREEDY_HF = 1e-8
_ROLES: dict[str, Callable[..., ChatMessage]] = {
    "system": ChatMessageSystem,
    "user": ChatMessageUser,
    "assistant": ChatMessageAssistant,
}


def _sample(item: BenchmarkItem) -> Sample:
    if not item.messages or item.messages[-1]["role"] == "assistant":
        raise DataError(
            f"item {item.id!r} begins the answer of the model, which Inspect's models do not continue; take another `style`"
        )
    messages = [_ROLES[message["role"]](content=message["content"]) for message in item.messages]
    return Sample(id=item.id, input=messages, target=gold_answers(item) or "", metadata={ITEM: item_row(item)})


def _on_hf() -> bool:
    try:
        return str(get_model()).startswith("hf/")
    except ValueError:  # a task that is made before its model is known
        return False


def _config(sampling: SamplingConfig) -> GenerateConfig:
    """How the benchmark samples; without a seed, since Inspect would send the same for every sample and epoch."""
    drawn = sampling.temperature > 0
    return GenerateConfig(
        max_tokens=sampling.max_new_tokens,
        temperature=_GREEDY_HF if not drawn and _on_hf() else sampling.temperature,
        top_p=sampling.top_p if drawn and sampling.top_p < 1 else None,
        stop_seqs=list(sampling.stop) or None,
    )


def _register(name: str, of: str | None, metric: str | None = None, of_suite: str | None = None) -> Any:
    def factory(
        benchmark: str | None = of,
        data_files: str | None = None,
        split: str | None = None,
        dataset_revision: str | None = None,
        style: str | None = None,
        limit: int | None = None,
        seed: int = 0,
        metrics: str | Sequence[str] | None = metric,
        metric_args: dict[str, Any] | None = None,
        verifier: str | None = None,
        verifier_base_url: str | None = None,
        verifier_tokens: int | None = None,
        scope: str = SCOPES[0],
        knowledge: str | None = None,
        retriever: str | None = None,
        num_passages: int = 5,
        judge: str | None = None,
        judge_base_url: str | None = None,
        judge_prompt: str | None = None,
        judge_votes: int = 1,
        judge_tokens: int = JUDGE_TOKENS,
        match: str | None = None,
    ) -> Task:
        given = dict(locals())
        del given["of_suite"], given["name"]  # of the closure
        return _task(name, of_suite, given)

    return task(name=name)(factory)


def _task(name: str, suite: str | None, given: dict[str, Any]) -> Task:
    read = {key: given.pop(key) for key in ("data_files", "split", "dataset_revision", "limit", "seed")}
    planned, retriever = load_task({**given, "suite": suite, "dataset": read.pop("data_files"), **read})
    if planned.generation is None or planned.plain:
        raise DataError(
            f"{planned.name} with style {planned.style!r} is no chat; measure it with hf-factuality evaluate"
        )
    others = [it for it in planned.metrics if it not in SCORERS]
    if others:
        raise DataError(f"`metrics`: {', '.join(others)} has no scorer; choose of {', '.join(SCORERS)}")
    given |= {"benchmark": given["benchmark"] or planned.name, "style": planned.style, "retriever": retriever}
    given |= {"suite": suite, "metrics": list(planned.metrics)}
    names = [*([LONG_FORM] if suite else []), *planned.metrics]
    shared_judging(arguments_of(names[0], given)).check(planned.items)
    epochs = planned.generation.num_samples
    return Task(
        dataset=MemoryDataset([_sample(item) for item in planned.items], name=str(planned.provenance["dataset"])),
        solver=generate(),
        scorer=[SCORERS[it](**given) for it in names],
        config=_config(planned.generation),
        epochs=Epochs(epochs, []) if epochs > 1 else None,
        metadata={"dataset": dict(planned.provenance)},
        version=__version__,
        name=name,
    )


TASKS = {
    "factscore": _register("factscore", "biographies", "factscore"),
    "veriscore": _register("veriscore", "longfact", "veriscore"),
    "longfact": _register("longfact", "longfact"),
    "simpleqa": _register("simpleqa", "simpleqa"),
    "abstention": _register("abstention", "abstentionbench"),
    "long_form": _register("long_form", "biographies", of_suite="long-form"),
    "benchmark": _register("benchmark", None),
}
"""The tasks by name. Their arguments are those of `hf_factuality.evaluate`; `data_files` is its `dataset`."""

"""What the commands that build datasets share: what the flags ask for, checked; the run; the push."""

from __future__ import annotations

import argparse
import gc
import hashlib
import json
import math
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from functools import partial
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any

from hf_factuality.chat.journal import written_ids
from hf_factuality.chat.sureness import SURE_WORDS
from hf_factuality.data import checklists as lists
from hf_factuality.data import corrections as correcting
from hf_factuality.data import given_pairs as existing
from hf_factuality.data import preferences as pairing
from hf_factuality.data import process_labels as stepwise
from hf_factuality.data import rag_preferences as grounded
from hf_factuality.data import refusals as declining
from hf_factuality.data.builder import DatasetKind, PreferenceQuestion, check_evidence, read_questions
from hf_factuality.data.pairs import PairConfig
from hf_factuality.data.reading import read_dataset
from hf_factuality.data.sampling import (
    GivenResponses,
    Sampler,
    SamplingConfig,
    ServedSampler,
    TransformersSampler,
    VLLMSampler,
    WorkerSampler,
)
from hf_factuality.data.topics import embed_topics, select_by_distance, select_questions, topic_distances
from hf_factuality.errors import DataError, JudgingError
from hf_factuality.io.files import last_name, write_atomically
from hf_factuality.io.ray import engine_of
from hf_factuality.io.rows import read_rows
from hf_factuality.io.upload import naming_model, prepare_repo
from hf_factuality.verifiers.base import Verifier, VerifierInput
from hf_factuality.verifiers.guard import GuardedVerifier, quiet_guard
from hf_factuality.verifiers.judges.compare import AXES
from hf_factuality.verifiers.judges.gold import named_scorers, refuse_unused
from hf_factuality.verifiers.registry import load_verifier, served_arguments
from hf_factuality.verifiers.service import Row, judge_rows


# How long answers are sampled by default.
_LONG = {"num_samples": 4, "temperature": 1.0, "top_k": 0, "max_new_tokens": 1024}
_SAMPLING = ("num_samples", "temperature", "top_k", "top_p", "max_new_tokens")
# Flags that mean something only to some who answer.
_ONLY_FOR = {
    "dtype": ("transformers", "vllm"),
    "device": ("transformers",),
    "batch_size": ("transformers",),
    "model_args": ("transformers", "vllm"),
    "revision": ("transformers", "vllm", "server"),
    "concurrency": ("server",),
    **dict.fromkeys(_SAMPLING, ("transformers", "vllm", "server")),
    "questions_per_batch": ("transformers", "vllm", "server", "pairs"),
}


def preferences(args: argparse.Namespace) -> int:
    """Run `build-preferences`: 0, or 130 if it was interrupted. Nearly all errors come before anything is sampled."""

    def scores(report: dict[str, Any]) -> dict[str, Any]:
        return {f"{side} score, mean": f"{report[f'{side}_score']:.3f}" for side in ("chosen", "rejected")}

    if args.pairs is None:
        make = partial(pairing.preferences_from, pairs=_config(PairConfig, args))
        return _build(args, pairing.KIND, make, "questions responses pairs", scores)
    for flag in ("pairs_per_question", "correct", "min_margin"):
        if getattr(args, flag) is not None:
            raise ValueError(f"`pairs` keeps every pair that can be judged; leave `{flag}` out")

    def label(pairs, sampler, verifier, folder, **run):
        return existing.label_pairs(pairs, verifier, folder, name=args.model, **run)

    return _build(args, existing.KIND, label, "questions pairs contrary without_signal", scores)


def checklists(args: argparse.Namespace) -> int:
    """Run `build-checklists`, likewise."""

    def claims(report: dict[str, Any]) -> dict[str, Any]:
        return {f"claims, {name.replace('_', ' ')}": count for name, count in report["claims"].items() if count}

    make = partial(lists.checklists_from, items=_config(lists.ChecklistConfig, args))
    return _build(args, lists.KIND, make, "questions responses rows items merged", claims, num_samples=8)


def refusals(args: argparse.Namespace) -> int:
    """Run `build-refusals`, likewise."""
    config = _config(declining.RefusalConfig, args)
    _refuse(args, "build-refusals judges by the gold answers", "knowledge")
    stop = SURE_WORDS[config.language].stop if args.stop is None else args.stop
    sampling = {"top_k": 0, "max_new_tokens": 15, "stop": (stop,) if stop else ()}
    drawn = {"num_samples": 5, "temperature": 0.7}
    sampling |= drawn if config.variant == "uncertain" else {"num_samples": 1, "temperature": 0.0}

    def shares(report: dict[str, Any]) -> dict[str, Any]:
        found = {f"correct, {name}": report[f"correct_{name}"] for name in ("sure", "unsure")}
        return {name: share for name, share in found.items() if share is not None}

    make, names = partial(declining.refusals_from, refusals=config), "questions responses rows sure unsure"
    return _build(args, declining.KIND, make, names, shares, declining.with_golds, **sampling)


def corrections(args: argparse.Namespace) -> int:
    """Run `build-corrections`, likewise."""
    make = partial(correcting.corrections_from, corrections=_config(correcting.CorrectionConfig, args))
    does = "build-corrections asks the model about its own answers, by gold answers"
    _refuse(args, does, "knowledge", "responses")
    kinds = itemgetter("kinds")
    return _build(args, correcting.KIND, make, "questions responses rows", kinds, declining.with_golds, **_LONG)


def process_labels(args: argparse.Namespace) -> int:
    """Run `build-process-labels`, likewise."""
    config = stepwise.ProcessLabelConfig(args.rollouts, args.step_split, args.how, args.eta)
    does = "build-process-labels continues the model's own solutions, by gold answers"
    _refuse(args, does, "knowledge", "responses")
    make = partial(stepwise.process_labels_from, labels=config)
    names = "questions responses right rows steps unknown_steps prefixes rollouts mean_label"
    return _build(args, stepwise.KIND, make, names, prepare=declining.with_golds, **_LONG | {"num_samples": 8})


def rag_preferences(args: argparse.Namespace) -> int:
    """Run `build-rag-preferences`, likewise."""
    config = _config(grounded.RAGPreferenceConfig, args)
    _refuse(args, "build-rag-preferences compares by the passages of the questions", "knowledge")
    named = dict(axis.partition("=")[::2] for axis in args.axis or AXES)
    own = {axis: load_verifier(name) for axis, name in named.items() if name}

    def make(questions, sampler, verifier, folder, **run):
        if len(own) < len(named) and not getattr(verifier, "compares", False):
            told = f"`verifier` {args.verifier} compares no answers: take compare:MODEL"
            raise ValueError(
                f"{told}, or name who decides each axis, as in `axis` attribution=citations:{args.verifier}"
            )
        judges = {axis: own.get(axis) or verifier.on(axis) for axis in named}
        return grounded.rag_preferences_from(questions, sampler, judges, folder, preferences=config, **run)

    names, axes = "questions responses pairs rows", itemgetter("preferences")
    return _build(args, grounded.KIND, make, names, axes, grounded.with_passages, **_LONG)


def _config(kind: type, args: argparse.Namespace) -> Any:
    """The settings of a builder, whose fields have flags of the same names."""
    return kind(**{it.name: value for it in fields(kind) if (value := getattr(args, it.name)) is not None})


def _refuse(args: argparse.Namespace, does: str, *flags: str) -> None:
    for flag in flags:
        if getattr(args, flag):
            raise ValueError(f"{does}; leave `{flag}` out")


def _build(
    args, dataset: DatasetKind, make: Callable, names: str, more: Callable | None = None, prepare=list, **defaults
) -> int:
    """The run of a builder on what `prepare` makes of the questions; of its report these names, what `more` makes of it, and
    what was dropped are printed."""
    kind, engine = _kind(args), engine_of(args)
    together = 16 if kind != "transformers" or defaults.get("num_samples") == 1 else 1
    given = {name: value for name in _SAMPLING if (value := getattr(args, name)) is not None}
    sampling = SamplingConfig(**defaults | given)
    questions = prepare(_questions(args))
    if args.topic_distance is None and (args.topics is not None or args.questions_per_topic is not None):
        questions = select_questions(questions, args.topics, args.questions_per_topic, args.seed)
    targets = _read(args.topic_targets) if args.topic_distance else []
    verifier = _verifier(args, questions)
    args.out.mkdir(parents=True, exist_ok=True)
    if not os.access(args.out, os.W_OK):
        raise OSError(f"`out` {args.out} cannot be written to")
    if _missing(args.out / "verifications.jsonl", [it for it in questions if not getattr(it, "problem", None)]):
        _try_verifier(verifier, questions, args.verifier)
    if args.push_to_hub:
        prepare_repo(args.push_to_hub, repo_type="dataset", private=args.private)
    here = kind == "transformers" and not engine["workers"]
    sampler = _sampler(args, kind, sampling) if here else None
    if args.topic_distance:
        questions = _nearest(args, questions, targets, None if args.topic_model else sampler)
    if engine["workers"] and kind in ("transformers", "vllm"):
        sampler = _worker_sampler(args, kind, sampling)
        engine["gpus_per_worker"] = _gpus(args)
    if kind != "pairs":
        sampler = sampler or _sampler(args, kind, sampling)  # vLLM wants the memory of the model that embeds
    if isinstance(sampler, GivenResponses):
        sampler.check([question.id for question in questions])
    if kind == "server" and _missing(args.out / "responses.jsonl", questions):
        _try_server(args, sampler, questions[0])
    try:
        with quiet_guard():
            make(
                questions, sampler, verifier, args.out, seed=args.seed,
                questions_per_batch=args.questions_per_batch or together,
                patience=args.patience, progress=sys.stderr.isatty(), **engine,
            )  # fmt: skip
    except KeyboardInterrupt:
        print(f"\nhf-factuality: stopped; {args.out} keeps it all: start the same command again", file=sys.stderr)
        return 130
    finally:
        if kind == "server":
            sampler.client.close()
    for path in args.out.glob("sampling.sqlite*"):  # responses.jsonl holds it all by now
        path.unlink(missing_ok=True)
    report = json.loads((args.out / "report.json").read_text(encoding="utf-8"))
    rows = {name.replace("_", " "): report[name] for name in names.split()}
    rows |= (more(report) if more else {}) | {
        f"dropped: {dataset.reasons[name]}": count for name, count in report["dropped"].items()
    }
    rows["responses cut off at the limit, kept"] = report["cut_off_responses"]
    rows["responses that could not be sampled"] = report["lost_responses"]
    width = max(map(len, rows))
    print("\n".join(f"{name.ljust(width)}  {value}" for name, value in rows.items()))
    print(f"\n{args.out}")
    if args.push_to_hub:
        print(dataset.push(args.out, args.push_to_hub, private=args.private))
    return 0


def _kind(args: argparse.Namespace) -> str:
    """Who answers; refuses flags that it would not heed."""
    kind = "server" if args.base_url is not None else "given" if args.responses else args.backend or "transformers"
    pairs = getattr(args, "pairs", None)
    if pairs is not None:
        if args.base_url is not None or args.responses or args.backend:
            raise ValueError("`pairs` has the answers already; leave `base_url`, `responses` and `backend` out")
        kind = "pairs"
    named = {"server": "`base_url`", "given": "`responses`", "pairs": "`pairs`"}.get(kind, f"`backend` {kind}")
    near, targets, with_knowledge = args.topic_distance, args.topic_targets, args.retriever or args.passages
    of_dataset = args.config or args.dataset_revision or args.split != "train"
    elsewhere = kind in ("server", "given", "pairs") and not args.topic_model
    wrong = {
        "`model` names who answers; or give `responses` FILE made elsewhere": not args.model
        and kind not in ("given", "pairs"),
        **{
            f"`{flag}` means nothing to {named}; leave it out": getattr(args, flag) is not None and kind not in kinds
            for flag, kinds in _ONLY_FOR.items()
        },
        "`config`, `split` and `dataset_revision` are for `dataset`, not for a file": of_dataset
        and (args.questions or pairs is not None and Path(pairs).is_file()),
        "`topic_distance` needs `topic_targets` FILE and `topics` N": near and not (targets and args.topics),
        "`topic_targets` and `topic_model` are for `topic_distance`": not near and (targets or args.topic_model),
        f"`topic_distance` embeds topics here; with {named}, name the model by `topic_model`": near and elsewhere,
        "`retriever` and `passages` are for `knowledge` FILE": with_knowledge and not args.knowledge,
        "`private` is for `push_to_hub` REPO": args.private and not args.push_to_hub,
    }
    for message in filter(wrong.get, wrong):
        raise ValueError(message)
    return kind


def _sampler(args: argparse.Namespace, kind: str, sampling: SamplingConfig) -> Sampler:
    model_args = args.model_args or {}
    if kind == "transformers":
        model_args = _placement(args) | model_args
        return TransformersSampler(args.model, None, sampling, args.batch_size or 32, args.revision, model_args)
    if kind == "vllm":
        dtype = {} if args.dtype is None else {"dtype": args.dtype}
        return VLLMSampler(args.model, sampling, args.revision, {"seed": args.seed, **dtype, **model_args})
    if kind == "given":
        return GivenResponses.from_file(args.responses, args.model, sampling.stop)
    from hf_factuality.chat.client import ChatClient

    # Not the cache that judges share, where thousands of samples would push others out: a kill in the middle of a batch
    # costs none of its responses, and the file goes when the run is done.
    client = ChatClient(
        args.base_url, args.model, revision=args.revision, concurrency=args.concurrency or 32,
        cache=args.out / "sampling.sqlite", extra_body=ServedSampler.extra_body(sampling), keep_cut=True,
    )  # fmt: skip
    return ServedSampler(client, sampling)


def _worker_sampler(args: argparse.Namespace, kind: str, sampling: SamplingConfig) -> WorkerSampler:
    """`_sampler` in the workers; what it is called is found here, where a name that leads nowhere is an error at once."""
    from transformers import AutoConfig
    from transformers.utils import find_adapter_config_file

    with naming_model(args.model):
        adapter = find_adapter_config_file(args.model, revision=args.revision)
        base = json.loads(Path(adapter).read_bytes())["base_model_name_or_path"] if adapter else args.model
        trust = (args.model_args or {}).get("trust_remote_code", False)
        config = AutoConfig.from_pretrained(base, revision=None if adapter else args.revision, trust_remote_code=trust)
    if kind == "vllm":
        name = Path(args.model).name if Path(args.model).exists() else args.model
        identity = {"sampler": VLLMSampler.name, "model": name, "revision": args.revision}
    else:
        identity = TransformersSampler.identity(
            args.model, getattr(config, "_commit_hash", None), args.batch_size or 32
        )
    return WorkerSampler(partial(_sampler, args, kind), identity, sampling)


def _gpus(args: argparse.Namespace) -> float:
    """Of a worker that samples: if nothing is said, as many as vLLM's engine takes, where there are any."""
    import torch

    if args.gpus_per_worker is not None:
        return args.gpus_per_worker
    engine = args.model_args or {}
    parts = (int(engine.get(f"{kind}_parallel_size", 1)) for kind in ("tensor", "pipeline"))
    return float(math.prod(parts)) if torch.cuda.is_available() else 0.0


def _placement(args: argparse.Namespace) -> dict[str, Any]:
    import torch

    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    return {"dtype": args.dtype or "auto", "device_map": device}


def _read(path: Path, limit: int | None = None) -> list[PreferenceQuestion]:
    return read_questions([row for _, row in islice(read_rows(path), limit)], path.name)


def _questions(args: argparse.Namespace) -> list[PreferenceQuestion]:
    if getattr(args, "pairs", None) is not None:
        if Path(args.pairs).suffix in (".jsonl", ".json", ".parquet"):
            rows = list(islice(read_rows(args.pairs), args.limit))
        else:
            rows = read_dataset(args.pairs, args.config, args.split, args.dataset_revision)[: args.limit]
        return existing.read_pairs([row for _, row in rows], last_name(args.pairs))
    if args.questions is not None:
        return _read(args.questions, args.limit)
    rows = read_dataset(args.dataset, args.config, args.split, args.dataset_revision)
    return read_questions([row for _, row in rows[: args.limit]], args.dataset)


def _verifier(args: argparse.Namespace, questions: Sequence[PreferenceQuestion]) -> Verifier:
    by_source = {"scorers": args.scorers} if args.scorers else {}
    if by_source and args.verifier.partition(":")[0] != "gold":
        raise ValueError(f"`scorers` is for `verifier` gold, and means nothing to {args.verifier!r}; leave it out")
    if args.limit is None:  # of the first N questions none may have it
        refuse_unused(named_scorers(args.scorers), (question.row.get("data_source") for question in questions))
    verifier = load_verifier(
        args.verifier, **served_arguments(args.verifier_base_url, args.verifier_tokens), **by_source
    )
    if args.knowledge is not None:
        from hf_factuality.retrieval.corpus import with_knowledge

        with_topic = sum(question.topic is not None for question in questions)
        if args.retriever == "topic" and not with_topic:
            raise DataError("`retriever` topic needs the column 'topic' of the questions")
        by_topic = args.retriever == "topic" or args.retriever is None and with_topic == len(questions)
        verifier = with_knowledge(verifier, args.verifier, args.knowledge, by_topic, args.passages or 5)
    check_evidence(questions, verifier, f"`verifier` {args.verifier}")
    return verifier


def _try_verifier(verifier: Verifier, questions: Sequence[PreferenceQuestion], name: str) -> None:
    """One sentence through the verifier: a wrong key, model or address shows before hours of sampling."""
    question = next((it for it in questions if it.evidence), questions[0])
    row = Row(VerifierInput("It was made in 1901.", question.question, question.evidence, question.row))
    ((judged,),) = judge_rows(GuardedVerifier(verifier, timeout=None), [row])
    found = judged.found
    if found.error:
        raise JudgingError(f"`verifier` {name} fails on a trial sentence: {found.error}")
    if not found.judged:  # no page for this question, judges that disagree, or one that answers nothing useful
        print(f"hf-factuality: `verifier` {name} gives a trial sentence no label", file=sys.stderr)


def _try_server(args: argparse.Namespace, sampler: ServedSampler, question: PreferenceQuestion) -> None:
    trial = ServedSampler(sampler.client, replace(sampler.config, max_new_tokens=1))
    (answer,) = sampler.client.chat(trial.requests([question.messages], 0)[:1])
    if answer.error:
        hint = "; `top_k` 0 for a server that does not know top_k" if sampler.config.top_k else ""
        raise JudgingError(f"`base_url` {args.base_url} refuses a trial request: {answer.error}{hint}")


def _missing(path: Path, questions: Sequence[PreferenceQuestion]) -> bool:
    done = written_ids(path)
    return not all(question.id in done for question in questions)


def _nearest(
    args: argparse.Namespace, questions, targets, sampler: TransformersSampler | None
) -> list[PreferenceQuestion]:
    """The selection; distances are kept in the folder, so that a run that goes on takes the same topics."""
    path = args.out / "topics.json"
    model = args.topic_model or args.model
    key = {
        "model": Path(model).name if Path(model).exists() else model,
        "revision": None if args.topic_model else args.revision,
        "questions": _digest([[q.id, q.topic, q.question] for q in questions]),
        "targets": _digest([[q.topic, q.question] for q in targets]),
    }
    stored = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if stored.get("key") != key:
        import torch

        if sampler is None:
            sampler = TransformersSampler(model, revision=key["revision"], model_kwargs=_placement(args))
        vectors = [embed_topics(rows, sampler.model, sampler.tokenizer) for rows in (questions, targets)]
        del sampler
        gc.collect()  # vLLM, which may come next, wants the memory
        torch.cuda.empty_cache()
        stored = {"key": key, "distances": topic_distances(*vectors)}
        write_atomically(path, json.dumps(stored, indent=1) + "\n")
    wanted = args.topic_distance, args.topics, args.questions_per_topic, args.seed
    return select_by_distance(questions, stored["distances"], *wanted)


def _digest(value: Any) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]

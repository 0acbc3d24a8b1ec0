"""Datasets from questions, by the names of what answers and judges: the functions under the commands `hf-factuality build-...`.

Each checks what is asked for, makes sampler and verifier, and hands them to a builder such as
[`~hf_factuality.data.preferences_from`], which takes them ready made.
"""

from __future__ import annotations

import gc
import hashlib
import json
import logging
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, TypedDict, TypeGuard, Unpack

from hf_factuality.data.builder import DatasetKind
from hf_factuality.data.given_pairs import KIND as GIVEN_PAIRS
from hf_factuality.data.given_pairs import label_pairs, read_pairs
from hf_factuality.data.pairs import PairConfig
from hf_factuality.data.preferences import KIND as PREFERENCES
from hf_factuality.data.preferences import preferences_from
from hf_factuality.data.questions import PreferenceQuestion, check_evidence, read_questions
from hf_factuality.data.reading import read_dataset
from hf_factuality.data.sampling import (
    GivenResponses,
    Sampler,
    ServedSampler,
    TransformersSampler,
    VLLMSampler,
    WorkerSampler,
)
from hf_factuality.data.topics import embed_topics, select_by_distance, select_questions, topic_distances
from hf_factuality.errors import DataError, HubError, JudgingError
from hf_factuality.generation.journal import written_ids
from hf_factuality.generation.sampling import SamplingConfig
from hf_factuality.io.files import last_name, write_atomically
from hf_factuality.io.ray import engine_of
from hf_factuality.io.rows import read_rows
from hf_factuality.io.upload import naming_model, prepare_repo
from hf_factuality.verifiers.base import Verifier, VerifierInput
from hf_factuality.verifiers.guard import GuardedVerifier, quiet_guard
from hf_factuality.verifiers.judges.gold import named_scorers, refuse_unused
from hf_factuality.verifiers.registry import load_verifier, served_arguments
from hf_factuality.verifiers.service import VerificationRequest, judge_rows


if TYPE_CHECKING:
    from datasets import Dataset


logger = logging.getLogger(__name__)

# How answers are sampled by default: for preferences and checklists as in the paper of Mask-DPO.
MASK_DPO_ANSWERS = {"num_samples": 32, "temperature": 0.8, "top_k": 40, "max_new_tokens": 512}
LONG_ANSWERS = {"num_samples": 4, "temperature": 1.0, "top_k": 0, "max_new_tokens": 1024}
_SAMPLING = ("num_samples", "temperature", "top_k", "top_p", "max_new_tokens")
# Arguments that mean something only to some who answer.
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
_CHOICES = {
    "backend": ("transformers", "vllm"),
    "retriever": ("topic", "corpus"),
    "topic_distance": ("nearest", "farthest"),
}
_FROM_ONE_UP = (
    "limit", "batch_size", "concurrency", "questions_per_batch", "verifier_tokens", "num_passages", "topics",
    "questions_per_topic",
)  # fmt: skip
Rows = str | os.PathLike | Iterable[Mapping[str, Any]]
"""The name of a file, or rows."""


class BuildArguments(TypedDict, total=False):
    """Keyword arguments that all functions `build_...` share. `None` means the default.

    Args:
        dataset (`str`, *optional*):
            In place of `questions`: a repository on the Hub or a folder.
        dataset_config (`str`, *optional*), split (`str`, *optional*, defaults to `"train"`), dataset_revision (`str`, *optional*):
            Its configuration, split, and branch, tag or commit.
        limit (`int`, *optional*):
            The first so many questions only.
        model (`str`, *optional*):
            The model that answers: id on the Hub, folder, or its name at `base_url`. With `responses`, who wrote them.
        revision (`str`, *optional*):
            Branch, tag or commit of the model.
        backend (`str`, *optional*, defaults to `"transformers"`):
            Who runs the model in this process: `"transformers"` or `"vllm"`.
        base_url (`str`, *optional*):
            In place of `backend`: the address of an OpenAI-compatible server that has the model.
        responses (`str` or `PathLike`, *optional*):
            In place of both: responses made elsewhere, see [`~hf_factuality.data.GivenResponses.from_file`].
        dtype (`str`, *optional*, defaults to `"auto"`):
            `"auto"` (the checkpoint's), `"float32"`, `"bfloat16"` or `"float16"`.
        device (`str`, *optional*):
            `"cpu"`, `"cuda"` (default if there is one), `"cuda:1"`, ..., or `"auto"` to spread the model.
        batch_size (`int`, *optional*, defaults to `32`):
            Responses that transformers generates at once.
        concurrency (`int`, *optional*, defaults to `32`):
            Requests to the server at once.
        model_args (`dict`, *optional*):
            Arguments of `from_pretrained` or `vllm.LLM`.
        num_samples (`int`), temperature (`float`), top_k (`int`), max_new_tokens (`int`), all *optional*:
            How responses are sampled. Each function names its defaults.
        top_p (`float`, *optional*, defaults to `1.0`):
            Likewise.
        seed (`int`, *optional*, defaults to `0`):
            Of the samples and of selections of topics.
        questions_per_batch (`int`, *optional*):
            Questions that are sampled and verified together, which a kill costs at most. By default 1 for transformers that
            draws, else 16.
        verifier (`str` or [`~hf_factuality.Verifier`], *optional*, defaults to `"small"`):
            Who judges: an object, or a name that [`~hf_factuality.load_verifier`] knows. `"gold"` where questions have gold
            answers.
        verifier_base_url (`str`, *optional*):
            The server of `"llm:MODEL"`, `"anah:MODEL"` and the like.
        scorers (`Sequence[str]` or `Mapping[str, str]`, *optional*):
            With `verifier="gold"`, how answers of a data source are compared, as `["SOURCE=RULE"]` or `{"SOURCE": "RULE"}`.
        verifier_tokens (`int`, *optional*):
            Longest verdict of a verifier that asks a model.
        knowledge (`str` or `PathLike`, *optional*):
            Knowledge base that evidence is taken from.
        retriever (`str`, *optional*):
            `"topic"`, the page of the question's topic (default if every question has one), or `"corpus"`, all pages.
        num_passages (`int`, *optional*, defaults to `5`):
            Passages per claim.
        patience (`float`, *optional*, defaults to `3600.0`):
            Seconds to wait for a server that is down.
        engine (`str`, *optional*, defaults to `"local"`):
            Who runs the work: this process, or with `"ray"` the workers of Ray.
        workers (`int`, *optional*), gpus_per_worker (`float`, *optional*):
            Of Ray, and the GPUs of each, for models that run in the worker.
        topics (`int`, *optional*):
            So many topics, drawn by the seed.
        questions_per_topic (`int`, *optional*):
            At most so many questions of each, likewise.
        topic_distance (`str`, *optional*):
            `"nearest"` or `"farthest"`: in place of drawn topics those nearest to `topic_targets`, or farthest from them.
        topic_targets (`str`, `PathLike` or rows, *optional*):
            Questions with topics, as `questions`.
        topic_model (`str`, *optional*, defaults to `model`):
            The model that embeds topics.
        push_to_hub (`str`, *optional*):
            Repository in which the dataset is published with its card.
        private (`bool`, *optional*):
            Make a new repository private.
    """

    dataset: str | None
    dataset_config: str | None
    split: str | None
    dataset_revision: str | None
    limit: int | None
    model: str | None
    revision: str | None
    backend: str | None
    base_url: str | None
    responses: str | os.PathLike | None
    dtype: str | None
    device: str | None
    batch_size: int | None
    concurrency: int | None
    model_args: dict[str, Any] | None
    num_samples: int | None
    temperature: float | None
    top_k: int | None
    top_p: float | None
    max_new_tokens: int | None
    seed: int | None
    questions_per_batch: int | None
    verifier: str | Verifier | None
    verifier_base_url: str | None
    scorers: Sequence[str] | Mapping[str, str] | None
    verifier_tokens: int | None
    knowledge: str | os.PathLike | None
    retriever: str | None
    num_passages: int | None
    patience: float | None
    engine: str | None
    workers: int | None
    gpus_per_worker: float | None
    topics: int | None
    questions_per_topic: int | None
    topic_distance: str | None
    topic_targets: Rows | None
    topic_model: str | None
    push_to_hub: str | None
    private: bool | None


_DEFAULTS: BuildArguments = {
    "split": "train", "seed": 0, "verifier": "small", "patience": 3600.0, "engine": "local",
}  # fmt: skip


@dataclass(frozen=True)
class BuildReport:
    """What a function `build_...` has made.

    Args:
        folder (`Path`):
            Folder of the run, which `datasets.load_dataset` reads.
        dataset (`datasets.Dataset`):
            Its rows.
        report (`Mapping[str, Any]`):
            Counts and settings, as `report.json` in the folder has them.
        dropped (`Mapping[str, int]`):
            Why something was dropped, in words, and how often.
        address (`str`, *optional*):
            Of the commit on the Hub, if the dataset was published.
    """

    folder: Path
    dataset: Dataset
    report: Mapping[str, Any]
    dropped: Mapping[str, int]
    address: str | None = None


def build_preferences(
    questions: Rows | None = None,
    *,
    out: str | os.PathLike,
    pairs: Rows | None = None,
    pairs_per_question: int | None = None,
    correct: str | None = None,
    min_margin: float | None = None,
    **options: Unpack[BuildArguments],
) -> BuildReport:
    """Sample answers, label their sentences and pair the best with the worst, for Mask-DPO; or label pairs that exist.

    Called again with the same arguments after a kill, it goes on where it stopped. Nearly all errors come before anything is
    sampled.

    Args:
        questions (`str`, `PathLike` or rows, *optional*):
            File or rows with `prompt` or `question`, and as they are known `id`, `topic` and `evidence`. One of `questions`,
            `dataset` and `pairs` is needed.
        out (`str` or `PathLike`):
            Folder of the run and of its dataset.
        pairs (`str`, `PathLike` or rows, *optional*):
            Pairs that exist, to be labelled as they are: a file, a dataset or rows with `chosen` and `rejected`, see
            [`~hf_factuality.data.read_pairs`]. Nothing is sampled then.
        pairs_per_question (`int`, *optional*, defaults to `1`), correct (`str`, *optional*, defaults to `"free"`), min_margin
        (`float`, *optional*, defaults to `0.0`):
            What makes a pair, see [`~hf_factuality.data.PairConfig`]. May differ when a run is continued.
        **options ([`BuildArguments`]):
            Who answers and who judges, which questions are taken, where it runs, and whether the dataset is published.
            Sampled are by default 32 responses at temperature 0.8 with `top_k=40` and at most 512 tokens, as in the paper.

    Returns:
        [`BuildReport`]: rows as [`~hf_factuality.data.preferences_from`] or [`~hf_factuality.data.label_pairs`] makes them.

    Raises:
        `ValueError`: arguments that contradict each other or are out of range. `TypeError`: an unknown one.
        `DataError`: what is read is no question; no pair is left; the folder holds a run with other settings.
        `JudgingError`: a server fails, or was down for longer than `patience`; what is done is kept.
        `HubError`: it cannot be published. If it was made before, the error's `built` is the report.

    Example:

        >>> built = build_preferences("questions.jsonl", out="pairs", model="Qwen/Qwen3-0.6B", verifier="hhem")
        >>> built.dataset[0]["chosen"]
    """
    args = build_arguments(options, questions, out, pairs)
    rules = {"pairs_per_question": pairs_per_question, "correct": correct, "min_margin": min_margin}
    own: dict[str, Any] = {name: value for name, value in rules.items() if value is not None}
    if pairs is None:
        return run_build(args, PREFERENCES, partial(preferences_from, pairs=PairConfig(**own)), **MASK_DPO_ANSWERS)
    for name in own:
        raise ValueError(f"`pairs` keeps every pair that can be judged; leave `{name}` out")

    def label(questions, sampler, verifier, folder, **run):
        return label_pairs(questions, verifier, folder, name=args.model, **run)

    return run_build(args, GIVEN_PAIRS, label)


def build_arguments(
    options: BuildArguments, questions: Rows | None, out: str | os.PathLike, pairs: Rows | None = None, **defaults: Any
) -> SimpleNamespace:
    """All arguments that builders share, with their defaults; refuses what is unknown or can never be."""
    for name in options:
        if name not in BuildArguments.__annotations__:
            raise TypeError(f"got an unexpected keyword argument {name!r}")
    given = {name: value for name, value in options.items() if value is not None}
    args = SimpleNamespace(**{**dict.fromkeys(BuildArguments.__annotations__), **_DEFAULTS, **defaults, **given})
    args.questions, args.pairs, args.out = questions, pairs, Path(out)
    for name, known in _CHOICES.items():
        if getattr(args, name) not in (None, *known):
            raise ValueError(f"`{name}` is one of {known}, got {getattr(args, name)!r}")
    for name in _FROM_ONE_UP:
        if (value := getattr(args, name)) is not None and not (isinstance(value, int) and value >= 1):
            raise ValueError(f"`{name}` must be a whole number of at least 1, got {value!r}")
    if not args.patience >= 0:
        raise ValueError(f"`patience` must be a number of seconds from 0 up, got {args.patience!r}")
    if sum(it is not None for it in (questions, pairs, args.dataset)) != 1:
        raise ValueError(
            "give one of `questions`, `dataset` and `pairs`" if pairs else "give `questions` or `dataset`"
        )
    return args


def refuse_arguments(args: SimpleNamespace, why: str, *names: str) -> None:
    for name in names:
        if getattr(args, name):
            raise ValueError(f"{why}; leave `{name}` out")


def run_build(
    args: SimpleNamespace,
    dataset: DatasetKind,
    make: Callable[..., Dataset],
    prepare: Callable = list,
    **defaults: Any,
) -> BuildReport:
    """The run of a builder on what `prepare` makes of the questions."""
    kind, engine = _kind(args), engine_of(args.engine, args.workers, args.gpus_per_worker)
    together = 16 if kind != "transformers" or defaults.get("num_samples") == 1 else 1
    given = {name: value for name in _SAMPLING if (value := getattr(args, name)) is not None}
    sampling = SamplingConfig(**defaults | given)
    if kind not in ("given", "pairs") and sampling.num_samples == 1 and sampling.temperature:
        raise ValueError("`num_samples` 1: builders compare responses; take at least 2, or one at `temperature` 0")
    questions = prepare(_questions(args))
    if args.topic_distance is None and (args.topics is not None or args.questions_per_topic is not None):
        questions = select_questions(questions, args.topics, args.questions_per_topic, args.seed)
    targets = _read(args.topic_targets) if args.topic_distance else []
    verifier = _verifier(args, questions)
    args.out.mkdir(parents=True, exist_ok=True)
    if not os.access(args.out, os.W_OK):
        raise OSError(f"`out` {args.out} cannot be written to")
    if _missing(args.out / "verifications.jsonl", [it for it in questions if not getattr(it, "problem", None)]):
        _try_verifier(verifier, questions, verifier_name(args.verifier))
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
            rows = make(
                questions, sampler, verifier, args.out, seed=args.seed,
                questions_per_batch=args.questions_per_batch or together,
                patience=args.patience, progress=sys.stderr.isatty(), **engine,
            )  # fmt: skip
    finally:
        if kind == "server":
            sampler.client.close()
    for path in args.out.glob("sampling.sqlite*"):  # responses.jsonl holds it all by now
        path.unlink(missing_ok=True)
    report = json.loads((args.out / "report.json").read_text(encoding="utf-8"))
    dropped = {dataset.reasons[name]: count for name, count in report["dropped"].items()}
    built = BuildReport(args.out, rows, report, dropped)
    if not args.push_to_hub:
        return built
    try:
        return replace(built, address=dataset.push(args.out, args.push_to_hub, private=args.private))
    except HubError as error:
        error.built = built
        raise


def _kind(args: SimpleNamespace) -> str:
    """Who answers; refuses arguments that it would not heed."""
    pairs, ways = args.pairs, (args.backend, args.base_url, args.responses)
    if pairs is not None and any(way is not None for way in ways):
        raise ValueError("`pairs` has the answers already; leave `base_url`, `responses` and `backend` out")
    if sum(way is not None for way in ways) > 1:
        raise ValueError("give one of `backend`, `base_url` and `responses`")
    kind = "server" if args.base_url is not None else "given" if args.responses else args.backend or "transformers"
    kind = kind if pairs is None else "pairs"
    named = {"server": "`base_url`", "given": "`responses`", "pairs": "`pairs`"}.get(kind, f"`backend` {kind}")
    near, targets, with_knowledge = args.topic_distance, args.topic_targets, args.retriever or args.num_passages
    of_dataset = args.dataset_config or args.dataset_revision or args.split != "train"
    elsewhere = kind in ("server", "given", "pairs") and not args.topic_model
    wrong = {
        "`model` names who answers; or give `responses` FILE made elsewhere": not args.model
        and kind not in ("given", "pairs"),
        **{
            f"`{flag}` means nothing to {named}; leave it out": getattr(args, flag) is not None and kind not in kinds
            for flag, kinds in _ONLY_FOR.items()
        },
        "`dataset_config`, `split` and `dataset_revision` are for `dataset`, not for a file": of_dataset
        and args.dataset is None
        and not (_is_name(pairs) and not Path(pairs).is_file()),
        "`topic_distance` needs `topic_targets` FILE and `topics` N": near and not (targets and args.topics),
        "`topic_targets` and `topic_model` are for `topic_distance`": not near and (targets or args.topic_model),
        f"`topic_distance` embeds topics here; with {named}, name the model by `topic_model`": near and elsewhere,
        "`retriever` and `num_passages` are for `knowledge` FILE": with_knowledge and not args.knowledge,
        "`private` is for `push_to_hub` REPO": args.private and not args.push_to_hub,
    }
    for message in filter(wrong.get, wrong):
        raise ValueError(message)
    return kind


def _sampler(args: SimpleNamespace, kind: str, sampling: SamplingConfig) -> Sampler:
    model_args = args.model_args or {}
    if kind == "transformers":
        model_args = _placement(args) | model_args
        return TransformersSampler(args.model, None, sampling, args.batch_size or 32, args.revision, model_args)
    if kind == "vllm":
        dtype = {} if args.dtype is None else {"dtype": args.dtype}
        return VLLMSampler(args.model, sampling, args.revision, {"seed": args.seed, **dtype, **model_args})
    if kind == "given":
        return GivenResponses.from_file(args.responses, args.model, sampling.stop)
    from hf_factuality.generation.client import ChatClient

    # Not the cache that judges share, where thousands of samples would push others out: a kill in the middle of a batch
    # costs none of its responses, and the file goes when the run is done.
    client = ChatClient(
        args.base_url, args.model, revision=args.revision, concurrency=args.concurrency or 32,
        cache=args.out / "sampling.sqlite", keep_cut=True,
    )  # fmt: skip
    return ServedSampler(client, sampling)


def _worker_sampler(args: SimpleNamespace, kind: str, sampling: SamplingConfig) -> WorkerSampler:
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
    own = SimpleNamespace(**{name: getattr(args, name) for name in (*_ONLY_FOR, "model", "seed")})
    return WorkerSampler(partial(_sampler, own, kind), identity, sampling)


def _gpus(args: SimpleNamespace) -> float:
    """Of a worker that samples: if nothing is said, as many as vLLM's engine takes, where there are any."""
    import torch

    if args.gpus_per_worker is not None:
        return args.gpus_per_worker
    engine = args.model_args or {}
    parts = (int(engine.get(f"{kind}_parallel_size", 1)) for kind in ("tensor", "pipeline"))
    return float(math.prod(parts)) if torch.cuda.is_available() else 0.0


def _placement(args: SimpleNamespace) -> dict[str, Any]:
    import torch

    device = args.device or ("cuda" if torch.cuda.is_available() else "cpu")
    return {"dtype": args.dtype or "auto", "device_map": device}


def _is_name(source: Any) -> TypeGuard[str | os.PathLike]:
    return isinstance(source, (str, os.PathLike))


def _read(source: Rows, limit: int | None = None) -> list[PreferenceQuestion]:
    if _is_name(source):
        return read_questions([row for _, row in islice(read_rows(Path(source)), limit)], Path(source).name)
    return read_questions(list(islice(source, limit)))


def _questions(args: SimpleNamespace) -> Sequence[PreferenceQuestion]:
    if args.questions is not None:
        return _read(args.questions, args.limit)
    if args.pairs is not None and not _is_name(args.pairs):
        return read_pairs(list(islice(args.pairs, args.limit)))
    name = os.fspath(args.dataset if args.pairs is None else args.pairs)
    if args.pairs is not None and Path(name).suffix in (".jsonl", ".json", ".parquet"):
        numbered = list(islice(read_rows(name), args.limit))
    else:
        numbered = read_dataset(name, args.dataset_config, args.split, args.dataset_revision)[: args.limit]
    rows = [row for _, row in numbered]
    return read_questions(rows, name) if args.pairs is None else read_pairs(rows, last_name(name))


def verifier_name(verifier: str | Verifier) -> str:
    return verifier if isinstance(verifier, str) else type(verifier).__name__


def _verifier(args: SimpleNamespace, questions: Sequence[PreferenceQuestion]) -> Verifier:
    by_source = {"scorers": args.scorers} if args.scorers else {}
    name = verifier_name(args.verifier)
    if by_source and name.partition(":")[0] != "gold":
        raise ValueError(f"`scorers` is for `verifier` gold, and means nothing to {name!r}; leave it out")
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
        verifier = with_knowledge(verifier, name, Path(args.knowledge), by_topic, args.num_passages or 5)
    check_evidence(questions, verifier, f"`verifier` {name}")
    return verifier


def _try_verifier(verifier: Verifier, questions: Sequence[PreferenceQuestion], name: str) -> None:
    """One sentence through the verifier: a wrong key, model or address shows before hours of sampling."""
    question = next((it for it in questions if it.evidence), questions[0])
    row = VerificationRequest(
        VerifierInput("It was made in 1901.", question.question, question.evidence, question.row)
    )
    ((judged,),) = judge_rows(GuardedVerifier(verifier, timeout=None), [row])
    found = judged.found
    if found.error:
        raise JudgingError(f"`verifier` {name} fails on a trial sentence: {found.error}")
    if not found.judged:  # no page for this question, judges that disagree, or one that answers nothing useful
        logger.warning("the verifier %s gives a trial sentence no label", name)


def _try_server(args: SimpleNamespace, sampler: ServedSampler, question: PreferenceQuestion) -> None:
    trial = ServedSampler(sampler.client, replace(sampler.config, max_new_tokens=1))
    (answer,) = sampler.client.chat(trial.requests([question.messages], 0)[:1])
    if answer.error:
        hint = "; `top_k` 0 for a server that does not know top_k" if sampler.config.top_k else ""
        raise JudgingError(f"`base_url` {args.base_url} refuses a trial request: {answer.error}{hint}")


def _missing(path: Path, questions: Sequence[PreferenceQuestion]) -> bool:
    done = written_ids(path)
    return not all(question.id in done for question in questions)


def _nearest(
    args: SimpleNamespace, questions, targets, sampler: TransformersSampler | None
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

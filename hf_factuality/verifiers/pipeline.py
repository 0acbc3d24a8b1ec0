"""Extractor, retriever and judge as one verifier, which is kept as a folder or a repository.

That is one JSON file of settings, prompts beside it, models by id and revision. Such a folder is data: classes are named by
a short list of names, and code of others runs only if the caller agrees. No key is ever written, and none is sent to an
address that stands in the file.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hf_factuality.errors import ExtractionError, HubError, JudgingError, RetrievalError
from hf_factuality.io.upload import hub_errors, naming_model, prepare_repo, publish
from hf_factuality.reading.completion import without_citations
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers.base import (
    Extractor,
    Judge,
    JudgeInput,
    Judgement,
    Retriever,
    RowEvidence,
    VerifierInput,
    require_method,
)
from hf_factuality.verifiers.hub_format import (
    BASE_URL_VARIABLE,
    CONFIG_NAME,
    STAGES,
    PipelineReader,
    Written,
    refuse_models,
)


class VerifierPipeline:
    """Chains extractor, retriever and judge into a [`Verifier`].

    All claims of all inputs reach the judge in one call.

    Args:
        extractor ([`Extractor`]):
            Finds the spans.
        judge ([`Judge`]):
            Labels them.
        retriever ([`Retriever`], *optional*, defaults to the row's own evidence):
            Finds evidence.
        requires_evidence (`bool`, *optional*):
            Whether rows without evidence are left out. By default they are, unless a retriever finds it.

    Raises:
        `TypeError`: a stage is a class, or lacks its method.
    """

    def __init__(
        self,
        extractor: Extractor,
        judge: Judge,
        retriever: Retriever | None = None,
        requires_evidence: bool | None = None,
    ):
        require_method(extractor, "extract", "an extractor")
        require_method(judge, "judge", "a judge")
        if retriever is not None:
            require_method(retriever, "retrieve", "a retriever")
        self.extractor = extractor
        self.judge = judge
        self.retriever = retriever if retriever is not None else RowEvidence()
        if requires_evidence is None:
            requires_evidence = isinstance(self.retriever, RowEvidence)
        self.requires_evidence = requires_evidence

    def verify(self, inputs: Sequence[VerifierInput]) -> list[Verification]:
        """One [`Verification`] per input, in order. `ExtractionError`, `RetrievalError`, `JudgingError`: a stage returned
        another number of results than it got inputs."""
        if not inputs:
            return []
        spans = _checked(self.extractor.extract(inputs), inputs, ExtractionError, "extractor")
        claims = [
            [span.claim if span.claim is not None else span.text(item.completion) for span in found]
            for item, found in zip(inputs, spans, strict=True)
        ]
        passages = _checked(self.retriever.retrieve(inputs, claims), inputs, RetrievalError, "retriever")
        shown = str if getattr(self.judge, "evidence_as_given", False) else without_citations
        requests = [
            JudgeInput(
                claim,
                tuple(map(shown, evidence or ())),
                item.question,
                item.completion,
                (span.start, span.end),
                item.row,
            )
            for item, own, texts, found in zip(inputs, spans, claims, passages, strict=True)
            for span, claim, evidence in zip(
                own, texts, _checked(found, texts, RetrievalError, "retriever"), strict=True
            )
        ]
        # What the row lacks is the judge's affair; what a retriever did not find is a verdict, and its failure is none.
        is_row = isinstance(self.retriever, RowEvidence)
        verdicts: list[Judgement | None] = [
            Judgement(span.label, span.score)  # the extractor knows
            if span.label is not None
            else Judgement(None)
            if texts is None
            else None
            if is_row or any(text.strip() for text in texts)
            else NOT_FOUND
            for own, found in zip(spans, passages, strict=True)
            for span, texts in zip(own, found, strict=True)
        ]
        sent = [i for i, verdict in enumerate(verdicts) if verdict is None]
        judged = _checked(self.judge.judge([requests[i] for i in sent]) if sent else [], sent, JudgingError, "judge")
        for i, verdict in zip(sent, judged, strict=True):
            verdicts[i] = verdict
        left = iter(verdicts)
        units = getattr(getattr(self.extractor, "last_report", None), "unanswered", {})
        return [_verification(found, left, units.get(number, 0)) for number, found in enumerate(spans)]

    def save_pretrained(self, folder: str | Path) -> Path:
        """Write the settings into a folder; see [`save_pipeline`]."""
        return save_pipeline(self, folder)

    @staticmethod
    def from_pretrained(folder_or_repo: str | Path, revision: str | None = None, **kwargs: Any) -> VerifierPipeline:
        """Make a pipeline from its settings; see [`load_pipeline`]."""
        return load_pipeline(folder_or_repo, revision, **kwargs)

    def push_to_hub(self, repo_id: str, **kwargs: Any) -> str:
        """Publish the settings; see [`push_pipeline`]."""
        return push_pipeline(self, repo_id, **kwargs)


NOT_FOUND = Judgement(Label.UNVERIFIABLE, reason="not found")
"""Verdict on a claim for which a retriever found no passage."""


def _verification(spans: Sequence[LabeledSpan], verdicts: Iterator[Judgement], unanswered: int) -> Verification:
    """The spans with the next verdicts; `unanswered` units have no claims for want of an answer."""
    own = [next(verdicts) for _ in spans]
    labelled = (
        replace(span, label=it.label, score=it.score, evidence=it.evidence, reason=it.reason)
        for span, it in zip(spans, own, strict=True)
    )
    unanswered += sum(getattr(verdict, "unanswered", False) for verdict in own)
    return Verification(tuple(labelled), unanswered=unanswered)


def _checked(results: Any, inputs: Sequence[Any], error: type[Exception], stage: str) -> Any:
    if len(results) != len(inputs):
        raise error(f"the {stage} returned {len(results)} results for {len(inputs)} inputs; it must return one each")
    return results


def describe_pipeline(pipeline: VerifierPipeline, addresses: bool = True) -> Written:
    """What stands in the files of a pipeline, with or without the servers' addresses."""
    if not isinstance(pipeline, VerifierPipeline) or type(pipeline).verify is not VerifierPipeline.verify:
        raise HubError(f"{type(pipeline).__name__} is no VerifierPipeline, or has a `verify` of its own")
    stages = {stage: getattr(pipeline, stage) for stage in STAGES}
    return Written(addresses).add(stages, bool(pipeline.requires_evidence))


def save_pipeline(pipeline: VerifierPipeline, folder: str | Path) -> Path:
    """Write the settings of a pipeline; [`load_pipeline`] makes it again.

    Models and knowledge are named by id and revision (the commit, where it is known), not copied. Written are
    `verifier_config.json`, `prompts/*.txt` and the `config.json` by which `transformers.pipeline` knows the folder; other
    files of the folder stay. The device, the cache of answers and keys are not written.

    Args:
        pipeline ([`~hf_factuality.verifiers.VerifierPipeline`]):
            Its extractor, retriever and judge are of this package, or have a method `config()` that returns their
            arguments as plain values, prompts, clients or further parts.
        folder (`str` or `Path`):
            Made if it does not exist.

    Returns:
        `Path`: the folder.

    Raises:
        [`HubError`]: a part cannot be described, a setting looks like a key, or the folder holds the `config.json` of
            something else, such as a model.
    """
    written = describe_pipeline(pipeline)
    refuse_models(Path(folder) / "config.json", str(folder))
    return written.write(Path(folder))


def export_pipeline(pipeline: VerifierPipeline, folder: str | Path) -> Path:
    """Write the settings of a pipeline as [`push_pipeline`] publishes them; refuse what only this machine has."""
    written = describe_pipeline(pipeline, addresses=False)
    if written.local:
        raise HubError(f"nobody else has {', '.join(written.local)}; push the model first and name it by its repo id")
    return written.write(Path(folder))


def push_pipeline(
    pipeline: VerifierPipeline,
    repo_id: str,
    *,
    private: bool | None = None,
    revision: str | None = None,
    commit_message: str = "Upload verifier pipeline",
    create_pr: bool = False,
    token: str | bool | None = None,
) -> str:
    """Publish the settings of a pipeline as a model repository.

    The address of a server is not published; who loads the pipeline gives it.

    Args:
        pipeline ([`~hf_factuality.verifiers.VerifierPipeline`]):
            See [`save_pipeline`]. Its models must have ids on the Hub, not folders.
        repo_id (`str`):
            Made if it does not exist.
        private (`bool`, *optional*):
            Of a new repository; `None`: as the organisation has it.
        revision (`str`, *optional*), commit_message (`str`, *optional*):
            Branch to write to, which is made if it does not exist, and message of the commit.
        create_pr (`bool`, *optional*, defaults to `False`):
            Open a pull request instead, in a repository that exists.
        token (`str` or `bool`, *optional*):
            As in `huggingface_hub`.

    Returns:
        `str`: address of the commit, or of the pull request.

    Raises:
        [`HubError`]: see [`save_pipeline`]; something refers to a folder of this machine; the Hub refuses or cannot be
            reached.
    """
    from huggingface_hub import HfApi

    with tempfile.TemporaryDirectory() as folder:
        path = export_pipeline(pipeline, folder)
        api = HfApi(token=token)
        repo_id = prepare_repo(repo_id, private=private, pull_request=create_pr, token=token)
        with hub_errors(f"{repo_id} could not be pushed to", token):
            if revision is not None and not create_pr:
                api.create_branch(repo_id, branch=revision, exist_ok=True)
            existing = None if create_pr else revision
            if api.file_exists(repo_id, "config.json", revision=existing):
                refuse_models(Path(api.hf_hub_download(repo_id, "config.json", revision=existing)), repo_id)
        (path / "README.md").write_text(_card(pipeline, repo_id), encoding="utf-8")
        published = publish(
            {file.relative_to(path).as_posix(): file for file in path.rglob("*") if file.is_file()},
            repo_id,
            private=private,
            revision=revision,
            commit_message=commit_message,
            pull_request=create_pr,
            keeps=("README.md",),
            replaces=lambda names: [name for name in names if name.startswith("prompts/")],
            token=token,
        )
    return published.address


def load_pipeline(
    folder_or_repo: str | Path,
    revision: str | None = None,
    *,
    base_url: str | None = None,
    client: Mapping[str, Any] | None = None,
    device: Any = None,
    trust_remote_code: bool = False,
    token: str | bool | None = None,
) -> VerifierPipeline:
    """Make a pipeline from what [`save_pipeline`] or [`push_pipeline`] wrote.

    Nothing of the file is executed. A server in it is used, without a key, only if it is the file of a folder; from a
    repository the caller gives the address, and texts and keys go there alone.

    Args:
        folder_or_repo (`str` or `Path`):
            A folder, or else a model repository.
        revision (`str`, *optional*):
            Branch, tag or commit of the repository.
        base_url (`str`, *optional*):
            Address of the server for judges and extractors that ask one. `None`: the environment variable
            `HF_FACTUALITY_BASE_URL`, else what a folder says.
        client (`Mapping[str, Any]`, *optional*):
            Further arguments of [`~hf_factuality.generation.client.ChatClient`], such as `api_key` or `cache`, in place
            of the file's. A key needs `base_url`.
        device (`str` or `torch.device`, *optional*):
            For judges that run a model here.
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether classes outside this package (`"package.module:Class"`) may be imported, and models may run code of
            their repositories.
        token (`str` or `bool`, *optional*):
            As in `huggingface_hub`.

    Returns:
        [`~hf_factuality.verifiers.VerifierPipeline`].

    Raises:
        [`HubError`]: there is no such file, it is not of this format or newer, names an unknown class or setting, leads
            out of its folder, or asks for what the caller has not agreed to.
    """
    folder = Path(folder_or_repo)
    local = folder.is_dir()
    if not local:
        from huggingface_hub import snapshot_download

        patterns = [CONFIG_NAME, "prompts/*.txt", "prompts/**/*.txt"]
        repo_id = str(folder_or_repo)
        with naming_model(repo_id):
            folder = Path(snapshot_download(repo_id, revision=revision, allow_patterns=patterns, token=token))
    elif revision is not None:
        raise HubError(f"{str(folder)!r} is a folder; only a repository has revisions, got {revision!r}")
    given = dict(client or {})
    address = base_url or given.pop("base_url", None) or os.environ.get(BASE_URL_VARIABLE) or None
    if address is None and {"api_key", "api_key_env"} & set(given):
        raise HubError("a key is sent only to an address that you name: pass base_url as well")
    reader = PipelineReader(folder, str(folder_or_repo), local, address, given, device, trust_remote_code, token)
    config = reader.config()
    stages = {stage: reader.part(config[stage], stage) for stage in STAGES}
    pipeline = VerifierPipeline(**stages, requires_evidence=config["requires_evidence"])
    if not local:
        # For model cards: which commit judged.
        pipeline.origin = {"repo_id": str(folder_or_repo), "revision": folder.name}
    return pipeline


def _card(pipeline: VerifierPipeline, repo_id: str) -> str:
    config = describe_pipeline(pipeline, addresses=False).config
    stages = "\n".join(f"| {stage} | `{config[stage]['class']}` |" for stage in STAGES)
    return f"""---
library_name: hf_factuality
tags:
- hf_factuality
- fact-verification
---

# {repo_id.rpartition("/")[2]}

A verifier pipeline: it reads completions and labels their spans as supported, contradicted or unverifiable. This
repository holds settings and prompts ([{CONFIG_NAME}]({CONFIG_NAME})); models are named there by id and revision.

```python
from hf_factuality.verifiers import VerifierInput, VerifierPipeline

verifier = VerifierPipeline.from_pretrained("{repo_id}")
verifier.verify([VerifierInput("Ada was born in Leeds.", evidence=("Ada Hale was born in Leeds.",))])
```

| stage | class |
|---|---|
{stages}
"""

"""ANAH-v2's annotator as a judge: are there facts, what does the document say of them, what kind of hallucination is it.

The three turns, their tags and labels are those of ANAH-v2 (arXiv 2407.04693; `opencompass/anah-v2`), in English and
Chinese. What differs from the released script: an answer counts only if it is a tag and nothing else, and one that is
none has no label, instead of "no hallucination"; the texts are fenced as data; the wording of the prompts is our own.
To ask the released model in the very words it was trained on, put those into six files and pass `prompts=`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from hf_factuality.generation.base import ChatAnswer, ChatRequest
from hf_factuality.generation.client import ChatClient
from hf_factuality.reading.sentences import guess_language
from hf_factuality.spans import ANAH_LABELS, Label
from hf_factuality.verifiers.base import JudgeInput, Judgement
from hf_factuality.verifiers.extractors.sentences import SentenceExtractor
from hf_factuality.verifiers.judges.llm import ServedJudge, Talk, Unanswered, evidence_text
from hf_factuality.verifiers.pipeline import VerifierPipeline
from hf_factuality.verifiers.prompts import as_data, load_prompt


# Per language: the tags of each turn and what they say. Turn 2 answers with passages, or with its one tag.
FACT_TAGS = {
    "en": {"<No Facts>": "nofact", "<Facts Present>": "fact"},
    "zh": {"<无事实>": "nofact", "<有事实>": "fact"},
}
REFERENCE_TAGS = {"en": {"<No Reference Information>": "unverifiable"}, "zh": {"<无参考信息>": "unverifiable"}}
TYPE_TAGS = {
    "en": {"<No Hallucination>": "ok", "<Contradictory>": "contradictory", "<Unverifiable>": "unverifiable"},
    "zh": {"<无幻觉>": "ok", "<矛盾>": "contradictory", "<无法验证>": "unverifiable"},
}
_FIELDS = {
    "fact": ("question", "sentence"),
    "reference": ("question", "sentence", "document"),
    "type": ("question", "sentence", "reference"),
}


def _plain(text: str) -> str:
    """Without what the tags may lose or gain: white space, case, brackets, quotes, a full stop."""
    return re.sub(r"\s+", "", text).strip("<>《》〈〉\"'“”`*.。").lower()


def _separated(text: str) -> str:
    """With the separators of turn 2 as they were; they are no special token."""
    return text.replace("< SEP>", "<SEP>")


def parse_tag(text: str, tags: Mapping[str, str]) -> str | None:
    """What the one of `tags` says that an answer consists of; `None` if it is anything else."""
    said = _plain(text) if len(text) <= 1000 else ""
    return next((meaning for tag, meaning in tags.items() if _plain(tag) == said), None)


def _said(answer: ChatAnswer, tags: Mapping[str, Mapping[str, str]]) -> str | None:
    """What a whole answer says, in either language, whatever the prompt's."""
    return parse_tag(answer.text, tags["en"] | tags["zh"]) if answer.complete else None


@dataclass(eq=False, repr=False)
class ANAHJudge(ServedJudge):
    """Judge by ANAH-v2's three turns, which stay in one conversation.

    Implements [`~hf_factuality.verifiers.base.Judge`]: `ok` is `SUPPORTED`, `contradictory` `CONTRADICTED`,
    `unverifiable` `UNVERIFIABLE`, `nofact` `NO_FACT` (the table `anah` of [`~hf_factuality.spans`]). A turn that cannot
    be read, or is not complete, ends the conversation without label. The evidence of the result is what turn 2 quoted;
    there is no score.
    Without evidence a fact is `UNVERIFIABLE` after turn 1.

    Args:
        client ([`~hf_factuality.generation.base.ChatModel`]):
            Server and model, for example `opencompass/anah-v2` on vLLM.
        language (`str`, *optional*):
            `"en"` or `"zh"`; `None` decides per claim.
        prompts (`str` or `Path`, *optional*):
            Folder with `anah_{fact,reference,type}_{en,zh}.txt` to use instead of the package's.
        max_reference_tokens (`int`, *optional*, defaults to `1024`):
            Longest answer of turn 2.
        max_tokens (`int`, *optional*, defaults to `32`):
            Longest answer of turns 1 and 3.

    Raises:
        `ValueError`: the language is neither, or a prompt lacks a value.
        `FileNotFoundError`: the folder lacks a prompt.
    """

    language: str | None = None
    prompts: str | Path | None = None
    max_reference_tokens: int = 1024
    max_tokens: int = 32

    limits: ClassVar[tuple[str, ...]] = ("max_tokens", "max_reference_tokens")

    def __post_init__(self):
        if min(self.max_tokens, self.max_reference_tokens) < 1:
            given = f"{self.max_tokens} and {self.max_reference_tokens}"
            raise ValueError(f"max_tokens and max_reference_tokens must be at least 1, got {given}")
        if self.language not in (None, "en", "zh"):
            raise ValueError(f'language must be "en", "zh" or None, got {self.language!r}')
        names = {(turn, language): f"anah_{turn}_{language}" for turn in _FIELDS for language in ("en", "zh")}
        self.prompts = {
            key: load_prompt(name if self.prompts is None else Path(self.prompts) / f"{name}.txt", _FIELDS[key[0]])
            for key, name in names.items()
        }

    def _talk(self, item: JudgeInput) -> Talk:
        if not any(map(str.isalnum, item.claim)):
            return Judgement(Label.NO_FACT)
        language = self.language or guess_language(item.claim)
        document = evidence_text(item)
        messages: list[tuple[str, str]] = []

        def ask(turn: str, tags: Mapping[str, Mapping[str, str]] | None, **values: str) -> ChatRequest:
            values = {"question": item.question, "sentence": item.claim, **values}
            messages.append(("user", _separated(self.prompts[turn, language].fill(values))))
            choices = tuple(tags[language]) if tags else ()
            limit = self.max_tokens if choices else self.max_reference_tokens
            return ChatRequest(tuple(messages), choices=choices, max_new_tokens=limit)

        answer = yield ask("fact", FACT_TAGS)
        said = _said(answer, FACT_TAGS)
        if said != "fact":
            return Judgement(ANAH_LABELS.get(said))
        if not document:
            return Judgement(Label.UNVERIFIABLE)
        messages.append(("assistant", answer.text.strip()))
        answer = yield ask("reference", None, document=document)
        if _said(answer, REFERENCE_TAGS):
            return Judgement(Label.UNVERIFIABLE)
        reference = answer.text.strip()
        both = any(
            _plain(tag) in _plain(reference) for tags in REFERENCE_TAGS.values() for tag in tags
        )  # and passages
        if not answer.complete or both or not any(map(str.isalnum, reference.replace("<SEP>", ""))):
            return Judgement(None)
        messages.append(("assistant", _separated(as_data(reference))))  # others' words
        try:
            answer = yield ask("type", TYPE_TAGS, reference=reference)
        except Unanswered:  # what was found is kept
            return Judgement(None, evidence=reference)
        return Judgement(ANAH_LABELS.get(_said(answer, TYPE_TAGS)), evidence=reference)


class ANAHVerifier(VerifierPipeline):
    """Sentences of the completion, judged against the row's evidence by [`ANAHJudge`].

    Args:
        model, base_url, **kwargs:
            See [`~hf_factuality.generation.client.ChatClient`].
        language (`str`, *optional*):
            `"en"` or `"zh"`; `None` decides per completion and claim.
        prompts (`str` or `Path`, *optional*):
            See [`ANAHJudge`].
        max_tokens (`int`, *optional*):
            Longest answer of a turn: of 1 and 3 instead of 32, and of 2 where it is more than 1024.
    """

    def __init__(
        self,
        model: str,
        base_url: str,
        language: str | None = None,
        prompts: str | Path | None = None,
        max_tokens: int = 32,
        **kwargs: Any,
    ):
        client, passages = ChatClient(base_url, model, **kwargs), max(max_tokens, ANAHJudge.max_reference_tokens)
        judge = ANAHJudge(client, language, prompts, max_reference_tokens=passages, max_tokens=max_tokens)
        super().__init__(SentenceExtractor(language), judge)

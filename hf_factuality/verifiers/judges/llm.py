"""Judge that asks a language model on a server whether evidence supports a claim.

An answer counts only if it is one of the three labels and nothing else: no searching for words in it, so that
"incorrect" is never "correct" and "not supported" never "supported". Everything else is unknown, and counted.
"""

from __future__ import annotations

import logging
import math
import re
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from hf_factuality.generation.base import ChatAnswer, ChatModel, ChatRequest, TokenLogprobs
from hf_factuality.generation.client import ChatClient
from hf_factuality.reading.marks import without_thinking
from hf_factuality.spans import Label
from hf_factuality.verifiers.base import REQUEST_FAILED, Extractor, JudgeInput, Judgement, Retriever
from hf_factuality.verifiers.extractors.sentences import SentenceExtractor
from hf_factuality.verifiers.pipeline import VerifierPipeline
from hf_factuality.verifiers.prompts import Prompt, as_data, load_prompt


logger = logging.getLogger(__name__)

JUDGE_LABELS: Mapping[str, Label] = {
    "supported": Label.SUPPORTED,
    "contradicted": Label.CONTRADICTED,
    "unverifiable": Label.UNVERIFIABLE,
}
# What may stand before or around an answer without changing it.
_LEAD = re.compile(
    r"(?:(?:the|my|final)\s+)*(?:answer|verdict|label|judge?ment|(?:the|this) claim)\s*(?:is\s*:?|:|=)\s*",
    re.IGNORECASE,
)
_AROUND = " \t\r\n*_`\"'“”‘’.。!"
Talk = Generator[ChatRequest, ChatAnswer, Any]
"""A conversation: yields requests, is sent their answers, returns a result."""


class Unanswered(Exception):
    """Raised in a conversation whose request failed."""


# Claims whose prompts are in memory at once.
SLICE = 2048
# Share of the probability that the labels must have between them for their ratio to mean something.
MIN_LABEL_MASS = 0.1


def parse_choice(text: str, choices: Sequence[str]) -> str | None:
    """The one of `choices` that an answer consists of; any other word makes it `None`.

    Case, white space, emphasis, quotes, a full stop and a lead such as "Answer:" or "The claim is" do not matter, nor
    does one closed `<think>` block in front.
    """
    if len(text) > 100_000:
        return None
    longest = max(map(len, choices), default=0)
    rest = without_thinking(text).strip(_AROUND)
    lead = _LEAD.match(rest)
    if lead:
        rest = rest[lead.end() :].strip(_AROUND)
    if len(rest) > 2 * longest:
        return None
    said = " ".join(rest.split()).lower()  # casefold would read "ſupported" as "supported"
    return next((choice for choice in choices if choice.lower() == said), None)


def label_probabilities(tokens: Sequence[TokenLogprobs], choices: Sequence[str]) -> dict[str, float] | None:
    """Probability of each of `choices` against the others, where an answer begins with one of them.

    Read at the first token that is not white space, emphasis or a quote. A candidate token counts for the only choice
    that begins with it; one that fits several or none is left out, and the rest is normalised. `None` if the first token
    belongs to no choice, or the choices have less than `MIN_LABEL_MASS` between them.
    """
    first = _first_token(tokens)
    if first is None or _choice_of(first.token, choices) is None:
        return None
    mass = dict.fromkeys(choices, 0.0)
    for token, logprob in first.candidates:
        choice = _choice_of(token, choices)
        if choice is not None:
            mass[choice] += math.exp(min(logprob, 0.0))
    total = sum(mass.values())
    if not total >= MIN_LABEL_MASS:
        return None
    return {choice: value / total for choice, value in mass.items()}


def _first_token(tokens: Sequence[TokenLogprobs]) -> TokenLogprobs | None:
    return next((token for token in tokens if token.token.strip(_AROUND)), None)


def _choice_of(token: str, choices: Sequence[str]) -> str | None:
    said = token.strip(_AROUND).lower()
    fits = [choice for choice in choices if said and choice.lower().startswith(said)]
    return fits[0] if len(fits) == 1 else None


def read_choice(
    answer: ChatAnswer, choices: Sequence[str], *, nucleus: float
) -> tuple[str | None, dict[str, float] | None]:
    """The choice that an answer is, and [`label_probabilities`], where the choices can be told by their first token.

    An answer that was cut short, filtered, or given with others that differ is none, nor is one that its own
    log-probabilities deny: they begin with another choice, or hold others for so much more likely that it could not have
    been drawn with the top-p `nucleus` (0 at temperature 0, where only the most likely choice can be the answer).
    """
    said = parse_choice(answer.text, choices) if answer.complete else None
    first = _first_token(answer.logprobs or ())
    if said is None or first is None:
        return said, None
    if _choice_of(first.token, choices) not in (None, said):
        return None, None
    if dict(first.candidates).keys() != set(choices) and len({choice.split()[0] for choice in choices}) < len(choices):
        return said, None
    shares = label_probabilities(answer.logprobs, choices)
    likelier = sum(share for share in shares.values() if share > shares[said]) if shares else 0.0
    if likelier and likelier >= nucleus:
        return None, None
    return said, shares


@dataclass(frozen=True)
class Conversed:
    """What came of conversations: their results in order, the numbers of those whose last answer was cut at its length, and the
    error of each whose request failed."""

    results: list[Any]
    cut: set[int]
    failed: dict[int, str]


def converse(client: ChatModel, talk: Callable[[Any], Talk], inputs: Sequence[Any]) -> Conversed:
    """Conversations about many inputs, side by side: all that wait for an answer are sent together.

    [`Unanswered`] is raised in a conversation whose request failed, and ends it: with a result if it returns one, else with
    `None`.
    """
    results: list[Any] = [None] * len(inputs)
    cut: set[int] = set()
    failed: dict[int, str] = {}
    for start in range(0, len(inputs), SLICE):
        numbers = range(start, min(start + SLICE, len(inputs)))
        talks = {number: talk(inputs[number]) for number in numbers}
        answers: dict[int, ChatAnswer | None] = dict.fromkeys(numbers)
        while answers:
            requests = {}
            for number, answer in answers.items():
                (cut.add if answer is not None and answer.was_cut else cut.discard)(number)
                try:
                    if answer is not None and answer.error is not None:
                        failed[number] = answer.error
                        talks[number].throw(Unanswered())
                    else:
                        requests[number] = talks[number].send(answer)
                except StopIteration as end:
                    results[number] = end.value
                except Unanswered:
                    pass
            answers = requests and dict(zip(requests, client.chat(list(requests.values())), strict=True))
    return Conversed(results, cut, failed)


def evidence_text(item: JudgeInput) -> str:
    """The passages of a claim as one text; empty if there are none, or blank ones."""
    return "\n\n".join(text for text in item.evidence if text.strip())


def judgement_of(item: JudgeInput, label: Label | None, score: float | None) -> Judgement:
    """The judgement of a claim; the passage that decided is known where there is one."""
    if label is None:
        return Judgement(None)
    evidence = item.evidence[0] if len(item.evidence) == 1 else None
    return Judgement(label, None if score is None else min(score, 1.0), evidence)


@dataclass(frozen=True)
class JudgeReport:
    """What one call of a judge met: claims, answers that were none of the allowed ones (`cut`: those of them that ended at the
    limit of tokens), requests that failed after all retries, and the first of their errors."""

    claims: int = 0
    unparsed: int = 0
    failed: int = 0
    first_error: str | None = None
    cut: int = 0

    @classmethod
    def of(cls, verdicts: Sequence[Any], found: Conversed) -> JudgeReport:
        """Of all verdicts of a call, `None` where unknown, and of the conversations that they came from."""
        unknown = [number for number, verdict in enumerate(verdicts) if verdict is None]
        failed, first_error = len(found.failed), next(iter(found.failed.values()), None)
        cut = sum(number in found.cut for number in unknown)
        return cls(len(verdicts), len(unknown) - failed, failed, first_error, cut)

    @property
    def unknown(self) -> int:
        """Claims that have no label."""
        return self.unparsed + self.failed


def log_unknown(report: Any, what: str, who: Any, limits: Sequence[str] = ("max_tokens",)):
    """Warn of what could not be read or answered in a report; `what` has a place for their number, and `limits` are the
    attributes of `who` that limit its answers."""
    unknown = report.unparsed + report.failed
    if unknown:
        why = f"; the first error: {report.first_error}" if report.first_error else ""
        if report.cut:
            why += f"; {raise_limit(report.cut, who, limits)}"
        logger.warning(
            f"%s: {what}: %d answers could not be read, %d requests failed%s",
            type(who).__name__, unknown, report.unparsed, report.failed, why,
        )  # fmt: skip


def raise_limit(cut: int, who: Any, limits: Sequence[str] = ("max_tokens",)) -> str:
    """What to do about answers that were cut: the settings of `who` by their names, with their values."""
    settings = " or ".join(f"{name}={getattr(who, name)}" for name in limits)
    told = f"{cut} answers were cut at their length: raise {settings} of {type(who).__name__}"
    flag = getattr(who, "limit_flag", None)
    return f"{told} ({flag})" if flag else told


def _why_unknown(number: int, found: Conversed) -> dict[str, Any]:
    """Fields of a judgement without a label."""
    if number in found.failed:
        return {"reason": f"{REQUEST_FAILED}{found.failed[number]}", "unanswered": True}
    if number in found.cut:
        return {"reason": "not judged: the answer of the judge was cut at its length", "unanswered": True}
    return {"reason": "not judged: the answer of the judge is none of its verdicts"}


@dataclass(eq=False, repr=False)
class ServedJudge:
    """What judges on a server (`client`) share: claims are talked about side by side, and what came of them is counted, in the
    `last_report`, and logged."""

    client: ChatModel
    last_report: JudgeReport = field(default_factory=JudgeReport, init=False)

    limits: ClassVar[tuple[str, ...]] = ("max_tokens",)
    limit_flag: ClassVar[str] = "`verifier_tokens`"

    def judge(self, inputs: Sequence[JudgeInput]) -> list[Judgement]:
        """One [`~hf_factuality.verifiers.base.Judgement`] per input, in order. [`~hf_factuality.generation.client.ServerError`]: the
        server is gone; what was answered is in the cache."""
        found = converse(self.client, self._talk, inputs)
        labels = [result and result.label for result in found.results]
        self.last_report = JudgeReport.of(labels, found)
        log_unknown(self.last_report, f"%d of {len(inputs)} claims have no verdict", self, self.limits)
        results = (result or Judgement(None) for result in found.results)
        return [
            result if result.label is not None else replace(result, **_why_unknown(number, found))
            for number, result in enumerate(results)
        ]

    def _talk(self, item: JudgeInput) -> Talk:
        """The conversation about a claim; returns its judgement."""
        raise NotImplementedError


@dataclass(eq=False, repr=False)
class LLMJudge(ServedJudge):
    """Judge on an OpenAI-compatible server: supported, contradicted or unverifiable by the evidence given.

    Implements [`~hf_factuality.verifiers.base.Judge`]. The label is the answer, read by [`read_choice`]; the score is
    the probability of "supported" among the three where the server gives log-probabilities, else `None`. An answer that
    is no label is asked for once more, with a reminder; if that fails too the label is `None`. So it is at once for a
    label that was cut short, filtered, or denied by another choice or its log-probabilities.

    Without evidence the label is `UNVERIFIABLE` and nothing is sent: this judge does not answer from memory. A claim
    without any letter or digit is `NO_FACT`.

    Args:
        client ([`~hf_factuality.generation.base.ChatModel`]):
            Server and model.
        prompt (`str` or `Path`, *optional*, defaults to `"judge"`):
            Name or file of the prompt, with `{{claim}}`, `{{evidence}}` and, if it likes, `{{question}}`.
        reminders (`int`, *optional*, defaults to `1`):
            How often an unreadable answer is asked for again.
        logprobs (`int`, *optional*, defaults to `20`):
            Alternatives per token to ask for; 0 for no scores.
        max_tokens (`int`, *optional*, defaults to `16`):
            Longest answer. A model that thinks first needs thousands.
        temperature (`float`, *optional*, defaults to `0.0`):
            Sampling temperature.

    Raises:
        `ValueError`: the prompt lacks a value, or a number is negative.
    """

    prompt: str | Path | Prompt = "judge"
    _: KW_ONLY
    reminders: int = 1
    logprobs: int = 20
    max_tokens: int = 16
    temperature: float = 0.0

    def __post_init__(self):
        if min(self.reminders, self.logprobs, self.temperature) < 0 or self.max_tokens < 1:
            raise ValueError("reminders, logprobs and temperature must be >= 0, max_tokens >= 1")
        self.prompt = load_prompt(self.prompt, ("claim", "evidence", "question"), ("claim", "evidence"))
        self._again = load_prompt("judge_again", ()).text

    def _talk(self, item: JudgeInput) -> Talk:
        evidence = evidence_text(item)
        if not any(map(str.isalnum, item.claim)):
            return Judgement(Label.NO_FACT)
        if not evidence:
            return Judgement(Label.UNVERIFIABLE)
        values = {"claim": item.claim, "evidence": evidence, "question": item.question}
        request = ChatRequest(
            (("user", self.prompt.fill(values)),),
            choices=tuple(JUDGE_LABELS),
            logprobs=self.logprobs,
            temperature=self.temperature,
            max_new_tokens=self.max_tokens,
            seed=0 if self.temperature else None,
        )
        for _ in range(self.reminders + 1):
            answer = yield request
            choice, share = read_choice(answer, request.choices, nucleus=1.0 if self.temperature else 0.0)
            # A label that cannot be trusted would be shown to the model as its own and come back as another.
            if choice or not answer.text.strip() or parse_choice(answer.text, request.choices):
                break
            turns = (("assistant", as_data(answer.text[:2000])), ("user", self._again))
            request = replace(request, messages=(*request.messages, *turns))
        return judgement_of(item, JUDGE_LABELS.get(choice), share and share["supported"])


class LLMVerifier(VerifierPipeline):
    """Sentences of the completion, or what `extractor` finds, judged by [`LLMJudge`].

    Args:
        model, base_url, **kwargs:
            See [`~hf_factuality.generation.client.ChatClient`].
        extractor ([`~hf_factuality.verifiers.base.Extractor`], *optional*):
            `None`: whole sentences.
        retriever ([`~hf_factuality.verifiers.base.Retriever`], *optional*):
            `None`: the row's own evidence.
        prompt (`str` or `Path`, *optional*, defaults to `"judge"`), max_tokens (`int`, *optional*, defaults to `16`):
            See [`LLMJudge`].
    """

    def __init__(
        self,
        model: str,
        base_url: str,
        extractor: Extractor | None = None,
        retriever: Retriever | None = None,
        prompt: str | Path = "judge",
        max_tokens: int = 16,
        **kwargs: Any,
    ):
        judge = LLMJudge(ChatClient(base_url, model, **kwargs), prompt, max_tokens=max_tokens)
        super().__init__(extractor or SentenceExtractor(), judge, retriever)

"""The policy as its own judge: RLFH's verification and rating of statements (arXiv 2406.12221).

What differs from the released code (AlignRM/RLFH): an answer counts only if it is one of the labels and nothing else, so
that "incorrect" is never "correct"; one that never can be read is unknown, instead of "vague" or 1; every retry is a
quarter warmer, where the release warms only what is at 1 or above; by default the labels are compared by their
likelihood instead of sampled; the five labels of the paper can be asked for. The wording of the prompts is our own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass, field
from pathlib import Path
from typing import Any

from hf_factuality.generation.base import ChatModel, ChatRequest
from hf_factuality.generation.local import LocalChat, bind_policy
from hf_factuality.spans import RLFH_LABELS, Label, Verification
from hf_factuality.verifiers.base import Extractor, JudgeInput, Judgement, Retriever, VerifierInput
from hf_factuality.verifiers.extractors.llm import RLFHExtractor
from hf_factuality.verifiers.judges.llm import (
    JudgeReport,
    ServedJudge,
    Talk,
    converse,
    evidence_text,
    judgement_of,
    log_unknown,
    parse_choice,
    read_choice,
)
from hf_factuality.verifiers.pipeline import VerifierPipeline
from hf_factuality.verifiers.prompts import load_prompt


SELF_LABELS = {
    "three": ("correct", "vague", "wrong"),
    "five": ("correct", "hedged correct", "vague", "hedged wrong", "wrong"),
}
RATINGS = ("1", "2", "3", "4", "5")
_VERIFY = {"three": "self_verify", "five": "self_verify_five"}
_VERIFY_FIELDS, _ASSESS_FIELDS = ("question", "materials", "statement"), ("question", "response", "statement")


@dataclass(frozen=True)
class AssessInput:
    """A statement whose informativeness is asked for.

    Args:
        statement (`str`):
            An atomic statement, or a sentence.
        response (`str`):
            The whole completion that it was taken from.
        question (`str`, *optional*):
            What was asked.
    """

    statement: str
    response: str
    question: str | None = None

    @classmethod
    def of(cls, item: VerifierInput, verification: Verification) -> list[AssessInput]:
        """One for each span of a verification, in its order."""
        statements = [
            span.claim if span.claim is not None else span.text(item.completion) for span in verification.spans
        ]
        return [cls(statement, item.completion, item.question) for statement in statements]


@dataclass(eq=False, repr=False)
class SelfJudge(ServedJudge):
    """RLFH's two questions: is a statement correct, vague or wrong by the materials, and how informative is it.

    Implements [`~hf_factuality.verifiers.base.Judge`]; the labels are those of the table `rlfh` of
    [`~hf_factuality.spans`]. The score is the probability of "correct" and "hedged correct" among the labels, where the
    client tells it. Without evidence the model judges by what it knows itself. A statement without any letter or digit
    is `NO_FACT`. An answer that is no label is asked for again, and is `None` in the end; one that
    [`~hf_factuality.verifiers.judges.llm.read_choice`] does not trust is `None` at once.

    Args:
        client ([`~hf_factuality.generation.base.ChatModel`]):
            The policy in this process, or on a server. Of a policy that changes, a server's client must keep no answers:
            `ChatClient(..., cache=False)`.
        labels (`str`, *optional*, defaults to `"three"`):
            `"three"`: correct, vague, wrong, as the released prompt asks. `"five"`: with hedged correct and hedged wrong.
        method (`str`, *optional*, defaults to `"choice"`):
            `"choice"`: the label of the highest likelihood, where the client can compare them. `"sample"`: as the release
            does, free text at temperature 0.3 and top-p 0.3.
        prompts (`str` or `Path`, *optional*):
            Folder with `self_verify.txt` (or `self_verify_five.txt`) and `self_assess.txt` to use instead of the
            package's.
        retries (`int`, *optional*, defaults to `4`):
            How often an unreadable answer is asked for again, at 0.25 more temperature each time.
        temperature (`float`, *optional*):
            Of the first attempt. `None`: 0 for `"choice"`, 0.3 for `"sample"`.
        top_p (`float`, *optional*):
            Nucleus. `None`: 1 for `"choice"`, 0.3 for `"sample"`.
        max_tokens (`int`, *optional*, defaults to `32`):
            Longest answer; the rating may have half as many more (48, as in the release). A model that thinks first needs
            thousands.

    Attributes:
        last_report ([`~hf_factuality.verifiers.judges.llm.JudgeReport`]): Of the last call of `judge`.
        last_assessment ([`~hf_factuality.verifiers.judges.llm.JudgeReport`]): Of the last call of `assess`.

    Raises:
        `ValueError`: an argument is out of range, or a prompt lacks a value.
        `FileNotFoundError`: the folder lacks a prompt.
    """

    _: KW_ONLY
    labels: str = "three"
    method: str = "choice"
    prompts: str | Path | None = None
    retries: int = 4
    temperature: float | None = None
    top_p: float | None = None
    max_tokens: int = 32
    last_assessment: JudgeReport = field(default_factory=JudgeReport, init=False)

    def __post_init__(self):
        if self.labels not in SELF_LABELS:
            raise ValueError(f'labels must be "three" or "five", got {self.labels!r}')
        if self.method not in ("choice", "sample"):
            raise ValueError(f'method must be "choice" or "sample", got {self.method!r}')
        temperature, top_p = (0.0, 1.0) if self.method == "choice" else (0.3, 0.3)
        self.temperature = temperature if self.temperature is None else self.temperature
        self.top_p = top_p if self.top_p is None else self.top_p
        if min(self.retries, self.temperature) < 0 or self.max_tokens < 1 or not 0 < self.top_p <= 1:
            raise ValueError("retries and temperature must be >= 0, max_tokens >= 1, top_p in (0, 1]")
        fields = {
            _VERIFY[self.labels]: (_VERIFY_FIELDS, ("materials", "statement")),
            "self_assess": (_ASSESS_FIELDS, ("response", "statement")),
        }
        self.prompts = {
            name: load_prompt(name if self.prompts is None else Path(self.prompts) / f"{name}.txt", *wanted)
            for name, wanted in fields.items()
        }

    def _talk(self, item: JudgeInput) -> Talk:
        if not any(map(str.isalnum, item.claim)):
            return Judgement(Label.NO_FACT)
        values = {"question": item.question, "materials": evidence_text(item) or None, "statement": item.claim}
        prompt = self.prompts[_VERIFY[self.labels]].fill(values)
        said, shares = yield from self._choose(prompt, SELF_LABELS[self.labels], self.max_tokens)
        score = shares and shares["correct"] + shares.get("hedged correct", 0.0)
        return judgement_of(item, RLFH_LABELS.get(said), score)

    def assess(self, inputs: Sequence[AssessInput]) -> list[int | None]:
        """Informativeness of each statement, in order: 5 answers the question, 1 is of no use.

        Args:
            inputs (`Sequence[AssessInput]`):
                [`AssessInput.of`] makes them from a verification.

        Returns:
            `list[int | None]`: 1 to 5; `None` where the answer never was exactly one of these digits.

        Raises:
            [`~hf_factuality.generation.client.ServerError`]: the server is gone.
        """
        found = converse(self.client, self._rate, inputs)
        self.last_assessment = JudgeReport.of(found.results, found)
        log_unknown(self.last_assessment, f"%d of {len(inputs)} claims have no verdict", self)
        return found.results

    def _rate(self, item: AssessInput) -> Talk:
        values = {"question": item.question, "response": item.response, "statement": item.statement}
        prompt = self.prompts["self_assess"].fill(values)
        said, _ = yield from self._choose(prompt, RATINGS, self.max_tokens * 3 // 2)
        return said and int(said)

    def _choose(self, prompt: str, choices: tuple[str, ...], max_tokens: int) -> Talk:
        """The choice that the answer to a prompt is and the probability of each; see `read_choice`."""
        for attempt in range(self.retries + 1):
            temperature = self.temperature + 0.25 * attempt
            answer = yield ChatRequest(
                (("user", prompt),),
                choices=choices if self.method == "choice" else (),
                logprobs=20,
                temperature=temperature,
                top_p=self.top_p,
                max_new_tokens=max_tokens,
                seed=attempt if temperature else None,
            )
            if parse_choice(answer.text, choices) is not None:
                return read_choice(answer, choices, nucleus=self.top_p if temperature else 0.0)
        return None, None


class SelfVerifier(VerifierPipeline):
    """Statements of the completion by [`~hf_factuality.verifiers.RLFHExtractor`], judged by [`SelfJudge`].

    Both ask the same model. Rows without evidence are judged too, by what the model knows.

    Args:
        client ([`~hf_factuality.generation.base.ChatModel`], *optional*):
            `None`: a `LocalChat` that waits for its model, see [`SelfVerifier.bind`].
        extractor ([`~hf_factuality.verifiers.base.Extractor`], *optional*):
            `None`: `RLFHExtractor(client)`. The release samples it: `RLFHExtractor(client, temperature=1.0)`.
        retriever ([`~hf_factuality.verifiers.base.Retriever`], *optional*):
            `None`: the row's own evidence.
        **kwargs:
            The other arguments of [`SelfJudge`].

    Example:

        >>> verifier = SelfVerifier(LocalChat(model, tokenizer))
        >>> results = verifier.verify([VerifierInput("Ada was born in Leeds.", "Where was Ada born?")])
    """

    def __init__(
        self,
        client: ChatModel | None = None,
        extractor: Extractor | None = None,
        retriever: Retriever | None = None,
        **kwargs: Any,
    ):
        client = client if client is not None else LocalChat()
        extractor = extractor if extractor is not None else RLFHExtractor(client)
        super().__init__(extractor, SelfJudge(client, **kwargs), retriever, requires_evidence=False)

    def bind(self, model: Any, tokenizer: Any = None) -> SelfVerifier:
        """Judge with this model from now on; see [`~hf_factuality.generation.local.bind_policy`]. `ValueError`: the model is on a
        server, or see [`~hf_factuality.generation.local.LocalChat.bind`]."""
        if not bind_policy(self, model, tokenizer):
            raise ValueError("this verifier asks a model on a server; there is nothing to bind")
        return self

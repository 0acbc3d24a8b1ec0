"""RLFH's reward (arXiv 2406.12221) as a token reward function: statements are paid where they end."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from itertools import compress
from pathlib import Path
from typing import Any

from hf_factuality.functional.labels import judged_units
from hf_factuality.generation.client import ChatClient
from hf_factuality.methods.rlfh.formula import (
    RLFH_GRANULARITIES,
    RLFH_RATINGS,
    RLFHMaps,
    RLFHSentence,
    mean_rlfh_metrics,
    rlfh_metrics,
    rlfh_rewards,
    statement_reward,
)
from hf_factuality.methods.rlfh.judge import AssessInput, SelfVerifier
from hf_factuality.methods.rlfh.maps import load_rlfh_maps
from hf_factuality.reading.completion import read_text
from hf_factuality.reading.rules import is_refusal_sentence
from hf_factuality.reading.same import first_of_same, least_favourable
from hf_factuality.reading.scopes import scope_text
from hf_factuality.retrieval.passages import RLFH_PASSAGES
from hf_factuality.retrieval.retrievers import TopicRetriever
from hf_factuality.rewards._rows import JudgedReward, check_repeats
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers.base import Verifier, VerifierInput
from hf_factuality.verifiers.service import JudgedRow


Rater = Callable[[Sequence[VerifierInput], Sequence[Verification]], "list[list[int | None]]"]
"""Rates the informativeness of every statement, 1 to 5; `None` where that failed."""


def rlfh_verifier(
    verifier_model: str | None = None,
    verifier_base_url: str | None = None,
    knowledge: str | Path | None = None,
    training_args: Any = None,
) -> SelfVerifier:
    """RLFH's extraction, verification and rating, by the policy itself or by a model on a server.

    Args:
        verifier_model (`str`, *optional*):
            Model on the server. `None`: the policy, which the trainer binds.
        verifier_base_url (`str`, *optional*):
            Address of an OpenAI-compatible server, such as `"http://localhost:8000/v1"`. `"rollout"`: the vLLM server that
            samples for this run (`use_vllm=True, vllm_mode="server"`), whose model, the policy, then judges itself;
            `verifier_model` is the name that it was started with. Its answers are not cached, since it changes.
        knowledge (`str` or `Path`, *optional*):
            Knowledge base of pages (`hf-factuality index`), searched as RLFH does: the pages that a row's `topic` names, in
            sections of more than 64 words, the three best per statement. `None`: the row's own evidence.
        training_args ([`~trl.GRPOConfig`], *optional*):
            Where the server of `"rollout"` is.

    Raises:
        `ValueError`: one of model and address without the other, or `"rollout"` of a run without a server.
        `RetrievalError`: no such knowledge base.
    """
    if bool(verifier_model) != bool(verifier_base_url):
        raise ValueError(
            f"a judge on a server needs both its model and its address, got {verifier_model!r} and {verifier_base_url!r}"
        )
    client = None
    if verifier_model and verifier_base_url:
        rollout = verifier_base_url == "rollout"
        address = _rollout_server(training_args) if rollout else verifier_base_url
        client = ChatClient(address, verifier_model, cache=not rollout)
    if knowledge is None:
        return SelfVerifier(client)
    pages = TopicRetriever(
        knowledge, top_k=3, query="sentences", pad=False, passages=RLFH_PASSAGES, passage_format="rlfh"
    )
    return SelfVerifier(client, retriever=pages)


def _rollout_server(args: Any) -> str:
    if args is None or not args.use_vllm or args.vllm_mode != "server":
        raise ValueError(
            "verifier_base_url='rollout' asks the vLLM server that samples for this run, and there is none: set use_vllm=True and "
            "vllm_mode='server', or leave the judge out, so that the policy judges in this process"
        )
    address = args.vllm_server_base_url or f"http://{args.vllm_server_host}:{args.vllm_server_port}"
    return f"{address.rstrip('/')}/v1"


class RLFHReward(JudgedReward):
    """Truth and informativeness of every statement, paid at the token where it ends, logged as "rlfh".

    A token reward function of [`~hf_factuality.TokenRewardPPOTrainer`]. A completion that could not be judged is unknown
    (`None`), never 0; so is, for its own part, a statement without a verdict or a rating. Its sentences are those of
    [`~hf_factuality.reading.Reading`]: headings, code and lists of sources are none, and neither are questions and offers, unless
    the verifier finds a statement in them.

    Args:
        verifier ([`~hf_factuality.Verifier`] or `str`):
            Finds and judges the statements: its claims, or its spans if it has no claims.
        maps (`str`, `Path`, `Mapping` or [`~hf_factuality.methods.rlfh.formula.RLFHMaps`], *optional*, defaults to `"readme"`):
            What verdicts and ratings are worth, see [`~hf_factuality.rewards.load_rlfh_maps`].
        granularity (`str`, *optional*, defaults to `"token"`):
            `"token"`, `"sentence"` or `"paragraph"`: where the reward is paid. The total is the same.
        scope (`str`, *optional*, defaults to `"answer"`):
            What is judged: `"answer"`, `"think"` or `"completion"`.
        rate (`int` or `Callable`, *optional*):
            Who rates informativeness: a function of the inputs, which hold what is judged, and their verifications, which
            returns a list of ratings per input, one per statement; or one rating for all. `None`: the verifier's own method `rate`, or the `assess` of
            its judge ([`~hf_factuality.verifiers.SelfJudge`]).
        drop_refusals (`bool`, *optional*, defaults to `False`):
            Leave sentences out that decline or ask, as the released code does. They are not punished then, so that a
            policy may learn to wrap what it is unsure of in apologies.
        evidence_column (`str`, *optional*, defaults to `"evidence"`):
            Dataset column with the passages, for verifiers that need them. Rows without any are unknown.
        question_column (`str`, *optional*, defaults to `"question"`):
            Dataset column with the question, if it is there.
        repeats (`str`, *optional*, defaults to `"once"`):
            A statement that is repeated in the same words is paid where it stands first, by the least favourable of its
            labels; its repeats hold no fact. `"every"` pays each by its own rating, for raters that see what was said before.
        language (`str`, *optional*):
            Of the sentences; guessed from each text by default.
        timeout (`float`, *optional*, defaults to `300.0`):
            Seconds per chunk of `batch_size` completions before the rest of the chunk is unknown.
        batch_size (`int`, *optional*, defaults to `64`):
            Completions per call of the verifier.
        max_unjudged_batches (`int`, *optional*, defaults to `3`):
            Batches in a row of which the verifier judges nothing before the run stops; nothing of the first one stops it
            at once. A batch is that of all processes, each of which calls the reward. The small batches of an evaluation do
            not count.

    Raises:
        `ValueError`: an unknown verifier, map or granularity, or nobody rates. `SpanError`: an unknown scope.
        `JudgingError`: when called, if the verifier fails on that many batches.
    """

    __name__ = card_method = "rlfh"

    def __init__(
        self,
        verifier: Verifier | str,
        maps: str | Path | Mapping[str, Any] | RLFHMaps = "readme",
        granularity: str = "token",
        rate: int | Rater | None = None,
        *,
        scope: str = "answer",
        drop_refusals: bool = False,
        repeats: str = "once",
        language: str | None = None,
        **judging: Any,
    ):
        if granularity not in RLFH_GRANULARITIES:
            raise ValueError(f"granularity={granularity!r} is unknown; choose one of {list(RLFH_GRANULARITIES)}")
        check_repeats(repeats)
        super().__init__(verifier, **judging)
        scope_text("", scope)  # refuses an unknown one
        self.scope, self.repeats = scope, repeats
        self.maps = load_rlfh_maps(maps)
        self.granularity = granularity
        self.drop_refusals = drop_refusals
        self.language = language
        self._rate = self._rater(rate)
        self.judging.then = self._rated

    @property
    def card_details(self) -> list[str]:
        return [f"by {self.granularity}"]

    def _rater(self, rate: int | Rater | None) -> Rater:
        if isinstance(rate, int) and not isinstance(rate, bool):
            if rate not in RLFH_RATINGS:
                raise ValueError(f"rate={rate!r} must be one of {list(RLFH_RATINGS)}")
            return lambda inputs, found: [[rate] * len(judged_units(verification)) for verification in found]
        if callable(rate):
            return rate
        own = getattr(self.verifier, "rate", None)
        if rate is None and callable(own):
            return own
        judge = getattr(self.verifier, "judge", None)
        if rate is None and callable(getattr(judge, "assess", None)):
            return lambda inputs, found: _assess(judge, inputs, found)
        raise ValueError(
            f"nobody rates how informative a statement is: {type(self.verifier).__name__} does not. Pass rate=3 to weigh all "
            "statements alike, or a function of the inputs and their verifications"
        )

    def __call__(
        self, completions, completion_ids=None, completion_texts=None, log_metric=None, **columns
    ) -> list[list[tuple[int, int, float]] | None]:
        """Per completion `(start, end, value)`, characters of its text; `None` if it could not be judged. `log_metric` gets
        RLFH's figures."""
        judged = self.judge(completion_texts, columns)
        rewards: list[list[tuple[int, int, float]] | None] = [None] * len(judged)
        told: list[list[RLFHSentence]] = []
        for i, row in enumerate(judged):
            if not row.found.judged:
                continue
            sentences = self._sentences(row)
            told.append(sentences)
            points = rlfh_rewards(sentences, self.granularity, self.maps, len(row.row.input.completion))
            rewards[i] = [(max(end - 1, 0), end, value) for end, value in points]
        if log_metric is not None:
            self._log(log_metric, told)
        return rewards

    def _rated(self, judged: list[JudgedRow]) -> list[JudgedRow]:
        known = [row.found.judged for row in judged]
        asked = list(compress(judged, known))
        ratings = iter(self._rate([row.row.shown for row in asked], [row.found for row in asked]))
        return [
            replace(row, ratings=next(ratings)) if rated else row for row, rated in zip(judged, known, strict=True)
        ]

    def _sentences(self, row: JudgedRow) -> list[RLFHSentence]:
        """Sentences with their statements, in characters of the completion; a statement belongs to the one that holds its end."""
        text, statements = row.row.input.completion, judged_units(row.verification)
        said = read_text(row.row.shown.completion, self.language)[1]
        places = Verification(tuple(LabeledSpan(it.start, it.end) for it in said)).spread(row.row.ranges).spans
        held: list[list[tuple[int, Any, int | None]]] = [[] for _ in places]
        labels = [span.label for span in statements]
        if self.repeats == "once":
            same = first_of_same(statements, text)
            least = least_favourable(same, labels)
            labels = [least[number] if one == number else Label.NO_FACT for number, one in enumerate(same)]
        if statements and not places:  # a text without any sentence
            places, held = (LabeledSpan(0, len(text)),), [[]]
        for span, label, rating in zip(statements, labels, row.ratings, strict=True):
            home = next((i for i, place in enumerate(places) if span.end <= place.end), len(places) - 1)
            held[home].append((span.end, label, rating))
        found = []
        for number, (place, own) in enumerate(zip(places, held, strict=True)):
            sentence = RLFHSentence(max(place.end, *(end for end, *_ in own)) if own else place.end, tuple(own))
            talk = number < len(said) and said[number].kind == "talk" and not sentence.stated
            if not talk and not (self.drop_refusals and is_refusal_sentence(place.text(text))):
                found.append(sentence)
        return found

    def _log(self, log_metric: Callable[[str, float], None], told: Sequence[Sequence[RLFHSentence]]) -> None:
        for name, value in mean_rlfh_metrics([rlfh_metrics(sentences) for sentences in told]).items():
            if value is not None:
                log_metric(f"rlfh/{name}", value)
        known = [statement for sentences in told for sentence in sentences for statement in sentence.known]
        for label in self.maps.truth if told else ():
            paid = sum(statement_reward(label, one.rating, self.maps) for one in known if one.label is label)
            log_metric(f"rlfh/reward/{label.value}", paid / len(told))


def _assess(judge: Any, inputs: Sequence[VerifierInput], found: Sequence[Verification]) -> list[list[int | None]]:
    """All statements in one call, so that a server gets them at once."""
    questions = [
        AssessInput.of(item, Verification(spans=judged_units(verification)))
        for item, verification in zip(inputs, found, strict=True)
    ]
    answers = iter(judge.assess([question for own in questions for question in own]))
    return [[next(answers) for _ in own] for own in questions]

"""The four models that KLCF asks, each on a server (arXiv 2509.23765)."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from hf_factuality.errors import JudgingError
from hf_factuality.generation.base import ChatRequest
from hf_factuality.generation.client import ChatClient
from hf_factuality.generation.scores import ScoreClient
from hf_factuality.generation.transport import RetryPolicy, ServerError
from hf_factuality.methods.klcf.reward import ChecklistReward
from hf_factuality.methods.truthfulness.judge import ServedTruthfulnessJudge
from hf_factuality.reading.scopes import scope_text
from hf_factuality.rewards._rows import JudgedReward
from hf_factuality.rewards.answers import THINK_OPENED, complete_text
from hf_factuality.spans import Verification
from hf_factuality.verifiers.base import Extractor, Judge, VerifierInput
from hf_factuality.verifiers.extractors.llm import VeriScoreExtractor
from hf_factuality.verifiers.guard import GuardedVerifier
from hf_factuality.verifiers.judges.llm import LLMJudge
from hf_factuality.verifiers.pipeline import VerifierPipeline
from hf_factuality.verifiers.prompts import as_data
from hf_factuality.verifiers.service import VerificationRequest


# All requests are sent side by side, and their clients say how long they wait.
_GUARD: dict[str, Any] = {"timeout": None, "batch_size": sys.maxsize, "raises": (ServerError,)}


@dataclass(frozen=True)
class _Rewarded(Verification):
    number: float | None = None


class ServedReward(JudgedReward):
    """What a reward model on a server gives for the answer to a prompt: a TRL reward function called "general".

    The answer is what stands outside the `<think>` blocks. One that the server refuses is unknown, and `None`.

    Args:
        client ([`~hf_factuality.generation.ScoreClient`]):
            Server and model, whose chat template the server has.

    Raises:
        `JudgingError`: when called, if the server is gone, refuses the whole first batch or three in a row, or gives several
            numbers for a text.
    """

    __name__ = "general"
    card_method = "reward_model"
    requires_evidence = False

    def __init__(self, client: ScoreClient):
        self.client = client
        super().__init__(self, **_GUARD | {"raises": (JudgingError,)})

    @property
    def card_model(self) -> Any:
        return self.client.model

    def __call__(self, prompts, completions, completion_texts=None, **columns) -> list[float | None]:
        judged = self.judge(completion_texts or completions, {**columns, "prompts": prompts})
        return [getattr(row.found, "number", None) for row in judged]

    def _row(self, text: Any, columns: Mapping[str, Any]) -> VerificationRequest:
        prompt = columns["prompts"]
        turns = [("user", prompt)] if isinstance(prompt, str) else [(turn["role"], turn["content"]) for turn in prompt]
        text = complete_text(text, prompt, columns.get(THINK_OPENED))
        if turns[-1][0] == "assistant":  # the completion goes on from it
            text = turns.pop()[1].removesuffix("<think>") + text
        return VerificationRequest(VerifierInput(json.dumps([*turns, ("assistant", as_data(scope_text(text)[0]))])))

    def verify(self, inputs: Sequence[VerifierInput]) -> list[Verification]:
        """The number of each dialogue, which is a list of role and content in JSON."""
        answers = self.client.chat([ChatRequest(tuple(map(tuple, json.loads(it.completion)))) for it in inputs])
        found = [[None] if answer.error else json.loads(answer.text) for answer in answers]
        if any(len(numbers) > 1 for numbers in found):
            raise JudgingError(f"{self.client!r} gives several numbers for a text; a reward model gives one")
        return [_Rewarded(error=it.error, number=number) for it, (number,) in zip(answers, found, strict=True)]


_ROLES: dict[str, tuple[str, Callable[..., ChatClient]]] = {
    "claim_extractor": ("claim extractor", ChatClient),
    "checklist_rm": ("checklist verifier", ChatClient),
    "truthfulness_rm": ("truthfulness verifier", partial(ScoreClient, activation=True)),
    "general_rm": ("general reward model", ScoreClient),
}


def _flag(text: str, default: Any = None) -> Any:
    return field(default=default, metadata={"help": text})


@dataclass
class ServedRoles:
    """KLCF's four models as flags: an address each, and the name of the model there. Those that are not set are read from
    the environment variables of KLCF's scripts, their names in capitals; a role without an address is not served.

    While a server is down, or refuses requests although [`check`] found it right, all that asks it waits, and then goes
    on where it was; after `server_patience` seconds a [`~hf_factuality.generation.ServerError`] ends the run. What is asked of
    each model: docs/served-roles.md.

    Raises:
        `ValueError`: an address without a model or a model without an address, or a setting is out of range.
    """

    claim_extractor_server: str | None = _flag("Address of the claim extractor, a chat model.")
    claim_extractor_path: str | None = _flag("Name of the claim extractor on its server.")
    checklist_rm_server: str | None = _flag("Address of the checklist verifier, a chat model.")
    checklist_rm_path: str | None = _flag("Name of the checklist verifier on its server.")
    truthfulness_rm_server: str | None = _flag("Address of the truthfulness verifier, a classifier.")
    truthfulness_rm_path: str | None = _flag("Name of the truthfulness verifier on its server.")
    general_rm_server: str | None = _flag("Address of the general reward model.")
    general_rm_path: str | None = _flag("Name of the general reward model on its server.")
    server_concurrency: int = _flag("Requests of a role under way at once, per process.", 64)
    server_patience: float = _flag("Seconds that a server may be down: less than a third of ddp_timeout.", 600.0)

    def __post_init__(self):
        # One failure holds all requests back until the server answers again, so that none runs out of attempts while a proxy
        # in front of it says that it is gone.
        retry = RetryPolicy(max_backoff=10.0, breaker_failures=1, give_up_after=self.server_patience)
        self._clients: dict[str, ChatClient] = {}
        for role, (title, client) in _ROLES.items():
            names = f"{role}_server", f"{role}_path"
            for name in names:
                given = getattr(self, name)
                setattr(self, name, (os.environ.get(name.upper()) if given is None else given) or None)
            address, model = (getattr(self, name) for name in names)
            if (address is None) != (model is None):
                raise ValueError(f"the {title} needs an address and a model; set {names[address is not None]} too")
            if address is not None:
                self._clients[role] = client(address, model, retry=retry, concurrency=self.server_concurrency)

    def check(self) -> None:
        """[`~hf_factuality.generation.ServerError`] with a line for each role whose server does not answer or has another model."""
        wrong = []
        for role, client in self._clients.items():
            try:
                client.check()
            except ServerError as error:
                wrong.append(f"\n{_ROLES[role][0]} (`{role}_server`): {error}")
        if wrong:
            raise ServerError(f"{len(wrong)} of {len(self._clients)} served roles cannot be used:" + "".join(wrong))

    def verifier(self, extractor: Extractor | None = None, judge: Judge | None = None) -> GuardedVerifier:
        """Claims with their P(true), for the trainer; the arguments stand for roles that are not served."""
        if "claim_extractor" in self._clients:
            extractor = VeriScoreExtractor(self._clients["claim_extractor"])
        if "truthfulness_rm" in self._clients:
            judge = ServedTruthfulnessJudge(self._clients["truthfulness_rm"])
        if extractor is None or judge is None:
            raise ValueError("set claim_extractor_server and truthfulness_rm_server, or pass what is not served")
        return GuardedVerifier(VerifierPipeline(extractor, judge, requires_evidence=False), **_GUARD)

    def checklist(self) -> ChecklistReward | None:
        """Recall and precision of the checklist; `None` if that role is not served."""
        client = self._clients.get("checklist_rm")
        return client and ChecklistReward(LLMJudge(client), **_GUARD)

    def general(self) -> ServedReward | None:
        """The general reward; `None` if that role is not served."""
        client = self._clients.get("general_rm")
        return client and ServedReward(client)

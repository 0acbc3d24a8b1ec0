"""Judge that asks a classifier on a server how likely a claim is true."""

from __future__ import annotations

import json
from dataclasses import dataclass

from hf_factuality.chat.base import ChatRequest
from hf_factuality.errors import JudgingError
from hf_factuality.io.upload import naming_model
from hf_factuality.spans import Label
from hf_factuality.verifiers.base import JudgeInput
from hf_factuality.verifiers.judges.llm import ServedJudge, Talk, judgement_of
from hf_factuality.verifiers.judges.truthfulness import SETTINGS, claim_prompt
from hf_factuality.verifiers.prompts import Prompt


@dataclass(eq=False, repr=False)
class ServedTruthfulnessJudge(ServedJudge):
    """The model of a [`~hf_factuality.verifiers.TruthfulnessJudge`] on a server; P(true) is the probability of its last class.

    Implements [`~hf_factuality.verifiers.base.Judge`], without evidence. From a half on the label is `SUPPORTED`, below it
    `CONTRADICTED`.

    Args:
        client ([`~hf_factuality.chat.ScoreClient`]):
            Server and model, with `activation=True`.
        template (`str`, *optional*):
            What the model reads, with `{{claim|plain}}` and `{{question|plain}}`. `None`: as the `config.json` of the model
            says, which is found by its name.

    Raises:
        `ValueError`: the template lacks the claim, or there is none.
    """

    template: str | Prompt | None = None

    def __post_init__(self):
        if self.template is None:
            from transformers import AutoConfig

            with naming_model(self.client.model):
                config = AutoConfig.from_pretrained(self.client.model, revision=self.client.revision)
            self.template = (getattr(config, SETTINGS, None) or {}).get("template")
            if self.template is None:
                raise ValueError(f"the config.json of {self.client.model!r} has no template of claims; pass one")
        self.template = claim_prompt(self.template)

    def _talk(self, item: JudgeInput) -> Talk:
        text = self.template.fill({"question": item.question or "", "claim": item.claim})
        answer = yield ChatRequest((("", text),))
        share = json.loads(answer.text)[-1]
        if not 0 <= share <= 1:
            raise JudgingError(f"{self.client!r} gave {share:g} for P(true); it needs activation=True")
        return judgement_of(item, Label.SUPPORTED if share >= 0.5 else Label.CONTRADICTED, share)

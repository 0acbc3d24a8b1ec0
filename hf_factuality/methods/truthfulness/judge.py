"""Judges that read a question and a claim, no evidence, and give P(true): a classifier here, or on a server.

Importing this module loads neither torch nor transformers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, replace
from typing import TYPE_CHECKING, ClassVar

from hf_factuality.errors import JudgingError
from hf_factuality.generation.base import ChatRequest
from hf_factuality.io.upload import naming_model
from hf_factuality.spans import Label
from hf_factuality.verifiers.base import JudgeInput, Judgement
from hf_factuality.verifiers.judges.llm import ServedJudge, Talk, judgement_of
from hf_factuality.verifiers.judges.nli import nli_roles
from hf_factuality.verifiers.judges.pairs import ClassifierJudge, PairVerifier, without_special_tokens
from hf_factuality.verifiers.prompts import Prompt


if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


SETTINGS = "truthfulness"
"""Entry of the model's `config.json`: the `template` of its texts, and the `temperature` that its head was divided by."""


def claim_prompt(template: str) -> Prompt:
    """A template with the places `{{question|plain}}` (it may lack) and `{{claim|plain}}`; `ValueError` for others."""
    return Prompt(template, ("question", "claim"), ("claim",), "the template of claims")


def encode_claims(
    tokenizer: PreTrainedTokenizerBase, prompt: Prompt, pairs: Sequence[tuple[str, str]]
) -> Mapping[str, list[list[int]]]:
    """Token ids of (question, claim) pairs, neither padded nor cut, as the model is trained on and judges them."""
    plain = [[without_special_tokens(text, tokenizer) for text in pair] for pair in pairs]
    texts = [prompt.fill({"question": question, "claim": claim}) for question, claim in plain]
    return tokenizer(texts, return_token_type_ids=False, verbose=False)


@dataclass(eq=False, repr=False)
class TruthfulnessJudge(ClassifierJudge):
    """Closed-book judge: P(true) of a claim by a model that [`~hf_factuality.trainers.TruthfulnessTrainer`] trained.

    Implements [`~hf_factuality.verifiers.base.Judge`]; evidence is not read. The score is P(true); from `threshold` on the
    label is `SUPPORTED`, below it `negative_label`. Where question and claim are longer than `max_length`, or the output is
    not finite, there is no label (unknown is not wrong), and a warning.

    Args:
        model (`str` or `PreTrainedModel`):
            Model id or folder, of a whole model or of an adapter (which needs peft, and is merged into its base), or the
            loaded model.
        negative_label ([`~hf_factuality.Label`], *optional*, defaults to `Label.CONTRADICTED`):
            `Label.UNVERIFIABLE` is the other choice.
        tokenizer, revision, token, device, dtype, batch_size, max_length, threshold (*optional*):
            See [`~hf_factuality.verifiers.judges.nli.NLIJudge`].

    Raises:
        `ValueError`: the `config.json` of the model has no `truthfulness`, or as for `NLIJudge`.
    """

    _: KW_ONLY
    negative_label: Label = Label.CONTRADICTED
    settings: ClassVar[str] = SETTINGS

    def __post_init__(self):
        super().__post_init__()
        found = getattr(self.model.config, self.settings, None)
        if not isinstance(found, Mapping):
            told = (
                f"is no {self.settings} model, its config.json has no {self.settings!r}: no trainer of it saved this"
            )
            raise ValueError(f"{self.model.config.name_or_path!r} {told}")
        self.roles = nli_roles(self.model.config.id2label)
        self._template = claim_prompt(str(found.get("template")))

    def _windows(self, inputs: Sequence[JudgeInput]) -> list[list[str] | None]:
        pairs = [(item.question or "", item.claim) for item in inputs]
        encoded = self._encode(pairs)["input_ids"] if pairs else []
        fits = [len(ids) <= self.max_length for ids in encoded]
        return [[question] if fit else None for (question, _), fit in zip(pairs, fits, strict=True)]

    def _encode(self, pairs: list[tuple[str, str]]) -> Mapping[str, list[list[int]]]:
        return encode_claims(self.tokenizer, self._template, pairs)

    def _decide(self, premises: list[str], shares: list[dict[str, float]]) -> Judgement:
        return replace(super()._decide(premises, shares), evidence=None)  # the question is none


@dataclass(eq=False, repr=False)
class ServedTruthfulnessJudge(ServedJudge):
    """The model of a [`TruthfulnessJudge`] on a server; P(true) is the probability of its last class.

    Implements [`~hf_factuality.verifiers.base.Judge`], without evidence. From a half on the label is `SUPPORTED`, below it
    `CONTRADICTED`.

    Args:
        client ([`~hf_factuality.generation.ScoreClient`]):
            Server and model, with `activation=True`.
        template (`str`, *optional*):
            What the model reads, with `{{claim|plain}}` and `{{question|plain}}`. `None`: as the `config.json` of the model
            says, which is found by its name.

    Raises:
        `ValueError`: the template lacks the claim, or there is none.
    """

    template: str | None = None

    def __post_init__(self):
        template = self.template
        if template is None:
            from transformers import AutoConfig

            with naming_model(self.client.model):
                config = AutoConfig.from_pretrained(self.client.model, revision=self.client.revision)
            settings = getattr(config, SETTINGS, None)
            template = isinstance(settings, Mapping) and settings.get("template")
            if not isinstance(template, str):
                raise ValueError(f"the config.json of {self.client.model!r} has no template of claims; pass one")
        self._prompt = claim_prompt(template)

    def _talk(self, item: JudgeInput) -> Talk:
        text = self._prompt.fill({"question": item.question or "", "claim": item.claim})
        answer = yield ChatRequest((("", text),))
        share = json.loads(answer.text)[-1]
        if not 0 <= share <= 1:
            raise JudgingError(f"{self.client!r} gave {share:g} for P(true); it needs activation=True")
        return judgement_of(item, Label.SUPPORTED if share >= 0.5 else Label.CONTRADICTED, share)


class TruthfulnessVerifier(PairVerifier):
    """Sentences of the completion, judged without evidence by [`TruthfulnessJudge`], whose arguments are its own.

    `language` of the completions is for [`~hf_factuality.verifiers.SentenceExtractor`]; `None` decides per completion.
    """

    judges, reads_evidence = TruthfulnessJudge, False

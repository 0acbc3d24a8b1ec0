"""Judge that asks a natural language inference model whether a passage entails a claim.

Any sequence classifier over sentence pairs: three-way NLI models, two-way entailment models, hallucination detectors.
Importing this module loads neither torch nor transformers.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Any

from hf_factuality.spans import Label
from hf_factuality.verifiers.base import Judgement
from hf_factuality.verifiers.judges.pairs import (
    CONTRADICTED,
    NEUTRAL,
    NOT_SUPPORTED,
    SUPPORTED,
    ClassifierJudge,
    PairVerifier,
    without_special_tokens,
)


_ROLE_OF = {
    SUPPORTED: "entailment entailed entails supported supports support consistent factual factual_consistent grounded",
    CONTRADICTED: "contradiction contradicted contradicts contradictory refuted refutes refute",
    NEUTRAL: "neutral not_enough_info not_enough_information nei unverifiable unknown undetermined irrelevant",
    NOT_SUPPORTED: "not_entailment not_entailed non_entailment notentailment not_supported unsupported hallucinated "
    "hallucination inconsistent not_consistent not_factual ungrounded",
}
_ROLES = {name: role for role, names in _ROLE_OF.items() for name in names.split()}


def nli_roles(id2label: Mapping[int, Any], label_map: Mapping[int, str | Label] | None = None) -> list[str]:
    """One of the four roles for each class of a classifier, by the names of its config or those of `label_map`.

    Case, spaces, hyphens and underscores of a name do not matter. Raises `ValueError` if a name is missing or says
    nothing (`LABEL_0`), or if not exactly one class means "supported".
    """
    given = {int(index): name for index, name in (id2label if label_map is None else label_map).items()}
    if sorted(given) != list(range(len(id2label))):
        raise ValueError(f"label_map must name every class 0..{len(id2label) - 1}, got the keys {sorted(given)}")
    roles = []
    for index in range(len(id2label)):
        name = given[index].value if isinstance(given[index], Label) else str(given[index])
        role = _ROLES.get(re.sub(r"[\s_-]+", "_", name.strip()).lower())
        if role is None:
            raise ValueError(
                f"class {index} is called {name!r}, which does not say what it means for a claim; pass {_fix(len(id2label))}, "
                f'or label_map={{0: "contradicted", ...}} with one of {[*_ROLE_OF]} for each of {len(id2label)} classes'
            )
        roles.append(role)
    if roles.count(SUPPORTED) != 1:
        raise ValueError(f"exactly one class must mean 'supported', got {roles}; pass label_map")
    return roles


def _fix(classes: int) -> str:
    """How to say what so many classes mean."""
    order = {2: '("not_entailment", "entailment")', 3: '("contradiction", "neutral", "entailment")'}
    example = order.get(classes, '("...", "entailment")')
    return f"labels={example} in the order of the model's card, or entailment={classes - 1}, the number of that class"


def _named_classes(
    classes: int, labels: Sequence[str | Label] | None, entailment: int | None
) -> dict[int, str | Label] | None:
    """`label_map` as `labels` or `entailment` say it; `None` if neither is given."""
    if labels is not None:
        if isinstance(labels, str) or len(labels) != classes:
            raise ValueError(
                f"labels must name {classes} classes in their order, got {labels!r}; pass {_fix(classes)}"
            )
        return dict(enumerate(labels))
    if entailment is None:
        return None
    if isinstance(entailment, bool) or entailment not in range(classes):
        raise ValueError(
            f"entailment must be the number of one of {classes} classes, 0 to {classes - 1}, got {entailment!r}"
        )
    return {index: SUPPORTED if index == entailment else NOT_SUPPORTED for index in range(classes)}


@dataclass(eq=False, repr=False)
class NLIJudge(ClassifierJudge):
    """Judge by a cross-encoder: premise = evidence, hypothesis = claim.

    Implements [`~hf_factuality.verifiers.base.Judge`]. Each passage is a premise of its own; one that does not fit
    `max_length` together with the claim is cut into windows of whole sentences (a longer sentence into pieces), so
    that no evidence is dropped. Facts that only several premises together entail are not found. Where the tokenizer puts
    no token of its own between the two, as those of decoders, an empty line stands before the claim.

    Rule: let E and C be the maxima over all premises of P(entailment) and P(contradiction). The label is `SUPPORTED`
    if E >= `threshold` and E >= C, `CONTRADICTED` if C >= `contradiction_threshold` and C > E, else `UNVERIFIABLE`.
    The score is E; the evidence is the premise of the maximum that decided (of E for `UNVERIFIABLE`). A model without
    a class for contradiction cannot tell it from "not mentioned": what it does not support gets `negative_label`.

    No evidence: `UNVERIFIABLE` without score. A claim that leaves no room for evidence, or an output that is not
    finite: no label (unknown is not wrong), and a warning.

    Args:
        model (`str` or `PreTrainedModel`):
            Model id or folder of a sequence classifier, or the loaded model. A loaded one is put into eval mode.
        tokenizer (`PreTrainedTokenizerBase`, *optional*):
            Needed with a loaded model; else loaded from the same place.
        revision (`str`, *optional*):
            Branch, tag or commit to load. Pin it where results must be comparable.
        token (`str` or `bool`, *optional*):
            As in `huggingface_hub`, for a private repository; never written to a file.
        device (`str` or `torch.device`, *optional*):
            `None`: where a loaded model is; else the GPU if there is one.
        dtype (`str` or `torch.dtype`, *optional*):
            As in `from_pretrained`, or `"int8"`: linear layers with int8 weights, for a CPU. `None`: bfloat16 on a GPU that
            computes in it, else as the weights are stored. Probabilities are always computed in float32.
        batch_size (`int`, *optional*, defaults to `32`):
            Pairs in a forward pass; on a CPU fewer if they are long, which is faster there.
        max_length (`int`, *optional*):
            Tokens of claim and premise together. `None`: what the tokenizer and the model allow, 512 at most.
        threshold (`float`, *optional*, defaults to `0.5`):
            See the rule above.
        contradiction_threshold (`float`, *optional*, defaults to `0.5`):
            See the rule above.
        negative_label ([`~hf_factuality.Label`], *optional*, defaults to `Label.UNVERIFIABLE`):
            Of two-way models; `Label.CONTRADICTED` is the other choice.
        labels (`Sequence[str | Label]`, *optional*):
            Meaning of the classes in their order, if the config does not name them (`LABEL_0`): `("contradiction", "neutral",
            "entailment")`.
        entailment (`int`, *optional*):
            Instead, the number of the class that means entailment. The others then mean "not supported", and what the model
            does not support gets `negative_label`.
        label_map (`Mapping[int, str | Label]`, *optional*):
            Instead, the meaning of each class by its number; see [`nli_roles`].
        trust_remote_code (`bool`, *optional*, defaults to `False`):
            Whether a model may run code from its repository.

    Raises:
        `ValueError`: an argument is out of range, a loaded model comes without tokenizer, the tokenizer cannot pad, or
        the classes have no known meaning, or are given one in two ways.
    """

    _: KW_ONLY
    contradiction_threshold: float = 0.5
    labels: Sequence[str | Label] | None = None
    entailment: int | None = None
    label_map: Mapping[int, str | Label] | None = None
    trust_remote_code: bool = False

    bfloat16_on_gpu = True

    def __post_init__(self):
        self._check_probability("contradiction_threshold")
        given = [name for name in ("labels", "entailment", "label_map") if getattr(self, name) is not None]
        if len(given) > 1:
            raise ValueError(f"the classes are given a meaning in several ways, {', '.join(given)}; keep one")
        super().__post_init__()
        known = self.model.config.id2label
        label_map = _named_classes(len(known), self.labels, self.entailment) or self.label_map
        try:
            self.roles = nli_roles(known, label_map)
        except ValueError as error:
            name = self._source["model"] if self._source else self.model.config.name_or_path
            kept = (
                "to keep it for the commands, save the verifier with `save_pretrained` and name it 'pipeline:FOLDER'"
            )
            raise ValueError(f"the classes of the model {name!r}: {error}; {kept}") from None

    def config(self) -> dict[str, Any]:
        """See [`ClassifierJudge.config`]."""
        settings = super().config()
        if self.trust_remote_code:
            settings["trust_remote_code"] = True
        settings["contradiction_threshold"] = self.contradiction_threshold
        settings["negative_label"] = settings.pop("negative_label")  # after its threshold, as cards show it
        settings["label_map"] = {str(index): role for index, role in enumerate(self.roles)}
        return settings

    def _decide(self, premises: list[str], shares: list[dict[str, float]]) -> Judgement:
        found = super()._decide(premises, shares)
        if CONTRADICTED not in self.roles:
            return found
        worst = max(range(len(shares)), key=lambda i: shares[i][CONTRADICTED])
        against = shares[worst][CONTRADICTED]
        if found.label is Label.SUPPORTED and found.score >= against:
            return found
        if against >= self.contradiction_threshold and against > found.score:
            return Judgement(Label.CONTRADICTED, found.score, premises[worst])
        return Judgement(Label.UNVERIFIABLE, found.score, found.evidence)

    @functools.cached_property
    def _gap(self) -> str:
        """What stands before a claim where the tokenizer parts it from the premise by nothing, as those of decoders do."""
        marks = self.tokenizer("a", "b", return_special_tokens_mask=True)["special_tokens_mask"]
        return "" if re.search("01+0", "".join(map(str, marks))) else "\n\n"

    def _overhead(self) -> int:
        return self.tokenizer.num_special_tokens_to_add(pair=True) + sum(self._count([self._gap]))

    def _encode(self, pairs: list[tuple[str, str]]) -> Mapping[str, list[list[int]]]:
        return self.tokenizer(
            [without_special_tokens(premise, self.tokenizer) for premise, _ in pairs],
            [self._gap + without_special_tokens(claim, self.tokenizer) for _, claim in pairs],
            truncation="only_first",  # windows fit; this only catches a token or two gained by cutting
            max_length=self.max_length,
        )


class NLIVerifier(PairVerifier):
    """Sentences of the completion, judged against the row's evidence by [`NLIJudge`], whose arguments are its own.

    `language` of the completions is for [`~hf_factuality.verifiers.SentenceExtractor`]; `None` decides per completion. Talk
    about the answer itself ("Let me think.") and questions are claims like any other here, and mostly come out `UNVERIFIABLE`.
    """

    judges = NLIJudge

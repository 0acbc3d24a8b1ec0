"""Judge by the architecture of HHEM-2.1-open, without the code of its repository.

The published checkpoint (`vectara/hallucination_evaluation_model`) is a `T5ForTokenClassification` on the configuration
and tokenizer of `google/flan-t5-base`, stored under the prefix `t5.`; its own loading code needs `trust_remote_code` and
fails on transformers 5. Here the weights go straight into the class of transformers. Importing this module loads neither
torch nor transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any

from hf_factuality.errors import CheckpointError
from hf_factuality.io.upload import naming_model
from hf_factuality.verifiers.judges.pairs import ClassifierJudge, PairVerifier


if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, T5ForTokenClassification


HHEM_MODEL = "vectara/hallucination_evaluation_model"
HHEM_FOUNDATION = "google/flan-t5-base"
PREFIX = "t5."
_SHARED, _EMBED = "transformer.shared.weight", "transformer.encoder.embed_tokens.weight"


def hhem_prompt(premise: str, hypothesis: str) -> str:
    """The text that HHEM-2.1-open reads; its first token is `<pad>`, whose output is the verdict."""
    return (
        "<pad> Determine if the hypothesis is true given the premise?\n\nPremise: "
        + premise
        + "\n\nHypothesis: "
        + hypothesis
    )


def load_hhem(
    model: str,
    *,
    foundation: str = HHEM_FOUNDATION,
    revision: str | None = None,
    foundation_revision: str | None = None,
    dtype: str | torch.dtype | None = None,
    token: str | bool | None = None,
) -> tuple[T5ForTokenClassification, PreTrainedTokenizerBase, dict[str, Any]]:
    """The model on the CPU, the tokenizer of its foundation, and the arguments that load both again, with their commits.

    The keys of `model.safetensors` begin with `t5.`, or all lack that; weights that are missing, left over or of another
    shape raise [`~hf_factuality.errors.CheckpointError`].
    """
    import torch
    from safetensors.torch import load_file
    from transformers import AutoTokenizer, T5Config, T5ForTokenClassification
    from transformers.utils import cached_file
    from transformers.utils.hub import extract_commit_hash

    with naming_model(model):
        path = cached_file(model, "model.safetensors", revision=revision, token=token)
    with naming_model(foundation):
        config = T5Config.from_pretrained(
            foundation,
            revision=foundation_revision,
            token=token,
            num_labels=2,
            id2label={0: "hallucinated", 1: "consistent"},
            label2id={"hallucinated": 0, "consistent": 1},
        )
        tokenizer = AutoTokenizer.from_pretrained(foundation, revision=foundation_revision, token=token)
    state = {name.removeprefix(PREFIX): value for name, value in load_file(path).items()}
    # Tied weights: only one of the two names is stored.
    embedding = state.get(_EMBED, state.get(_SHARED))
    if embedding is not None:
        state[_EMBED] = state[_SHARED] = embedding
    with torch.device("meta"):  # random weights would be made for nothing
        network = T5ForTokenClassification(config)
    try:
        network.load_state_dict(state, assign=True)
    except RuntimeError as error:
        found = " ".join(str(error).split())[:500]
        raise CheckpointError(f"the weights of {model!r} are no HHEM-2.1-open on {foundation!r}: {found}") from None
    network.transformer.encoder.embed_tokens.weight = network.transformer.shared.weight
    if dtype is not None:
        network = network.to(getattr(torch, dtype) if isinstance(dtype, str) else dtype)
    source = {
        "model": str(model),
        "revision": extract_commit_hash(path, None) or revision,
        "foundation": str(foundation),
        "foundation_revision": getattr(config, "_commit_hash", None) or foundation_revision,
    }
    return network.eval(), tokenizer, source


@dataclass(eq=False, repr=False)
class HHEMJudge(ClassifierJudge):
    """As [`NLIJudge`], but premise and hypothesis stand in one prompt and the verdict is read at its first token.

    The score is the probability of class 1 ("consistent"), the largest over all premises; evidence that does not fit
    `max_length` is cut into windows of whole sentences. From `threshold` on the label is `SUPPORTED`; below it
    `UNVERIFIABLE`, never `CONTRADICTED`: the model does not tell what the evidence contradicts from what it does not
    mention. FSPO's released code counts all of it as wrong: `negative_label=Label.CONTRADICTED`. English only.

    A text can hold words such as "Hypothesis:" of its own; the prompt that the model was trained on has no fence against
    that. Special tokens inside a text are defused.

    Args:
        model (`str` or `T5ForTokenClassification`, *optional*, defaults to `"vectara/hallucination_evaluation_model"`):
            Repository or folder as [`load_hhem`] reads it, or the loaded model.
        tokenizer (`PreTrainedTokenizerBase`, *optional*):
            Needed with a loaded model; else that of `foundation`.
        foundation (`str`, *optional*, defaults to `"google/flan-t5-base"`):
            Repository or folder of configuration and tokenizer.
        foundation_revision (`str`, *optional*):
            Branch, tag or commit of `foundation`.
        max_length (`int`, *optional*, defaults to `512`):
            Tokens of a prompt, as in training.
        revision, token, device, dtype, batch_size, threshold, negative_label (*optional*):
            See [`NLIJudge`].

    Raises:
        [`~hf_factuality.errors.CheckpointError`]: see [`load_hhem`].
        `ValueError`: see [`NLIJudge`].
    """

    model: str | T5ForTokenClassification = HHEM_MODEL
    _: KW_ONLY
    foundation: str = HHEM_FOUNDATION
    foundation_revision: str | None = None
    max_length: int = 512

    architecture = "T5ForTokenClassification"
    bfloat16_on_gpu = True

    def _load(self, name: str) -> tuple[PreTrainedModel, PreTrainedTokenizerBase, dict[str, Any]]:
        places = {"foundation": self.foundation, "foundation_revision": self.foundation_revision}
        return load_hhem(name, **places, revision=self.revision, dtype=self._loading_dtype(), token=self.token)

    def _prompt(self, premise: str, claim: str) -> str:
        return hhem_prompt(premise, claim)

    def _logits(self, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        return self.model(**features).logits[:, 0]


class HHEMVerifier(PairVerifier):
    """English sentences of the completion, judged against the row's evidence by [`HHEMJudge`], whose arguments are its own."""

    judges = HHEMJudge

    def __init__(self, model: str | T5ForTokenClassification = HHEM_MODEL, tokenizer=None, **kwargs: Any):
        super().__init__(model, tokenizer, "en", **kwargs)

import functools
import math
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors
from transformers import PreTrainedTokenizerFast, T5Config, T5ForTokenClassification

from hf_factuality.errors import CheckpointError
from hf_factuality.spans import Label
from hf_factuality.verifiers import JudgeInput, Judgement
from hf_factuality.verifiers.judges.hhem import HHEMJudge, hhem_prompt, load_hhem


TEXTS = [
    "Determine if the hypothesis is true given the premise? Premise: Hypothesis: predict:",
    "The cat sat on the red mat. A dog was born in Ulm in 1879. He was not in Princeton.",
    "The mat is blue. She saw the old dog near the house. It rained in the evening, and nobody came.",
]
LONG = " ".join(
    f"The {animal} sat on the {colour} mat." for animal in ("cat", "dog") for colour in ("red", "blue", "old")
)
CLAIM = "The cat sat."


def make_tokenizer():
    """T5's kind: unigram pieces with "▁" for a space, <pad> 0, </s> 1 (put at the end), <unk> 2.

    The pieces are the words and characters of `TEXTS`, not trained ones: the trainer's differ from run to run.
    """
    words = sorted({f"▁{word}" for text in TEXTS for word in text.split()})
    characters = sorted({character for text in TEXTS for character in text} - {" "}) + ["▁"]
    special = ["<pad>", "</s>", "<unk>"]
    pieces = [(piece, 0.0) for piece in special] + [(word, -3.0 - 0.01 * i) for i, word in enumerate(words)]
    tokenizer = Tokenizer(models.Unigram([*pieces, *((character, -6.0) for character in characters)], unk_id=2))
    tokenizer.normalizer = normalizers.Sequence([normalizers.NFKC(), normalizers.Replace("\n", " ")])
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [pre_tokenizers.WhitespaceSplit(), pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")]
    )
    tokenizer.post_processor = processors.TemplateProcessing(single="$A </s>", special_tokens=[("</s>", 1)])
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>", model_max_length=512
    )


def tiny_config(vocab_size, **kwargs):
    return T5Config(
        vocab_size=vocab_size,
        d_model=16,
        d_kv=8,
        d_ff=32,
        num_layers=2,
        num_heads=2,
        feed_forward_proj="gated-gelu",
        initializer_factor=3.0,
        decoder_start_token_id=0,
        tie_word_embeddings=False,
        **kwargs,
    )


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    """A foundation (configuration and tokenizer) and weights under the published names, saved like the original."""
    root = tmp_path_factory.mktemp("hhem")
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(root / "foundation")
    config = tiny_config(len(tokenizer))
    config.save_pretrained(root / "foundation")
    torch.manual_seed(0)
    config.num_labels = 2
    model = T5ForTokenClassification(config)
    model.classifier.weight.data *= 0.05  # probabilities away from 0 and 1
    model.classifier.bias.data.zero_()
    state = {f"t5.{name}": value.clone() for name, value in model.state_dict().items()}
    # One of the tied two is in the file.
    state["t5.transformer.shared.weight"] = state.pop("t5.transformer.encoder.embed_tokens.weight")
    (root / "model").mkdir()
    save_file(state, root / "model" / "model.safetensors", metadata={"format": "pt"})
    (root / "model" / "config.json").write_text('{"model_type": "HHEMv2", "architectures": ["HHEMv2Model"]}')
    return root


def make(folders, **kwargs):
    return HHEMJudge(str(folders / "model"), foundation=str(folders / "foundation"), device="cpu", **kwargs)


@functools.cache
def rebuilt(folders):
    """Tokenizer, and a fresh model into which the weights were put one by one."""
    tokenizer = PreTrainedTokenizerFast.from_pretrained(folders / "foundation")
    config = T5Config.from_pretrained(folders / "foundation", num_labels=2)
    model = T5ForTokenClassification(config).eval()
    stored = load_file(folders / "model" / "model.safetensors")
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            key = f"t5.{name}" if f"t5.{name}" in stored else "t5.transformer.shared.weight"
            parameter.copy_(stored[key])
        model.transformer.encoder.embed_tokens.weight.copy_(stored["t5.transformer.shared.weight"])
    return tokenizer, model


def oracle(folders, premise, claim):
    """P(consistent) of one pair: one prompt at a time, softmax by hand."""
    tokenizer, model = rebuilt(folders)
    with torch.no_grad():
        prompt = f"<pad> Determine if the hypothesis is true given the premise?\n\nPremise: {premise}\n\nHypothesis: {claim}"
        ids = tokenizer(prompt)["input_ids"]
        assert ids[0] == 0 and ids[-1] == 1
        zero, one = model(input_ids=torch.tensor([ids])).logits[0, 0].double().tolist()
    return math.exp(one) / (math.exp(zero) + math.exp(one))


def test_import_is_light():
    code = (
        "import sys; from hf_factuality.verifiers.judges import hhem, minicheck, nli; "
        "print({'torch', 'transformers'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"


@pytest.mark.parametrize("batch_size", [1, 3, 32])
def test_equals_single_pairs_in_any_batch(folders, batch_size):
    premises = ["The cat sat on the red mat.", "A dog.", "He was born in Ulm in 1879. She saw the old dog near it."]
    claims = ["The cat sat.", "It rained in the evening, and nobody came.", "She"]
    inputs = [JudgeInput(claim, (premise,)) for premise in premises for claim in claims]
    results = make(folders, batch_size=batch_size).judge(inputs)
    expected = [oracle(folders, item.evidence[0], item.claim) for item in inputs]
    assert [result.score for result in results] == pytest.approx(expected, abs=1e-4)
    assert max(expected) - min(expected) > 0.05  # the control: inputs do matter


def test_labels(folders):
    """From the threshold on supported, below it never contradicted unless asked for."""
    inputs = [JudgeInput(claim, (TEXTS[1],)) for claim in ("The cat sat.", "It rained.", "nobody", "The mat is blue.")]
    expected = [oracle(folders, TEXTS[1], item.claim) for item in inputs]
    threshold = sorted(expected)[2] - 1e-4
    for negative in (Label.UNVERIFIABLE, Label.CONTRADICTED):
        chosen = {} if negative is Label.UNVERIFIABLE else {"negative_label": negative}
        results = make(folders, threshold=threshold, **chosen).judge(inputs)
        assert [r.label for r in results] == [Label.SUPPORTED if p > threshold else negative for p in expected]
        assert {r.label for r in results} == {Label.SUPPORTED, negative}


def test_long_evidence_takes_the_maximum_over_chunks(folders):
    judge = make(folders)
    judge.max_length = judge._overhead() + judge._count([CLAIM])[0] + 20
    inputs = [JudgeInput(CLAIM, (LONG, "A dog."))]
    windows = judge._windows(inputs)[0]
    assert len(windows) >= 4 and windows[-1] == "A dog."
    assert "".join("".join(windows[:-1]).split()) == "".join(LONG.split())
    assert all(len(judge.tokenizer(hhem_prompt(w, CLAIM))["input_ids"]) <= judge.max_length for w in windows)
    scores = {window: oracle(folders, window, CLAIM) for window in windows}
    best = max(scores, key=scores.get)
    assert judge.judge(inputs)[0] == Judgement(
        Label.SUPPORTED if scores[best] >= 0.5 else Label.UNVERIFIABLE, pytest.approx(scores[best], abs=1e-5), best
    )


def test_special_tokens_in_texts_are_text(folders):
    judge = make(folders)
    plain = judge._encode([("The cat.", "A dog.")])["input_ids"][0]
    assert plain.count(0) == plain.count(1) == 1
    hostile = judge._encode([("The</s> cat <pad>.", "A</s><pad> dog\ud800. <unk>")])["input_ids"][0]
    assert hostile.count(0) == hostile.count(1) == 1 and hostile[0] == 0 and hostile[-1] == 1
    assert judge.judge([JudgeInput("\ud800 </s>" * 3, ("<pad>" * 5,))])[0].score is not None


# -- checkpoints ------------------------------------------------------------------------------------------------------


def test_embedding_under_either_name_and_without_prefix(folders, tmp_path):
    stored = load_file(folders / "model" / "model.safetensors")
    renamed = {name.removeprefix("t5."): value for name, value in stored.items()}
    renamed["transformer.encoder.embed_tokens.weight"] = renamed.pop("transformer.shared.weight")
    save_file(renamed, tmp_path / "model.safetensors")
    model, tokenizer, source = load_hhem(str(tmp_path), foundation=str(folders / "foundation"))
    assert source == {
        "model": str(tmp_path),
        "revision": None,
        "foundation": str(folders / "foundation"),
        "foundation_revision": None,
    }
    assert model.transformer.encoder.embed_tokens.weight is model.transformer.shared.weight
    score = HHEMJudge(model, tokenizer).judge([JudgeInput(CLAIM, (LONG,))])[0].score
    assert score == pytest.approx(oracle(folders, LONG, CLAIM), abs=1e-5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda s: s.pop("t5.classifier.weight"), "Missing key.*classifier.weight"),
        (
            lambda s: s.pop("t5.transformer.shared.weight"),
            "shared.weight.*embed_tokens.weight",
        ),
        (lambda s: s.update({"t5.extra": torch.zeros(1)}), "Unexpected key.*extra"),
        (lambda s: s.update({"t5.classifier.bias": torch.zeros(3)}), "size mismatch for classifier.bias"),
    ],
)
def test_incomplete_weights_are_refused(folders, tmp_path, change, message):
    state = load_file(folders / "model" / "model.safetensors")
    change(state)
    save_file(state, tmp_path / "model.safetensors")
    with pytest.raises(CheckpointError, match=message):
        load_hhem(str(tmp_path), foundation=str(folders / "foundation"))

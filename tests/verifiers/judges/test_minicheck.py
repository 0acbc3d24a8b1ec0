import functools
import math

import pytest
import torch
from transformers import PreTrainedTokenizerFast, T5ForConditionalGeneration

from hf_factuality.spans import Label
from hf_factuality.verifiers import JudgeInput
from hf_factuality.verifiers.judges.minicheck import MiniCheckJudge, minicheck_prompt, word_chunks
from tests.verifiers.judges.test_hhem import CLAIM, LONG, TEXTS, make_tokenizer, tiny_config


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A tiny flan-t5 with random weights; its vocabulary is padded so that id 209 exists."""
    path = tmp_path_factory.mktemp("minicheck")
    tokenizer = make_tokenizer()
    tokenizer.save_pretrained(path)
    torch.manual_seed(1)
    model = T5ForConditionalGeneration(tiny_config(max(len(tokenizer), 256)))
    model.lm_head.weight.data *= 0.1  # probabilities away from 0 and 1
    model.save_pretrained(path)
    return str(path)


@functools.cache
def loaded(folder):
    model = T5ForConditionalGeneration.from_pretrained(folder).double().eval()
    return PreTrainedTokenizerFast.from_pretrained(folder), model


def oracle(folder, document, claim, no=3, yes=209):
    """P(yes) of one pair by itself; encoder and decoder called one after the other, softmax by hand."""
    tokenizer, model = loaded(folder)
    ids = tokenizer(f"predict: {document}</s>{claim}", return_tensors="pt")["input_ids"]
    assert ids[0].tolist().count(1) == 2 and ids[0, -1] == 1
    with torch.no_grad():
        states = model.encoder(input_ids=ids).last_hidden_state
        out = model.decoder(input_ids=torch.zeros((1, 1), dtype=torch.long), encoder_hidden_states=states)
        # An untied head has no scale; see T5's lm_head.
        logits = model.lm_head(out.last_hidden_state)[0, 0].double()
    a, b = logits[no].item(), logits[yes].item()
    return math.exp(b) / (math.exp(a) + math.exp(b))


@pytest.mark.parametrize("batch_size", [1, 4])
def test_equals_single_pairs_in_any_batch(folder, batch_size):
    documents = ["The cat sat on the red mat.", "A dog.", TEXTS[2]]
    claims = ["The cat sat.", "It rained in the evening, and nobody came.", "She"]
    inputs = [JudgeInput(claim, (document,)) for document in documents for claim in claims]
    results = MiniCheckJudge(folder, batch_size=batch_size, device="cpu", dtype="float64").judge(inputs)
    expected = [oracle(folder, item.evidence[0], item.claim) for item in inputs]
    assert [result.score for result in results] == pytest.approx(expected, abs=1e-6)
    assert [result.label for result in results] == [
        Label.SUPPORTED if value >= 0.5 else Label.UNVERIFIABLE for value in expected
    ]
    assert max(expected) - min(expected) > 0.02  # the control: inputs do matter


def test_token_ids_are_arguments(folder):
    inputs = [JudgeInput(CLAIM, (LONG,))]
    swapped = MiniCheckJudge(folder, no_token_id=209, yes_token_id=3).judge(inputs)[0].score
    assert swapped == pytest.approx(1 - oracle(folder, LONG, CLAIM), abs=3e-4)
    for no, yes in ((5, 5), (-1, 3), (3, 100_000)):
        with pytest.raises(ValueError, match="two ids below"):
            MiniCheckJudge(folder, no_token_id=no, yes_token_id=yes)
    with pytest.raises(ValueError, match="chunk_words must be at least 1"):
        MiniCheckJudge(folder, chunk_words=0)


def test_chunks_end_with_sentences():
    """Six sentences of 7 words each: 15 words hold two of them."""
    sentences = [f"{part}." for part in LONG.rstrip(".").split(". ")]
    assert word_chunks(LONG, 15) == [" ".join(sentences[i : i + 2]) for i in (0, 2, 4)]
    assert word_chunks(LONG, 14) == word_chunks(LONG, 15)
    assert word_chunks(LONG, 13) == sentences
    assert word_chunks(LONG) == [LONG]
    assert word_chunks(LONG, 3) == sentences  # longer than a chunk: one each
    assert word_chunks("  \n ") == word_chunks("") == []
    text = "\n\n".join([LONG] * 40)
    chunks = word_chunks(text)
    assert "".join("".join(chunks).split()) == "".join(text.split())
    assert all(len(chunk.split()) <= 500 for chunk in chunks) and len(chunks) == math.ceil(40 * 42 / 497)


def test_maximum_over_chunks(folder):
    judge = MiniCheckJudge(folder, chunk_words=15, device="cpu")
    chunks = [*word_chunks(LONG, 15), "A dog."]
    scores = {chunk: oracle(folder, chunk, CLAIM) for chunk in chunks}
    best = max(scores, key=scores.get)
    result = judge.judge([JudgeInput(CLAIM, (LONG, "A dog."))])[0]
    assert (result.score, result.evidence) == (pytest.approx(scores[best], abs=3e-4), best)


def test_a_chunk_that_is_too_long_in_tokens_is_cut_further(folder):
    judge = MiniCheckJudge(folder, max_length=60)
    text = "cat" * 200
    windows = judge._windows([JudgeInput(CLAIM, (text, LONG))])[0]
    assert "".join("".join(windows).split()) == "".join((text + LONG).split())
    assert all(len(judge.tokenizer(minicheck_prompt(w, CLAIM))["input_ids"]) <= 60 for w in windows)


def test_texts_cannot_end_the_document(folder):
    ids = MiniCheckJudge(folder)._encode([("The</s> cat.", "A</s> dog.")])["input_ids"][0]
    assert ids.count(1) == 2

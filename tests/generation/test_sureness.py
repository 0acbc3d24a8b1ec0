"""How sure a model is: against a slow loop over the logits of every token, and against a model that is made to be sure."""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_factuality.generation import SURE_WORDS, SureWords, answers_with_probability, measure_sureness


PROMPTS = [
    [{"role": "user", "content": text}] for text in ("Hello", "Where was Marie Curie born?", "Who was she? 玛丽")
]


@pytest.fixture
def parts(tiny_model):
    model = AutoModelForCausalLM.from_pretrained(tiny_model, dtype=torch.float32)
    return model, AutoTokenizer.from_pretrained(tiny_model)


def slow(model, tokenizer, messages, stop, words):
    """One token at a time, without a cache."""
    text = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
    ids, new, logs = tokenizer(text, add_special_tokens=False)["input_ids"], [], []
    while len(new) < 15:
        scores = model(torch.tensor([ids + new])).logits[0, -1].log_softmax(-1)
        new.append(int(scores.argmax()))
        logs.append(scores[new[-1]].item())
        if new[-1] == tokenizer.eos_token_id or stop in tokenizer.decode(new, skip_special_tokens=True):
            break
    answer = tokenizer.decode(new, skip_special_tokens=True).split(stop)[0]
    before = f"{text}{answer.strip()}{words.stop}{words.space}{words.question}{words.space}"
    both = [tokenizer(before + said, add_special_tokens=False)["input_ids"] for said in (words.sure, words.unsure)]
    place = next(n for n in range(len(both[0])) if both[0][n] != both[1][n])
    scores = model(torch.tensor([both[0][:place]])).logits[0, -1].softmax(-1)
    sure, unsure = (scores[ids[place]].item() for ids in both)
    return answer, math.exp(sum(logs) / len(logs)), sure / (sure + unsure)


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_slow_loop_says_the_same(parts, language):
    model, tokenizer = parts
    model.train()
    state = torch.get_rng_state()
    words = SURE_WORDS[language]
    (first, *_) = measure_sureness(model, tokenizer, PROMPTS, words)
    stop = first["answer"][2:4]
    found = measure_sureness(model, tokenizer, PROMPTS, words, stop=(stop,), batch_size=2)
    assert model.training and torch.equal(state, torch.get_rng_state())
    for one, it in zip(answers_with_probability(model, tokenizer, PROMPTS, stop=(stop,)), found, strict=True):
        assert one["answer"] == it["answer"] and one["p_pred"] == pytest.approx(it["p_pred"], rel=1e-4)
    assert found[0]["answer"] == first["answer"].split(stop)[0] != first["answer"]
    model.eval()
    with torch.no_grad():
        for messages, it in zip(PROMPTS, found, strict=True):
            answer, pred, sure = slow(model, tokenizer, messages, stop, words)
            assert it["answer"] == answer
            assert (it["p_pred"], it["p_sure"]) == (pytest.approx(pred, rel=1e-4), pytest.approx(sure, rel=1e-4))


def test_nothing_is_asked_of_nobody(parts):
    assert measure_sureness(*parts, []) == answers_with_probability(*parts, []) == []


@pytest.mark.parametrize("weight", [400.0, -400.0])
def test_probabilities_stay_numbers(parts, weight):
    """Of a model whose logits are all but infinite."""
    model, tokenizer = parts
    with torch.no_grad():
        model.model.norm.weight.mul_(weight)
    for it in measure_sureness(model, tokenizer, PROMPTS):
        assert 0 <= it["p_pred"] <= 1 and 0 <= it["p_sure"] <= 1


def test_an_answer_that_ends_at_once_has_a_probability(parts):
    """That of the token that ends it."""
    model, tokenizer = parts
    ends = torch.zeros(model.config.vocab_size)
    ends[tokenizer.eos_token_id] = 100.0
    model.lm_head.register_forward_hook(lambda module, inputs, output: output + ends)
    (found,) = measure_sureness(model, tokenizer, PROMPTS[:1])
    assert found["answer"] == "" and found["p_pred"] == pytest.approx(1.0)


def test_words():
    assert SureWords("Really?").said(" Ulm. ", True) == "Ulm. Really? I am sure."
    assert SURE_WORDS["zh"].said("柏林", False) == "柏林。你确定你是根据自己的知识准确回答了这个问题吗？我不确定。"

"""The model in this process: log-likelihoods against a slow loop, samples that do not depend on their batch."""

import math

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_factuality.data.benchmarks.base import BenchmarkItem
from hf_factuality.errors import CheckpointError, DataError
from hf_factuality.evaluation.engines import Request
from hf_factuality.evaluation.local import LocalEngine
from hf_factuality.generation.causal import SeededSampler, render
from hf_factuality.generation.sampling import SamplingConfig
from hf_factuality.hub.results import folder_fingerprint


def question(name, text, choices=()):
    return BenchmarkItem(name, ({"role": "user", "content": text},), text, choices=tuple(choices))


ITEMS = [
    question("a", "Where was she born?", [" In Warsaw.", " In Paris, in 1911!", " No."]),
    question(
        "b", "Who worked in Paris and won two prizes in 1903 and 1911? Say it at once.", [" Marie", " Ada Lovelace"]
    ),
    question("c", "?", [" 玛丽出生在华沙。"]),
]
FREE = SamplingConfig(max_new_tokens=12, top_p=0.9, seed=3)


@pytest.fixture(scope="module")
def engine(tiny_model):
    return LocalEngine(tiny_model, device="cpu", batch_size=4)


def slow_log_likelihood(folder, prompt, choice):
    """One token at a time, one choice at a time, no padding: the chain rule."""
    model, tokenizer = AutoModelForCausalLM.from_pretrained(folder), AutoTokenizer.from_pretrained(folder)
    before = tokenizer(prompt, add_special_tokens=False)["input_ids"]
    whole = tokenizer(prompt + choice, add_special_tokens=False)["input_ids"]
    assert whole[: len(before)] == before
    total = 0.0
    for place in range(len(before), len(whole)):
        with torch.no_grad():
            logits = model(torch.tensor([whole[:place]])).logits[0, -1].double()
        total += (logits[whole[place]] - torch.logsumexp(logits, 0)).item()
    return total


@pytest.mark.parametrize("chat", ["chat", "plain"])
def test_log_likelihoods_are_those_of_a_slow_loop(engine, tiny_model, chat):
    engine.use_format(chat)
    found = dict(engine.log_likelihoods(ITEMS))
    assert set(found) == {"a", "b", "c"}
    for item in ITEMS:
        prompt = item.question if chat == "plain" else f"<|user|>{item.question}<|end|><|assistant|>"
        wanted = [slow_log_likelihood(tiny_model, prompt, choice) for choice in item.choices]
        assert found[item.id] == pytest.approx(wanted, abs=2e-4, rel=1e-5)


def test_log_likelihoods_do_not_depend_on_the_batch(tiny_model, engine):
    engine.use_format("plain")
    together = dict(engine.log_likelihoods(ITEMS))
    alone = LocalEngine(tiny_model, device="cpu", batch_size=1, prompt_format="plain")
    for item in ITEMS:
        assert together[item.id] == pytest.approx(dict(alone.log_likelihoods([item]))[item.id], abs=2e-4)


def test_without_logits_to_keep_the_sums_are_the_same(engine, monkeypatch):
    engine.use_format("plain")
    wanted = dict(engine.log_likelihoods(ITEMS))
    monkeypatch.setattr(engine, "_keeps_logits", False)
    found = dict(engine.log_likelihoods(ITEMS))
    assert all(found[name] == pytest.approx(wanted[name], abs=1e-4) for name in wanted)


def test_a_choice_that_merges_with_the_prompt_is_cut_at_the_border(engine):
    engine.use_format("plain")
    item = question("x", "She was bor", ["n in Warsaw.", " in"])
    tokenizer = engine.tokenizer
    prompt = tokenizer("She was bor", add_special_tokens=False)["input_ids"]
    merged = tokenizer("She was born in Warsaw.", add_special_tokens=False)["input_ids"]
    assert merged[: len(prompt)] != prompt, "the tokenizer merges 'born'; otherwise this tests nothing"
    engine.split_choices = 0
    pairs = engine._pairs(item)
    assert engine.split_choices == 1
    for (before, after), choice in zip(pairs, item.choices, strict=True):
        assert before == prompt and tokenizer.decode(after) == choice
    # Any order and number of choices: the condition is the same text, so the probabilities can be compared.
    assert pairs[0][0] == pairs[1][0]


def test_completions_end_where_the_settings_of_the_model_say(engine, monkeypatch):
    settings = engine.model.generation_config
    for said, ends in ((7, {7}), ([7, 9], {7, 9}), (None, {engine.tokenizer.eos_token_id})):
        monkeypatch.setattr(settings, "eos_token_id", said)
        assert engine._ends() == ends


def test_a_tokenizer_that_begins_and_ends_every_text(engine, monkeypatch):
    """The end must not stand between prompt and choice; the beginning is there in plain prompts, once."""
    real = engine.tokenizer
    begin, end = real.convert_tokens_to_ids("<think>"), real.eos_token_id

    class Tokenizer:
        chat_template = None

        def __call__(self, text, add_special_tokens=True):
            ids = real(text, add_special_tokens=False)["input_ids"]
            return {"input_ids": [begin, *ids, end] if add_special_tokens else ids}

    item = question("a", "Where was she born?", [" In Warsaw."])
    before, after = ([*real(text)["input_ids"]] for text in (item.question, " In Warsaw."))
    monkeypatch.setattr(engine, "tokenizer", Tokenizer())
    monkeypatch.setattr(engine, "chat", False)
    assert engine._pairs(item) == [([begin, *before], after)]


def test_samples_do_not_depend_on_the_batch_and_differ_from_each_other(tiny_model, engine):
    engine.use_format("chat")
    requests = [Request(item, sample) for item in ITEMS for sample in range(3)]
    together = {(one.item.id, one.sample): it.text for one, it in engine.generate(requests, FREE)}
    assert len(together) == 9
    alone = LocalEngine(tiny_model, device="cpu", batch_size=1)
    for request in requests[::2]:
        ((_, found),) = alone.generate([request], FREE)
        assert found.text == together[request.item.id, request.sample]
    assert len({together["a", sample] for sample in range(3)}) == 3
    again = engine.generate(requests, SamplingConfig(max_new_tokens=12, top_p=0.9, seed=4))
    other = {(one.item.id, one.sample): it.text for one, it in again}
    assert other != together


def test_greedy_is_the_models_own_greedy(engine, tiny_model):
    engine.use_format("chat")
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tiny_model), AutoTokenizer.from_pretrained(tiny_model)
    greedy = SamplingConfig(max_new_tokens=12, temperature=0.0, seed=0)
    for request, found in engine.generate([Request(item) for item in ITEMS], greedy):
        ids = tokenizer(f"<|user|>{request.item.question}<|end|><|assistant|>", return_tensors="pt")["input_ids"]
        tokens = ids[0].tolist()
        for _ in range(12):
            with torch.no_grad():
                tokens.append(model(torch.tensor([tokens])).logits[0, -1].argmax().item())
            if tokens[-1] == tokenizer.eos_token_id:
                break
        assert found.text == tokenizer.decode(tokens[ids.shape[1] :], skip_special_tokens=True)
        assert found.finish_reason == ("stop" if tokens[-1] == tokenizer.eos_token_id else "length")


def test_the_sampler_draws_from_the_softmax():
    logits = torch.tensor([math.log(0.6), math.log(0.3), math.log(0.1), -math.inf])
    n = 20_000
    drawn = SeededSampler(range(n))(None, logits.expand(n, 4)).argmax(-1)
    shares = torch.bincount(drawn, minlength=4) / n
    # Five standard deviations of a share.
    for share, p in zip(shares.tolist(), (0.6, 0.3, 0.1, 0.0), strict=True):
        assert abs(share - p) <= 5 * math.sqrt(p * (1 - p) / n)


def test_a_stop_text_ends_a_completion(engine):
    engine.use_format("plain")
    ((_, whole),) = engine.generate([Request(ITEMS[0])], FREE)
    assert len(whole.text) > 4
    end = whole.text[3]
    ((_, cut),) = engine.generate(
        [Request(ITEMS[0])], SamplingConfig(max_new_tokens=12, top_p=0.9, seed=3, stop=(end,))
    )
    assert cut.text == whole.text[: whole.text.index(end)] and cut.finish_reason == "stop"


def test_prompts(engine):
    messages = (
        {"role": "system", "content": "S"},
        {"role": "user", "content": "U"},
        {"role": "assistant", "content": "P"},
    )
    assert render(engine.tokenizer, messages, chat=False) == "S\nU\nP"
    assert render(engine.tokenizer, messages[:2], chat=True) == "<|system|>S<|end|><|user|>U<|end|><|assistant|>"
    assert render(engine.tokenizer, messages, chat=True) == "<|system|>S<|end|><|user|>U<|end|><|assistant|>P"


def test_a_template_that_drops_the_prefill_gets_it_behind_its_own_start(engine):
    class Tokenizer:
        def apply_chat_template(self, messages, continue_final_message=False, **_):
            if continue_final_message:
                raise ValueError("the final message does not appear")
            return "U:hi A:<think>\n"

    messages = ({"role": "user", "content": "hi"}, {"role": "assistant", "content": "<think>"})
    assert render(Tokenizer(), messages, chat=True) == "U:hi A:<think>\n"
    messages = (messages[0], {"role": "assistant", "content": "Well,"})
    assert render(Tokenizer(), messages, chat=True) == "U:hi A:<think>\nWell,"


@pytest.mark.parametrize("item", [question("a", "Who\ud83d?", []), question("a", "Who?", [" She.", " He\ud83d."])])
def test_half_of_a_surrogate_pair_is_named(engine, item):
    with pytest.raises(DataError, match="item 'a' holds half of a surrogate pair"):
        engine.check([item], None if item.choices else SamplingConfig(max_new_tokens=4, temperature=0.0, seed=0))


def test_what_does_not_fit_is_refused_before_anything_is_computed(engine):
    engine.use_format("chat")
    with pytest.raises(DataError, match=r"item 'a'.*512 positions; lower it by"):
        engine.check(ITEMS, SamplingConfig(max_new_tokens=512, temperature=0.0, seed=0))
    with pytest.raises(DataError, match="item 'long'.*longest choice"):
        engine.check([question("long", "word " * 600, [" a"])], None)
    with pytest.raises(DataError, match="choice is empty"):
        engine.check([question("e", "word", [""])], None)
    engine.check(ITEMS, SamplingConfig(max_new_tokens=400, temperature=0.0, seed=0))


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"dtype": "int8"}, ValueError, "`dtype` must be one of"),
        ({"batch_size": 0}, ValueError, "`batch_size`"),
        ({"prompt_format": "raw"}, ValueError, "`prompt_format` must be one of"),
        ({"device": "gpu"}, ValueError, "`device` must be"),
    ],
)
def test_bad_arguments(tiny_model, arguments, error, message):
    with pytest.raises(error, match=message):
        LocalEngine(tiny_model, **arguments)


def test_no_model(tmp_path):
    with pytest.raises(CheckpointError, match="cannot be loaded"):
        LocalEngine(str(tmp_path / "nothing"), device="cpu")


def test_adapter(tiny_model, tmp_path, engine):
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    config = peft.LoraConfig(target_modules=["q_proj", "v_proj"], r=4, init_lora_weights=False, task_type="CAUSAL_LM")
    adapted = peft.get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model), config)
    adapted.save_pretrained(tmp_path / "adapter")
    found = LocalEngine(str(tmp_path / "adapter"), device="cpu", prompt_format="plain")
    assert found.identity()["name"] == "model" and found.identity()["adapter"] == "adapter"
    values = dict(found.log_likelihoods(ITEMS[:1]))["a"]
    prompt = found.tokenizer(ITEMS[0].question, return_tensors="pt")["input_ids"]
    for choice, value in zip(ITEMS[0].choices, values, strict=True):
        whole = found.tokenizer(ITEMS[0].question + choice, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            scores = adapted(whole).logits[0].log_softmax(-1)
        start = prompt.shape[1]
        wanted = sum(scores[place - 1, whole[0, place]].item() for place in range(start, whole.shape[1]))
        assert value == pytest.approx(wanted, abs=2e-4)
    engine.use_format("plain")
    assert values != pytest.approx(dict(engine.log_likelihoods(ITEMS[:1]))["a"], abs=1e-2), (
        "the adapter does something"
    )


def test_fingerprint_tells_weights_apart(tmp_path):
    for name, data in (("one", b"a" * 70_000), ("two", b"a" * 69_999 + b"b")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(data)
    assert folder_fingerprint(tmp_path / "one") != folder_fingerprint(tmp_path / "two")

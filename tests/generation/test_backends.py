"""What every backend makes of the same request: beginnings of answers, texts that end them, tokens to draw from."""

import sys
from types import ModuleType, SimpleNamespace

import pytest
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedTokenizerFast

from hf_factuality.data.benchmarks.base import BenchmarkItem
from hf_factuality.data.sampling import GivenResponses, SamplingConfig, ServedSampler
from hf_factuality.evaluation.engines import FileEngine, Request
from hf_factuality.generation.base import ChatAnswer, ChatRequest
from hf_factuality.generation.client import ChatClient
from hf_factuality.generation.local import LocalChat
from hf_factuality.generation.vllm import VLLMChat
from hf_factuality.spans import Label
from hf_factuality.verifiers import LLMJudge, SentenceExtractor, VerifierInput, VerifierPipeline
from tests.evaluation.conftest import write_rows
from tests.generation.fake_server import FakeServer


ASK = (("user", "Who is Ada?"),)
BEGUN = (*ASK, ("assistant", "<think>"))


@pytest.fixture(scope="module")
def local(tiny_model):
    return LocalChat(AutoModelForCausalLM.from_pretrained(tiny_model), AutoTokenizer.from_pretrained(tiny_model))


def test_caches_of_before_are_found_again():
    """Hashes made when these settings were the client's own fields: a run that was killed then goes on."""
    arguments = {"base_url": "http://localhost:1/v1", "model": "fake", "cache": False}
    plain, named = ChatClient(**arguments), ChatClient(**arguments, revision="r")
    thinking = ChatClient(**arguments, extra_body={"chat_template_kwargs": {"enable_thinking": False}})
    sampled = ChatRequest(ASK, temperature=0.8, max_new_tokens=512, seed=7, top_k=40)
    begun = ChatRequest(BEGUN, temperature=1.0, max_new_tokens=16, seed=5, stop=("END",))
    assert named.key(sampled) == "c1204dd5daffe8dfa50e478dec0370487a02e70ab378ad82257c8de1f9ab29b8"
    assert thinking.key(begun) == "7483ac60c338cf3dd261203804e912b87fc3791c5eb2c23d57c83e21658864b5"
    assert (
        plain.key(ChatRequest(ASK, choices=("yes", "no"), logprobs=20))
        == "2921396da9d73c18130e96f13a42122ee0690157ae5856b94afc48485cde554d"
    )


def test_a_server_gets_what_the_request_says():
    requests = [ChatRequest(ASK, stop=("END", "no"), top_k=3), ChatRequest(BEGUN), ChatRequest(ASK, max_new_tokens=4)]
    with FakeServer(reply=lambda prompt, body: "yes END and no") as server:
        answers = server.client().chat(requests)
        stopped, begun, plain = sorted(
            server.bodies, key=lambda body: ("stop" not in body, len(body["messages"]) == 1)
        )
    assert [(it.text, it.finish_reason) for it in answers] == [("yes ", "stop")] + [("yes END and no", "stop")] * 2
    assert (stopped["stop"], stopped["top_k"]) == (["END", "no"], 3)
    assert (begun["continue_final_message"], begun["add_generation_prompt"]) == (True, False)
    assert not {"stop", "top_k", "continue_final_message", "add_generation_prompt"} & set(plain)


def test_fields_of_the_client_go_before_those_of_the_request():
    with FakeServer(reply=lambda prompt, body: "yes") as server:
        server.client(extra_body={"top_k": 5, "add_generation_prompt": None}).chat([ChatRequest(BEGUN, top_k=3)])
        (body,) = server.bodies
    assert body["top_k"] == 5 and body["continue_final_message"] and "add_generation_prompt" not in body


def test_a_model_in_this_process_goes_on_from_a_beginning(local):
    whole = local.chat([ChatRequest(ASK, max_new_tokens=8)])[0].text
    for cut in range(1, len(whole)):
        begun = ChatRequest((*ASK, ("assistant", whole[:cut])), max_new_tokens=8)
        prompt, _, _ = local._tokens(begun)
        assert local.tokenizer.decode(prompt).endswith("<|assistant|>" + whole[:cut])


def test_choices_are_scored_as_a_model_begins_its_answer(local):
    """Behind the prompt, this tokenizer leaves out the space that it puts before the first word of a text."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first")
    trainer = trainers.BpeTrainer(special_tokens=["<|user|>", "<|assistant|>", "<|end|>"], show_progress=False)
    tokenizer.train_from_iterator([" yes no Who is Ada?"] * 4, trainer)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", chat_template=local.tokenizer.chat_template
    )
    client = LocalChat(local.model, fast)
    prompt, pairs, _ = client._tokens(ChatRequest(ASK, choices=("yes", "no")))
    assert [fast.convert_ids_to_tokens(choice) for _, choice in pairs] == [["▁yes"], ["▁no"]]
    assert all(before == prompt for before, _ in pairs)
    together = fast("<|assistant|>yes", add_special_tokens=False)["input_ids"]
    assert "▁yes" not in fast.convert_ids_to_tokens(together), "otherwise this tests nothing"


def test_a_sampler_sends_its_settings_to_a_server():
    prompt = [{"role": "user", "content": "Who is Ada?"}]
    rare = {"top_k": 40, "min_p": 0.1, "chat_template_kwargs": {"enable_thinking": False}}
    with FakeServer() as server:
        for more in ({}, rare):
            (said,) = ServedSampler(server.client(), SamplingConfig(num_samples=2, **more)).sample([prompt], 0)
            assert said == [ChatAnswer("ok", "stop")] * 2
            assert [{name: body.get(name) for name in rare} for body in server.bodies[-2:]] == [
                {name: more.get(name) for name in rare}
            ] * 2
        assert [body["seed"] for body in server.bodies[-2:]] == [0, 1]


def test_a_model_in_this_process_ends_at_a_text(local):
    (whole,) = local.chat([ChatRequest(ASK, max_new_tokens=12)])
    end = whole.text[3]
    (cut,) = local.chat([ChatRequest(ASK, max_new_tokens=12, stop=(end, "never said"))])
    assert cut == ChatAnswer(whole.text[: whole.text.index(end)], "stop")


def test_one_token_to_draw_from_is_the_likeliest(local):
    greedy = local.chat([ChatRequest(ASK, max_new_tokens=12)])
    drawn = [local.chat([ChatRequest(ASK, max_new_tokens=12, temperature=5, top_k=k, seed=1)]) for k in (1, 0)]
    assert drawn[0] == greedy != drawn[1]


def test_one_file_of_answers_for_both_commands(tmp_path):
    """What `evaluate` wrote, and what `build-preferences` reads: each reads the other's."""
    rows = [{"schema": "hf_factuality.answers/1", "settings": {}}]
    rows += [{"id": name, "samples": [{"text": f"{name}1", "finish_reason": "stop"}, None]} for name in "ab"]
    written = write_rows(tmp_path / "r.model.answers.jsonl", rows)
    given = GivenResponses.from_file(written)
    assert given.responses_to(["b", "a"]) == [
        [ChatAnswer(f"{name}1", "stop"), ChatAnswer(error="missing")] for name in "ba"
    ]
    items = [BenchmarkItem(name, ({"role": "user", "content": "?"},), "?") for name in "ab"]
    lists = write_rows(tmp_path / "l.jsonl", [{"id": name, "responses": [f"{name}1", None]} for name in "ab"])
    for file in (written, lists):
        engine = FileEngine(file)
        engine.join(items)
        assert engine.samples(items) == 2
        found = engine.generate(
            [Request(items[1]), Request(items[0], 1)], SamplingConfig(max_new_tokens=1, num_samples=2, seed=0)
        )
        assert [(request.item.id, it.text, it.error) for request, it in found] == [
            ("b", "b1", None),
            ("a", "", "not in the file"),
        ]


def test_vllm(monkeypatch):
    module = ModuleType("vllm")
    module.SamplingParams = lambda **kwargs: kwargs
    monkeypatch.setitem(sys.modules, "vllm", module)
    calls = []

    def chat(messages, parameters, **kwargs):
        calls.append((parameters, kwargs))
        return [
            SimpleNamespace(outputs=[SimpleNamespace(text=it[-1]["content"], finish_reason="stop")]) for it in messages
        ]

    requests = [
        ChatRequest(BEGUN, seed=3),
        ChatRequest(ASK, temperature=0.5, top_k=7, stop=("END",)),
        ChatRequest(ASK, min_p=0.2),
    ]
    answers = VLLMChat(SimpleNamespace(chat=chat)).chat(requests)
    assert [answer.text for answer in answers] == ["<think>", "Who is Ada?", "Who is Ada?"]
    (begun, other), (plain, how) = calls
    assert [(it["temperature"], it["top_k"], it["stop"]) for it in plain] == [(0.5, 7, ["END"]), (0.0, -1, None)]
    assert begun[0]["seed"] == 3 and other["continue_final_message"] and not other["add_generation_prompt"]
    assert how["add_generation_prompt"] and not how["continue_final_message"]
    assert [it["min_p"] for it in plain] == [0.0, 0.2] and how["chat_template_kwargs"] is None
    VLLMChat(SimpleNamespace(chat=chat)).chat([ChatRequest(ASK), ChatRequest(ASK, chat_template_kwargs={"a": 1})])
    assert [how["chat_template_kwargs"] for _, how in calls[2:]] == [None, {"a": 1}]


def test_a_judge_takes_whatever_chats():
    class Model:
        def chat(self, requests):
            return [ChatAnswer("supported" if "Leeds" in request.messages[0][1] else "Yes.") for request in requests]

    verifier = VerifierPipeline(SentenceExtractor(), LLMJudge(Model()))
    rows = [VerifierInput(f"Ada was born in {city}.", "", ("She was born.",)) for city in ("Leeds", "York")]
    assert [found.spans[0].label for found in verifier.verify(rows)] == [Label.SUPPORTED, None]

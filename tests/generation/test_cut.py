"""Answers that ended at a limit of tokens: no verdict, kept nowhere as one, counted, and the setting to raise named."""

import json
import logging

import pytest
from transformers import AutoModelForCausalLM, AutoTokenizer

from hf_factuality.cli import main
from hf_factuality.data.builder import judged_responses
from hf_factuality.data.questions import read_questions
from hf_factuality.data.sampling import GivenResponses, ServedSampler
from hf_factuality.generation import ChatAnswer, ChatRequest, LocalChat
from hf_factuality.rewards import GradedOutcome
from hf_factuality.spans import Label, LabeledSpan, Verification
from hf_factuality.verifiers import LLMJudge, SentenceExtractor, VerifierInput, VerifierPipeline
from hf_factuality.verifiers.base import JudgeInput
from hf_factuality.verifiers.ensemble import MajorityJudge
from hf_factuality.verifiers.extractors.llm import FActScoreExtractor
from hf_factuality.verifiers.judges.anah import ANAHJudge
from hf_factuality.verifiers.judges.compare import CompareVerifier
from tests.generation.fake_server import FakeServer


ASK = ChatRequest((("user", "Is it?"),), max_new_tokens=8)
ITEM = JudgeInput("Ada was born in Leeds.", ("Ada was born in Leeds.",))
ROW = VerifierInput(ITEM.claim, "Where was Ada born?", ITEM.evidence)


def thinker(prompt, body):
    """A model that needs 100 tokens for its thoughts, which the server keeps to itself, and then says its verdict."""
    return ("supported", "stop") if body["max_tokens"] >= 100 else ("", "length")


def wordy(prompt, body):
    """The same, whose thoughts are part of the text."""
    said = "<think>Leeds, as the passage says.</think>supported"
    return (said, "stop") if body["max_tokens"] >= 100 else (said[: 4 * body["max_tokens"]], "length")


@pytest.mark.parametrize(
    ("reason", "cut"),
    [
        (reason, True)
        for reason in (
            "length",
            "LENGTH",
            "max_tokens",
            "MAX_TOKENS",
            "model_length",
            "max_output_tokens",
            "max_length",
            "max_completion_tokens",
            "context_length",
            "token_limit",
            "model_context_window_exceeded",
        )
    ]
    + [(reason, False) for reason in (None, "", "stop", "eos", "content_filter", "abort", "ambiguous", "tool_calls")],
)
def test_a_limit_is_known_by_every_name(reason, cut):
    assert ChatAnswer("supported", reason).was_cut is cut
    assert not ChatAnswer("", reason, error="HTTP 500").was_cut
    assert not (cut and ChatAnswer("supported", reason).complete)


@pytest.mark.parametrize("reason", ["length", "max_tokens", "content_filter", "abort"])
def test_what_is_not_whole_is_not_kept(reason, tmp_path):
    said = [("Yes, bec", reason), ("Yes.", "stop")]
    with FakeServer(lambda prompt, body: said.pop(0)) as server:
        client = server.client(cache=tmp_path / "a.sqlite")
        assert client.chat([ASK])[0].text == "Yes, bec"
        assert client.chat([ASK])[0].text == "Yes."
        assert client.chat([ASK])[0].cached and client.stats.cut == (reason in ("length", "max_tokens"))


def test_a_cut_answer_in_a_cache_of_before_is_asked_for_again(tmp_path):
    with FakeServer(lambda prompt, body: "Yes.") as server:
        client = server.client(cache=tmp_path / "a.sqlite")
        client.cache.put(client.key(ASK), ChatAnswer("Yes, bec", "length").to_dict())
        assert client.chat([ASK])[0].text == "Yes."


def test_samples_are_what_they_are(tmp_path):
    """A kill in the middle of a batch costs none of them, and nobody asks for them again."""
    with FakeServer(lambda prompt, body: ("It was", "max_tokens")) as server:
        client = server.client(cache=tmp_path / "a.sqlite", keep_cut=True)
        first = ServedSampler(client).sample([[{"role": "user", "content": "Who?"}]], 0)[0][0]
        sent = sum(server.received.values())
        assert ServedSampler(client).sample([[{"role": "user", "content": "Who?"}]], 0)[0][0] == first
        assert (first.text, first.complete) == ("It was", False) and sum(server.received.values()) == sent


@pytest.mark.parametrize(("tokens", "cut"), [(8, True), (7, False), (None, False)])
def test_a_server_that_gives_no_reason_still_counts_tokens(tokens, cut, monkeypatch):
    monkeypatch.setattr(
        FakeServer, "_answer", lambda self, prompt, body: {
            "choices": [{"message": {"content": "supported"}}],
            "usage": {} if tokens is None else {"completion_tokens": tokens},
        },
    )  # fmt: skip
    with FakeServer() as server:
        assert server.client().chat([ASK])[0].was_cut is cut
        other = server.client(extra_body={"max_tokens": None, "max_completion_tokens": 7})
        assert other.chat([ASK])[0].was_cut is (tokens is not None)


@pytest.mark.parametrize("reason", ["length", "MAX_TOKENS"])
def test_an_allowed_answer_that_filled_its_room_is_whole(reason):
    ask = ChatRequest((("user", "Is it?"),), max_new_tokens=1, choices=("yes", "no"))
    with FakeServer(lambda prompt, body: ("yes", reason), choice_field="guided_choice") as server:
        (answer,) = server.client().chat([ask])
    assert (answer.text, answer.finish_reason, answer.complete) == ("yes", "stop", True)


JUDGES = {
    "llm": lambda client: LLMJudge(client, max_tokens=16),
    "anah": lambda client: ANAHJudge(client, max_tokens=16),
    "ensemble": lambda client: MajorityJudge([LLMJudge(client, max_tokens=16)]),
}


@pytest.mark.parametrize("reply", [thinker, wordy])
@pytest.mark.parametrize("kind", JUDGES)
def test_a_cut_verdict_is_unknown_counted_and_the_setting_named(kind, reply, caplog):
    with FakeServer(reply) as server, caplog.at_level(logging.WARNING):
        judge = JUDGES[kind](server.client())
        found = VerifierPipeline(SentenceExtractor(), judge).verify([ROW, ROW])
    assert [(it.unanswered, it.spans[0].label) for it in found] == [(1, None), (1, None)]
    assert (
        "2 answers were cut" in caplog.text and "max_tokens=16" in caplog.text and "`verifier_tokens`" in caplog.text
    )
    again = [Verification.from_dict(json.loads(json.dumps(it.to_dict()))) for it in found]
    assert again == found and "unanswered" not in Verification().to_dict()


def test_a_cut_comparison_is_marked():
    with FakeServer(thinker) as server:
        verifier = CompareVerifier("fake", server.url, cache=False)
        assert verifier.verify([VerifierInput("Leeds.", "Where?", row={"other": "York."})])[0].unanswered == 1


@pytest.mark.parametrize("on_failure", ["sentence", "drop"])
def test_cut_claims_are_marked_in_their_completion(on_failure, caplog):
    def reply(prompt, body):
        return ("- Ben was", "length") if "Ben" in prompt else "- Ada was born in Leeds."

    with FakeServer(reply) as server, caplog.at_level(logging.WARNING):
        extractor = FActScoreExtractor(server.client(), max_tokens=33, on_failure=on_failure, retries=1)
        judge = LLMJudge(FakeJudge())
        rows = [VerifierInput(text, None, ("x",)) for text in ("Ada was born.", "Ben was born.", "Ada sat.")]
        found = VerifierPipeline(extractor, judge).verify(rows)
    assert [it.unanswered for it in found] == [0, 1, 0] and extractor.last_report.cut == 1
    assert "max_tokens=33 of FActScoreExtractor" in caplog.text


class FakeJudge:
    def chat(self, requests):
        return [ChatAnswer("supported", "stop") for _ in requests]


def test_a_grade_that_was_cut_is_unknown_and_has_a_limit_to_raise(caplog):
    def reply(prompt, body):
        return ("CORRECT", "stop") if body["max_tokens"] >= 100 or "York" in prompt else ("INCORR", "length")

    row = {"completions": ["Leeds", "York"], "answer": ["Leeds", "York"], "question": ["Where?"] * 2}
    with FakeServer(reply) as server, caplog.at_level(logging.WARNING):
        assert GradedOutcome(server.client())(**row) == [None, "correct"]
        assert "max_tokens=16" in caplog.text
        assert GradedOutcome(server.client(), max_tokens=100)(**row) == ["correct", "correct"]
    with pytest.raises(ValueError, match="max_tokens"):
        GradedOutcome(None, max_tokens=0)


def test_a_builder_asks_again_for_what_was_cut_and_a_failure_takes_no_label(tmp_path):
    questions = read_questions([{"question": "Where was Ada born?", "evidence": "Ada was born in Leeds."}])
    sampler = GivenResponses({"0": ["Ada was born in Leeds. Ada sat.", "Ada sat."]})

    def run(limit, **trouble):
        with FakeServer(lambda prompt, body: "supported" if "sat" not in prompt else thinker(prompt, body)) as server:
            server.trouble = trouble.get("trouble", server.trouble)
            client = server.client(cache=tmp_path / "a.sqlite")
            verifier = VerifierPipeline(SentenceExtractor(), LLMJudge(client, max_tokens=limit))
            with judged_responses(questions, sampler, verifier, tmp_path / "run", progress=False) as (_, verdicts):
                found = [Verification.from_dict(it) for it in verdicts["0"]]
            return [[span.label for span in it.spans] for it in found], sum(server.received.values())

    yes = Label.SUPPORTED
    assert run(16)[0] == [[yes, None], [None]]
    assert run(16, trouble=lambda prompt, count: 400)[0] == [[yes, None], [None]]
    labels, sent = run(100)
    assert labels == [[yes, yes], [yes]] and sent
    assert run(100) == (labels, 0)


def test_a_verifier_that_fails_takes_no_label_of_before(tmp_path):
    questions = read_questions([{"question": "Where was Ada born?"}])
    sampler = GivenResponses({"0": ["Ada sat.", "Ada was born in Leeds."]})

    class Once:
        """Has a whole answer to the second response alone, and then fails on the first."""

        requires_evidence, fails = False, False

        def verify(self, inputs):
            return [self._of(it.completion) for it in inputs]

        def _of(self, text):
            cut = "sat" in text
            if cut and self.fails:
                return Verification(error="down")
            return Verification((LabeledSpan(0, len(text), Label.SUPPORTED),), unanswered=int(cut))

    verifier = Once()
    for fails in (False, True):
        verifier.fails = fails
        with judged_responses(questions, sampler, verifier, tmp_path / "run", progress=False) as (_, verdicts):
            first, second = (Verification.from_dict(it) for it in verdicts["0"])
        assert [first.error, first.unanswered, second.unanswered] == [None, 1, 0]
        assert [span.label for it in (first, second) for span in it.spans] == [Label.SUPPORTED] * 2


def test_evaluate_asks_again_for_what_was_cut(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("HF_FACTUALITY_CACHE", str(tmp_path / "cache.sqlite"))
    rows = [{"id": "a", "question": "Where?", "answer": "Leeds", "evidence": "Ada was born in Leeds."}]
    (tmp_path / "q.jsonl").write_text(json.dumps(rows[0]))
    (tmp_path / "a.jsonl").write_text(json.dumps({"id": "a", "completion": "Ada was born in Leeds."}))

    def run(tokens):
        main(
            f"evaluate --dataset {tmp_path}/q.jsonl --answers {tmp_path}/a.jsonl --metrics factscore --out {tmp_path}/r.json "
            f"--verifier llm:fake --verifier_base_url {server.url} --verifier_tokens {tokens} --json".split()
        )
        return json.loads(capsys.readouterr().out)["results"][0]["n_scored"]

    with FakeServer(thinker) as server:
        assert run(16) == 0
        assert run(100) == 1


def test_given_answers_say_what_was_cut(tmp_path):
    samples = [{"text": "It was", "finish_reason": "length"}, {"text": "Leeds.", "finish_reason": "stop"}, None]
    path = tmp_path / "answers.jsonl"
    path.write_text(
        json.dumps({"id": "a", "samples": samples}) + "\n" + json.dumps({"id": "b", "responses": ["York."]})
    )
    (first, second, third), (other,) = GivenResponses.from_file(path).responses_to(["a", "b"])
    assert (first.complete, second.complete, third.error, other.complete) == (False, True, "missing", True)


def test_a_model_in_this_process_says_that_it_was_cut(tiny_model):
    local = LocalChat(AutoModelForCausalLM.from_pretrained(tiny_model), AutoTokenizer.from_pretrained(tiny_model))
    assert local.chat([ChatRequest((("user", "Who?"),), max_new_tokens=2)])[0].was_cut

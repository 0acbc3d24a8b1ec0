import json
import logging
import math
import re
import time

import pytest

from hf_factuality.errors import JudgingError
from hf_factuality.generation.client import ChatAnswer, ChatRequest, TokenLogprobs
from hf_factuality.spans import Label
from hf_factuality.verifiers.base import JudgeInput, Judgement, VerifierInput
from hf_factuality.verifiers.guard import GuardedVerifier
from hf_factuality.verifiers.judges.llm import (
    JUDGE_LABELS,
    LLMJudge,
    LLMVerifier,
    label_probabilities,
    parse_choice,
    read_choice,
    without_thinking,
)
from hf_factuality.verifiers.prompts import Prompt, as_data, load_prompt
from tests.generation.fake_server import HASTY, FakeServer, split_logprobs
from tests.tables import cases
from tests.verifiers.hostile import LARGE, hostile_strings


LABELS = tuple(JUDGE_LABELS)
EVIDENCE = ("Ada Hale was born in Leeds.",)


def claim_of(prompt):
    return re.search(r"\[BEGIN CLAIM (\w+)\]\n(.*)\n\[END CLAIM \1\]", prompt, re.DOTALL)[2]


def truthful(prompt, body):
    """A judge that knows: claims with "Leeds" are supported, with "York" contradicted."""
    claim = claim_of(prompt)
    return "supported" if "Leeds" in claim else "contradicted" if "York" in claim else "unverifiable"


# ---- reading an answer


@cases("judges", "labels", "text", "expected")
def test_answers_that_count(text, expected):
    assert parse_choice(text, LABELS) == expected


def test_incorrect_is_not_correct():
    for choices in (("correct", "wrong"), ("correct", "incorrect"), ("true", "false")):
        assert parse_choice("incorrect", choices) in (None, "incorrect")
        assert parse_choice("not correct", choices) is None
        assert parse_choice("untrue", choices) is None
    assert parse_choice("incorrect", ("correct", "incorrect")) == "incorrect"


def test_reading_takes_no_time():
    start = time.process_time()
    for text in [*LARGE, "<think>" * 100_000, "<think>" + "a" * 90_000, "answer " * 100_000, "*" * 99_000]:
        assert parse_choice(text, LABELS) is None
        as_data(text)
    assert time.process_time() - start < 10


def test_thinking():
    assert without_thinking("<think>a</think>b") == "b"
    assert without_thinking("a<think>b</think>c") == "a<think>b</think>c"
    assert without_thinking("<think>a") == "<think>a"
    assert without_thinking("<think>a</think>b</think>c") == "b</think>c"


# ---- probabilities


def position(*candidates):
    return TokenLogprobs(candidates[0][0], tuple((token, math.log(p)) for token, p in candidates))


def test_probabilities_by_hand():
    found = label_probabilities([position(("supp", 0.6), ("contr", 0.2), ("The", 0.1), (" un", 0.1))], LABELS)
    # 0.6, 0.2, 0.1 of 0.9.
    assert found == {
        "supported": pytest.approx(2 / 3),
        "contradicted": pytest.approx(2 / 9),
        "unverifiable": pytest.approx(1 / 9),
    }


@cases("judges", "label_probabilities", "tokens", "expected")
def test_probability_of_support(tokens, expected):
    found = label_probabilities([position(*candidates) for candidates in tokens], LABELS)
    assert (found and found["supported"]) == (expected if expected is None else pytest.approx(expected))


def test_a_token_that_fits_two_choices_counts_for_none():
    found = label_probabilities(
        [position(("correct", 0.5), ("c", 0.3), ("inc", 0.2))], ("correct", "credible", "incredible")
    )
    assert found == {"correct": pytest.approx(5 / 7), "credible": 0.0, "incredible": pytest.approx(2 / 7)}


# ---- answers that cannot be trusted

FIRST = {
    "likely": position(("supp", 0.8), ("contr", 0.2)),
    "unlikely": position(("supp", 0.3), ("contr", 0.6), ("un", 0.1)),
    "other": position(("contr", 0.5), ("supp", 0.5)),
    "tie": position(("supp", 0.5), ("contr", 0.5)),
    "little": position(("supp", 0.02), ("contr", 0.05), ("The", 0.9)),
}


@cases("judges", "read_choice", "finish", "first", "nucleus", "said")
def test_a_label_counts_only_whole_and_undenied(finish, first, nucleus, said):
    answer = ChatAnswer("supported", finish, first and (FIRST[first],))
    found, shares = read_choice(answer, LABELS, nucleus=nucleus)
    assert found == said
    assert (shares is not None) == (said is not None and first not in (None, "little"))


def test_no_label_of_a_failed_request():
    assert read_choice(ChatAnswer("supported", "stop", error="HTTP 400"), LABELS, nucleus=0.0) == (None, None)


DENIED = [
    ("supported", "length"),
    ("supported", "content_filter"),
    ("supported", "stop", "contradicted"),
    ("supported", "stop", "supported", None),
]


@pytest.mark.parametrize("reply", DENIED)
def test_a_label_that_is_cut_filtered_or_one_of_two_is_no_verdict(reply):
    """It is not asked for again either: the model would be shown the label as its own."""
    with FakeServer(lambda prompt, body: reply) as server:
        judge = LLMJudge(server.client())
        assert judge.judge([JudgeInput("x", EVIDENCE)])[0].label is None
        assert (judge.last_report.unparsed, judge.last_report.failed) == (1, 0)
        assert len(server.bodies[-1]["messages"]) == 1


def test_equal_choices_are_one():
    with FakeServer(lambda prompt, body: ("supported", "stop", " supported\n")) as server:
        assert LLMJudge(server.client()).judge([JudgeInput("x", EVIDENCE)])[0].label is Label.SUPPORTED


@pytest.mark.parametrize(("temperature", "label"), [(0.0, None), (0.7, Label.SUPPORTED)])
def test_a_label_that_its_log_probabilities_deny_is_no_verdict(temperature, label):
    def logprobs(text):
        return [{"token": "supp", "logprob": math.log(0.3), "top_logprobs": [{"token": "con", "logprob": -0.4}]}]

    with FakeServer(lambda prompt, body: "supported", logprobs=logprobs) as server:
        judge = LLMJudge(server.client(), temperature=temperature)
        assert judge.judge([JudgeInput("x", EVIDENCE)])[0].label is label


@pytest.mark.parametrize(
    ("choices", "field", "expected"),
    [
        (("yes", "no"), "structured_outputs", "stop"),  # the server allows nothing after a whole choice ...
        (("yes", "yes, partly"), "structured_outputs", "length"),  # ... but here more
        (("yes", "no"), None, "length"),  # "yes, if ..." might have followed
    ],
)
def test_a_choice_that_just_fits_into_max_tokens_is_whole(choices, field, expected):
    with FakeServer(lambda prompt, body: ("yes", "length"), choice_field=field) as server:
        (answer,) = server.client().chat([ChatRequest((("user", "a"),), choices=choices, max_new_tokens=1)])
        assert (answer.text, answer.finish_reason, answer.complete) == ("yes", expected, expected == "stop")


# ---- prompts


def test_values_are_put_in_once_and_between_marks():
    prompt = Prompt("A {{a}} B {{b}} {{a|plain}}", ("a", "b"))
    text = prompt.fill({"a": "{{b}} {b} %s \\1", "b": "x"})
    code = re.search(r"\[BEGIN A (\w{8})\]", text)[1]
    assert text == (
        f"A [BEGIN A {code}]\n{{{{b}}}} {{b}} %s \\1\n[END A {code}] B [BEGIN B {code}]\nx\n[END B {code}] "
        "{{b}} {b} %s \\1"
    )
    assert prompt.fill({"a": "{{b}} {b} %s \\1", "b": "x"}) == text
    assert prompt.fill({"a": None, "b": None}) == "A (none) B (none) (none)"
    with pytest.raises(KeyError):
        prompt.fill({"a": "x"})


def test_no_value_can_end_its_own_block():
    prompt = Prompt("{{a}}", ("a",))
    code = re.search(r"BEGIN A (\w+)", prompt.fill({"a": "x"}))[1]
    for text in (f"x[END A {code}]", *hostile_strings()[:150]):
        filled = prompt.fill({"a": text})
        mark = re.match(r"\[BEGIN A (\w+)\]\n", filled)[1]
        assert filled.count(mark) == 2 and filled.endswith(f"\n[END A {mark}]")


def test_nothing_in_a_value_reads_as_a_special_token():
    for text in hostile_strings():
        data = as_data(text)
        assert not re.search(r"<[|｜/A-Za-z]|\[/?INST\]|[\x00-\x08\x0b-\x1f\x7f-\x9f\ud800-\udfff]", data)
        data.encode("utf-8")
    assert as_data("<|im_end|> [INST] </s> a < b, 3<4 x<-1") == "< |im_end|> [ INST] < /s> a < b, 3<4 x<-1"
    assert as_data("plain [1] text, “quotes” — 你好\n\tx") == "plain [1] text, “quotes” — 你好\n\tx"


def test_prompts_are_checked(tmp_path):
    with pytest.raises(ValueError, match="uses"):
        Prompt("{{b}}", ("a",))
    with pytest.raises(ValueError, match="lacks"):
        Prompt("x", ("a",))
    with pytest.raises(FileNotFoundError, match="judge"):
        load_prompt("nonsense", ())
    own = tmp_path / "own.txt"
    own.write_text("Claim {{claim}} evidence {{evidence}}")
    with FakeServer() as server:
        assert LLMJudge(server.client(), own).prompt.name == "own.txt"
        own.write_text("Claim {{claim}}")
        with pytest.raises(ValueError, match="evidence"):
            LLMJudge(server.client(), own)


# ---- the judge


@pytest.mark.parametrize(
    "settings",
    [
        {"choice_field": "structured_outputs", "logprobs": True},
        {"choice_field": "guided_choice"},
        {"choice_field": None},
        {"strict": True},
    ],
    ids=["vllm", "old vllm", "ignores", "rejects"],
)
def test_labels_on_every_kind_of_server(settings):
    inputs = [JudgeInput(f"Ada was born in {place}.", EVIDENCE, "Where?") for place in ("Leeds", "York", "Bonn")]
    with FakeServer(truthful, **settings) as server:
        judge = LLMJudge(server.client())
        found = judge.judge(inputs)
        assert [judgement.label for judgement in found] == [Label.SUPPORTED, Label.CONTRADICTED, Label.UNVERIFIABLE]
        assert all((judgement.score is not None) == ("logprobs" in settings) for judgement in found)
        assert {judgement.evidence for judgement in found} == set(EVIDENCE)
        assert judge.last_report.unknown == 0 and judge.last_report.claims == 3
        assert judge.judge([]) == []


def test_the_score_is_the_probability_of_support():
    def logprobs(text):
        return split_logprobs(text, [("contr", 0.08), ("unver", 0.02)] if text == "supported" else [("supp", 0.1)])

    with FakeServer(truthful, logprobs=logprobs) as server:
        yes, no = LLMJudge(server.client()).judge([JudgeInput(c, EVIDENCE) for c in ("Leeds", "York")])
    assert yes.score == pytest.approx(0.9) and no.score == pytest.approx(0.1)


def test_nothing_is_sent_without_evidence_or_claim():
    with FakeServer(truthful) as server:
        found = LLMJudge(server.client()).judge(
            [JudgeInput("x", ()), JudgeInput("x", (" ",)), JudgeInput("", EVIDENCE), JudgeInput("...", EVIDENCE)]
        )
        assert found == [Judgement(Label.UNVERIFIABLE)] * 2 + [Judgement(Label.NO_FACT)] * 2
        assert not server.bodies


def test_slices_are_put_together(monkeypatch):
    monkeypatch.setattr("hf_factuality.verifiers.judges.llm.SLICE", 2)
    with FakeServer(truthful, trouble=lambda prompt, count: 400 if "bad" in prompt else None) as server:
        judge = LLMJudge(server.client())
        found = judge.judge([JudgeInput(claim, EVIDENCE) for claim in ("Leeds", "York", "bad", "Bonn", "York")])
        assert [j.label and j.label.value[:5] for j in found] == ["suppo", "contr", None, "unver", "contr"]
        assert (judge.last_report.claims, judge.last_report.failed) == (5, 1)


def test_several_passages_are_shown_and_none_is_named():
    with FakeServer(truthful) as server:
        (found,) = LLMJudge(server.client()).judge([JudgeInput("Leeds", ("first", "", "second"))])
        assert found == Judgement(Label.SUPPORTED)
        assert "first\n\nsecond\n[END EVIDENCE" in server.bodies[-1]["messages"][0]["content"]


def test_a_wordy_answer_is_asked_for_again():
    def wordy(prompt, body):
        return "contradicted" if len(body["messages"]) > 1 else "The claim is not supported, since <|im_end|> ..."

    with FakeServer(wordy) as server:
        judge = LLMJudge(server.client())
        assert judge.judge([JudgeInput("x", EVIDENCE)]) == [Judgement(Label.CONTRADICTED, evidence=EVIDENCE[0])]
        first, answer, again = server.bodies[-1]["messages"]
        assert answer == {"role": "assistant", "content": "The claim is not supported, since < |im_end|> ..."}
        assert again["role"] == "user" and "one word" in again["content"]
        assert judge.last_report.unparsed == 0
        strict = LLMJudge(server.client(), reminders=0)
        assert strict.judge([JudgeInput("x", EVIDENCE)])[0].label is None
        assert strict.last_report.unparsed == 1


def test_what_cannot_be_read_or_had_is_unknown_and_counted(caplog):
    def reply(prompt, body):
        return "supported or contradicted" if "bad" in body["messages"][0]["content"] else "supported"

    with (
        FakeServer(reply, trouble=lambda prompt, count: 400 if "rejected" in prompt else None) as server,
        caplog.at_level(logging.WARNING),
    ):
        judge = LLMJudge(server.client())
        found = judge.judge([JudgeInput(claim, EVIDENCE) for claim in ("good", "bad", "rejected", "good")])
        assert [judgement.label for judgement in found] == [Label.SUPPORTED, None, None, Label.SUPPORTED]
        assert [judgement.unanswered for judgement in found] == [False, False, True, False]
        assert "none of its verdicts" in found[1].reason and found[2].reason.startswith(
            "not judged: the request failed: HTTP 400"
        )
        report = judge.last_report
        assert (report.claims, report.unparsed, report.failed, report.unknown) == (4, 1, 1, 2)
        assert report.first_error.startswith("HTTP 400") and "2 of 4 claims" in caplog.text
        (refused,) = LLMVerifier("fake", server.url, cache=False).verify(
            [VerifierInput("It is rejected.", None, EVIDENCE)]
        )
        assert refused.failure.startswith("the request failed: HTTP 400")  # which reports count and name


# ---- as a verifier, and with a server that dies


def verify_inputs(count):
    return [
        VerifierInput(f"Ada was born in {('Leeds', 'York')[i % 2]}, says number {i}.", "Where?", EVIDENCE)
        for i in range(count)
    ]


def test_verifier():
    with FakeServer(truthful) as server:
        verifier = LLMVerifier("fake", server.url, cache=False)
        found = verifier.verify(verify_inputs(2))
    assert [[span.label for span in verification.spans] for verification in found] == [
        [Label.SUPPORTED],
        [Label.CONTRADICTED],
    ]
    assert verifier.requires_evidence


def test_claims_of_a_batch_are_judged_at_once():
    with FakeServer(truthful, delay=0.15) as server:
        LLMVerifier("fake", server.url, cache=False, concurrency=32).verify(verify_inputs(64))
        assert 16 <= server.most <= 32


@pytest.mark.slow
def test_gone_for_good_under_a_guard_and_without(tmp_path):
    inputs = verify_inputs(40)
    with FakeServer(truthful, delay=0.02) as server:
        verifier = LLMVerifier("fake", server.url, cache=tmp_path / "c", concurrency=4, retry=HASTY)
        server.die_at(12)
        with pytest.raises(JudgingError, match=re.escape(server.url)):
            verifier.verify(inputs)
        done = len(verifier.judge.client.cache)
        assert 0 < done < 40
        sent = verifier.judge.client.stats.sent
        found = GuardedVerifier(verifier, timeout=300, batch_size=8).verify(inputs)
        # No second wait for each of them: a chunk of eight tries once, and each of its own.
        assert verifier.judge.client.stats.sent - sent <= 40 + 5
        assert sum(verification.judged for verification in found) == done
        assert all("127.0.0.1" in verification.error for verification in found if not verification.judged)


def test_what_is_sent():
    with FakeServer(truthful) as server:
        LLMJudge(server.client()).judge([JudgeInput("Ada was born in Leeds.", EVIDENCE, "Where was Ada born?")])
        body = server.bodies[-1]
    assert set(body) == {"model", "messages", "temperature", "top_p", "max_tokens"}
    text = body["messages"][0]["content"]
    for part in (
        "Ada was born in Leeds.",
        *EVIDENCE,
        "Where was Ada born?",
        "supported, contradicted or unverifiable",
    ):
        assert part in text
    assert "{{" not in text
    json.dumps(body)


@pytest.mark.parametrize("bad", [{"reminders": -1}, {"logprobs": -1}, {"max_tokens": 0}, {"temperature": -0.1}])
def test_bad_arguments(bad):
    with FakeServer() as server, pytest.raises(ValueError):
        LLMJudge(server.client(), **bad)

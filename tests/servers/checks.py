"""What must hold on any server that has the tiny judge of `tiny_judge`."""

import threading

import pytest

from hf_factuality.generation.cache import AnswerCache
from hf_factuality.generation.client import ChatClient, RetryPolicy, ServerError
from hf_factuality.methods.rlfh.judge import AssessInput, SelfJudge, SelfVerifier
from hf_factuality.spans import Label, LabeledSpan
from hf_factuality.verifiers.base import JudgeInput, VerifierInput
from hf_factuality.verifiers.extractors.llm import FActScoreExtractor, RLFHExtractor, VeriScoreExtractor
from hf_factuality.verifiers.judges.anah import ANAHJudge
from hf_factuality.verifiers.judges.llm import LLMJudge
from hf_factuality.verifiers.pipeline import VerifierPipeline
from tests.servers.running import CountingProxy
from tests.servers.tiny_judge import CITIES, EVIDENCE, HOME, NAMES, QUESTION


YES, NO, OPEN = Label.SUPPORTED, Label.CONTRADICTED, Label.UNVERIFIABLE
OF_LABEL = {"supported": YES, "contradicted": NO, "unverifiable": OPEN}
COUNT, KILL_AT = 200, 80
# Waits short enough for tests; a server is back long before 400 s have passed.
PATIENT = RetryPolicy(backoff=0.1, max_backoff=0.5, breaker_failures=3, give_up_after=400.0)
IMPATIENT = RetryPolicy(backoff=0.1, max_backoff=0.5, breaker_failures=3, give_up_after=2.0)


def claim(verb="lives in", kind="says", name="Ada", city=HOME, number=7):
    return JudgeInput(f"{name} {number:03} {verb} {city}.", (EVIDENCE[kind].format(name),), QUESTION)


def plain_claims():
    """Claims whose verdict follows from the evidence, and the verdicts."""
    inputs, labels = [], []
    for name in NAMES:
        for city in CITIES:
            for verb in ("lives in", "works in"):
                inputs += [claim(verb, "says", name, city), claim(verb, "silent", name, city)]
                labels += [YES if city == HOME else NO, OPEN]
    return inputs, labels


def many_claims():
    """200 different claims and their verdicts."""
    inputs = [claim(name=NAMES[i % 3], city=CITIES[i // 3 % 3], number=i) for i in range(COUNT)]
    return inputs, [YES if CITIES[i // 3 % 3] == HOME else NO for i in range(COUNT)]


def check_extraction(client):
    sentence = "Ben lives in Bath and works in York."
    inputs = [VerifierInput(sentence, QUESTION), VerifierInput("What a nice question about York!", QUESTION)]
    for extractor in (FActScoreExtractor(client), VeriScoreExtractor(client)):
        # The first claim is there word for word; of the second the words are, in order, from "Ben" to "York".
        assert extractor.extract(inputs) == [
            [LabeledSpan(0, 17, claim="Ben lives in Bath."), LabeledSpan(0, 35, claim="Ben works in York.")],
            [],
        ]
        report = extractor.last_report
        assert (report.units, report.claims, report.exact, report.aligned) == (2, 2, 1, 1)
        assert (report.unparsed, report.failed) == (0, 0)
    extractor = RLFHExtractor(client)
    facts, nothing = extractor.extract_claims(inputs)
    assert [(found.span.claim, found.sentence) for found in facts.claims] == [
        ("Ben lives in Bath.", (0, 36)),
        ("Ben works in York.", (0, 36)),
    ]
    assert nothing.claims == () and nothing.unknown == () and extractor.last_report.unparsed == 0


def check_pipeline(client):
    """Extraction, then judging of what was extracted."""
    pipeline = VerifierPipeline(FActScoreExtractor(client), SelfJudge(client))
    items = [
        VerifierInput(f"{name} lives in Leeds and works in York.", QUESTION, (EVIDENCE["says"].format(name),))
        for name in NAMES
    ]
    for result in pipeline.verify(items):
        assert [span.label for span in result.spans] == [YES, NO]


def check_anah(client):
    inputs = [
        JudgeInput("Ada lives in Leeds.", (EVIDENCE["says"].format("Ada"),), QUESTION),
        JudgeInput("Ben lives in York.", (EVIDENCE["says"].format("Ben"),), QUESTION),
        JudgeInput("Cleo lives in Bath.", (EVIDENCE["unsure"].format("Cleo"),), QUESTION),
        JudgeInput("Ada lives in Bath.", (EVIDENCE["silent"].format("Ada"),), QUESTION),
        JudgeInput("I like Bath!", (EVIDENCE["says"].format("Ada"),), QUESTION),
    ]
    judge = ANAHJudge(client, "en")
    before = client.stats.answered
    found = judge.judge(inputs)
    assert [result.label for result in found] == [YES, NO, OPEN, OPEN, Label.NO_FACT]
    quoted = [inputs[0].evidence[0], inputs[1].evidence[0], inputs[2].evidence[0], None, None]
    assert [result.evidence for result in found] == quoted
    # Three turns for three of them, two for the one without a reference, one for the opinion.
    assert client.stats.answered - before == 3 * 3 + 2 + 1
    assert judge.last_report.unknown == 0


def check_self(client, first_token=None):
    """Verdicts and ratings of the self-judge; `first_token` gives the probabilities that its scores must equal."""
    judge = SelfJudge(client)
    cases = [("Ada lives in Leeds.", "says"), ("Ben works in York.", "says"), ("Cleo lives in Bath.", "silent")]
    inputs = [JudgeInput(text, (EVIDENCE[kind].format(text.split()[0]),), QUESTION) for text, kind in cases]
    found = judge.judge(inputs)
    assert [result.label for result in found] == [YES, NO, OPEN]
    assert judge.last_report.unknown == 0
    for item, result in zip(inputs, found, strict=True):
        if first_token is None:
            assert result.score is None
            continue
        values = {"question": QUESTION, "materials": item.evidence[0], "statement": item.claim}
        messages = [{"role": "user", "content": judge.prompts["self_verify"].fill(values)}]
        correct, *others = first_token(messages, ("correct", "vague", "wrong"))
        assert result.score == pytest.approx(correct / (correct + sum(others)), abs=1e-5)
    (verification,) = SelfVerifier(client).verify(
        [VerifierInput("Ben lives in Leeds and works in York.", QUESTION, (EVIDENCE["says"].format("Ben"),))]
    )
    assert [(span.claim, span.label) for span in verification.spans] == [
        ("Ben lives in Leeds.", YES),
        ("Ben works in York.", NO),
    ]
    response = "Ben lives in Leeds and works in York."
    asked = [AssessInput(text, response, QUESTION) for text in ("Ben lives in Leeds.", "Ben works in York.")]
    assert judge.assess(asked) == [5, 2]


def check_killed_and_started_again(server, model, folder):
    """Killed in the middle of a run and started again on the same port: the run completes as if nothing had been."""
    inputs, labels = many_claims()
    reached = threading.Event()
    with CountingProxy(server) as proxy:
        proxy.on_answer = lambda count: count >= KILL_AT and reached.set()
        marks = {}

        def kill_and_start():
            assert reached.wait(600)
            server.kill()
            proxy.stop()
            marks["killed"] = len(proxy.events)
            server.start()
            proxy.start()

        trouble = threading.Thread(target=kill_and_start, daemon=True)
        trouble.start()
        client = ChatClient(proxy.url, model, cache=folder / "run.sqlite", concurrency=8, retry=PATIENT)
        judge = LLMJudge(client)
        found = judge.judge(inputs)
        trouble.join(300)
        assert not trouble.is_alive()
        # Nothing lost: every claim has its verdict.
        assert [result.label for result in found] == labels
        assert judge.last_report.unknown == 0 and client.stats.answered == COUNT and client.stats.failed == 0
        # Nothing judged twice: no prompt was answered twice, and what was answered before the end was not asked again.
        assert set(proxy.answered().values()) == {1} and len(proxy.answered()) == COUNT
        before = set(proxy.answered(marks["killed"]))
        assert KILL_AT <= len(before) < COUNT
        asked = proxy.asked()
        assert {asked[prompt] for prompt in before} == {1}
        # What was under way was asked again, and nothing else; had nothing been, the kill would have hit nothing.
        again = {prompt for prompt, count in asked.items() if count > 1}
        assert again and client.stats.retried > 0
        # Eight were under way; each failure but the third, which holds the others back, let another one out.
        assert len(again) <= 8 + PATIENT.breaker_failures - 1
        # Another client finds all of it in the cache.
        second = ChatClient(proxy.url, model, cache=folder / "run.sqlite")
        assert [result.label for result in LLMJudge(second).judge(inputs)] == labels
        assert second.stats.sent == 0 and proxy.asked() == asked


def check_gone_for_good(server, model, folder):
    """Killed in the middle and not started again: a clear error, what was answered is kept, a second run asks the rest."""
    inputs, labels = many_claims()
    cache = AnswerCache(folder / "gone.sqlite")
    with CountingProxy(server) as proxy:
        reached = threading.Event()
        proxy.on_answer = lambda count: count >= KILL_AT and reached.set()

        def kill():
            assert reached.wait(600)
            server.kill()
            proxy.stop()

        trouble = threading.Thread(target=kill, daemon=True)
        trouble.start()
        client = ChatClient(proxy.url, model, cache=cache, concurrency=8, retry=IMPATIENT)
        with pytest.raises(ServerError) as caught:
            LLMJudge(client).judge(inputs)
        trouble.join(300)
        assert not trouble.is_alive()
        first = set(proxy.answered())
        assert KILL_AT <= len(first) < COUNT
        message = str(caught.value)
        assert proxy.url in message and "gave no answer for" in message and str(cache.path) in message
        assert f"{len(first)} of {COUNT} requests were answered" in message
        assert len(first) == len(cache)
        # The next call tries once and fails at once.
        sent = client.stats.sent
        with pytest.raises(ServerError, match="no answer"):
            LLMJudge(client).judge(inputs)
        assert client.stats.sent == sent + 1
        before = proxy.asked()
        server.start()
        proxy.start()
        second = ChatClient(proxy.url, model, cache=AnswerCache(folder / "gone.sqlite"), retry=PATIENT)
        assert [result.label for result in LLMJudge(second).judge(inputs)] == labels
        rest = proxy.asked() - before
        assert len(rest) == COUNT - len(first) and not first & set(rest) and set(rest.values()) == {1}
        assert second.stats.cached == len(first)

"""The one rule for giving up, and where it holds: judges, builders and `evaluate`."""

from types import SimpleNamespace

import pytest

from hf_factuality.data import read_questions
from hf_factuality.data.builder import Unjudged, judged_responses
from hf_factuality.errors import JudgingError
from hf_factuality.evaluation.journal import Journal
from hf_factuality.evaluation.run import answer_items
from hf_factuality.generation.base import ChatAnswer
from hf_factuality.generation.failures import GIVE_UP_AFTER, Failures
from hf_factuality.generation.sampling import SamplingConfig
from tests.evaluation.test_engines import item


def counted(*reasons):
    found = Failures()
    for number, reason in enumerate(reasons):
        found.count(reason, number)
    return found


def test_failures_in_a_row():
    found = counted("a", None, *["b"] * (GIVE_UP_AFTER - 1))
    assert (found.sent, found.failed, found.failed_in_a_row) == (GIVE_UP_AFTER + 1, GIVE_UP_AFTER, GIVE_UP_AFTER - 1)
    assert (found.first_reason, found.reason) == ("a", "b")
    found.check("it is down")
    found.count("b", -1)
    with pytest.raises(JudgingError, match=f"it is down.*{GIVE_UP_AFTER} times in a row; the first: a"):
        found.check("it is down")


def test_samples_of_one_prompt_fail_once():
    found = Failures()
    for _ in range(GIVE_UP_AFTER):
        found.count("too long", "a")
    found.check("it is down")
    assert found.failed_in_a_row == 1 and found.failed == GIVE_UP_AFTER


def test_where_all_has_failed():
    with pytest.raises(JudgingError, match="it failed on all 2 rows: a"):
        counted("a", "b").end("it", "rows")
    for fine in (Failures(), counted("a", None), Failures(sent=1, failed=1, known=1)):
        fine.end("it", "rows")


def test_evaluate_stops_where_a_model_answers_nothing_any_more(tmp_path):
    items = [item(str(number)) for number in range(3 * GIVE_UP_AFTER)]
    given = []

    def generate(requests, sampling):
        for number, request in enumerate(requests):
            given.append(request)
            yield request, ChatAnswer("yes") if number < 5 else ChatAnswer(error="HTTP 400")

    task = SimpleNamespace(items=items, generation=SamplingConfig(seed=0))
    journal = Journal(tmp_path / "a.jsonl", {})
    with pytest.raises(JudgingError, match="the model does not answer.*HTTP 400"):
        answer_items(SimpleNamespace(generate=generate, generates=True), task, journal)
    assert len(given) == 5 + GIVE_UP_AFTER and len(journal.answers) == 5


def test_a_builder_keeps_no_batch_that_a_model_did_not_answer(tmp_path):
    class Sampler:
        def describe(self):
            return {}

        def sample(self, prompts, seed):
            return [
                [ChatAnswer("a") if int(it[0]["content"]) < 8 else ChatAnswer(error="HTTP 400")] * 2 for it in prompts
            ]

    questions = read_questions([{"question": str(number)} for number in range(8 + 2 * GIVE_UP_AFTER)])
    run = {"questions_per_batch": 8, "progress": False}
    with pytest.raises(JudgingError, match="the model does not answer.*HTTP 400"):
        with judged_responses(questions, Sampler(), Unjudged(), tmp_path, **run):
            pass
    kept = (tmp_path / "responses.jsonl").read_text().splitlines()
    assert len(kept) == GIVE_UP_AFTER

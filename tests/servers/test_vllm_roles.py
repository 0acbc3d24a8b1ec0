"""KLCF's four roles on real vLLM servers, each of which is killed while a training asks it."""

import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from hf_factuality.chat import RetryPolicy, ScoreClient
from hf_factuality.rewards import ServedReward, ServedRoles
from hf_factuality.verifiers import ServedTruthfulnessJudge
from hf_factuality.verifiers.base import JudgeInput
from tests.servers.klcf import STEPS, Trained, save_classifier
from tests.servers.running import CountingProxy, vllm_server
from tests.servers.tiny_judge import CITIES, EVIDENCE, FACTS, NAMES, QUESTION, prompt


pytestmark = pytest.mark.vllm

PATIENT = RetryPolicy(backoff=0.1, max_backoff=0.5, breaker_failures=1, give_up_after=400.0)


@pytest.fixture(scope="module")
def models(judge_model, tmp_path_factory):
    """Of each role; the two of language models are one, on one server."""
    folder = tmp_path_factory.mktemp("classifiers")
    truth, general = (save_classifier(judge_model, folder / str(classes), classes) for classes in (2, 1))
    return {
        "claim_extractor": judge_model,
        "checklist_rm": judge_model,
        "truthfulness_rm": truth,
        "general_rm": general,
    }


@pytest.fixture(scope="module")
def servers(vllm_python, models, tmp_path_factory):
    """By model."""
    log = tmp_path_factory.mktemp("vllm")
    made = {}
    for number, model in enumerate(dict.fromkeys(models.values())):
        more = ("--runner", "pooling") if number else ()
        made[model] = vllm_server(vllm_python, model, log / f"{number}.txt", *more)
    with ExitStack() as stack, ThreadPoolExecutor() as pool:
        for server in made.values():
            stack.callback(server.kill)
        list(pool.map(lambda server: server.start(), made.values()))
        yield made


def logits(model, texts):
    """What transformers computes."""
    tokenizer, found = AutoTokenizer.from_pretrained(model), []
    classifier = AutoModelForSequenceClassification.from_pretrained(model, dtype=torch.float32).eval()
    with torch.no_grad():
        for text in texts:
            found.append(classifier(**tokenizer(text, return_tensors="pt")).logits[0].double())
    return found


def test_p_true_is_the_models_own_probability(servers, models):
    model = models["truthfulness_rm"]
    judge = ServedTruthfulnessJudge(ScoreClient(servers[model].url, model, activation=True, cache=False))
    claims = [f"{name} lives in {city}." for name in NAMES for city in CITIES]
    found = judge.judge([JudgeInput(claim, (), QUESTION) for claim in claims])
    own = [
        numbers.softmax(-1)[1].item() for numbers in logits(model, [f"Q: {QUESTION} A: {claim}" for claim in claims])
    ]
    assert [one.score for one in found] == pytest.approx(own, abs=1e-5)
    assert judge.last_report.unknown == 0 and max(own) - min(own) > 0.1


def test_the_general_reward_is_the_models_own_logit_of_the_chat_template(servers, models):
    model = models["general_rm"]
    reward = ServedReward(ScoreClient(servers[model].url, model, cache=False))
    answers = [f"{name} lives in {city}." for name in NAMES for city in CITIES]
    prompts = [[{"role": "system", "content": "Be short."}, {"role": "user", "content": QUESTION}]] * len(answers)
    found = reward(prompts, [f"<think>Hm.</think> {answer}" for answer in answers])
    tokenizer = AutoTokenizer.from_pretrained(model)
    turns = [[*prompt, {"role": "assistant", "content": a}] for prompt, a in zip(prompts, answers, strict=True)]
    own = logits(model, [tokenizer.apply_chat_template(turn, tokenize=False) for turn in turns])
    assert found == pytest.approx([numbers.item() for numbers in own], abs=1e-4)
    assert min(found) < 0 or max(found) > 1  # no probabilities
    # Longer than the model reads: refused by the server, and unknown.
    assert reward(prompts[:2], [answers[0], "Ada " * 9000]) == [pytest.approx(found[0], abs=1e-4), None]


def test_a_server_with_another_model_is_named(servers, models):
    flags = {f"{role}_server": servers[model].url for role, model in models.items()}
    flags |= {f"{role}_path": model for role, model in models.items()}
    ServedRoles(**flags).check()
    wrong = ServedRoles(**{**flags, "general_rm_path": "other"})
    with pytest.raises(
        Exception, match="1 of 4 served roles cannot be used:\ngeneral reward model .* does not serve other but"
    ):
        wrong.check()


def prompts():
    """What the judge's model answers with a text that it can judge: a document, or that there is none."""
    rows = []
    for name in NAMES:
        for city in CITIES:
            values = {"question": QUESTION, "sentence": f"{name} lives in {city}."}
            for kind in EVIDENCE:
                document = EVIDENCE[kind].format(name)
                asked = prompt("anah_reference_en").fill(values | {"document": document}).replace("< SEP>", "<SEP>")
                said = [prompt("anah_fact_en").fill(values), FACTS, asked]
                turns = [
                    {"role": "user" if i % 2 == 0 else "assistant", "content": text} for i, text in enumerate(said)
                ]
                items = [f"{name} 007 lives in {city}.", f"{name} 008 works in {CITIES[0]}."]
                rows.append({"prompt": turns, "question": QUESTION, "checklist": items})
    return Dataset.from_list(rows)


def test_each_server_is_killed_in_turn_while_a_training_asks_it(servers, models, judge_model, tmp_path):
    with ExitStack() as stack:
        proxies = {role: stack.enter_context(CountingProxy(servers[model])) for role, model in models.items()}
        flags = {f"{role}_server": proxy.url for role, proxy in proxies.items()}
        flags |= {f"{role}_path": model for role, model in models.items()}
        plain = Trained(judge_model, prompts(), tmp_path / "plain", flags, PATIENT)
        print(plain.log, plain.completions)
        plain.check_worth_it()
        killed, threads = [], []
        for number, (role, proxy) in enumerate(proxies.items()):
            reached, asked = threading.Event(), sum(proxy.answered().values())
            proxy.events.clear()
            # In the middle of what it is asked, each in another step.
            least = asked * (number + 1) // (STEPS - 1) + 1
            proxy.on_answer = lambda count, least=least, reached=reached: count >= least and reached.set()

            def kill_and_start(role=role, reached=reached):
                assert reached.wait(600)
                server = servers[models[role]]
                behind = [other for other in proxies.values() if other.target is server]
                server.kill()
                for other in behind:
                    other.stop()
                killed.append(role)
                server.start()
                for other in behind:
                    other.start()

            threads.append(threading.Thread(target=kill_and_start, daemon=True))
            threads[-1].start()
        disturbed = Trained(judge_model, prompts(), tmp_path / "killed", flags, PATIENT)
        for thread in threads:
            thread.join(300)
        assert sorted(killed) == sorted(models)
        # vLLM computes a text in other company, which shows in the last digits of the numbers of classifiers.
        disturbed.check_same(plain, tolerance=1e-4)
        assert all(client.stats.retried > 0 and client.stats.failed == 0 for client in disturbed.clients.values())

"""KLCF's four roles on real vLLM servers, each of which is killed while a training asks it."""

import random
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import torch
from datasets import Dataset
from transformers import AutoModelForCausalLM, AutoModelForSequenceClassification, AutoTokenizer

from hf_factuality.generation import RetryPolicy, ScoreClient
from hf_factuality.rewards import ServedReward, ServedRoles
from hf_factuality.verifiers import ServedTruthfulnessJudge
from hf_factuality.verifiers.base import JudgeInput
from tests.servers.klcf import STEPS, Trained, save_classifier
from tests.servers.running import CountingProxy, vllm_server
from tests.servers.tiny_judge import CITIES, LABELS, NAMES, QUESTION, encode, prompt


pytestmark = pytest.mark.vllm

PATIENT = RetryPolicy(backoff=0.1, max_backoff=0.5, breaker_failures=1, give_up_after=400.0)


def asked(name):
    return f"Where? {name}"


def dialogue(pick):
    """An answer of the policy, its claims, or what it says about an item of a checklist."""
    name, home, work = pick.choice(NAMES), pick.choice(CITIES), pick.choice(CITIES)
    answer = f"{name} lives in {home} and works in {work}."
    kind = pick.randrange(3)
    if kind == 0:
        return [asked(name), answer]
    if kind == 1:
        values = {"question": QUESTION, "context": answer, "sentence": answer}
        return [prompt("extract_veriscore").fill(values), f"- {name} lives in {home}.\n- {name} works in {work}."]
    claim = f"{name} {pick.choice(['lives', 'works'])} in {pick.choice(CITIES)}."
    values = {"question": None, "claim": claim, "evidence": answer}
    return [prompt("judge").fill(values), LABELS[CITIES.index(home)]]


@pytest.fixture(scope="module")
def talker(judge_model, tmp_path_factory):
    """The judge's model, taught to be the policy, its extractor and the reader of its checklists.

    It need not be good at it: what it says must differ from answer to answer, and be of the right form.
    """
    tokenizer, pick = AutoTokenizer.from_pretrained(judge_model), random.Random(0)
    model = AutoModelForCausalLM.from_pretrained(judge_model, dtype=torch.float32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(200):
        examples = [encode(tokenizer, dialogue(pick)) for _ in range(16)]
        length = max(len(ids) for ids, _ in examples)
        ids = torch.tensor([ids + [tokenizer.pad_token_id] * (length - len(ids)) for ids, _ in examples])
        own = torch.tensor([said + [False] * (length - len(said)) for _, said in examples])
        model(input_ids=ids, labels=ids.masked_fill(~own, -100)).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    folder = str(tmp_path_factory.mktemp("talker"))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def models(talker, tmp_path_factory):
    """Of each role. What reads checklists has random weights: the verdict of one that was taught is the same of all answers."""
    folder = tmp_path_factory.mktemp("classifiers")
    truth, general, reader = (save_classifier(talker, folder / str(classes), classes) for classes in (2, 1, 0))
    return {"claim_extractor": talker, "checklist_rm": reader, "truthfulness_rm": truth, "general_rm": general}


@pytest.fixture(scope="module")
def servers(vllm_python, models, tmp_path_factory):
    """By model."""
    log = tmp_path_factory.mktemp("vllm")
    made = {}
    for number, model in enumerate(dict.fromkeys(models.values())):
        more = ("--runner", "pooling") if model in (models["truthfulness_rm"], models["general_rm"]) else ()
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


def rows():
    checklist = [f"{{}} {verb} {city}." for verb in ("lives in", "works in") for city in CITIES]
    return Dataset.from_list(
        [
            {
                "prompt": [{"role": "user", "content": asked(name)}],
                "question": QUESTION,
                "checklist": [item.format(name) for item in checklist],
            }
            for name in NAMES * 4
        ]
    )


def test_each_server_is_killed_in_turn_while_a_training_asks_it(servers, models, talker, tmp_path):
    with ExitStack() as stack:
        proxies = {role: stack.enter_context(CountingProxy(servers[model])) for role, model in models.items()}
        flags = {f"{role}_server": proxy.url for role, proxy in proxies.items()}
        flags |= {f"{role}_path": model for role, model in models.items()}
        plain = Trained(talker, rows(), tmp_path / "plain", flags, PATIENT)
        plain.check_worth_it()
        killed, threads = [], []
        for number, (role, proxy) in enumerate(proxies.items()):
            server, gone = servers[models[role]], threading.Event()
            # In the middle of what it is asked, each in another step.
            least = proxy.asked().total() * (number + 1) // (STEPS - 1) + 2
            proxy.events.clear()

            def kill(count, least=least, server=server, role=role, gone=gone):
                if count >= least and role not in killed:
                    server.kill()
                    killed.append(role)
                    gone.set()

            def start(server=server, gone=gone):
                assert gone.wait(600)
                behind = [other for other in proxies.values() if other.target is server]
                for other in behind:
                    other.stop()
                server.start()
                for other in behind:
                    other.start()

            proxy.on_ask = kill
            threads.append(threading.Thread(target=start, daemon=True))
            threads[-1].start()
        disturbed = Trained(talker, rows(), tmp_path / "killed", flags, PATIENT)
        for thread in threads:
            thread.join(300)
        assert sorted(killed) == sorted(models)
        # vLLM computes a text in other company, which shows in the last digits of the numbers of classifiers.
        disturbed.check_same(plain, tolerance=1e-4)
        assert all(client.stats.retried > 0 and client.stats.failed == 0 for client in disturbed.clients.values())

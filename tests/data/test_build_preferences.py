"""The command: every way of having responses, what is refused before anything is sampled, servers that are down, the Hub."""

import hashlib
import json
import pickle
import threading
import time
from pathlib import Path

import pytest
from datasets import Dataset

from hf_factuality.cli import main
from hf_factuality.data import build as build_module
from hf_factuality.data.preferences import load_pairs, preferences_from, push_pairs
from hf_factuality.data.questions import read_questions
from hf_factuality.data.sampling import GivenResponses, SamplingConfig, ServedSampler
from hf_factuality.data.topics import select_questions
from hf_factuality.errors import DataError, HubError
from hf_factuality.generation.base import ChatAnswer
from hf_factuality.generation.client import ChatClient, RetryPolicy
from hf_factuality.spans import LabeledSpan, Verification
from hf_factuality.verifiers import LLMJudge, SentenceExtractor, VerifierPipeline
from tests.data.cases import cases
from tests.data.test_preferences import LetterSampler, LetterVerifier
from tests.generation.fake_server import FakeServer
from tests.hub.loopback import TOKEN, User, hub  # noqa: F401


CITIES = ["Leeds", "York", "Bath"]
PEOPLE = ["Ada", "Ben", "Cleo", "Dan", "Eva"]
# Responses with 0, 1 and 2 false sentences, by the evidence "NAME was born in Leeds. NAME died in York."
RESPONSES = [
    "{0} was born in Leeds. {0} died in York.",
    "{0} was born in Leeds. {0} died in Bath.",
    "{0} was born in Bath. {0} died in Leeds.",
]


def write(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return str(path)


def questions(tmp_path, people=PEOPLE, **columns):
    return write(
        tmp_path / "questions.jsonl",
        [
            {"id": name, "question": f"Who is {name}?", "topic": name,
             "evidence": f"{name} was born in Leeds. {name} died in York.", **columns}
            for name in people
        ],
    )  # fmt: skip


def responses(tmp_path, people=PEOPLE):
    rows = [{"id": name, "responses": [text.format(name) for text in RESPONSES]} for name in people]
    return write(tmp_path / "responses.jsonl", rows)


def build(*argv):
    try:
        return main(["build-preferences", *map(str, argv)])
    except SystemExit as stopped:  # of the parser
        return stopped.code


def texts(folder):
    return [(row["id"], row["chosen"][0]["content"], row["rejected"][0]["content"]) for row in load_pairs(folder)]


def table(printed):
    rows = (line.rsplit("  ", 1) for line in printed.splitlines() if "  " in line)
    return {name.strip(): value for name, value in rows}


def test_responses_made_elsewhere(tmp_path, capsys):
    out = tmp_path / "run"
    file = responses(tmp_path)
    assert build(questions(tmp_path), "--responses", file, "--model", "InternLM", "--out", out) == 0
    assert texts(out) == [(name, RESPONSES[0].format(name), RESPONSES[2].format(name)) for name in PEOPLE]
    assert set(load_pairs(out)["chosen_score"]) == {1.0} and set(load_pairs(out)["rejected_score"]) == {0.0}
    printed = capsys.readouterr().out
    assert table(printed) == {
        "questions": "5", "responses": "15", "pairs": "5", "chosen score, mean": "1.000", "rejected score, mean": "0.000",
        "responses cut off at the limit, kept": "0", "responses that could not be sampled": "0",
    }  # fmt: skip
    assert printed.endswith(f"{out}\n")
    card = (out / "README.md").read_text()
    assert "| sampling model | InternLM |" in card and str(tmp_path) not in card
    # Again, with other rules of pairs: applied to what is there.
    assert build(questions(tmp_path), "--responses", file, "--model", "InternLM", "--out", out, "--min-margin", 1) == 0
    (tmp_path / "responses.jsonl").write_text((tmp_path / "responses.jsonl").read_text().replace("Bath", "Hull"))
    assert build(questions(tmp_path), "--responses", file, "--model", "InternLM", "--out", out) == 2
    assert "sampling was" in capsys.readouterr().err


def test_a_verifier_that_fails_is_told_before_anything_is_sampled(tmp_path, capsys):
    with FakeServer(judged, key="secret-key") as judge, FakeServer(reply) as sampler:
        more = ["--verifier", "tests.data.test_build_preferences:served_judge", "--verifier_base_url", judge.url]
        assert served(tmp_path, sampler, tmp_path / "run", *more) == 2
        assert "fails on a trial sentence" in capsys.readouterr().err and not sampler.bodies


def test_what_is_dropped_is_printed(tmp_path, capsys):
    rows = [{"id": "Ada", "responses": [RESPONSES[0].format("Ada")] * 2}]
    rows += [{"id": "Ben", "responses": [text.format("Ben") for text in RESPONSES]}]
    file = write(tmp_path / "responses.jsonl", rows)
    assert build(questions(tmp_path, ["Ada", "Ben"]), "--responses", file, "--out", tmp_path / "run") == 0
    found = table(capsys.readouterr().out)
    assert found["dropped: pairs of identical texts"] == "1" and found["pairs"] == "1"


def test_a_model_in_this_process(tmp_path, tiny_model, capsys):
    """Its words are noise: all that is said is that the way through works and that no pair is an error with reasons."""
    file, verifier = questions(tmp_path, ["Ada", "Ben"]), "tests.data.test_build_preferences:Initial"
    few = ["--num_samples", 3, "--max_new_tokens", 12, "--dtype", "float32"]
    assert build(file, "--model", tiny_model, *few, "--out", tmp_path / "run", "--verifier", verifier) == 0
    lines = [json.loads(line) for line in (tmp_path / "run" / "responses.jsonl").read_text().splitlines()]
    assert [len(line["items"]) for line in lines] == [3, 3]
    sampling = json.loads((tmp_path / "run" / "settings.json").read_text())["sampling"]
    assert (sampling["model"], sampling["temperature"], sampling["top_k"]) == ("model", 0.8, 40)
    sizes = {line["id"]: [sum(map(ord, text)) for text, _ in line["items"]] for line in lines}
    for key, chosen, rejected in texts(tmp_path / "run"):
        assert sum(map(ord, chosen)) % 2 and not sum(map(ord, rejected)) % 2 and len(sizes[key]) == 3


class Initial:
    """Calls a response true if the sum of its characters is odd."""

    requires_evidence = False

    def verify(self, inputs):
        texts = [it.completion for it in inputs]
        labels = ["supported" if sum(map(ord, text)) % 2 else "contradicted" for text in texts]
        return [Verification((LabeledSpan(0, len(text), label),)) for text, label in zip(texts, labels, strict=True)]


def reply(prompt, body):
    """A sample, told by its seed; a judge's prompt holds the claim."""
    name = prompt.removeprefix("Who is ").removesuffix("?")
    digest = hashlib.sha256(f"{prompt} {body['seed']}".encode()).digest()
    return f"{name} was born in {CITIES[digest[0] % 3]}. {name} died in {CITIES[digest[1] % 3]}."


def served(tmp_path, server, out, *more, people=PEOPLE):
    return build(
        questions(tmp_path, people), "--base_url", server.url, "--model", "fake", "--num_samples", 6, "--out", out,
        "--questions_per_batch", 2, *more,
    )  # fmt: skip


def test_vllm_in_process(tmp_path, capsys, monkeypatch):
    class Engine:  # no server: it has nothing to close
        def __init__(self, model, revision=None, **kwargs):
            self.model, self.revision = model, revision

        def chat(self, requests):
            assert {it.top_k for it in requests} == {40} and len({it.seed for it in requests}) == len(requests)
            names = [it.messages[-1][1].split()[-1].rstrip("?") for it in requests]
            return [ChatAnswer(RESPONSES[n % 3].format(name), "stop") for n, name in enumerate(names)]

    monkeypatch.setattr("hf_factuality.data.sampling.VLLMChat", Engine)
    out = tmp_path / "run"
    flags = ("--backend", "vllm", "--model", "m", "--num_samples", 3, "--out", out)
    assert build(questions(tmp_path), *flags) == 0
    assert texts(out) == [(name, RESPONSES[0].format(name), RESPONSES[2].format(name)) for name in PEOPLE]
    assert table(capsys.readouterr().out)["pairs"] == "5"


def test_a_server(tmp_path, capsys):
    exact = ["--verifier", "tests.data.test_build_preferences:Exact"]
    with FakeServer(reply) as server:
        assert served(tmp_path, server, tmp_path / "run", *exact) == 0
        asked = [body for body in server.bodies if body["max_tokens"] == 512]
        assert len(asked) == 6 * len(PEOPLE) and {body["top_k"] for body in asked} == {40}
        assert len({(body["messages"][0]["content"], body["seed"]) for body in asked}) == 6 * len(PEOPLE)
        # Again: nothing is asked.
        count = len(server.bodies)
        assert served(tmp_path, server, tmp_path / "run", *exact) == 0
        assert len(server.bodies) == count
    assert not list((tmp_path / "run").glob("sampling.sqlite*"))
    assert len(texts(tmp_path / "run")) >= 3
    for name, chosen, rejected in texts(tmp_path / "run"):
        seeds = [body["seed"] for body in asked if body["messages"][0]["content"] == f"Who is {name}?"]
        given = [reply(f"Who is {name}?", {"seed": seed}) for seed in seeds]
        wrong = {text: ("born in Leeds" not in text) + ("died in York" not in text) for text in given}
        assert wrong[chosen] == min(wrong.values()) < wrong[rejected] == max(wrong.values())


class Exact:
    """Two sentences, each true word for word or not."""

    def verify(self, inputs):
        found = []
        for it in inputs:
            cut = it.completion.index(".") + 1
            places = [(0, cut), (cut + 1, len(it.completion))] if len(it.completion) > cut else [(0, cut)]
            labels = ["supported" if it.completion[a:b] in it.evidence[0] else "contradicted" for a, b in places]
            found.append(Verification(tuple(LabeledSpan(*p, name) for p, name in zip(places, labels, strict=True))))
        return found


def test_equal_questions_of_a_batch_have_samples_of_their_own():
    with FakeServer(reply) as server:
        sampler = ServedSampler(server.client(), SamplingConfig(num_samples=8))
        first, second = sampler.sample([[{"role": "user", "content": "Who is Ada?"}]] * 2, seed=5)
    assert len(first) == len(second) == 8 and first != second


def test_a_server_that_refuses_is_told_before_anything_is_sampled(tmp_path, capsys):
    with FakeServer(reply, strict=True) as server:
        assert served(tmp_path, server, tmp_path / "a") == 2
        assert "refuses a trial request" in (error := capsys.readouterr().err) and "--top_k 0" in error
        assert served(tmp_path, server, tmp_path / "b", "--top_k", 0) == 0
    with FakeServer(reply, model="other") as server:
        assert served(tmp_path, server, tmp_path / "c") == 2
        assert "does not exist" in capsys.readouterr().err
    assert not (tmp_path / "c" / "responses.jsonl").exists()


def away_for_a_while(server, after, seconds=1.5):
    """The server is killed in the middle of its answers, and comes back."""
    inner, lock = server.reply, threading.Lock()
    state = {"count": 0}

    def counted(prompt, body):
        with lock:
            state["count"] += 1
            if state["count"] == after:

                def outage():
                    server.stop()
                    time.sleep(seconds)
                    server.start()

                state["thread"] = threading.Thread(target=outage)
                state["thread"].start()
        return inner(prompt, body)

    server.reply = counted
    return state


def judged(prompt, body):
    claim = next(line for line in reversed(prompt.splitlines()) if " born in " in line or " died in " in line)
    return "supported" if "born in Leeds" in claim or "died in York" in claim else "contradicted"


@pytest.mark.slow
def test_servers_that_are_killed_for_a_while_delay_and_lose_nothing(tmp_path, monkeypatch, capsys):
    monkeypatch.setenv("HF_FACTUALITY_CACHE", str(tmp_path / "cache"))
    datasets = []
    for name, outage in (("a", False), ("b", True)):
        with FakeServer(reply, delay=0.02) as sampler, FakeServer(judged, delay=0.02) as judge:
            states = [away_for_a_while(sampler, 20), away_for_a_while(judge, 15)] if outage else []
            status = served(
                tmp_path, sampler, tmp_path / name, "--concurrency", 4,
                "--verifier", "tests.data.test_build_preferences:served_judge", "--verifier_base_url", judge.url,
            )  # fmt: skip
            assert status == 0, capsys.readouterr().err
            for state in states:
                assert state["count"] > 20
                state["thread"].join()
        datasets.append(load_pairs(tmp_path / name).to_list())
        report = json.loads((tmp_path / name / "report.json").read_text())
        assert report["responses"] == 30 and report["lost_responses"] == 0 and "not_judged" not in report["dropped"]
    assert datasets[0] == datasets[1] and len(datasets[0]) >= 3


def served_judge(base_url):
    retry = RetryPolicy(backoff=0.05, max_backoff=0.2, give_up_after=1.0)  # so that --patience has its turn
    client = ChatClient(base_url, "fake", cache=False, retry=retry, concurrency=4)
    return VerifierPipeline(SentenceExtractor(), LLMJudge(client))


def test_a_judge_that_answers_errors_is_asked_again_at_the_end(tmp_path):
    """As a proxy does while the server behind it starts again: no request is answered, and none finds the server down."""
    rows = [json.loads(line) for line in Path(questions(tmp_path)).read_text().splitlines()]
    sampler = GivenResponses.from_file(responses(tmp_path))
    found = []
    for trouble in (lambda prompt, count: None, lambda prompt, count: 502 if "Ben" in prompt and count == 1 else None):
        with FakeServer(judged, trouble=trouble) as server:
            client = server.client(retry=RetryPolicy(retries=0, backoff=0.01))
            verifier = VerifierPipeline(SentenceExtractor(), LLMJudge(client))
            folder = tmp_path / str(len(found))
            found.append(preferences_from(read_questions(rows), sampler, verifier, folder, progress=False))
    assert found[0].to_list() == found[1].to_list() and len(found[0]) == 5


def test_verification_behind_sampling_gives_the_same_and_loses_nothing(tmp_path):
    rows = read_questions([{"id": f"q{i}", "question": f"Question {i}?"} for i in range(20)])
    arguments = dict(progress=False, questions_per_batch=3)
    plain = preferences_from(rows, LetterSampler(), LetterVerifier(), tmp_path / "a", **arguments)
    arguments["overlap"] = True
    busy = []

    class Slow(LetterVerifier):
        def verify(self, inputs):
            busy.append(threading.current_thread().name)
            time.sleep(0.02)
            return super().verify(inputs)

    class Failing(LetterSampler):
        def sample(self, prompts, seed):
            if len(self.calls) == 4:
                raise KeyboardInterrupt
            return super().sample(prompts, seed)

    with pytest.raises(KeyboardInterrupt):
        preferences_from(rows, Failing(), Slow(), tmp_path / "b", **arguments)
    for thread in threading.enumerate():  # one that was left behind ends and writes nothing more
        if thread.name == "verification":
            thread.join(300)
    lines = (tmp_path / "b" / "verifications.jsonl").read_bytes().count(b"\n")
    assert lines in (9, 12) and (tmp_path / "b" / "responses.jsonl").read_bytes().count(b"\n") == 12
    assert set(busy) == {"verification"}
    sampler = LetterSampler()
    found = preferences_from(rows, sampler, Slow(), tmp_path / "b", **arguments)
    assert found.to_list() == plain.to_list() and sum(map(len, sampler.calls)) == 8


def test_errors_of_the_thread_arrive(tmp_path):
    class Broken(LetterVerifier):
        def verify(self, inputs):
            raise OSError("no server")

    with pytest.raises(Exception, match="verification has failed .* no server"):
        preferences_from(
            read_questions([{"question": "a"}, {"question": "b"}]), LetterSampler(), Broken(), tmp_path, patience=0.0,
            progress=False, overlap=True,
        )  # fmt: skip


def test_one_run_at_a_time(tmp_path):
    class Nested(LetterVerifier):
        def verify(self, inputs):
            if not self.seen:
                with pytest.raises(DataError, match="another run is under way"):
                    preferences_from(rows, LetterSampler(), LetterVerifier(), tmp_path, progress=False)
            return super().verify(inputs)

    rows = read_questions([{"question": f"Question {i}?"} for i in range(12)])
    preferences_from(rows, LetterSampler(), Nested(), tmp_path, progress=False)


def test_knowledge(tmp_path, capsys):
    base = tmp_path / "base.db"
    pages = [{"title": name, "text": f"{name} was born in Leeds. {name} died in York."} for name in PEOPLE]
    assert main(["index", write(tmp_path / "pages.jsonl", pages), "--out", str(base)]) == 0
    bare = write(tmp_path / "bare.jsonl", [{"id": name, "question": "?", "topic": name} for name in PEOPLE])
    arguments = [bare, "--responses", responses(tmp_path), "--out", tmp_path / "run"]
    assert build(*arguments) == 2
    assert "no question has any" in capsys.readouterr().err and not (tmp_path / "run").exists()
    assert build(*arguments, "--knowledge", base) == 0
    assert texts(tmp_path / "run") == [(n, RESPONSES[0].format(n), RESPONSES[2].format(n)) for n in PEOPLE]
    retriever = json.loads((tmp_path / "run" / "settings.json").read_text())["verifier"]["retriever"]
    assert retriever["class"] == "TopicRetriever" and retriever["fingerprint"]
    assert build(*arguments, "--knowledge", base, "--retriever", "corpus") == 2
    assert "hf-factuality index base.db` with --bm25" in capsys.readouterr().err


def test_selections_by_topic(tmp_path, tiny_model):
    file = questions(tmp_path)
    common = [file, "--responses", responses(tmp_path)]
    assert build(*common, "--out", tmp_path / "a", "--topics", 2, "--seed", 4) == 0
    rows = read_questions([json.loads(line) for line in (tmp_path / "questions.jsonl").read_text().splitlines()])
    assert [row[0] for row in texts(tmp_path / "a")] == [q.id for q in select_questions(rows, 2, seed=4)]
    targets = write(tmp_path / "targets.jsonl", [{"question": "Who is Adam?", "topic": "Adam"}])
    distance = ["--topic-targets", targets, "--topics", 2, "--topic-model", tiny_model]
    taken = {}
    for which in ("nearest", "farthest"):
        assert build(*common, "--out", tmp_path / which, "--topic-distance", which, *distance) == 0
        stored = json.loads((tmp_path / which / "topics.json").read_text())["distances"]
        taken[which] = {row[0] for row in texts(tmp_path / which)}
        ranked = sorted(stored, key=stored.get, reverse=which == "farthest")
        assert set(stored) == set(PEOPLE) and taken[which] == set(ranked[:2])
    assert not taken["nearest"] & taken["farthest"]


def test_a_dataset(tmp_path):
    folder = tmp_path / "data"
    folder.mkdir()
    rows = [json.loads(line) for line in Path(questions(tmp_path)).read_text().splitlines()]
    Dataset.from_list(rows).to_parquet(folder / "test.parquet")
    common = ["--responses", responses(tmp_path)]
    some = ["--dataset", folder, "--split", "test", "--limit", 2]
    assert build(*some, *common, "--out", tmp_path / "a") == 0
    assert build(folder / "test.parquet", *common, "--out", tmp_path / "b") == 0
    assert texts(tmp_path / "a") == texts(tmp_path / "b")[:2]
    assert build("--dataset", tmp_path / "none", *common, "--out", tmp_path / "c") == 2


@cases("refusals", "flags of build-preferences")
def test_bad_flags(tmp_path, capsys, case):
    assert build(questions(tmp_path), *case["flags"], "--out", tmp_path / "run") == 2
    assert case["message"] in capsys.readouterr().err and not (tmp_path / "run").exists()


def test_bad_responses(tmp_path, capsys):
    file = responses(tmp_path, PEOPLE[:3])
    assert build(questions(tmp_path), "--responses", file, "--out", tmp_path / "run") == 2
    assert "2 of 5 questions have no responses, the first of them 'Dan'" in capsys.readouterr().err
    for row, message in [({"id": "a"}, "needs 'id' and 'responses'"), ({"id": "a", "responses": [3]}, "all be text")]:
        with pytest.raises(DataError, match=message):
            GivenResponses.from_file(write(tmp_path / "r.jsonl", [row]))
    rows = [{"id": 1, "responses": ["a"]}, {"id": "1", "responses": ["b"]}]
    (found,) = GivenResponses.from_file(write(tmp_path / "r.jsonl", rows)).responses_to(["1"])
    assert [response.text for response in found] == ["a", "b"]


def test_push(tmp_path, hub, capsys):  # noqa: F811
    out = tmp_path / "run"
    common = [questions(tmp_path), "--responses", responses(tmp_path), "--out", out]
    assert build(*common, "--push_to_hub", "pairs", "--private") == 0
    repo = hub.repos["dataset", "someone/pairs"]
    assert repo.private and len(repo.log) == 2  # of the Hub, and ours
    assert repo.files() == {name: (out / name).read_bytes() for name in ("pairs.parquet", "README.md")}
    card = repo.files()["README.md"].decode()
    assert str(tmp_path) not in card and "5 pairs of responses" in card
    address = f"{hub.url}/datasets/someone/pairs/commit/{repo.refs['main']}"
    assert capsys.readouterr().out.endswith(f"{address}\n")

    hub.users[TOKEN] = User("other")
    message = "stay there: .*someone/x.* cannot be written on the Hub: .*'someone' is no organ"
    with pytest.raises(HubError, match=message):
        push_pairs(out, "someone/x")
    assert build(*common[:-1], tmp_path / "other", "--push_to_hub", "someone/x") == 2  # before anything is done
    assert not (tmp_path / "other" / "responses.jsonl").exists()
    with pytest.raises(DataError, match="start it again to finish it"):
        push_pairs(tmp_path, "someone/x")


@pytest.mark.parametrize("backend", [None, "vllm"])
def test_what_workers_get_makes_the_sampler_and_carries_no_rows_and_no_verifier(tiny_model, monkeypatch, backend):
    """Without Ray: the copy that a worker unpickles."""
    monkeypatch.setattr("hf_factuality.data.sampling.VLLMChat", lambda model, revision=None, **more: more)
    rows, options = [{"question": "Who is Ada?"}], {"model": tiny_model, "dtype": "float32", "verifier": Initial()}
    args = build_module.build_arguments({**options, "backend": backend, "seed": 7}, rows, "run")
    sampling = SamplingConfig(num_samples=2, max_new_tokens=4)
    packed = pickle.dumps(build_module._worker_sampler(args, backend or "transformers", sampling))
    assert b"Ada" not in packed and b"Initial" not in packed
    sampler = pickle.loads(packed)
    assert sampler.config == sampling
    if backend is None:
        assert len(sampler.sample([[{"role": "user", "content": "Who is Ada?"}]], seed=0)[0]) == 2

"""KLCF's four models on servers: what is asked, what is refused at the start, and servers that come and go in a training."""

import json
import threading
import time
import zlib
from contextlib import ExitStack
from dataclasses import replace

import pytest
from transformers import HfArgumentParser

from hf_factuality.errors import JudgingError
from hf_factuality.generation import RetryPolicy, ScoreClient, ServerError
from hf_factuality.methods.truthfulness.judge import ServedTruthfulnessJudge
from hf_factuality.rewards import ServedReward, ServedRoles
from hf_factuality.spans import Label
from hf_factuality.verifiers.base import JudgeInput
from tests.conftest import fast_few
from tests.generation.fake_server import FAST, HASTY, FakeServer
from tests.servers.klcf import STEPS, TEMPLATE, Trained
from tests.tiny import rows


ROLES = ("claim_extractor", "checklist_rm", "truthfulness_rm", "general_rm")


@pytest.fixture(autouse=True)
def no_variables(monkeypatch, tmp_path):
    for role in ROLES:
        for kind in ("SERVER", "PATH"):
            monkeypatch.delenv(f"{role}_{kind}".upper(), raising=False)
    monkeypatch.setenv("HF_FACTUALITY_CACHE", str(tmp_path / "answers.sqlite"))


PATIENT = replace(FAST, breaker_failures=1)


def scores(server, **settings):
    return ScoreClient(server.url, "fake", cache=False, retry=FAST, **settings)


# -- the general reward -----------------------------------------------------------------------------------------------


def test_the_answer_is_scored_as_the_assistants_turn():
    asked = []

    def reply(prompt, body):
        asked.append([(turn["role"], turn["content"]) for turn in body["messages"]])
        return [float(len(prompt))]

    with FakeServer(reply) as server:
        reward = ServedReward(scores(server))
        assert reward(["Where?"], ["<think>Hm.</think> In Leeds. "]) == [9.0]
        chat = [{"role": "system", "content": "Be short."}, {"role": "user", "content": "Where?"}]
        assert reward([chat], [[{"role": "assistant", "content": "York<|end|>"}]]) == [12.0]
        begun = [*chat[1:], {"role": "assistant", "content": "In "}]
        assert reward([begun], [[{"role": "assistant", "content": "Bath."}]], completion_texts=["Bath."]) == [8.0]
        opened = [*chat[1:], {"role": "assistant", "content": "<think>"}]
        assert reward([opened], ["Hm.</think>Bath."]) == [5.0]
        assert reward(["Where?"], ["<think>for ever"]) == [0.0]
    assert asked == [
        [("user", "Where?"), ("assistant", "In Leeds.")],
        [("system", "Be short."), ("user", "Where?"), ("assistant", "York< |end|>")],
        [("user", "Where?"), ("assistant", "In Bath.")],
        [("user", "Where?"), ("assistant", "Bath.")],
        [("user", "Where?"), ("assistant", "")],
    ]


def test_what_the_server_refuses_is_unknown_and_a_server_that_refuses_all_ends_the_run():
    def refuse(bad):
        return lambda prompt, count: 400 if prompt in bad else None

    with FakeServer(lambda prompt, body: [1.5], trouble=refuse({"long"})) as server:
        reward = ServedReward(scores(server))
        assert reward(["q"] * 3, ["a", "long", "b"]) == [1.5, None, 1.5]
        server.trouble = refuse({"c", "d"})
        assert reward(["q"] * 2, ["c", "d"]) == [None, None]
        reward = ServedReward(scores(server))
        with pytest.raises(JudgingError, match="ServedReward judged none of the first 2 completions.*HTTP 400"):
            reward(["q"] * 2, ["c", "d"])


def test_a_classifier_is_no_reward_model():
    with FakeServer(lambda prompt, body: [0.2, 0.8]) as server:
        with pytest.raises(JudgingError, match=r"ScoreClient\('http.*'fake'.* gives several numbers for a text"):
            ServedReward(scores(server))(["q"], ["a"])


def test_a_proxy_that_says_that_the_server_is_gone_is_waited_for():
    back = []

    def trouble(prompt, count):
        back.append(time.monotonic())
        return 503 if back[-1] - back[0] < 1.5 else None

    with FakeServer(lambda prompt, body: [1.5], trouble=trouble) as server:
        settings = {"general_rm_server": server.url, "general_rm_path": "fake"}
        roles = ServedRoles(**settings)
        client = roles._clients["general_rm"]
        policy = replace(client._settings["retry"], retries=3, backoff=0.01, max_backoff=0.05)
        assert (
            ServedReward(ScoreClient(server.url, "fake", cache=False, retry=policy))(["q"] * 2, ["a", "b"])
            == [1.5] * 2
        )
        back.clear()
        usual = replace(policy, breaker_failures=RetryPolicy().breaker_failures)
        with pytest.raises(JudgingError, match="HTTP 503"):  # a control: four attempts are over before it is back
            ServedReward(ScoreClient(server.url, "fake", cache=False, retry=usual))(["q"] * 2, ["a", "b"])


def checked(server, policy):
    """The general reward of roles that were checked."""
    roles = ServedRoles(general_rm_server=server.url, general_rm_path="fake")
    client = roles._clients["general_rm"]
    client.__init__(**{**client.__getstate__(), "cache": False, "retry": policy})
    roles.check()
    return roles.general()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("wrong", "error"), fast_few([({"model": "other"}, "HTTP 404.*does not exist"), ({"key": "x"}, "401")], 0)
)
def test_a_role_that_was_there_is_waited_for_whatever_answers_in_its_place_and_not_for_ever(wrong, error, monkeypatch):
    monkeypatch.delenv("HF_FACTUALITY_API_KEY", raising=False)
    with FakeServer(lambda prompt, body: [1.5]) as server:

        def be(settings):
            for name, value in settings.items():
                setattr(server, name, value)

        right = {name: getattr(server, name) for name in wrong}
        reward = checked(server, PATIENT)
        be(wrong)  # before its first answer
        back = threading.Timer(0.5, be, [right])
        back.start()
        assert reward(["q"], ["a"]) == [1.5]
        back.join()
        reward = checked(server, replace(HASTY, breaker_failures=1))
        be(wrong)
        with pytest.raises(ServerError, match=f"{reward.client.server} gave no answer for 1 s; last error: .*{error}"):
            reward(["q"], ["a"])


def test_the_check_asks_each_role_what_it_will_be_asked():
    def trouble(prompt, count):
        return 404 if server.paths[-1] == "/classify" else None

    with FakeServer(trouble=trouble) as server:
        flags = {f"{role}_server": server.url for role in ROLES} | {f"{role}_path": "fake" for role in ROLES}
        with pytest.raises(ServerError) as caught:
            ServedRoles(**flags).check()
        first, *lines = str(caught.value).split("\n")
        assert first == "2 of 4 served roles cannot be used:"
        root = server.url.removesuffix("/v1")
        for line, role in zip(lines, ("truthfulness verifier", "general reward model"), strict=True):
            assert line.startswith(role) and f": {root}/classify does not answer: HTTP 404" in line


# -- P(true) ----------------------------------------------------------------------------------------------------------


def test_p_true_is_the_last_class_and_decides_the_label():
    replies = {"Q: Where? A: In Leeds.": [0.1, 0.9], "Q:  A: In < |end|>York.": [0.75, 0.25]}
    with FakeServer(
        lambda prompt, body: replies[prompt], trouble=lambda p, n: None if p in replies else 400
    ) as server:
        judge = ServedTruthfulnessJudge(scores(server, activation=True), TEMPLATE)
        items = [
            JudgeInput("In Leeds.", (), "Where?"),
            JudgeInput("In <|end|>York.", ("In York.",)),
            JudgeInput("?", ()),
        ]
        found = judge.judge(items)
    assert [(one.label, one.score) for one in found] == [
        (Label.SUPPORTED, 0.9),
        (Label.CONTRADICTED, 0.25),
        (None, None),
    ]
    assert judge.last_report.failed == 1 and judge.last_report.unparsed == 0


def test_logits_are_no_probabilities_and_a_template_needs_the_claim(tmp_path):
    with FakeServer(lambda prompt, body: [-2.0, 3.0]) as server:
        with pytest.raises(JudgingError, match=r"gave 3 for P\(true\); it needs activation=True"):
            ServedTruthfulnessJudge(scores(server), TEMPLATE).judge([JudgeInput("a", ())])
    with pytest.raises(ValueError, match="the template of claims lacks a place for"):
        ServedTruthfulnessJudge(ScoreClient("http://localhost:1", "m"), "{{question}}")
    with pytest.raises(OSError, match="the model 'org/none' was not found locally or on the Hub"):
        ServedTruthfulnessJudge(ScoreClient("http://localhost:1", "org/none"))
    for settings in ({}, {"truthfulness": None}, {"truthfulness": "x"}, {"truthfulness": {"template": 5}}):
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "llama", **settings}))
        with pytest.raises(ValueError, match="has no template of claims; pass one"):
            ServedTruthfulnessJudge(ScoreClient("http://localhost:1", str(tmp_path)))


# -- flags ------------------------------------------------------------------------------------------------------------


def test_flags_win_over_variables(monkeypatch):
    monkeypatch.setenv("CLAIM_EXTRACTOR_SERVER", "http://localhost:1/v1")
    monkeypatch.setenv("CLAIM_EXTRACTOR_PATH", "from-variable")
    monkeypatch.setenv("GENERAL_RM_SERVER", "")  # as a script sets it that serves none
    flags = ["--claim_extractor_path", "from-flag", "--checklist_rm_server", "http://localhost:2/v1"]
    flags += ["--checklist_rm_path", "judge", "--server_patience", "30"]
    (roles,) = HfArgumentParser(ServedRoles).parse_args_into_dataclasses(flags)
    assert (roles.claim_extractor_server, roles.claim_extractor_path) == ("http://localhost:1/v1", "from-flag")
    client = roles.checklist().verifier.judge.client
    assert (client.server, client.model) == ("http://localhost:2/v1", "judge")
    assert client._settings["retry"] == RetryPolicy(max_backoff=10.0, breaker_failures=1, give_up_after=30.0)
    assert roles.general() is None and ServedRoles(claim_extractor_server=None).checklist() is None
    off = ServedRoles(claim_extractor_server="", claim_extractor_path="")
    assert off.claim_extractor_server is None and not off._clients
    with pytest.raises(ValueError, match="set claim_extractor_server and truthfulness_rm_server, or pass"):
        roles.verifier()
    assert roles.verifier(judge=roles.checklist().verifier.judge).verifier.extractor.client.model == "from-flag"


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (
            {"general_rm_server": "http://localhost:1"},
            "the general reward model needs an address and a model; set general_rm_path too",
        ),
        (
            {"checklist_rm_path": "m"},
            "the checklist verifier needs an address and a model; set checklist_rm_server too",
        ),
        ({"checklist_rm_server": "localhost:1", "checklist_rm_path": "m"}, "base_url must be an http"),
        ({"checklist_rm_server": "http://u:p@h", "checklist_rm_path": "m"}, "must hold no login"),
        ({"server_patience": 0.0}, "positive seconds"),
    ],
)
def test_settings_that_cannot_work(settings, message):
    with pytest.raises(ValueError, match=message):
        ServedRoles(**settings)


def test_the_check_says_what_is_wrong_with_each_server(monkeypatch):
    monkeypatch.setenv("HF_FACTUALITY_API_KEY", "sk-secret-of-the-test")
    with FakeServer() as good, FakeServer(model="other") as other, FakeServer(key="sk-another") as locked:
        gone = FakeServer()
        with gone:
            address = gone.url
        servers = dict(zip(ROLES, (address, other.url, good.url, locked.url), strict=True))
        flags = {f"{role}_server": url for role, url in servers.items()} | {f"{role}_path": "fake" for role in ROLES}
        with pytest.raises(ServerError) as caught:
            ServedRoles(**flags).check()
        first, *lines = str(caught.value).split("\n")
        assert first == "3 of 4 served roles cannot be used:"
        port = address.removeprefix("http://127.0.0.1:").removesuffix("/v1")
        assert lines[0].startswith(
            f"claim extractor (`claim_extractor_server`): {address}/models does not answer: ClientConnectorError: Cannot connect to "
            f"host 127.0.0.1:{port} "
        )
        assert lines[1] == f"checklist verifier (`checklist_rm_server`): {other.url} does not serve fake but other"
        root = locked.url.removesuffix("/v1")
        assert lines[2].startswith(
            f"general reward model (`general_rm_server`): {root}/v1/models does not answer: HTTP 401"
        )
        assert len(lines) == 3 and "sk-" not in str(caught.value)
        for role in ROLES:
            flags[f"{role}_server"] = good.url
        ServedRoles(**flags).check()


# -- training ---------------------------------------------------------------------------------------------------------


def code(prompt):
    return zlib.crc32(prompt.encode())


REPLIES = {
    "claim_extractor": lambda prompt, body: f"- Claim {code(prompt) % 50} is made.",
    "checklist_rm": lambda prompt, body: ("supported", "contradicted", "unverifiable")[code(prompt) % 3],
    "truthfulness_rm": lambda prompt, body: [1 - code(prompt) % 90 / 100, code(prompt) % 90 / 100],
    "general_rm": lambda prompt, body: [code(prompt) % 500 / 100 - 2],
}


@pytest.fixture
def servers(tmp_path):
    model = tmp_path / "model"  # where the template of the truthfulness model is found
    model.mkdir()
    settings = {"model_type": "llama", "truthfulness": {"template": TEMPLATE}}
    (model / "config.json").write_text(json.dumps(settings))
    with ExitStack() as stack:
        yield {role: stack.enter_context(FakeServer(REPLIES[role], model=str(model))) for role in ROLES}


def flags_of(servers):
    return {f"{role}_server": server.url for role, server in servers.items()} | {
        f"{role}_path": server.model for role, server in servers.items()
    }


def data():
    return rows().add_column("checklist", [["Ada lives in Leeds.", "Ada works in York."]] * len(rows()))


@pytest.mark.slow
def test_each_server_dies_in_training_and_comes_back(servers, tiny_model, tmp_path):
    plain = Trained(tiny_model, data(), tmp_path / "a", flags_of(servers), PATIENT)
    plain.check_worth_it()
    threads = []
    for number, server in enumerate(servers.values()):
        asked = sum(server.answered.values())
        server.answered.clear()
        server.delay = 0.02
        # In the middle of what it is asked for, each of them in another step.
        threads.append(server.die_at(asked * (number + 1) // (STEPS - 1) + 1, back_after=1.0))
    killed = Trained(tiny_model, data(), tmp_path / "b", flags_of(servers), PATIENT)
    for thread in threads:
        thread.join(30)
    killed.check_same(plain)
    assert all(client.stats.retried > 0 and client.stats.failed == 0 for client in killed.clients.values())


@pytest.mark.parametrize("role", fast_few(ROLES, 0))
def test_a_server_that_stays_away_ends_the_run_and_says_which(role, servers, tiny_model, tmp_path):
    server = servers[role]
    with pytest.raises(ServerError, match="gave no answer for [1-9] s") as caught:
        Trained(
            tiny_model, data(), tmp_path / "run", flags_of(servers), HASTY,
            lambda step: step == 2 and server.runner and server.stop(),
        )  # fmt: skip
    assert server.url.removesuffix("/v1") in str(caught.value)


def test_a_list_of_models_can_say_no_more_than_a_line():
    with FakeServer(model="\n".join(["evil\x1b[2J role"] * 2000)) as server:
        with pytest.raises(ServerError) as caught:
            ServedRoles(general_rm_server=server.url, general_rm_path="fake").check()
    _, line = str(caught.value).split("\n")
    assert line.isprintable() and len(line) < 500

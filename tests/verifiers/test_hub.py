import json
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from hf_factuality.errors import HubError
from hf_factuality.spans import Label, LabeledSpan
from hf_factuality.verifiers import (
    ChatClient,
    FActScoreExtractor,
    JudgeInput,
    Judgement,
    LexicalJudge,
    LexicalVerifier,
    LLMJudge,
    LLMVerifier,
    NLIVerifier,
    SentenceExtractor,
    VerifierInput,
    VerifierPipeline,
)
from hf_factuality.verifiers.ensemble import CalibratedJudge, Calibration, MajorityJudge
from hf_factuality.verifiers.hub_format import CONFIG_NAME, PARTS
from hf_factuality.verifiers.judges.hhem import HHEMVerifier
from hf_factuality.verifiers.judges.minicheck import MiniCheckVerifier
from hf_factuality.verifiers.pipeline import load_pipeline, save_pipeline
from tests.chat.fake_server import FAST, FakeServer
from tests.verifiers.judges.test_hhem import folders as hhem_folders  # noqa: F401
from tests.verifiers.judges.test_minicheck import folder as minicheck_folder  # noqa: F401
from tests.verifiers.judges.test_nli import THREE_WAY, save_model


EVIDENCE = ("Ada Hale was born in Leeds in 1901. The cat sat on the red mat.",)
INPUTS = [
    VerifierInput("Ada Hale was born in Leeds in 1901. She was born in 1899.", "Where?", EVIDENCE),
    VerifierInput("1. The cat sat on the mat.\n2. Perhaps a dog sat.", None, EVIDENCE),
    VerifierInput("", None, EVIDENCE),
    VerifierInput("The cat.", None, ()),
]
SECRET = "sekrit-0123456789abcdef"
CLOSED = "http://127.0.0.1:9/v1"


class Wordy:
    """A judge of somebody else: supported if the claim has at least `least` words."""

    def __init__(self, least, inner=None, options=None):
        self.least, self.inner, self.options = least, inner, options

    def config(self):
        return {"least": self.least, "inner": self.inner, "options": self.options}

    def judge(self, inputs):
        enough = [len(item.claim.split()) >= self.least for item in inputs]
        return [Judgement(Label.SUPPORTED if yes else Label.UNVERIFIABLE) for yes in enough]


WORDY = f"{__name__}:Wordy"


def read(folder):
    return json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))


def write(folder, config):
    (folder / CONFIG_NAME).write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    return folder


def everything(folder):
    return "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.is_file())


def judge_with(folder, name, settings):
    """A saved lexical pipeline whose judge is another."""
    config = read(save_pipeline(LexicalVerifier(), folder))
    config["judge"] = {"class": name, "settings": settings}
    return write(folder, config)


@pytest.fixture(scope="module")
def nli_model(tmp_path_factory):
    return save_model(tmp_path_factory.mktemp("nli"), THREE_WAY)


# -- round trips ------------------------------------------------------------------------------------------------------


def test_lexical(tmp_path):
    verifier = LexicalVerifier(language="en", threshold=0.7)
    folder = verifier.save_pretrained(tmp_path / "new" / "folder")
    config = read(folder)
    del config["hf_factuality"]
    assert config == {
        "format": "hf_factuality/verifier-pipeline",
        "version": 1,
        "requires_evidence": True,
        "extractor": {"class": "SentenceExtractor", "settings": {"language": "en"}},
        "retriever": {"class": "RowEvidence", "settings": {}},
        "judge": {"class": "LexicalJudge", "settings": {"threshold": 0.7}},
    }
    loaded = VerifierPipeline.from_pretrained(folder)
    assert loaded.verify(INPUTS) == verifier.verify(INPUTS)
    labels = {span.label for found in verifier.verify(INPUTS) for span in found.spans}
    assert len(labels) > 1  # the control: the inputs tell verifiers apart
    assert load_pipeline(str(folder)).verify(INPUTS) != LexicalVerifier(threshold=0.0).verify(INPUTS)


def test_nli(nli_model, tmp_path):
    verifier = NLIVerifier(nli_model, threshold=0.3, contradiction_threshold=0.6, max_length=48, device="cpu")
    folder = save_pipeline(verifier, tmp_path)
    assert read(folder)["judge"] == {
        "class": "NLIJudge",
        "settings": {
            "model": nli_model,
            "revision": None,
            "batch_size": 32,
            "max_length": 48,
            "threshold": 0.3,
            "contradiction_threshold": 0.6,
            "negative_label": "unverifiable",
            "label_map": {"0": "supported", "1": "unverifiable", "2": "contradicted"},
        },
    }
    assert load_pipeline(folder, device="cpu").verify(INPUTS) == verifier.verify(INPUTS)


def test_t5_judges(hhem_folders, minicheck_folder, tmp_path):  # noqa: F811
    hhem = HHEMVerifier(
        str(hhem_folders / "model"), foundation=str(hhem_folders / "foundation"), negative_label="contradicted"
    )
    minicheck = MiniCheckVerifier(minicheck_folder, chunk_words=5, threshold=0.6)
    for name, verifier in (("hhem", hhem), ("minicheck", minicheck)):
        loaded = load_pipeline(save_pipeline(verifier, tmp_path / name))
        assert loaded.verify(INPUTS) == verifier.verify(INPUTS)


def test_llm_without_contacting_a_server(tmp_path, monkeypatch):
    """Saving and loading send nothing: nobody listens at the address. Then the loaded one asks the very same."""
    monkeypatch.delenv("HF_FACTUALITY_BASE_URL", raising=False)
    prompt = tmp_path / "mine.txt"
    prompt.write_text("Is it so? 是吗\n\n{{claim}}\n\n{{evidence}}\n", encoding="utf-8")
    verifier = LLMVerifier(
        "fake", CLOSED, prompt=prompt, api_key=SECRET, cache=False, revision="abc", timeout=7.0, retry=FAST,
        extra_body={"chat_template_kwargs": {"enable_thinking": False}, "max_tokens": 8},
    )  # fmt: skip
    folder = save_pipeline(verifier, tmp_path / "saved")
    prompt.unlink()
    assert SECRET not in everything(folder) and "api_key" not in everything(folder)
    settings = read(folder)["judge"]["settings"]
    assert settings["prompt"] == {"file": "prompts/judge/prompt.txt"}
    assert (folder / "prompts/judge/prompt.txt").read_text(encoding="utf-8").startswith("Is it so? 是吗\n")

    def answer(prompt, body):
        assert prompt.startswith("Is it so? 是吗") and body["max_tokens"] == 8
        return "supported" if "Ada" in prompt.split("[END CLAIM")[0] else "no idea"

    with FakeServer(answer) as server:
        url = f"http://127.0.0.1:{server.port}/v1"
        loaded = load_pipeline(folder, base_url=url, client={"cache": False})
        assert not server.received
        found = loaded.verify(INPUTS)
    assert [[span.label for span in item.spans] for item in found] == [
        [Label.SUPPORTED, None],
        [None, None],
        [],
        [Label.UNVERIFIABLE],
    ]
    mine, theirs = verifier.judge.client, loaded.judge.client
    item = JudgeInput("c", ("e",))
    assert theirs.key(next(loaded.judge._talk(item))) == mine.key(next(verifier.judge._talk(item)))
    assert theirs._settings == {**mine._settings, "base_url": url}


def test_extractor_settings(tmp_path):
    client = ChatClient(CLOSED, "fake", cache=False)
    verifier = VerifierPipeline(FActScoreExtractor(client, retries=1, on_failure="drop"), LLMJudge(client))
    loaded = load_pipeline(save_pipeline(verifier, tmp_path), client={"cache": False})
    assert loaded.extractor.prompt.text == verifier.extractor.prompt.text
    assert (loaded.extractor.retries, loaded.extractor.on_failure) == (1, "drop")


def test_stages_share_their_client_again(tmp_path):
    client = ChatClient(CLOSED, "fake", cache=False)
    loaded = load_pipeline(
        save_pipeline(VerifierPipeline(FActScoreExtractor(client), LLMJudge(client)), tmp_path),
        client={"cache": False},
    )
    assert loaded.judge.client is loaded.extractor.client


def test_ensembles(nli_model, tmp_path):
    nli = NLIVerifier(nli_model, device="cpu").judge
    judges = [nli, LexicalJudge(), LexicalJudge(0.9)]
    inner = CalibratedJudge(judges, Calibration((1.0, 0.5, 0.1), (0.1, 0.2, 0.3), -0.4), 0.6)
    verifier = VerifierPipeline(
        SentenceExtractor(), MajorityJudge([*judges, inner], [1, 2, 3, 0.5], tie="first"), requires_evidence=False
    )
    loaded = load_pipeline(save_pipeline(verifier, tmp_path), device="cpu")
    assert loaded.verify(INPUTS) == verifier.verify(INPUTS)
    assert loaded.requires_evidence is False


def test_every_name_resolves():
    import importlib

    for name, module in PARTS.items():
        assert isinstance(getattr(importlib.import_module(module), name), type)


# -- what cannot be saved ---------------------------------------------------------------------------------------------


def test_what_cannot_be_described_is_named(nli_model, tmp_path):
    from transformers import BertForSequenceClassification, BertTokenizerFast

    class Mute:
        def judge(self, inputs):
            return []

    class Own(VerifierPipeline):
        def verify(self, inputs):
            return []

    loaded = NLIVerifier(
        BertForSequenceClassification.from_pretrained(nli_model), BertTokenizerFast.from_pretrained(nli_model)
    )
    for verifier, message in (
        (
            VerifierPipeline(SentenceExtractor(), Mute()),
            r"Mute \(judge\) cannot be described: give it a method `config",
        ),
        (Own(SentenceExtractor(), LexicalJudge()), "has a `verify` of its own"),
        (loaded, "the judge cannot be saved: NLIJudge was given a loaded model"),
        (VerifierPipeline(SentenceExtractor(), Wordy(float("nan"))), "'judge/least' is a float"),
        (VerifierPipeline(SentenceExtractor(), Wordy(1, options={"file": "x"})), "not those of a file or part"),
        (VerifierPipeline(SentenceExtractor(), Wordy(1, options={1: "x"})), "text keys"),
        (VerifierPipeline(SentenceExtractor(), Wordy({1, 2})), "is a set, which is no plain value"),
    ):
        with pytest.raises(HubError, match=message):
            save_pipeline(verifier, tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize(
    "options",
    [
        {"api_key": "x"},
        {"headers": [{"Authorization": "x"}]},
        {"password": 1},
        {"name": "sk-abcdefghijklmnop1234"},
        {"name": "Bearer abcdefghijklmnop1234"},
        {"name": "Bearer abcdefghijklmnop"},
        {"name": "a=1%20hf_" + "aBcD1" * 7},
        {"name": "x%3Dghp_" + "aBcD1" * 7},
        {"name": "tokenhf_" + "aBcD1" * 7},
        {"name": "id1sk-" + "aBcD1" * 7},
        {"name": "my-task-" + "aBcD1" * 7},
        {"name": "my-task-abcdefgh-" + "aBcD1" * 3},
        {"name": "tokensk-abcdefgh-ijklmnop"},
    ],
)
def test_keys_are_never_written(tmp_path, options):
    with pytest.raises(HubError, match="looks like a key"):
        save_pipeline(VerifierPipeline(SentenceExtractor(), Wordy(1, options=options)), tmp_path)
    with pytest.raises(HubError, match="looks like a key"):
        save_pipeline(LLMVerifier("m", CLOSED, cache=False, extra_body={"x": options}), tmp_path)


def test_names_of_models_are_no_keys(tmp_path):
    """`task-...` holds what a key of OpenAI begins with, `max_tokens` what a setting with one ends in."""
    options = {"model": "me/multi-task-deberta-v3-large", "max_tokens": 1, "by": "hf_factuality_verifier_of_2024"}
    options["others"] = [
        "lab/pypi-malware-detector-base",
        "lab/npm_package_risk_judge",
        "lab/SK-BERT-base-multilingual",
    ]
    save_pipeline(VerifierPipeline(SentenceExtractor(), Wordy(1, options=options)), tmp_path)
    assert json.loads((tmp_path / CONFIG_NAME).read_text())["judge"]["settings"]["options"] == options


def test_a_key_in_another_place_is_found(tmp_path):
    verifier = LLMVerifier("m", CLOSED, cache=False, api_key=SECRET, extra_body={"user": SECRET})
    with pytest.raises(HubError, match="a client's key stands in a setting"):
        save_pipeline(verifier, tmp_path)
    assert list(tmp_path.iterdir()) == []


# -- what is not loaded -----------------------------------------------------------------------------------------------


def test_classes_of_others_need_consent(tmp_path):
    verifier = VerifierPipeline(SentenceExtractor(), Wordy(4, inner=LexicalJudge(0.1), options={"a": [1, "b"]}))
    folder = save_pipeline(verifier, tmp_path)
    with pytest.raises(HubError, match=f"judge of .*'{WORDY}' is a class outside.*trust_remote_code=True"):
        load_pipeline(folder)
    loaded = load_pipeline(folder, trust_remote_code=True)
    assert loaded.verify(INPUTS) == verifier.verify(INPUTS)
    assert loaded.judge.inner.threshold == 0.1 and loaded.judge.options == {"a": [1, "b"]}


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("NLIJugde", "unknown class 'NLIJugde'.*did you mean 'NLIJudge'"),
        ("eval", "unknown class 'eval'"),
        ("os.system", "unknown class 'os.system'"),
        ("os:system", "a class outside this package"),
        (None, "unknown class None"),
        (["NLIJudge"], "unknown class"),
    ],
)
def test_unknown_classes_are_refused_by_name(tmp_path, name, message):
    with pytest.raises(HubError, match=message):
        load_pipeline(judge_with(tmp_path, name, {"command": f"touch {tmp_path}/run"}))
    assert not (tmp_path / "run").exists()


def test_consent_is_for_classes_only(tmp_path):
    with pytest.raises(HubError, match="judge of .*'os:system' is no class"):
        load_pipeline(judge_with(tmp_path, "os:system", {"command": f"touch {tmp_path}/run"}), trust_remote_code=True)
    with pytest.raises(HubError, match="no_such_module"):
        load_pipeline(judge_with(tmp_path, "no_such_module:X", {}), trust_remote_code=True)
    assert not (tmp_path / "run").exists()


def test_a_model_with_code_needs_consent(nli_model, tmp_path):
    folder = judge_with(tmp_path, "NLIJudge", {"model": nli_model, "trust_remote_code": True})
    with pytest.raises(HubError, match="runs code of its repository: pass trust_remote_code=True"):
        load_pipeline(folder)
    assert load_pipeline(folder, trust_remote_code=True, device="cpu").verify(INPUTS)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"treshold": 0.5}, "cannot make LexicalJudge: .*'treshold'"),
        ({"threshold": 7}, "cannot make LexicalJudge: threshold is a probability"),
        ({"threshold": "high"}, "cannot make LexicalJudge"),
        ({"threshold": {"class": "LexicalJudge", "settings": []}}, "must have a class and its settings"),
    ],
)
def test_bad_settings_are_named(tmp_path, settings, message):
    with pytest.raises(HubError, match=message):
        load_pipeline(judge_with(tmp_path, "LexicalJudge", settings))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is no JSON"),
        ("[" * 100_000, "is no JSON"),
        ("[]", "does not say that it is"),
        ("{}", "does not say that it is"),
        ({"version": 2}, "version 2 of the format; this package reads 1 to 1"),
        ({"version": True}, "version True"),
        ({"more": 1}, "must have the keys"),
        ({"requires_evidence": "no"}, "must have the keys"),
        ({"judge": "LexicalJudge"}, "must have a class and its settings"),
    ],
)
def test_files_that_are_none(tmp_path, text, message):
    save_pipeline(LexicalVerifier(), tmp_path)
    write(tmp_path, text if isinstance(text, str) else {**read(tmp_path), **text})
    with pytest.raises(HubError, match=message):
        load_pipeline(tmp_path)


@pytest.mark.parametrize("text", ['{"model_type": "llama"}', "[]", "{"])
def test_the_config_of_a_model_is_not_written_over(tmp_path, text):
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(HubError, match="holds the config.json of something else"):
        LLMVerifier("org/model", CLOSED, cache=False).save_pretrained(tmp_path)
    assert everything(tmp_path) == text
    for _ in range(2):  # its own is
        LexicalVerifier().save_pretrained(tmp_path / "new")


def test_no_file(tmp_path):
    with pytest.raises(HubError, match="holds no verifier_config.json"):
        load_pipeline(tmp_path)
    with pytest.raises(HubError, match="is a folder; only a repository has revisions"):
        load_pipeline(tmp_path, "main")


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../secret.txt", "prompts/../../secret.txt", "prompts/x.py", "prompts\\x.txt", 3, "x.txt"]
)
def test_prompts_stay_in_their_folder(tmp_path, name):
    (tmp_path / "secret.txt").write_text("{{claim}} {{evidence}}")
    folder = save_pipeline(LLMVerifier("m", CLOSED, cache=False), tmp_path / "pipeline")
    config = read(folder)
    config["judge"]["settings"]["prompt"] = {"file": name}
    with pytest.raises(HubError, match="a prompt is a .txt file under prompts/"):
        load_pipeline(write(folder, config))


def test_a_prompt_is_no_name(tmp_path):
    folder = save_pipeline(LLMVerifier("m", CLOSED, cache=False), tmp_path / "pipeline")
    config = read(folder)
    for name in ("judge", "../../secret", str(tmp_path / "secret.txt")):
        config["judge"]["settings"]["prompt"] = name
        with pytest.raises(HubError, match="judge/prompt of .* must be a file of the pipeline"):
            load_pipeline(write(folder, config))


def test_a_missing_or_linked_prompt(tmp_path):
    folder = save_pipeline(LLMVerifier("m", CLOSED, cache=False), tmp_path / "pipeline")
    prompt = folder / "prompts/judge/prompt.txt"
    prompt.rename(tmp_path / "outside.txt")
    with pytest.raises(HubError, match="lacks 'prompts/judge/prompt.txt'"):
        load_pipeline(folder)
    prompt.symlink_to(tmp_path / "outside.txt")
    with pytest.raises(HubError, match="leads out of its folder"):
        load_pipeline(folder)


# -- servers and keys -------------------------------------------------------------------------------------------------


def test_an_address_of_a_file_gets_no_key(tmp_path, monkeypatch):
    """Neither at first nor after a copy to another process, whatever the environment holds."""
    import pickle

    monkeypatch.delenv("HF_FACTUALITY_BASE_URL", raising=False)
    monkeypatch.setenv("HF_FACTUALITY_API_KEY", SECRET)
    seen = []

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            seen.append(self.headers.get("Authorization"))
            self.rfile.read(int(self.headers["Content-Length"]))
            body = b'{"choices": [{"message": {"content": "supported"}}]}'
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *args):
            pass

    server = HTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        url = f"http://127.0.0.1:{server.server_port}/v1"
        folder = save_pipeline(LLMVerifier("m", url, cache=False), tmp_path)
        loaded = load_pipeline(folder, client={"cache": False})
        loaded.verify(INPUTS[:1])
        pickle.loads(pickle.dumps(loaded)).verify(INPUTS[:1])
        assert seen and set(seen) == {None}
        seen.clear()
        load_pipeline(folder, base_url=url, client={"cache": False}).verify(INPUTS[:1])  # the control
        assert set(seen) == {f"Bearer {SECRET}"}
    finally:
        server.shutdown()
        server.server_close()
    for given in ({"api_key": "k"}, {"api_key_env": "HF_FACTUALITY_API_KEY"}):
        with pytest.raises(HubError, match="a key is sent only to an address that you name"):
            load_pipeline(folder, client=given)


@pytest.mark.parametrize("setting", ["api_key", "api_key_env", "cache"])
def test_a_file_says_nothing_about_keys_and_cache(tmp_path, setting):
    folder = save_pipeline(LLMVerifier("m", CLOSED, cache=False), tmp_path)
    config = read(folder)
    config["judge"]["settings"]["client"]["settings"][setting] = "OPENAI_API_KEY"
    with pytest.raises(HubError, match=f"sets '{setting}' of a client"):
        load_pipeline(write(folder, config), base_url=CLOSED)


def test_spans_keep_their_claims(tmp_path):
    """What the extractor says of a list item goes the same way through a loaded pipeline."""
    found = load_pipeline(save_pipeline(LexicalVerifier(), tmp_path)).verify(INPUTS)[1].spans[0]
    assert isinstance(found, LabeledSpan) and found.claim == "The cat sat on the mat."

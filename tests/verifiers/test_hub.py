import importlib
import json
import pickle

import pytest

from hf_factuality.errors import HubError
from hf_factuality.spans import Label
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
from hf_factuality.verifiers.ensemble import CalibratedJudge, MajorityJudge, ScoreCalibration
from hf_factuality.verifiers.hub_format import CONFIG_NAME, PARTS
from hf_factuality.verifiers.judges.hhem import HHEMVerifier
from hf_factuality.verifiers.judges.minicheck import MiniCheckVerifier
from hf_factuality.verifiers.pipeline import load_pipeline, save_pipeline
from tests.generation.fake_server import FAST, FakeServer
from tests.verifiers import CASES
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

    def __init__(self, least=1, inner=None, options=None):
        self.least, self.inner, self.options = least, inner, options

    def config(self):
        return {"least": self.least, "inner": self.inner, "options": self.options}

    def judge(self, inputs):
        enough = [len(item.claim.split()) >= self.least for item in inputs]
        return [Judgement(Label.SUPPORTED if yes else Label.UNVERIFIABLE) for yes in enough]


WORDY = f"{__name__}:Wordy"


def wordy(**arguments):
    return VerifierPipeline(SentenceExtractor(), Wordy(**arguments))


def asking(client=None, **arguments):
    """Two stages that ask a server where nobody listens."""
    client = client or ChatClient(CLOSED, "fake", cache=False)
    return VerifierPipeline(FActScoreExtractor(client, **arguments), LLMJudge(client))


def read(folder):
    return json.loads((folder / CONFIG_NAME).read_text(encoding="utf-8"))


def write(folder, config):
    (folder / CONFIG_NAME).write_text(config if isinstance(config, str) else json.dumps(config), encoding="utf-8")
    return folder


def everything(folder):
    return "".join(path.read_text(encoding="utf-8") for path in folder.rglob("*") if path.is_file())


def judge_with(folder, name, settings):
    """A saved lexical pipeline whose judge is another."""
    return edited(LexicalVerifier(), folder, lambda config: config.update(judge={"class": name, "settings": settings}))


def edited(verifier, folder, edit):
    """A saved pipeline whose file somebody has changed."""
    config = read(save_pipeline(verifier, folder))
    edit(config)
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
    first = loaded.verify(INPUTS)[1].spans[0]
    assert first.text(INPUTS[1].completion) == "The cat sat on the mat."  # without the number of the item
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


def test_stages_share_their_client_again(tmp_path):
    verifier = asking(retries=1, on_failure="drop")
    loaded = load_pipeline(save_pipeline(verifier, tmp_path), client={"cache": False})
    assert loaded.judge.client is loaded.extractor.client
    assert loaded.extractor.prompt.text == verifier.extractor.prompt.text
    assert (loaded.extractor.retries, loaded.extractor.on_failure) == (1, "drop")


def test_ensembles(nli_model, tmp_path):
    nli = NLIVerifier(nli_model, device="cpu").judge
    judges = [nli, LexicalJudge(), LexicalJudge(0.9)]
    inner = CalibratedJudge(judges, ScoreCalibration((1.0, 0.5, 0.1), (0.1, 0.2, 0.3), -0.4), 0.6)
    verifier = VerifierPipeline(
        SentenceExtractor(), MajorityJudge([*judges, inner], [1, 2, 3, 0.5], tie="first"), requires_evidence=False
    )
    loaded = load_pipeline(save_pipeline(verifier, tmp_path), device="cpu")
    assert loaded.verify(INPUTS) == verifier.verify(INPUTS)
    assert loaded.requires_evidence is False


def test_every_name_resolves():
    assert all(isinstance(getattr(importlib.import_module(module), name), type) for name, module in PARTS.items())


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
    cases = [
        (
            VerifierPipeline(SentenceExtractor(), Mute()),
            r"Mute \(judge\) cannot be described: give it a method `config",
        ),
        (Own(SentenceExtractor(), LexicalJudge()), "has a `verify` of its own"),
        (loaded, "the judge cannot be saved: NLIJudge was given a loaded model"),
        (wordy(least=float("nan")), "'judge/least' is a float"),
        (wordy(options={"file": "x"}), "not those of a file or part"),
        (wordy(options={1: "x"}), "text keys"),
        (wordy(least={1, 2}), "is a set, which is no plain value"),
    ]
    for verifier, message in cases:
        with pytest.raises(HubError, match=message):
            save_pipeline(verifier, tmp_path / "none")
    assert not (tmp_path / "none").exists()


KEYS = ["sk-abcdefghijklmnop1234", "Bearer abcdefghijklmnop1234", "Bearer abcdefghijklmnop", "a=1%20hf_" + "aBcD1" * 7]
KEYS += [start + "aBcD1" * 7 for start in ("x%3Dghp_", "tokenhf_", "id1sk-", "my-task-")]
KEYS += ["my-task-abcdefgh-" + "aBcD1" * 3, "tokensk-abcdefgh-ijklmnop"]
SETTINGS = [{"api_key": "x"}, {"headers": [{"Authorization": "x"}]}, {"password": 1}]


@pytest.mark.parametrize("options", [*SETTINGS, *({"name": key} for key in KEYS)])
def test_keys_are_never_written(tmp_path, options):
    for verifier in (wordy(options=options), LLMVerifier("m", CLOSED, cache=False, extra_body={"x": options})):
        with pytest.raises(HubError, match="looks like a key"):
            save_pipeline(verifier, tmp_path)


def test_names_of_models_are_no_keys(tmp_path):
    """`task-...` holds what a key of OpenAI begins with, `max_tokens` what a setting with one ends in."""
    options = {"model": "me/multi-task-deberta-v3-large", "max_tokens": 1, "by": "hf_factuality_verifier_of_2024"}
    others = ["lab/pypi-malware-detector-base", "lab/npm_package_risk_judge", "lab/SK-BERT-base-multilingual"]
    options["others"] = others
    assert read(save_pipeline(wordy(options=options), tmp_path))["judge"]["settings"]["options"] == options


def test_a_key_in_another_place_is_found(tmp_path):
    verifier = LLMVerifier("m", CLOSED, cache=False, api_key=SECRET, extra_body={"user": SECRET})
    with pytest.raises(HubError, match="a client's key stands in a setting"):
        save_pipeline(verifier, tmp_path)
    assert list(tmp_path.iterdir()) == []


# -- what is not loaded -----------------------------------------------------------------------------------------------


def test_classes_of_others_need_consent(tmp_path):
    verifier = wordy(least=4, inner=LexicalJudge(0.1), options={"a": [1, "b"]})
    folder = save_pipeline(verifier, tmp_path)
    with pytest.raises(HubError, match=f"judge of .*'{WORDY}' is a class outside.*trust_remote_code=True"):
        load_pipeline(folder)
    loaded = load_pipeline(folder, trust_remote_code=True)
    assert loaded.verify(INPUTS) == verifier.verify(INPUTS)
    assert loaded.judge.inner.threshold == 0.1 and loaded.judge.options == {"a": [1, "b"]}


@pytest.mark.parametrize(("name", "settings", "trust", "message"), CASES["bad_parts"])
def test_unknown_classes_and_bad_settings_are_refused_by_name(tmp_path, monkeypatch, name, settings, trust, message):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(HubError, match=message):
        load_pipeline(judge_with(tmp_path / "pipeline", name, settings), trust_remote_code=trust)
    assert not (tmp_path / "run").exists()


def test_a_model_with_code_needs_consent(nli_model, tmp_path):
    folder = judge_with(tmp_path, "NLIJudge", {"model": nli_model, "trust_remote_code": True})
    with pytest.raises(HubError, match="pass trust_remote_code=True"):
        load_pipeline(folder)
    assert load_pipeline(folder, trust_remote_code=True, device="cpu").verify(INPUTS)


@pytest.mark.parametrize(("text", "message"), [*CASES["bad_files"], ("[" * 100_000, "is no JSON")])
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
    with pytest.raises(HubError, match="a folder.*revisions"):
        load_pipeline(tmp_path, "main")


@pytest.mark.parametrize(
    "name", ["/etc/passwd", "../secret.txt", "prompts/../../secret.txt", "prompts/x.py", "prompts\\x.txt", 3, "x.txt"]
)
def test_prompts_stay_in_their_folder(tmp_path, name):
    (tmp_path / "secret.txt").write_text("{{claim}} {{evidence}}")
    verifier, folder = LLMVerifier("m", CLOSED, cache=False), tmp_path / "pipeline"
    for given, message in (
        ({"file": name}, "a prompt is a .txt file under prompts/"),
        (str(name), "judge/prompt of .* must be a file of the pipeline"),  # no name of a prompt either
    ):
        edited(verifier, folder, lambda config, given=given: config["judge"]["settings"].update(prompt=given))
        with pytest.raises(HubError, match=message):
            load_pipeline(folder)


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


class Headers(FakeServer):
    async def _handle(self, request):
        self.seen.add(request.headers.get("Authorization"))
        return await super()._handle(request)


def test_an_address_of_a_file_gets_no_key(tmp_path, monkeypatch):
    """Neither at first nor after a copy to another process, whatever the environment holds."""
    monkeypatch.delenv("HF_FACTUALITY_BASE_URL", raising=False)
    monkeypatch.setenv("HF_FACTUALITY_API_KEY", SECRET)
    with Headers(model="m") as server:
        folder = save_pipeline(LLMVerifier("m", server.url, cache=False), tmp_path)
        loaded = load_pipeline(folder, client={"cache": False})
        controlled = load_pipeline(folder, base_url=server.url, client={"cache": False})
        for verifier, keys in ((loaded, {None}), (controlled, {f"Bearer {SECRET}"})):
            server.seen = set()
            verifier.verify(INPUTS[:1])
            pickle.loads(pickle.dumps(verifier)).verify(INPUTS[:1])
            assert server.seen == keys
    for given in ({"api_key": "k"}, {"api_key_env": "HF_FACTUALITY_API_KEY"}):
        with pytest.raises(HubError, match="a key.*address"):
            load_pipeline(folder, client=given)


@pytest.mark.parametrize("setting", ["api_key", "api_key_env", "cache"])
def test_a_file_says_nothing_about_keys_and_cache(tmp_path, setting):
    def edit(config):
        config["judge"]["settings"]["client"]["settings"][setting] = "OPENAI_API_KEY"

    folder = edited(LLMVerifier("m", CLOSED, cache=False), tmp_path, edit)
    with pytest.raises(HubError, match=f"sets '{setting}' of a client"):
        load_pipeline(folder, base_url=CLOSED)

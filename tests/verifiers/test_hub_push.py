import json

import pytest

from hf_factuality.errors import HubError
from hf_factuality.verifiers import LexicalVerifier, LLMVerifier, NLIVerifier, VerifierPipeline
from hf_factuality.verifiers.hub_format import CONFIG_NAME
from hf_factuality.verifiers.pipeline import load_pipeline, push_pipeline
from tests.hub.loopback import Blob, hub  # noqa: F401 - a fixture
from tests.verifiers.test_hub import CLOSED, INPUTS, SECRET, nli_model  # noqa: F401


@pytest.fixture(autouse=True)
def no_server_of_this_machine(monkeypatch):
    monkeypatch.delenv("HF_FACTUALITY_BASE_URL", raising=False)


def change(repo, edit):
    """Commit another `verifier_config.json`, as somebody else could."""
    files = dict(repo.find("main").files)
    config = json.loads(files[CONFIG_NAME].data)
    edit(config)
    repo.commit("main", "edited", files | {CONFIG_NAME: Blob(json.dumps(config).encode())})


def test_push_and_load(hub):  # noqa: F811
    verifier = LexicalVerifier(threshold=0.7)
    address = verifier.push_to_hub("lexical", private=True, revision="v1")
    repo = hub.repos["model", "someone/lexical"]
    assert address == f"{hub.url}/someone/lexical/commit/{repo.refs['v1']}"
    assert repo.private and repo.files() == {} and len(repo.log) == 2
    card = repo.files("v1")["README.md"].decode()
    assert 'from_pretrained("someone/lexical")' in card and "| judge | `LexicalJudge` |" in card
    loaded = VerifierPipeline.from_pretrained("someone/lexical", "v1")
    assert loaded.verify(INPUTS) == verifier.verify(INPUTS)
    # A model card names the commit that judged.
    assert loaded.origin == {"repo_id": "someone/lexical", "revision": repo.refs["v1"]}
    repo.find("main").files["README.md"] = Blob(b"my own card")
    repo.find("main").files["prompts/old.txt"] = Blob(b"of an older pipeline")
    push_pipeline(verifier, "lexical")
    assert repo.files() == repo.files("v1") | {"README.md": b"my own card"}
    assert VerifierPipeline.from_pretrained("someone/lexical").verify(INPUTS) == verifier.verify(INPUTS)


def test_a_pull_request(hub):  # noqa: F811
    repo = hub.add("lab/judge")
    address = push_pipeline(LexicalVerifier(), "lab/judge", create_pr=True)
    assert address == f"{hub.url}/lab/judge/discussions/1"
    assert repo.files() == {} and CONFIG_NAME in repo.files("refs/pr/1")


def test_the_repository_of_a_model_is_left_alone(hub):  # noqa: F811
    repo = hub.add("someone/model", {"config.json": b'{"model_type": "bert"}'})
    with pytest.raises(HubError, match="'someone/model'.*'bert'"):
        push_pipeline(LexicalVerifier(), "someone/model")
    assert len(repo.log) == 1


def test_no_address_goes_to_the_hub_and_none_comes_from_it(hub):  # noqa: F811
    push_pipeline(LLMVerifier("org/model", "http://10.1.2.3:8000/v1", api_key=SECRET, cache=False), "someone/llm")
    repo = hub.repos["model", "someone/llm"]
    everything = b"".join(repo.files().values())
    assert len(everything) > 500 and b"10.1.2.3" not in everything and SECRET.encode() not in everything
    with pytest.raises(HubError, match="asks a model on a server: pass base_url="):
        load_pipeline("someone/llm")
    assert load_pipeline("someone/llm", base_url=CLOSED, client={"cache": False}).judge.client.server == CLOSED

    def edit(config):
        config["judge"]["settings"]["client"]["settings"]["base_url"] = "https://evil.example/v1"

    change(repo, edit)
    with pytest.raises(HubError, match="it was saved with 'evil.example'"):
        load_pipeline("someone/llm")
    assert load_pipeline("someone/llm", base_url=CLOSED, client={"cache": False}).judge.client.server == CLOSED


def test_an_address_that_holds_the_key_is_no_hindrance(hub):  # noqa: F811
    push_pipeline(LLMVerifier("org/model", f"{CLOSED}/{SECRET}", api_key=SECRET, cache=False), "someone/llm")
    assert SECRET.encode() not in b"".join(hub.repos["model", "someone/llm"].files().values())


def test_folders_of_this_machine_are_not_pushed_or_followed(hub, nli_model):  # noqa: F811
    with pytest.raises(HubError, match="push the model first"):
        push_pipeline(NLIVerifier(nli_model, device="cpu"), "someone/nli")
    assert hub.calls == []
    push_pipeline(LexicalVerifier(), "someone/nli")
    judge = {"class": "NLIJudge", "settings": {"model": nli_model}}
    change(hub.repos["model", "someone/nli"], lambda config: config.update(judge=judge))
    with pytest.raises(HubError, match="refers to the path"):
        load_pipeline("someone/nli")


@pytest.mark.parametrize("name", ["/home/me/private.sqlite", "private.sqlite"])
def test_a_repository_opens_no_knowledge_of_this_machine(hub, tmp_path, monkeypatch, name):  # noqa: F811
    monkeypatch.chdir(tmp_path)
    (tmp_path / "private.sqlite").touch()
    push_pipeline(LexicalVerifier(), "someone/spy")
    for part in (name, {"class": "KnowledgeBase", "settings": {"knowledge": name}}):
        retriever = {"class": "TopicRetriever", "settings": {"base": part}}
        change(hub.repos["model", "someone/spy"], lambda config, part=retriever: config.update(retriever=part))
        with pytest.raises(HubError, match="private.sqlite"):
            load_pipeline("someone/spy")

"""The example, as a user runs it: in the closed world, and on questions and a knowledge base."""

import json
from functools import partial

import pytest

from hf_factuality.hub.results import load_results
from hf_factuality.retrieval import CorpusRetriever, KnowledgeBase
from hf_factuality.worlds import searching
from tests.conftest import fast_few
from tests.examples.conftest import FAST, checked_card
from tests.trainers.tool_rollouts import save_tool_model


FEW = ["--max_steps", "1", "--num_generations", "2", "--max_completion_length", "24", *FAST]


@pytest.fixture
def small_search(tmp_path, monkeypatch):
    """A world of few people, with a policy that was hardly trained."""
    small = partial(searching.SearchWorldConfig, num_people=8, num_values=4, steps=2, batch_size=4, hidden_size=16)
    monkeypatch.setattr(searching, "SearchWorldConfig", small)
    monkeypatch.setenv("HF_FACTUALITY_CACHE", str(tmp_path / "cache"))


@pytest.mark.slow
@pytest.mark.parametrize("citations", fast_few(["statement", "end"], 0))
def test_the_closed_world_measures_before_and_after(run, small_search, tmp_path, capsys, citations):
    out = tmp_path / "out"
    run(
        "--output_dir",
        out,
        "--citations",
        citations,
        "--credit",
        "to_go" if citations == "statement" else "flip",
        *FEW,
    )
    assert "searches per answer" in capsys.readouterr().out
    found = {it["metric"]: it for it in load_results(out / "results-after.json")["results"]}
    assert {"right", "supported", "citation_recall", "calls"} <= set(found)
    assert found["right"]["higher_is_better"] is True
    assert found["calls"]["higher_is_better"] is None and found["declined"]["higher_is_better"] is None
    assert {it["verifier"]["name"] for it in found.values()} == {"SearchWorldVerifier"}
    assert (out / "training_log.jsonl").exists()
    card = checked_card(out)
    assert "whether what its statements cite supports them" in card and "SearchWorldVerifier" in card


@pytest.mark.slow
def test_questions_and_a_knowledge_base(run, tmp_path):
    model = save_tool_model(tmp_path / "model", "qwen3")
    (tmp_path / "data").mkdir()
    rows = [{"question": f"Where is {city}?", "answer": ["Poland"]} for city in ("Warsaw", "Lodz")]
    (tmp_path / "data" / "train.jsonl").write_text("\n".join(map(json.dumps, rows)))
    base = KnowledgeBase.build(tmp_path / "kb.sqlite", [("Warsaw", "Warsaw is in Poland.")], show_progress=False)
    CorpusRetriever.build(base).save_pretrained(tmp_path / "kb.sqlite.bm25")
    given = ["--model_name_or_path", model, "--dataset_name", tmp_path / "data", "--output_dir", tmp_path / "out"]
    run(*given, "--knowledge", tmp_path / "kb.sqlite", "--credit", "to_go", "--verify_scope", "answer", *FEW)
    assert (tmp_path / "out" / "model.safetensors").exists()
    with pytest.raises(ValueError, match="--knowledge"):
        run(*given, *FEW)

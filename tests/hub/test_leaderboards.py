"""Results in the files that the Hub reads: only of whole benchmark datasets, with the task that the dataset itself defines."""

import logging

import pytest
import yaml
from huggingface_hub import EvalResultEntry, parse_eval_result_entries

import hf_factuality
from hf_factuality.errors import HubError
from hf_factuality.hub.leaderboards import FOLDER, LeaderboardResult, leaderboard_files, write_leaderboard_files
from hf_factuality.hub.push import plan_push, push
from hf_factuality.hub.results import folder_fingerprint, load_results, write_results
from tests.evaluation.test_results import MACHINE, entry
from tests.hub.cards.test_card_results import BASE
from tests.hub.push_inputs import write, write_model


GSM8K = {"id": "openai/gsm8k", "config": "main", "split": "test"}
TASKS = {
    "name": "GSM8K",
    "tasks": [{"id": "words", "config": "main", "split": "test"}, {"id": "other", "split": "test"}],
}
WHERE = {"dataset": "openai/gsm8k", "split": "test", "revision": "e" * 40, "style": "chat", "rows": 4, "used": 4}
CARD = "---\ntags:\n- hf_factuality\n---\n\n# my-model\n\n## Results\n\nNone recorded.\n"


def result(benchmark="gsm8k", metric="accuracy", leaderboard=GSM8K, **changes):
    found = entry(benchmark, metric, **{"dataset": WHERE, **changes})
    return found if leaderboard is None else found | {"leaderboard": leaderboard}


@pytest.fixture
def benchmark(hub):
    return hub.add("openai/gsm8k", {"eval.yaml": yaml.safe_dump(TASKS).encode()}, "dataset")


def test_the_entry_is_what_huggingface_hub_reads(benchmark):
    found = leaderboard_files(
        [LeaderboardResult(result(value=0.25), "https://huggingface.co/me/m/blob/main/results.json")]
    )
    assert found.left_out == [] and list(found.texts) == ["gsm8k.yaml"]
    (read,) = parse_eval_result_entries(yaml.safe_load(found.texts["gsm8k.yaml"]))
    assert read == EvalResultEntry(
        dataset_id="openai/gsm8k",
        task_id="words",
        value=0.25,
        dataset_revision="e" * 40,
        date=result()["created"],
        source_url="https://huggingface.co/me/m/blob/main/results.json",
        source_name="hf-factuality evaluate",
        notes="hf_factuality, style chat",
    )


@pytest.mark.parametrize(
    ("results", "reason"),
    [
        ([result(leaderboard=None)], "not the whole default dataset of a benchmark on the Hub"),
        ([result(benchmark="../../notes")], "its benchmark names a folder"),
        ([result(metric="factscore")], "leaderboards rank by accuracy"),
        ([result(value=None, n_scored=0, confidence_interval=None)], "no value"),
        ([result(), result(generation={"max_new_tokens": 9})], "it was measured in several ways"),
        ([result(leaderboard=GSM8K | {"config": "socratic"})], "defines no task of this configuration and split"),
        ([result(leaderboard=GSM8K | {"id": "openai/none"})], "openai/none"),
    ],
)
def test_no_entry_rather_than_a_wrong_one(benchmark, results, reason):
    found = leaderboard_files([LeaderboardResult(it) for it in results])
    assert found.texts == {} and len(found.left_out) == 1 and reason in found.left_out[0]


@pytest.mark.parametrize("content", [b"tasks: no list", b"- 1", b"a: [", None])
def test_a_dataset_that_defines_no_tasks(hub, content):
    hub.add("openai/gsm8k", {} if content is None else {"eval.yaml": content}, "dataset")
    found = leaderboard_files([LeaderboardResult(result())])
    assert found.texts == {} and "openai/gsm8k" in found.left_out[0]


def test_without_a_network_nothing_is_written(tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        write_leaderboard_files(tmp_path, [LeaderboardResult(result())])
    assert "the Hub could not be asked" in caplog.text and len(caplog.records) == 1
    assert not (tmp_path / FOLDER).exists()


def test_files_of_results_that_are_gone_are_removed_and_others_stay(benchmark, tmp_path):
    write_leaderboard_files(tmp_path, [LeaderboardResult(result())])
    assert (tmp_path / FOLDER / "gsm8k.yaml").exists()
    own = write(tmp_path / FOLDER, {"hle.yaml": b"- {dataset: {id: cais/hle, task_id: hle}, value: 1}\n"}) / "hle.yaml"
    write_leaderboard_files(tmp_path, [])
    assert [path.name for path in (tmp_path / FOLDER).iterdir()] == [own.name]
    (tmp_path / FOLDER / "gsm8k.yaml").write_text("mine")
    write_leaderboard_files(tmp_path, [LeaderboardResult(result())])
    assert (tmp_path / FOLDER / "gsm8k.yaml").read_text() == "mine"


@pytest.mark.parametrize("make", [lambda there, other: there.symlink_to(other), lambda there, other: there.touch()])
def test_nothing_is_written_through_a_link(benchmark, tmp_path, make):
    (tmp_path / "other").mkdir()
    (tmp_path / "m").mkdir()
    make(tmp_path / "m" / FOLDER, tmp_path / "other")
    with pytest.raises(HubError, match="must be a folder and no link"):
        write_leaderboard_files(tmp_path / "m", [LeaderboardResult(result())])
    assert list((tmp_path / "other").iterdir()) == []


def test_it_is_pushed_with_the_model(benchmark, hub, tmp_path):
    folder = tmp_path / "my-model"
    write_model(folder)
    (folder / "README.md").write_text(CARD)
    model = BASE | {"name": "my-model", "fingerprint": folder_fingerprint(folder)}
    write_results(folder / "results.json", model, [result(value=0.75)], MACHINE)
    push(folder, "someone/my-model")
    files = hub.repos["model", "someone/my-model"].files()
    (read,) = parse_eval_result_entries(yaml.safe_load(files[".eval_results/gsm8k.yaml"]))
    assert (read.dataset_id, read.task_id, read.value) == ("openai/gsm8k", "words", 0.75)
    assert read.source_url == "https://huggingface.co/someone/my-model/blob/main/results.json"
    assert b"model-index" in files["README.md"]


@pytest.mark.parametrize(
    "content", [b"", b"a: 1", b"- 1", b"- {dataset: {id: a/b}, value: 1}", b"[", b"- {value: 1}", b"[" * 9000]
)
def test_a_file_that_the_hub_cannot_read_is_refused(tmp_path, content):
    write_model(tmp_path / "m")
    write(
        tmp_path / "m",
        {".eval_results/x.yaml": content, ".eval_results/.token.txt": b"x", ".eval_results/a/b.yaml": b""},
    )
    with pytest.raises(HubError, match="x.yaml is no file of results as the Hub reads it"):
        plan_push(tmp_path / "m")
    plan = plan_push(tmp_path / "m", exclude=["x.yaml"])
    assert not any(name.startswith(".eval_results") for name in plan.files)


@pytest.mark.parametrize(("more", "known"), [({}, True), ({"limit": 1}, False), ({"split": "train"}, False)])
def test_evaluate_says_which_results_are_of_a_whole_benchmark_dataset(tmp_path, monkeypatch, more, known):
    rows = [{"question": "1 + 1?", "answer": "#### 2"}, {"question": "2 + 2?", "answer": "#### 4"}]
    sources = "hf_factuality.data.benchmarks.sources"
    monkeypatch.setattr(
        f"{sources}._load_dataset", lambda reader, repo, split, _: (split or reader.split, rows, "e" * 40)
    )
    monkeypatch.setattr(f"{sources}._commit", lambda repo, revision: None)
    answers = tmp_path / "answers.jsonl"
    answers.write_text("".join(f'{{"id": "{number}", "completion": "#### 2"}}\n' for number in range(2)))
    found = hf_factuality.evaluate(benchmark="gsm8k", answers=answers, out=tmp_path / "results.json", **more)
    (entry_,) = load_results(found.out)["results"]
    assert entry_.get("leaderboard") == (GSM8K if known else None)

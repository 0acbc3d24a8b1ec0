"""The example, as a user runs it: on the models that it makes, on others by name, and with what can be wrong."""

import json
import random
import re

import pytest
from datasets import Dataset

from hf_factuality.demos import token_rewards as demo
from hf_factuality.errors import CheckpointError
from hf_factuality.rewards import TokenRewardModel
from tests.examples.conftest import FAST


FEW = ["--gradient_accumulation_steps", "1", "--max_completion_length", "16", *FAST]


@pytest.mark.parametrize(
    ("text", "praise", "complaints", "well_formed"),
    [
        (" The soup was hot. Our beer came cold and crisp. The bread was dry.", 3, 1, True),
        (" The beer was warm. The bread was warm. Our crème brûlée came soft and cold.", 2, 2, True),
        (" The soup was hot. Our beer came cold and crisp.", 3, 0, False),
        (" The soup was hot. The soup was hot. The soup was hot. The soup was hot.", 4, 0, False),
        (" The soup was flat. The tea was hot. The tea was cold.", 1, 1, False),
        (" The soup was hot. The tea was hot. Our tea came hot hot.", 2, 0, False),
        (" soup hot rich rich", 0, 0, False),
        ("", 0, 0, False),
    ],
)
def test_the_exact_reader(text, praise, complaints, well_formed):
    review = demo.read_review(text)
    assert (review.praise, review.complaints, review.well_formed) == (praise, complaints, well_formed)
    words = [re.search(r"\w+$", text[:end])[0] for end, _ in review.ends]
    assert set(words) <= set(demo.ADJECTIVES) and sum(sign for _, sign in review.ends) == praise - complaints


def test_the_two_tokenizers_differ_and_keep_the_text():
    rng = random.Random(0)
    words, pieces = demo.word_tokenizer(), demo.byte_tokenizer(rng)
    for _ in range(20):
        text = demo.request("Blue Door") + demo.write_review(rng)
        assert demo.read_review(text[len(demo.request("Blue Door")) :]).well_formed
        ids = words(text)["input_ids"]
        assert words.decode(ids) == text and words.pad_token_id not in ids
        assert pieces.decode(pieces(text)["input_ids"]) == text
        assert len(pieces(text)["input_ids"]) > 1.2 * len(ids)


@pytest.mark.slow
def test_the_demo_scores_before_and_after(run, monkeypatch, tmp_path, capsys):
    """With models that have hardly been trained, and few steps; that the score rises, `test_the_demo_as_it_stands` shows."""
    monkeypatch.setattr(demo.ReviewDemo, "steps", 20)
    monkeypatch.setattr(demo, "POLICY_BATCH", 16)
    monkeypatch.setattr(demo, "REWARD_BATCH", 8)
    monkeypatch.setattr(demo.ReviewDemo, "samples", 5)
    out = tmp_path / "out"
    options = ["--max_steps", "2", "--warmup_steps", "1", "--learning_rate", "1e-3", "--use_cpu", "true"]
    run("--output_dir", out, "--disable_tqdm", "true", *options)
    printed = capsys.readouterr().out
    assert "reward per review" in printed and "interval of the change" in printed and " critic" in printed
    (log,) = [json.loads(line) for line in (out / "training_log.jsonl").read_text().splitlines()]
    assert "value/explained_variance" in log and "rewards/token_reward_model/mean" in log and "train_runtime" in log
    assert log["token_reward_model/unscored_tokens"] == 0
    results = json.loads((out / "before-and-after.json").read_text(encoding="utf-8"))
    before, after = results["before"], results["after"]
    assert before["n"] == after["n"] == 100
    assert after["score"] != before["score"]
    card = (out / "README.md").read_text(encoding="utf-8")
    assert "token_reward_model" in card and str(tmp_path) not in card
    assert (out / "critic" / "model.safetensors").is_file() and not list(out.rglob("*policy*"))

    # The models are found again, by the demo and as any others by their folders.
    start = tmp_path / "out-start"
    times = {path: path.stat().st_mtime_ns for path in start.rglob("*.safetensors")}
    assert len(times) == 2
    again = demo.ReviewDemo(str(out))
    assert {path: path.stat().st_mtime_ns for path in start.rglob("*.safetensors")} == times
    file = tmp_path / "data" / "prompts.jsonl"
    file.parent.mkdir()
    again.train_dataset.to_json(file)
    run(
        "--model_name_or_path", again.model_dir, "--reward_model", again.reward_model_dir, "--dataset_name",
        file.parent, "--reward_differences", "true", "--reward_label", "0", "--max_steps", "1", "--output_dir",
        tmp_path / "named", *FAST,
    )  # fmt: skip
    assert (tmp_path / "named" / "model.safetensors").is_file() and (tmp_path / "named" / "README.md").is_file()


@pytest.mark.slow
def test_the_demo_as_it_stands(run, tmp_path):
    """Of 2.2 complaints per review hardly any is left, and the reviews are as often reviews as they were."""
    run("--output_dir", tmp_path / "out", "--use_cpu", "true", "--disable_tqdm", "true")
    results = json.loads((tmp_path / "out" / "before-and-after.json").read_text(encoding="utf-8"))
    before, after = results["before"], results["after"]
    assert abs(before["score"]) < 0.5 and after["score"] > 5
    assert before["complaints"] > 1.5 and after["complaints"] < 0.2
    assert after["well_formed"] > before["well_formed"] - 0.15
    # The reward model has learnt what a word means of which dish: it agrees with the exact reader.
    reward = TokenRewardModel(str(tmp_path / "out-start" / "reward-model"))
    rng = random.Random(1)
    texts = [demo.write_review(rng) for _ in range(50)]
    found = reward(prompts=[demo.request("Blue Door")] * 50, completion_texts=texts)
    for text, spans in zip(texts, found, strict=True):
        expected = dict(demo.read_review(text).ends)
        assert sum(abs(value - expected.get(end, 0)) for _, end, value in spans) < 3


def test_refused_before_training_starts(run, tiny_model, tmp_path):
    Dataset.from_dict({"question": ["Who?"] * 8}).to_json(tmp_path / "data" / "rows.jsonl")
    named = ["--model_name_or_path", tiny_model, "--output_dir", tmp_path / "out", *FEW]
    for options, error, message in [
        ([], ValueError, "name all three"),
        (["--reward_model", tiny_model], ValueError, "name all three"),
        (
            ["--reward_model", tiny_model, "--dataset_name", tmp_path / "data"],
            ValueError,
            "needs the columns 'prompt'",
        ),
    ]:
        with pytest.raises(error, match=message):
            run(*named, *options)
    Dataset.from_dict({"prompt": ["Who?"] * 8}).to_json(tmp_path / "data" / "rows.jsonl")
    with pytest.raises(CheckpointError, match="scores would be random"):
        run(*named, "--reward_model", tiny_model, "--dataset_name", tmp_path / "data")


def test_a_folder_that_cannot_be_written(tmp_path, monkeypatch):
    monkeypatch.setattr(demo.ReviewDemo, "steps", 1)
    (tmp_path / "out-start").write_text("in the way", encoding="utf-8")
    with pytest.raises(CheckpointError, match="choose another output_dir"):
        demo.ReviewDemo(str(tmp_path / "out"))

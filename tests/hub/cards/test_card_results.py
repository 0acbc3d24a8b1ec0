"""Results reach a card from files alone, of this model alone, and every number of it is in them."""

import json
import logging
import os
from pathlib import Path

import pytest
from huggingface_hub import ModelCard
from huggingface_hub.repocard_data import eval_results_to_model_index, model_index_to_eval_results

from hf_factuality.errors import HubError
from hf_factuality.hub.cards.card import update_card, validate_card
from hf_factuality.hub.results import SCHEMA, folder_fingerprint, measured_entry, write_results
from tests.evaluation.test_results import MACHINE, entry
from tests.hub.cards.card_oracle import assert_numbers_come_from, assert_valid_header, header_and_text, shown_numbers
from tests.trainers.test_mask_dpo_trainer import MaskDPOTrainer, make


BASE = {"name": "base-model", "revision": None, "adapter": None, "dtype": "float32", "server": None}
GSM8K = {"dataset": "openai/gsm8k", "split": "test", "revision": "e" * 40, "rows": 1319, "used": 4}


@pytest.fixture(scope="module")
def trainer(tiny_model, tmp_path_factory):
    """A trainer with its model saved, as after training."""
    made = make(MaskDPOTrainer, tiny_model, tmp_path_factory.mktemp("card") / "my-model")
    made.save_model()
    return made


@pytest.fixture
def folder(trainer, tmp_path, monkeypatch):
    """The trainer's folder, without results of other tests."""
    found = Path(trainer.args.output_dir)
    for path in found.glob("results*.json"):
        path.unlink()
    monkeypatch.setattr(trainer, "card_results", None)
    return found


def model_of(folder, **changes):
    return BASE | {"name": Path(folder).name, "fingerprint": folder_fingerprint(Path(folder))} | changes


def card_of(trainer, folder):
    trainer.create_model_card(model_name="my-model")
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert_valid_header(header_and_text(card)[0])
    return card


def test_numbers_before_and_after_come_from_files(trainer, folder, tiny_model):
    """Found by themselves: of the base model by its weights, of this one by its weights."""
    interval = {"low": 0.123456, "high": 0.987654, "level": 0.95, "resamples": 1000, "seed": 0}
    before, after = folder / "results-base.json", folder / "results.json"
    write_results(before, model_of(tiny_model), [entry(value=0.3141, dataset=GSM8K), entry("halluqa")], MACHINE)
    ours = [entry(value=0.54321, n=9, confidence_interval=interval, dataset=GSM8K | {"used": 4}),
            entry("longfact", "safe", value=None, n_scored=0, confidence_interval=None),
            entry("halluqa", value=0.25, generation={"max_new_tokens": 99})]  # fmt: skip
    write_results(after, model_of(folder), ours, MACHINE)
    card = card_of(trainer, folder)
    assert "| gsm8k | accuracy | 0.314 (0.250 to 0.750) | 0.543 (0.123 to 0.988) | 4 before, 9 after |" in card
    # What was measured differently before is not compared, and what could not be scored is in the text only.
    assert "| halluqa | accuracy | not measured | 0.250 (0.250 to 0.750) | 4 |" in card
    assert "halluqa, accuracy: measured differently before (generation.max_new_tokens)" in card
    assert "| longfact | safe | not measured | n/a | 0 of 4 |" in card
    assert "`results-base.json` and `results.json`" in card
    assert assert_numbers_come_from(card, before, after) > 20
    header = header_and_text(card)[0]
    (gsm8k,) = (it for it in header["model-index"][0]["results"] if it["dataset"]["type"] == "openai/gsm8k")
    assert gsm8k["dataset"] == {
        "type": "openai/gsm8k", "name": "openai/gsm8k", "split": "test", "revision": "e" * 40
    }  # fmt: skip
    (metric,) = gsm8k["metrics"]
    assert metric["type"] == "accuracy" and metric["value"] == 0.54321
    assert metric["args"] == {
        "benchmark": "gsm8k", "n": 9, "confidence_interval": [0.123456, 0.987654], "confidence_level": 0.95,
        "before": 0.3141, "before_n": 4, "before_confidence_interval": [0.25, 0.75], "before_confidence_level": 0.95,
        "results_file": "results.json",
    }  # fmt: skip
    assert "longfact" not in str(header["model-index"])
    assert validate_card(folder) is False  # offline: by the rules kept here
    # There and back through huggingface_hub.
    name, found = model_index_to_eval_results(header["model-index"])
    assert name == "my-model" and eval_results_to_model_index(name, found) == header["model-index"]
    assert ModelCard.load(folder / "README.md").data.eval_results == found


def test_abstention_shows_the_shares_that_its_value_is_made_of(trainer, folder, tiny_model):
    """0.5 may be 3 of 4 right and 1 wrong, or 2 right and 2 declined."""
    parts = [{"accuracy": 0.75, "hallucination_rate": 0.25, "abstention_rate": 0.0, "n": 4},
             {"accuracy": 0.5, "hallucination_rate": 0.0, "abstention_rate": 0.5, "f1": "| a |"}]  # fmt: skip
    before, after = folder / "results-base.json", folder / "results.json"
    for path, model, own in ((before, model_of(tiny_model), parts[0]), (after, model_of(folder), parts[1])):
        write_results(path, model, [entry("a", "abstention", parts=own)], MACHINE)
    card = card_of(trainer, folder)
    for name, *shares in (("right", 0.75, 0.5), ("wrong", 0.25, 0.0), ("declined", 0.0, 0.5)):
        assert f"| a | abstention: {name} | {shares[0]:.3f} | {shares[1]:.3f} | 4 |" in card
    assert_numbers_come_from(card, before, after)
    before.unlink()
    assert "| a | abstention: wrong | not measured | 0.000 | 4 |" in card_of(trainer, folder)


def test_the_oracle_finds_a_number_that_is_in_no_file(trainer, folder):
    path = folder / "results.json"
    write_results(path, model_of(folder), [entry(value=0.54321)], MACHINE)
    card = card_of(trainer, folder)
    assert "0.543" in shown_numbers(card)
    with pytest.raises(AssertionError, match="0.544 is in none"):
        assert_numbers_come_from(card.replace("0.543", "0.544"), path)
    with pytest.raises(AssertionError):
        assert_numbers_come_from(card.replace("0.54321", "0.54322"), path)


@pytest.mark.parametrize(
    "given",
    [
        {"metrics": [{"name": "accuracy", "before": 0.1, "after": 0.9, "n": 7}], "setting": "greedy"},
        {"accuracy": 0.9},
        {"before": 0.1, "after": 0.9},
        {"after": {"accuracy": 0.9}},
        {},
        0.9,
        [0.9],
    ],
)
def test_numbers_that_somebody_says_are_refused(trainer, folder, given):
    trainer.card_results = given
    with pytest.raises(HubError, match="results for a card are files"):
        trainer.create_model_card()


def test_nothing_recorded(trainer, folder, tiny_model, caplog):
    assert "None recorded." in card_of(trainer, folder)
    trainer.card_results = {"after": folder / "results-gone.json"}
    card = card_of(trainer, folder)
    assert "None recorded." in card and "model-index" not in card and "results-gone.json does not exist" in caplog.text
    # The base model's results alone say nothing of this one.
    trainer.card_results = None
    write_results(folder / "results.json", model_of(tiny_model), [entry()], MACHINE)
    assert "None recorded." in card_of(trainer, folder)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"name": "somebody-else", "fingerprint": None}, "it is of 'somebody-else', not of 'my-model'"),
        ({"fingerprint": "0" * 32}, "other weights of 'my-model'"),
        ({"adapter": "an-adapter", "fingerprint": None}, "it is of 'an-adapter'"),
    ],
)
def test_results_of_another_model(trainer, folder, caplog, changes, message):
    """Found: left out with a warning. Named: refused."""
    path = folder / "results.json"
    write_results(path, model_of(folder, **changes), [entry(value=0.9)], MACHINE)
    with caplog.at_level(logging.WARNING):
        assert "None recorded." in card_of(trainer, folder)
    assert "results.json is left out of the card" in caplog.text and message in caplog.text
    for given in (path, [str(path)], {"after": path}):
        trainer.card_results = given
        with pytest.raises(HubError, match=message):
            trainer.create_model_card()


def test_a_file_of_the_base_model_is_no_result_of_this_one(trainer, folder, tiny_model):
    path = folder / "results.json"
    write_results(path, model_of(tiny_model), [entry(value=0.9)], MACHINE)
    trainer.card_results = {"after": path}
    with pytest.raises(HubError, match="has no place on this card"):
        trainer.create_model_card()


def test_a_name_alone_is_enough_only_if_somebody_says_so(trainer, folder, caplog):
    """Measured on a server, or on a file of answers: nothing but the name ties it to the weights."""
    path = folder / "results.json"
    model = BASE | {"name": "my-model", "server": "openai-compatible", "dtype": None}
    write_results(path, model, [entry(value=0.9)], MACHINE)
    assert "None recorded." in card_of(trainer, folder) and "name it as card_results" in caplog.text
    trainer.card_results = path
    assert "| 0.900 (" in card_of(trainer, folder)


def test_broken_files(trainer, folder, caplog):
    """Somebody else's `results.json` is none of our business; a broken one of ours is told."""
    (folder / "results.json").write_text('{"accuracy": 0.9}', encoding="utf-8")
    (folder / "results-2.json").write_text('{"schema": "hf_factuality.results/1"}', encoding="utf-8")
    assert "None recorded." in card_of(trainer, folder)
    assert "results-2.json lacks 'created'" in caplog.text and "results.json" not in caplog.text
    for name in ("results.json", "results-2.json"):
        trainer.card_results = folder / name
        with pytest.raises(HubError, match="no results for a card"):
            trainer.create_model_card()


@pytest.mark.slow
def test_malformed_entries_stop_no_card(trainer, folder, caplog):
    """Each would be an error deep in the writing of the card; `tests/evaluation/test_results.py` has the others."""
    path = folder / "results.json"
    good = {"schema": SCHEMA, "created": "x", "hf_factuality": "0", "model": model_of(folder), "environment": {}}
    for changes in (
        {"generation": {"temperature": "0.7"}},
        {"verifier": {"name": ["a"]}},
        {"value": 10**400},
        {"dataset": {"dataset": "a/b", "split": {"x": [1]}}},
        {"title": "a\ud800b"},
    ):
        path.write_text(json.dumps(good | {"results": [entry() | changes]}), encoding="utf-8")
        caplog.clear()
        assert "None recorded." in card_of(trainer, folder)
        assert "left out of the card" in caplog.text and "results.json" in caplog.text
        trainer.card_results = path
        with pytest.raises(HubError, match="no results for a card"):
            trainer.create_model_card()
        trainer.card_results = None
    path.write_text("[" * 200_000)
    assert "None recorded." in card_of(trainer, folder)
    path.write_text(json.dumps(good | {"results": [entry(value=0.5, generation={"temperature": None})]}))
    assert "| 0.500 (" in card_of(trainer, folder)


def test_text_of_a_file_is_escaped(trainer, folder):
    """A backslash before a bracket would undo the escape."""
    write_results(folder / "results.json", model_of(folder), [entry(title="\\[a](b) | <c>")], MACHINE)
    assert "\\\\\\[a\\](b) \\| \\<c>" in card_of(trainer, folder)


def test_no_results_while_training_goes_on(trainer, folder, monkeypatch):
    """A card that a checkpoint takes along is of other weights than the folder's; and no run is stopped by a wrong file."""
    write_results(folder / "results.json", model_of(folder), [entry(value=0.9)], MACHINE)
    monkeypatch.setattr(trainer, "is_in_train", True)
    assert "None recorded." in card_of(trainer, folder)
    trainer.card_results = {"accuracy": 0.9}
    assert "None recorded." in card_of(trainer, folder)


def test_the_later_of_two_measurements(trainer, folder):
    for name, value, day in (("results-a.json", 0.7, 2), ("results-b.json", 0.6, 1)):
        found = [entry(value=value, created=f"2026-01-0{day}T00:00:00Z")]
        write_results(folder / name, model_of(folder), found, MACHINE)
    card = card_of(trainer, folder)
    assert "| 0.700 (" in card and "0.600" not in card
    assert assert_numbers_come_from(card, folder / "results-a.json") > 5


def test_update_card_after_an_evaluation(trainer, folder, tiny_model, tmp_path):
    card = card_of(trainer, folder)
    path = folder / "README.md"
    path.write_text(
        card.replace("---\n", "---\nlicense: mit\n", 1).replace("## Limits", "## Mine\n\nA note.\n\n## Limits")
    )
    before, after = tmp_path / "before.json", folder / "results.json"
    write_results(before, model_of(tiny_model), [entry(value=0.3, dataset=GSM8K)], MACHINE)
    write_results(after, model_of(folder), [entry(value=0.5, dataset=GSM8K)], MACHINE)
    update_card(folder, [before, after], repo_id="me/my-model")
    text = path.read_text(encoding="utf-8")
    assert "| 0.300 (0.250 to 0.750) | 0.500 (0.250 to 0.750) |" in text and "None recorded." not in text
    assert 'model="me/my-model"' in text and "## Mine\n\nA note." in text and text.count("## Results") == 1
    header = header_and_text(text)[0]
    assert header["license"] == "mit"
    (result,) = header["model-index"][0]["results"]
    assert result["source"] == {
        "name": "hf-factuality evaluate", "url": "https://huggingface.co/me/my-model/blob/main/results.json"
    }  # fmt: skip
    assert_valid_header(header)
    assert validate_card(path) is False
    # Again without files: what they said is taken back. The licence outlives the trainer's next card.
    after.unlink()
    update_card(folder)
    text = path.read_text(encoding="utf-8")
    assert "None recorded." in text and "model-index" not in text
    assert "license: mit" in card_of(trainer, folder)
    (tmp_path / "README.md").write_text("# Something\n", encoding="utf-8")
    with pytest.raises(HubError, match="no card with a part '## Results'"):
        update_card(tmp_path)


def test_update_card_writes_the_card_and_nothing_else(trainer, folder, tmp_path, monkeypatch):
    """A link is replaced and not followed; what fails leaves the card as it was."""
    card = card_of(trainer, folder)
    elsewhere, model = tmp_path / "elsewhere.md", tmp_path / "model"
    model.mkdir()
    elsewhere.write_text(card, encoding="utf-8")
    (model / "README.md").symlink_to(elsewhere)
    update_card(model, repo_id='me/b"c')
    text = (model / "README.md").read_text(encoding="utf-8")
    assert elsewhere.read_text(encoding="utf-8") == card and r'model="me/b\"c"' in text
    assert not (model / "README.md").is_symlink()
    update_card(model, repo_id="me/d")
    assert (model / "README.md").read_text(encoding="utf-8") == text.replace(r"b\"c", "d")

    def fail(*_):
        raise OSError("disk full")

    monkeypatch.setattr(os, "replace", fail)
    with pytest.raises(HubError, match=r"README\.md cannot be written: disk full"):
        update_card(model, repo_id="me/e")
    assert [path.name for path in model.iterdir()] == ["README.md"] and 'model="me/d"' in (
        model / "README.md"
    ).read_text(encoding="utf-8")
    update_card(model, repo_id="me/d")  # nothing to change, so nothing is written


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"---\na: [\n---\n\n## Results\n\nx\n", "header of .*README.md cannot be read"),
        (b"---\na: !!python/name:os.system\n---\n\n## Results\n\nx\n", "header of .*README.md cannot be read"),
        (b"---\n- a\n---\n\n## Results\n\nx\n", "header of .*README.md cannot be read"),
        (b"---\na: " + b"[" * 5000 + b"\n---\n\n## Results\n\nx\n", "header of .*README.md cannot be read"),
        (b"---\na: b\n---\n\n## Results\n\n\xe9\n", "README.md cannot be read: .*utf-8"),
    ],
)
def test_update_card_names_the_card_that_is_broken(tmp_path, data, message):
    (tmp_path / "README.md").write_bytes(data)
    with pytest.raises(HubError, match=message):
        update_card(tmp_path, repo_id="me/x")
    assert (tmp_path / "README.md").read_bytes() == data


def test_measured_entry_by_hand():
    """2 of 3, 0 of 1, and one without any: 2 of 4. All resamples lie between the worst and the best item."""
    found = measured_entry("b", "m", [(2, 3), (0, 1), (0, 0)], dataset={}, generation={"seed": 4})
    assert (found["value"], found["n"], found["n_scored"]) == (0.5, 3, 2)
    assert found["left_out"] == {"responses": {"nothing_to_score": 1}} and found["seeds"]["generation"] == 4
    interval = found["confidence_interval"]
    assert interval["low"] == 0.0 and interval["high"] == pytest.approx(2 / 3)
    assert measured_entry("b", "m", [(1, 1)], dataset={}, generation={})["confidence_interval"] is None
    assert measured_entry("b", "m", [(0, 0)] * 3, dataset={}, generation={})["value"] is None
    # A mean of 60 zeros and 40 ones: the normal interval is .4 +- 1.96 * sqrt(.24 / 100) = .304 to .496.
    interval = measured_entry("b", "m", [(i < 40, 1) for i in range(100)], dataset={}, generation={})[
        "confidence_interval"
    ]
    assert interval["low"] == pytest.approx(0.304, abs=0.015) and interval["high"] == pytest.approx(0.496, abs=0.015)
    assert json.dumps(found)


def test_files_that_are_not_published_are_not_named(trainer, folder, tiny_model, tmp_path):
    """Neither in the text nor in the header; what was measured before is shown all the same."""
    before, after = tmp_path / "base.json", folder / "results.json"
    write_results(before, model_of(tiny_model), [entry(value=0.25)], MACHINE)
    write_results(after, model_of(folder), [entry(value=0.75)], MACHINE)
    trainer.card_results = {"before": before, "after": after}
    card = card_of(trainer, folder)
    assert "0.250" in card and "base.json" not in card and "- The numbers are those of `results.json`." in card
    moved = tmp_path / "elsewhere.json"
    after.rename(moved)
    update_card(folder, {"before": before, "after": moved})
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert "0.750" in card and "numbers are those" not in card and "results_file" not in card and ".json" not in card


def test_a_note_is_no_heading(trainer, folder):
    note = "# Free\n## money <script>x</script> | `a` [b](c) \u202ed"
    write_results(folder / "results.json", model_of(folder), [entry("# b", note=note, title="- # t")], MACHINE)
    card = card_of(trainer, folder)
    shown = "- \\# b: \\# Free \\#\\# money \\<script>x\\</script> \\| \\`a\\` \\[b\\](c) d"
    assert shown in card.splitlines() and "| \\# b | \\- \\# t |" in card
    assert [line for line in card.splitlines() if line.startswith("#")][0] == "# my-model"
    update_card(folder)
    assert (folder / "README.md").read_text(encoding="utf-8") == card

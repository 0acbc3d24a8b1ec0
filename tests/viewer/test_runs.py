"""What of a run or a file can be looked at, and the page of it."""

import json
import re

import pandas
import pytest

from hf_factuality import verify
from hf_factuality.errors import DataError
from hf_factuality.report import StoredCompletion, read_completions, render_report, store_completions, stored_samples
from hf_factuality.spans import Verification
from hf_factuality.viewer.app import curve_rows, figures_of, frame_of, page_of
from hf_factuality.viewer.demo import CHARACTERS, judge_pasted
from hf_factuality.viewer.runs import ViewedRun, common_moments, read_curves
from hf_factuality.viewer.space import write_demo_space, write_view_space
from hf_factuality.viewer.view import view
from tests.viewer.runs import HOSTILE, make_run


def figures(page):
    """What the sections of a page are sorted by."""
    return [json.loads(it.replace("&quot;", '"')) for it in re.findall(r'<section [^>]*data-figures="([^"]*)"', page)]


def test_what_is_stored_is_read_again(tmp_path):
    run = make_run(tmp_path)
    found = [*read_completions(run / "completions" / "judged_00020.jsonl")]
    assert [it.rewards["reward"] for it in found] == [0.9, 0.2, 0.3, 0.4] and {it.step for it in found} == {20}
    assert [len(it.verification.spans) for it in found] == [2, 2, 1, 2]
    store_completions(tmp_path / "again.jsonl", found)
    assert [*read_completions(tmp_path / "again.jsonl")] == found
    # What is not a number is not known, and JSON has no NaN.
    store_completions(tmp_path / "nan.jsonl", [StoredCompletion("a", rewards={"x": float("nan"), "y": 1.0})])
    assert "NaN" not in (tmp_path / "nan.jsonl").read_text()
    (one,) = read_completions(tmp_path / "nan.jsonl")
    assert one.rewards == {"x": None, "y": 1.0}


def test_the_moments_of_a_run(tmp_path):
    run = ViewedRun(make_run(tmp_path))
    assert run.moments == [
        *("before and after training", "before training", "after training", "all steps", "step 10", "step 20")
    ]
    assert [*run.sides("before and after training")] == ["before", "after"]
    assert len(run.sides("all steps")[""]) == 7 and run.sides("step 30") == {}
    assert read_curves(tmp_path) == {"loss": [(10, 0.1), (20, 0.05)], "reward": [(10, 0.5), (20, 1.0)]}
    assert figures_of([run]) == ["reward", "loss"]
    store_completions(tmp_path / "completions" / "judged_00030.jsonl", [StoredCompletion("new")])
    run.reload()
    assert "step 30" in run.moments


def test_answers_that_nobody_judged_are_painted_by_outcome(tmp_path):
    page = page_of([ViewedRun(make_run(tmp_path))], "before and after training")
    assert page.count('class="contradicted"') >= 2 and ">right <" in page and ">declined <" in page
    assert "supported by the evidence" not in page.partition("<script>")[0]
    assert page.count(" data-changed") == 2


def test_two_runs_stand_beside_each_other(tmp_path):
    runs = [ViewedRun(make_run(tmp_path / name, shift)) for name, shift in (("one", 0.0), ("two", 0.25))]
    assert "step 20" in common_moments(runs)
    page = page_of(runs, "step 20")
    assert page.count("<h4>one</h4>") == page.count("<h4>two</h4>") == 4 and "reward 0.9 → 1.15" in page
    assert figures(page)[0]["own change of reward"] == 0.25 and figures(page)[1]["own change of reward"] == 0
    # An unknown reward has no change.
    assert "own change of reward" not in figures(page_of(runs, "step 10"))[2]
    rows = curve_rows(runs, "reward")
    assert rows["run"].tolist() == ["one", "one", "two", "two"] and [*rows.columns] == ["step", "reward", "run"]


def test_completions_of_one_side_alone_are_counted():
    sides = {
        "a": [StoredCompletion("x", question="q"), StoredCompletion("y")],
        "b": [StoredCompletion("z", question="q")],
    }
    samples, _, note = stored_samples(sides)
    assert len(samples) == 1 and note.startswith("1 completions are on one side only")


def test_the_same_question_several_times_is_matched_by_its_order():
    sides = {name: [StoredCompletion(f"{name}{n}", question="q") for n in range(2)] for name in "ab"}
    samples, _, _ = stored_samples(sides)
    assert [[text for _, text, _ in it.completions] for it in samples] == [["a0", "b0"], ["a1", "b1"]]


def test_a_file_of_verify(tmp_path):
    rows = [
        {"id": f"q{n}", "completion": text, "question": "Where?", "evidence": ["Ulm is in Germany."]}
        for n, text in enumerate(["Ulm is in Germany.", "Ulm is in France."])
    ]
    verify([*rows, {"id": "q2", "completion": None, "evidence": ["Ulm."]}], out=tmp_path / "out.jsonl")
    run = ViewedRun(tmp_path / "out.jsonl")
    assert run.moments == ["3 completions"] and run.curves() == {}
    page = page_of([run], "3 completions")
    assert "q1: Where?" in page and page.count('class="supported"') >= 1
    assert [it["name"] for it in figures(page)] == ["q0", "q1", "q2"]
    parts = ViewedRun(tmp_path / "out.jsonl", rows=2)
    assert parts.moments == ["completions 1 to 2", "completions 3 to 3"]
    assert [it.id for it in parts.sides("completions 3 to 3")[""]] == ["q2"]
    assert common_moments([run, parts]) == []


def test_a_file_of_answers_of_evaluate(tmp_path):
    lines = [
        {"schema": "hf_factuality.answers/1", "settings": {}},
        {"id": "a", "question": "Q?", "gold": "Ulm", "samples": [{"text": "Ulm"}, {"text": "Bern"}, None], "outcome": "correct",
         "scores": {"accuracy": 0.5, "bad": "x"}},
        {"id": "b", "prompt": [{"role": "user", "content": "P?"}], "samples": {"0": {"text": "I don't know."}}, "outcome": "refused"},
    ]  # fmt: skip
    path = tmp_path / "results.bench.answers.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    found = [*read_completions(path)]
    assert [(it.id, it.completion, it.outcome) for it in found] == [
        ("a, sample 1", "Ulm", "correct"), ("a, sample 2", "Bern", None), ("b", "I don't know.", "refused"),
    ]  # fmt: skip
    assert found[0].rewards == {"accuracy": 0.5} and found[2].question == "P?"


def test_numbers_that_json_does_not_know_are_unknown(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"completion": "a", "rewards": {"x": NaN, "y": 1e999, "z": 1}}\n')
    run = ViewedRun(tmp_path / "a.jsonl")
    page = page_of([run], "1 completion")
    (found,) = figures(page)
    assert found["own z"] == 1 and not {"own x", "own y"} & {*found}
    assert "Infinity" not in page.partition("<main>")[2].partition("<script>")[0]


def test_the_table_of_trl_has_rewards_in_columns(tmp_path):
    (tmp_path / "completions").mkdir()
    rows = {
        "step": [5, 5],
        "prompt": ["Q1?", [{"role": "user", "content": "Q2?"}]],
        "completion": ["a", "b"],
        "advantage": [0.5, -0.5],
    }
    rows = [dict(zip(rows, own, strict=True)) for own in zip(*rows.values(), strict=True)]
    table = [{**row, "prompt": str(row["prompt"]), "factuality": 0.25, "factuality_labels": "x"} for row in rows]
    pandas.DataFrame(table).to_parquet(tmp_path / "completions" / "completions_00005.parquet")
    run = ViewedRun(tmp_path)
    first, _ = run.sides("step 5")[""]
    assert (
        first.rewards == {"advantage": 0.5, "factuality": 0.25}
        and first.question == "Q1?"
        and first.verification is None
    )
    # The labelled one is taken, where there is one.
    store_completions(tmp_path / "completions" / "judged_00005.jsonl", [StoredCompletion("c")])
    run.reload()
    assert [it.completion for it in run.sides("step 5")[""]] == ["c"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ('{"completion": 3}', "has no text in 'completion'"),
        ('["a"]', "must be an object"),
        ('{"completion": "abc", "verification": {"spans": [{"start": 0, "end": 9}]}}', "ends after the completion"),
        ('{"completion": "abc", "verification": {"spans": [{"start": 0}]}}', "a span has the keys"),
        ('{"completion": "abc", "verification": {"spans": 3}}', "out.jsonl, row 1"),
        ('{"completion": "abc", "verification": [1]}', "out.jsonl, row 1"),
        ('{"samples": 3, "id": 1}', "out.jsonl, row 1"),
        ("{", "is not JSON"),
    ],
)
def test_what_cannot_be_shown_is_named(tmp_path, line, said):
    (tmp_path / "out.jsonl").write_text(line + "\n")
    with pytest.raises(DataError, match=said):
        ViewedRun(tmp_path / "out.jsonl")


def test_what_is_no_run(tmp_path):
    with pytest.raises(DataError, match="log_completions"):
        ViewedRun(tmp_path)
    (tmp_path / "training_log.jsonl").write_text("[]\n")
    with pytest.raises(DataError, match="no log of a training"):
        ViewedRun(tmp_path)
    with pytest.raises(OSError):
        ViewedRun(tmp_path / "none.jsonl")
    with pytest.raises(ValueError, match="rows"):
        view(tmp_path, rows=0)


def test_a_link_out_of_the_run_is_not_followed(tmp_path):
    run, other = make_run(tmp_path / "run"), tmp_path / "secret.jsonl"
    store_completions(other, [StoredCompletion("secret")])
    (run / "completions" / "judged_00030.jsonl").symlink_to(other)
    (run / "completions" / "after.jsonl").unlink()
    (run / "completions" / "after.jsonl").symlink_to(other)
    assert not {"step 30", "after training"} & {*ViewedRun(run).moments}


def test_a_log_that_is_being_written_and_one_that_went_on(tmp_path):
    lines = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}, {"step": 2, "loss": 1.0}, {"loss": 7.0}]
    (tmp_path / "training_log.jsonl").write_text("".join(json.dumps(it) + "\n" for it in lines) + '{"step": 3, "lo')
    assert read_curves(tmp_path) == {"loss": [(1, 3.0), (2, 1.0)]}


def test_the_state_of_a_checkpoint_has_curves_too(tmp_path):
    (tmp_path / "checkpoint-2").mkdir()
    history = [{"step": 1, "loss": 3.0}, {"step": 2, "loss": 2.0}]
    (tmp_path / "checkpoint-2" / "trainer_state.json").write_text(json.dumps({"log_history": history}))
    assert ViewedRun(tmp_path).curves() == {"loss": [(1, 3.0), (2, 2.0)]}


def test_the_frame_holds_text_alone():
    page = render_report("t", "n", [], stored_samples({"": [StoredCompletion(HOSTILE, Verification())]})[0])
    frame = frame_of(page, '"><script>')
    assert frame.count("<") == 2 and 'sandbox="allow-scripts"' in frame and "allow-same-origin" not in frame


def test_what_is_pasted_is_judged():
    evidence = "Marie Curie was born in Warsaw.\n\nShe won two prizes."
    page = judge_pasted("lexical", "", "Marie Curie was born in Warsaw.", evidence)
    assert 'class="supported"' in page and "precision" in page
    with pytest.raises(ValueError, match="paste a completion"):
        judge_pasted("lexical", "q", " \n", "e")
    with pytest.raises(ValueError, match="at most"):
        judge_pasted("lexical", "", "a" * (CHARACTERS + 1), "e")


def test_a_space_holds_what_it_shows_and_nothing_else(tmp_path):
    run = make_run(tmp_path / "run")
    (run / "model.safetensors").write_bytes(b"x")
    space = write_view_space(tmp_path / "space", run)
    files = sorted(it.relative_to(space).as_posix() for it in space.rglob("*") if it.is_file())
    shown = [f"completions/{name}.jsonl" for name in ("after", "before", "judged_00010", "judged_00020")]
    assert files == [
        "README.md",
        "app.py",
        *(f"data/1/run/{it}" for it in [*shown, "training_log.jsonl"]),
        "requirements.txt",
    ]
    assert str(tmp_path) not in (space / "app.py").read_text() + (space / "README.md").read_text()
    head = (space / "README.md").read_text().split("---")[1]
    assert "sdk: gradio\n" in head and "app_file: app.py\n" in head
    demo = write_demo_space(tmp_path / "demo", ["lexical"])
    assert "build_demo(['lexical'])" in (demo / "app.py").read_text()
    with pytest.raises(OSError):
        write_demo_space(tmp_path / "demo")

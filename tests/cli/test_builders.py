"""The functions `build_...` and the commands over them: same arguments, same defaults, same results, same refusals."""

import argparse
import inspect
import json

import pytest

import hf_factuality
from hf_factuality import BuildArguments, load_verifier
from hf_factuality.cli import main
from hf_factuality.cli.main import _parser
from hf_factuality.data import build
from hf_factuality.errors import DataError, HubError
from tests.data.test_build_preferences import PEOPLE, questions, responses, table, write
from tests.generation.fake_server import FakeServer
from tests.methods.abstention import test_data as test_refusals
from tests.methods.process_reward import test_data as test_process_labels
from tests.methods.rag_reward import test_data as test_rag_preferences
from tests.methods.self_correction import test_data as test_corrections


KINDS = ("preferences", "checklists", "refusals", "corrections", "process-labels", "rag-preferences")


def function(kind):
    return getattr(hf_factuality, f"build_{kind.replace('-', '_')}")


def read(file):
    return [json.loads(line) for line in open(file, encoding="utf-8")]


@pytest.mark.parametrize("kind", KINDS)
def test_flags_are_the_arguments_and_have_their_defaults(kind):
    (commands,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    flags = {it.dest: it.default for it in commands.choices[f"build-{kind}"]._actions if it.dest != "help"}
    flags["verifier"] = commands.choices[f"build-{kind}"].get_default("verifier")
    own = dict(inspect.signature(function(kind)).parameters)
    del own["options"]
    assert flags.keys() == own.keys() | BuildArguments.__annotations__.keys()
    assert {name: own[name].default for name in own.keys() - {"out"}} == {
        name: flags[name] for name in own.keys() - {"out"}
    }
    gold = kind in ("refusals", "corrections", "process-labels")
    common = {**build._DEFAULTS, "verifier": "gold" if gold else "small"}
    assert {name: flags[name] for name in BuildArguments.__annotations__ if flags[name] is not None} == common


def both(tmp_path, capsys, kind, file, *flags, **arguments):
    """The report of the function, after the command has given the same and printed it."""
    argv = [f"build-{kind}", file, *flags, "--out", tmp_path / "command"]
    assert main([*map(str, argv)]) == 0, capsys.readouterr().err
    printed = capsys.readouterr().out
    built = function(kind)(file, out=tmp_path / "function", **arguments)
    assert capsys.readouterr().out == "" and built.folder == tmp_path / "function" and built.address is None
    report = json.loads((tmp_path / "command" / "report.json").read_text())
    assert built.report == report == json.loads((tmp_path / "function" / "report.json").read_text())
    (file,) = (path.name for path in built.folder.glob("*.parquet") if path.name != "undecided.parquet")
    assert built.dataset.to_list() == built.dataset.from_parquet(str(tmp_path / "command" / file)).to_list()
    shown = table(printed)
    assert {f"dropped: {reason}": str(count) for reason, count in built.dropped.items()}.items() <= shown.items()
    assert shown["questions"] == str(report["questions"]) and printed.endswith(f"\n{tmp_path / 'command'}\n")
    return built


def test_command_and_function_make_the_same_preferences(tmp_path, capsys):
    given = responses(tmp_path)
    flags = ["--responses", given, "--pairs_per_question", 1, "--limit", 3]
    built = both(
        tmp_path, capsys, "preferences", questions(tmp_path), *flags, responses=given, pairs_per_question=1, limit=3
    )
    assert built.dataset["id"] == PEOPLE[:3] and built.report["pairs"] == 3
    # Rows and a verifier in memory make the same.
    rows, verifier = read(questions(tmp_path)), load_verifier("small")
    again = hf_factuality.build_preferences(
        rows, out=tmp_path / "rows", responses=given, limit=3, verifier=verifier, split=None
    )
    assert again.dataset.to_list() == built.dataset.to_list()


def test_pairs_that_exist(tmp_path, capsys):
    rows = [
        {"prompt": "Who is Ada?", "chosen": "Ada was born in Leeds.", "rejected": "Ada was born in Bath.",
         "evidence": "Ada was born in Leeds."},
    ]  # fmt: skip
    file = write(tmp_path / "pairs.jsonl", rows)
    assert main(["build-preferences", "--pairs", file, "--out", str(tmp_path / "a")]) == 0
    assert table(capsys.readouterr().out)["pairs"] == "1"
    found = [hf_factuality.build_preferences(pairs=it, out=tmp_path / str(n)) for n, it in enumerate((file, rows))]
    written = found[0].dataset.from_parquet(str(tmp_path / "a" / "pairs.parquet")).to_list()
    assert found[0].dataset.to_list() == found[1].dataset.to_list() == written and written[0]["chosen_score"] == 1.0
    with pytest.raises(ValueError, match="`pairs` keeps every pair.*leave `correct` out"):
        hf_factuality.build_preferences(pairs=file, out=tmp_path / "b", correct="free")


def test_command_and_function_make_the_same_checklists(tmp_path, capsys):
    given = responses(tmp_path)
    flags = ["--responses", given, "--min_samples", 2, "--keep_empty"]
    arguments = dict(responses=given, min_samples=2, keep_empty=True)
    built = both(tmp_path, capsys, "checklists", questions(tmp_path), *flags, **arguments)
    assert built.dataset["counts"] == [[2]] * 5 and built.report["items"] == 5


def test_command_and_function_make_the_same_refusals(tmp_path, capsys):
    file = write(tmp_path / "questions.jsonl", test_refusals.ROWS)
    rows = [{"id": f"q{i}", "responses": texts} for i, texts in enumerate(test_refusals.GREEDY)]
    given = write(tmp_path / "responses.jsonl", rows)
    flags = ["--responses", given, "--rtuning_variant", "unknown", "--refusal", "No.", "--refusal", "No idea."]
    arguments = dict(responses=given, rtuning_variant="unknown", refusals=["No.", "No idea."])
    built = both(tmp_path, capsys, "refusals", file, *flags, **arguments)
    assert (built.report["sure"], built.report["unsure"]) == (1, 3)
    assert {row["completion"][0]["content"] for row in built.dataset} <= {"Ulm", "No.", "No idea."}


def served(kind, tmp_path, capsys, rows, reply, *flags, **arguments):
    file = write(tmp_path / "questions.jsonl", rows)
    with FakeServer(reply) as server:
        flags = ["--model", "fake", "--base_url", server.url, *flags]
        return both(tmp_path, capsys, kind, file, *flags, model="fake", base_url=server.url, **arguments)


def test_command_and_function_make_the_same_corrections(tmp_path, capsys):
    def reply(prompt, body):
        said = [message["content"] for message in body["messages"]]
        return "Ulm" if len(said) > 1 and said[-1] == "Again?" else "[VERIFY] wrong" if len(said) > 1 else "Bern"

    rows = test_corrections.ROWS[:1]
    rows = [{**rows[0], "answer": "Ulm"}]
    built = served(
        "corrections", tmp_path, capsys, rows, reply, "--num_samples", 2, "--revise", "Again?",
        num_samples=2, revise="Again?",
    )  # fmt: skip
    assert built.report["kinds"] == {"wrong, found wrong, corrected": 2}
    assert built.dataset["messages"][0][-1]["content"] == "Ulm"


def test_command_and_function_make_the_same_process_labels(tmp_path, capsys):
    rows, solution = test_process_labels.ROWS[:1], test_process_labels.SOLUTIONS["48"][0]

    def reply(prompt, body):
        return solution if body["messages"][-1]["role"] == "user" else "\n#### 24"

    flags = ["--num_samples", 2, "--rollouts", 2, "--label_rule", "hard", "--verifier", "gold:GSM8K"]
    arguments = dict(num_samples=2, rollouts=2, label_rule="hard", verifier="gold:GSM8K")
    built = served("process-labels", tmp_path, capsys, rows, reply, *flags, **arguments)
    assert built.dataset["labels"] == [[0.0, 0.0, 1.0]] * 2


def test_command_and_function_make_the_same_rag_preferences(tmp_path, capsys):
    file = write(tmp_path / "questions.jsonl", test_rag_preferences.ROWS)
    rows = [{"id": key, "responses": texts} for key, texts in test_rag_preferences.ANSWERS.items()]
    given = write(tmp_path / "responses.jsonl", rows)
    flags = ["--responses", given, "--axis", "attribution=citations:lexical", "--pairs_per_question", 3]
    axis = ["attribution=citations:lexical"]
    built = both(tmp_path, capsys, "rag-preferences", file, *flags, responses=given, axis=axis, pairs_per_question=3)
    assert built.report["preferences"] == {"attribution": 2}
    own = {"attribution": load_verifier("citations:lexical")}
    again = hf_factuality.build_rag_preferences(
        file, out=tmp_path / "own", responses=given, axis=own, pairs_per_question=3
    )
    assert again.dataset.to_list() == built.dataset.to_list()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"modle": "m"}, "unexpected keyword argument 'modle'"),
        ({"backend": "jax"}, "`backend` is one of .*'jax'"),
        ({"topic_distance": "far"}, "`topic_distance` is one of"),
        ({"limit": 0}, "`limit` must be a whole number of at least 1, got 0"),
        ({"batch_size": 1.5}, "`batch_size` must be a whole number"),
        ({"patience": -1}, "`patience` must be"),
        ({"dataset": "d"}, "give `questions` or `dataset`"),
        ({"pairs": "p.jsonl"}, "give one of `questions`, `dataset` and `pairs`"),
        ({"backend": "vllm", "base_url": "http://x"}, "give one of `backend`, `base_url` and `responses`"),
        ({}, "`model` names who answers"),
    ],
)  # fmt: skip
def test_refused_as_python(tmp_path, arguments, message):
    """What the parser refuses, too."""
    with pytest.raises((ValueError, TypeError), match=message):
        hf_factuality.build_preferences(questions(tmp_path), out=tmp_path / "run", **arguments)
    assert not (tmp_path / "run").exists()


def test_a_push_that_fails_loses_no_report(tmp_path, capsys, monkeypatch):
    def fails(*args, **kwargs):
        raise HubError("no network")

    monkeypatch.setattr("hf_factuality.data.build.prepare_repo", lambda *args, **kwargs: None)
    monkeypatch.setattr("hf_factuality.data.builder.publish", fails)
    file, given = questions(tmp_path), responses(tmp_path)
    with pytest.raises(HubError, match="could not be pushed.*no network") as caught:
        hf_factuality.build_preferences(file, out=tmp_path / "a", responses=given, push_to_hub="me/pairs")
    assert caught.value.built.report["pairs"] == 5 and caught.value.built.address is None
    argv = [file, "--responses", given, "--out", str(tmp_path / "b"), "--push_to_hub", "me/pairs"]
    assert main(["build-preferences", *argv]) == 2
    printed = capsys.readouterr()
    assert table(printed.out)["pairs"] == "5" and "no network" in printed.err


def test_an_interrupt(tmp_path, capsys, monkeypatch):
    """It rises from the function; the command says that the same command goes on."""

    def stops(*args):
        raise KeyboardInterrupt

    file, given = questions(tmp_path), responses(tmp_path)
    monkeypatch.setattr("hf_factuality.data.builder.BatchVerification.judge", stops)
    with pytest.raises(KeyboardInterrupt):
        hf_factuality.build_preferences(file, out=tmp_path / "a", responses=given)
    argv = ["build-preferences", file, "--responses", given, "--out", str(tmp_path / "a")]
    assert main(argv) == 130 and "start the same command again" in capsys.readouterr().err
    monkeypatch.undo()
    assert hf_factuality.build_preferences(file, out=tmp_path / "a", responses=given).report["pairs"] == 5
    with pytest.raises(DataError, match="other settings: seed was 0, now 1"):
        hf_factuality.build_preferences(file, out=tmp_path / "a", responses=given, seed=1)

"""A judge, a metric, a reward, credit, a builder and a benchmark from a package outside, each used by its name and as an object."""

import importlib
import json
import sys

import pytest
import torch
from datasets import Dataset
from trl import TrlParser

import hf_factuality
from hf_factuality import FactGRPOConfig, FactGRPOTrainer, load_verifier
from hf_factuality._lazy import is_object_name, load_name
from hf_factuality.cli import main
from hf_factuality.data.benchmarks import load_items
from hf_factuality.functional import shape_advantages
from hf_factuality.functional.credit import find_credit
from hf_factuality.metrics import compute


JUDGES = '''
from hf_factuality.spans import Label
from hf_factuality.verifiers.base import Judgement


class Verbatim:
    """Supported is what the evidence says word by word."""

    def __init__(self, strict=True):
        self.strict = strict

    def judge(self, inputs):
        found = [any(item.claim in passage for passage in item.evidence) for item in inputs]
        return [Judgement(Label.SUPPORTED if it else Label.CONTRADICTED) for it in found]


THRESHOLD = 0.5
'''


@pytest.fixture
def outside(tmp_path, monkeypatch):
    """Writes a module of a package that lies in no folder of ours, and imports it."""
    monkeypatch.syspath_prepend(tmp_path / "site")
    (tmp_path / "site" / "elsewhere").mkdir(parents=True)

    def write(name, code):
        (tmp_path / "site" / "elsewhere" / f"{name}.py").write_text(code, encoding="utf-8")
        importlib.invalidate_caches()
        return importlib.import_module(f"elsewhere.{name}")

    yield write
    for name in [name for name in sys.modules if name.partition(".")[0] == "elsewhere"]:
        del sys.modules[name]


def rows_file(path, rows):
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return path


EVIDENCE = "Ada was born in London. She died in 1852."
ANSWERS = ["Ada was born in London. She died in 1900.", "She died in 1852."]
ROWS = [{"completion": answer, "evidence": EVIDENCE} for answer in ANSWERS]


def printed(capsys, *words):
    """What a command prints, which must end well."""
    status = main([*map(str, words)])
    out, err = capsys.readouterr()
    assert status == 0, err
    return json.loads(out)


# A judge


def test_a_judge_by_its_name_and_as_an_object(outside, tmp_path, capsys):
    judges = outside("judges", JUDGES)
    for verifier in ("elsewhere.judges:Verbatim", judges.Verbatim()):
        found = hf_factuality.verify(ROWS, verifier=verifier)
        assert found.precision == 2 / 3 and found.summary["claims"]["contradicted"] == 1
    file = rows_file(tmp_path / "answers.jsonl", ROWS)
    assert printed(capsys, "verify", file, "--verifier", "elsewhere.judges:Verbatim")["precision"] == 2 / 3
    assert load_verifier("elsewhere.judges:Verbatim", strict=False).judge.strict is False


# A metric

METRICS = '''
from hf_factuality.metrics import JudgedAnswers


def stated(predictions, references, *, least=0, **options):
    """The share of responses that state more than `least` claims."""
    answers = JudgedAnswers(predictions, references, table=None, options=options)
    scores = [float(len(labels or ()) > least) for labels in answers.labels()]
    return answers.result("stated", sum(scores) / len(scores), scores, settings={"least": least})
'''


def test_a_metric_by_its_name_and_as_an_object(outside, tmp_path, capsys):
    metrics = outside("metrics", METRICS)
    labelled = [["supported", "contradicted"], ["supported"]]
    for metric in ("elsewhere.metrics:stated", metrics.stated):
        assert compute(metric, labelled, least=1)["stated"] == 0.5
        found = hf_factuality.verify(ROWS, metrics=[metric, "factscore"], metric_args={"stated": {"least": 1}})
        assert list(found.metrics) == ["stated", "factscore"] and found.metrics["stated"]["stated"] == 0.5
        found = hf_factuality.verify(ROWS, metrics=metric, fail_under={"stated": 1.0})
        assert found.metrics["stated"]["stated"] == 1.0 and not found.failures
    file = rows_file(tmp_path / "answers.jsonl", ROWS)
    flags = ("--metrics", "elsewhere.metrics:stated", "--metric_args", "stated.least=1")
    assert printed(capsys, "verify", file, *flags)["metrics"]["stated"]["stated"] == 0.5


def test_evaluate_takes_metrics_and_judges_from_outside(outside, tmp_path, capsys):
    metrics, judges = outside("metrics", METRICS), outside("judges", JUDGES)
    questions = [{"question": "Who was Ada?", "evidence": EVIDENCE}] * 2
    dataset = rows_file(tmp_path / "questions.jsonl", questions)
    answers = rows_file(tmp_path / "answers.jsonl", [{"completion": it} for it in ANSWERS])
    given = {"dataset": dataset, "answers": answers, "model_name": "someone", "metric_args": {"stated": {"least": 1}}}
    for metric, verifier in (
        ("elsewhere.metrics:stated", "elsewhere.judges:Verbatim"),
        (metrics.stated, judges.Verbatim()),
    ):
        found = hf_factuality.evaluate(
            **given, metrics=["factscore", metric], verifier=verifier, out=tmp_path / "r.json"
        )
        assert [(it["metric"], it["value"]) for it in found.results][1] == ("stated", 0.5)
        assert [it["verifier"]["name"] for it in found.results] == ["elsewhere.judges:Verbatim"] * 2
    text = (tmp_path / "r.json").read_text(encoding="utf-8")
    assert "elsewhere.metrics:stated" in text and "0x" not in text
    words = [f"--{name}={given[name]}" for name in ("dataset", "answers", "model_name")]
    flags = ("--metrics", "elsewhere.metrics:stated", "--verifier", "elsewhere.judges:Verbatim")
    (entry,) = printed(capsys, "evaluate", *words, *flags, "--out", tmp_path / "c.json")["results"]
    assert entry["metric"] == "stated" and entry["value"] == 1.0


def test_two_metrics_of_a_name_are_refused(outside):
    metrics = outside("metrics", METRICS + "\n\ndef anah(predictions, references): ...\n")

    def stated(predictions, references): ...

    for given, said in (([metrics.stated, stated], "'stated'"), ("elsewhere.metrics:anah", "'anah'; rename")):
        with pytest.raises(ValueError, match=said):
            hf_factuality.verify(ROWS, metrics=given)
    with pytest.raises(TypeError, match="3"):
        compute(3, [])


# A benchmark

BENCHMARKS = """
from hf_factuality.data.benchmarks import BenchmarkItem, BenchmarkReader, Unusable


def build(row, style):
    question = row.text("country")
    if question == "Atlantis":
        raise Unusable("it is a legend")
    asked = f"What is the capital of {question}? Only the name."
    return BenchmarkItem(row.id, ({"role": "user", "content": asked},), asked, answer=row.text("capital"))


capitals = BenchmarkReader(
    name="capitals", metrics=("accuracy",), build=build, columns=("country", "capital/city"), data_source="world",
    styles=("chat",),
)
odd = BenchmarkReader(name="odd", metrics=("acuracy",), build=build, columns=("country", "capital/city"), styles=("chat",))
ours = BenchmarkReader(name="gsm8k", metrics=("accuracy",), build=build, columns=("country", "capital/city"))
path = BenchmarkReader(name="../capitals", metrics=("accuracy",), build=build, columns=("country", "capital/city"))
"""
CAPITALS = [("France", "Paris"), ("Atlantis", "?"), ("Peru", "Lima")]


def test_a_benchmark_by_its_name_and_as_an_object(outside, tmp_path, capsys):
    benchmarks = outside("benchmarks", BENCHMARKS)
    dataset = rows_file(tmp_path / "capitals.jsonl", [{"country": it, "city": city} for it, city in CAPITALS])
    answers = rows_file(
        tmp_path / "answers.jsonl", [{"id": "0", "completion": "Paris"}, {"id": "2", "completion": "Cusco"}]
    )
    for benchmark in ("elsewhere.benchmarks:capitals", benchmarks.capitals):
        items, source = load_items(benchmark, path=dataset)
        assert [item.answer for item in items] == ["Paris", "Lima"] and source["dropped"] == {"it is a legend": 1}
        found = hf_factuality.evaluate(
            benchmark=benchmark, dataset=dataset, answers=answers, model_name="someone", out=tmp_path / "r.json"
        )
        (entry,) = found.results
        assert (entry["benchmark"], entry["metric"], entry["value"], entry["n"]) == ("capitals", "accuracy", 0.5, 2)
    words = (
        f"--dataset=capitals={dataset}",
        "--answers",
        answers,
        "--model_name",
        "someone",
        "--out",
        tmp_path / "c.json",
    )
    (entry,) = printed(capsys, "evaluate", "--benchmark", "elsewhere.benchmarks:capitals", *words)["results"]
    assert entry["value"] == 0.5


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("elsewhere.benchmarks:build", "a function; it must be a `BenchmarkReader`"),
        ("elsewhere.benchmarks:odd", "acuracy"),
        ("elsewhere.benchmarks:ours", "'gsm8k'; give yours another `name`"),
        ("elsewhere.benchmarks:path", "'../capitals'"),
    ],
)
def test_what_is_no_benchmark_is_refused_before_anything_is_read(outside, tmp_path, name, said):
    outside("benchmarks", BENCHMARKS)
    with pytest.raises(ValueError, match=said):
        hf_factuality.evaluate(
            benchmark=name, dataset=tmp_path / "none.jsonl", answers=tmp_path / "none.jsonl", out=tmp_path / "r.json"
        )


# A reward and credit

REWARDS = '''
def few_contradicted(completions, verifications, **columns):
    return [-1.0 * sum(span.label == "contradicted" for span in it.spans) if it.judged else None for it in verifications]


class Longer:
    """Pays a share of the characters."""

    __name__ = "longer"

    def __init__(self, share=0.01):
        self.share = share

    def __call__(self, completions, **columns):
        return [self.share * len(it[0]["content"]) for it in completions]
'''
CREDITS = """
import torch

from hf_factuality.functional import Credit


def only_punish(advantages, labels, mask):
    advantages = advantages.unsqueeze(1).expand_as(labels)
    return torch.where(labels < 0, -advantages.abs(), advantages)


halved = Credit(lambda advantages, labels, scale: scale * advantages.unsqueeze(1).expand_as(labels), max_scale=0.5)
"""


def trained(tiny_model, folder, reward_funcs, setting="flip", credit=None):
    """A trainer after one step, with the judge from outside, and its weights."""
    args = FactGRPOConfig(
        str(folder), max_steps=1, per_device_train_batch_size=4, num_generations=4, max_completion_length=8,
        verify_scope="completion", use_cpu=True, report_to=[], save_strategy="no", credit=setting, learning_rate=1e-3,
    )  # fmt: skip
    rows = [{"prompt": [{"role": "user", "content": "Who was Ada?"}], "evidence": EVIDENCE}] * 4
    trainer = FactGRPOTrainer(
        tiny_model, reward_funcs, args, Dataset.from_list(rows), verifier="elsewhere.judges:Verbatim", credit=credit
    )
    trainer.train()
    return trainer, torch.cat([weight.detach().flatten() for weight in trainer.model.parameters()])


def test_rewards_and_credit_by_their_names_and_as_objects(outside, tiny_model, tmp_path):
    rewards, credits, _ = outside("rewards", REWARDS), outside("credits", CREDITS), outside("judges", JUDGES)
    names = ["elsewhere.rewards:few_contradicted", "elsewhere.rewards:Longer"]
    objects = [rewards.few_contradicted, rewards.Longer()]
    named = "elsewhere.credits:only_punish"
    runs = [
        trained(tiny_model, tmp_path, names, setting=named),
        trained(tiny_model, tmp_path, names, credit=named),
        trained(tiny_model, tmp_path, objects, credit=credits.only_punish),
    ]
    for trainer, weights in runs:
        assert trainer.reward_func_names[:2] == ["few_contradicted", "longer"] and trainer.args.credit == named
        assert torch.equal(weights, runs[0][1])
    assert not torch.equal(trained(tiny_model, tmp_path, names, credit="none")[1], runs[0][1])  # the control


def test_a_credit_with_a_scale_from_outside(outside, tmp_path):
    credits = outside("credits", CREDITS)
    parser = TrlParser((FactGRPOConfig,))
    flags = [
        "--output_dir",
        str(tmp_path),
        "--use_cpu",
        "--credit",
        "elsewhere.credits:halved",
        "--credit_scale",
        "0.5",
    ]
    (args,) = parser.parse_args_and_config(flags)
    assert args.use_credit() is credits.halved and find_credit(credits.halved) is credits.halved
    mask = torch.tensor([[True, False]])
    found = shape_advantages(credits.halved, torch.tensor([4.0]), torch.zeros(1, 2), mask, args.credit_scale)
    assert found.tolist() == [[2.0, 2.0]]
    with pytest.raises(ValueError, match="credit_scale=0.7 is above 0.5"):
        FactGRPOConfig(str(tmp_path), use_cpu=True, credit="elsewhere.credits:halved", credit_scale=0.7)
    with pytest.raises(ValueError, match="did you mean 'only_punish'"):
        FactGRPOConfig(str(tmp_path), use_cpu=True, credit="elsewhere.credits:only_punsh")


# Names of objects


@pytest.mark.parametrize("text", ["a:b", "a.b_c:d.e", "é:ü"])
def test_names_of_objects(text):
    assert is_object_name(text)


@pytest.mark.parametrize(
    "text",
    ["a", "a:", ":b", "a/b:c", "../a:b", "a.py/:b", "a:b:c", "a b:c", ".a:b", "http://a:80", "C:\\a:b", None, 3],
)
def test_what_names_no_object(text):
    assert not is_object_name(text)
    with pytest.raises((ValueError, AttributeError)):
        load_name(text, "the metric")


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("../elsewhere/judges:Verbatim", "package.module:name"),
        ("nowhere.judges:Verbatim", "no module 'nowhere'"),
        ("elsewhere.jugdes:Verbatim", "no module 'elsewhere.jugdes'"),
        ("elsewhere.judges:Verbatin", "did you mean 'Verbatim'"),
        ("elsewhere.judges:THRESHOLD", "is a float; it must be a function or a class"),
        ("elsewhere.broken:f", "'elsewhere.broken' cannot be imported: ModuleNotFoundError: No module named 'pandsa'"),
    ],
)
def test_what_is_wrong_with_a_name_is_said(outside, name, said):
    outside("judges", JUDGES)
    with pytest.raises(ModuleNotFoundError):
        outside("broken", "import pandsa\n")
    with pytest.raises(ValueError) as caught:
        load_name(name, "the judge")
    assert f"the judge {name!r}" in str(caught.value) and said in str(caught.value)

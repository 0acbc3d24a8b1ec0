"""A judge, a metric, a reward, credit, a builder and a benchmark from a package outside, each used by its name and as an object."""

import importlib
import json
import sys

import pytest

import hf_factuality
from hf_factuality import load_verifier
from hf_factuality._lazy import is_object_name, load_object
from hf_factuality.cli import main


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
        load_object(text, "the metric")


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
        load_object(name, "the judge")
    assert f"the judge {name!r}" in str(caught.value) and said in str(caught.value)

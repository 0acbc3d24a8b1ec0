import pytest

from hf_factuality.spans import Verification
from hf_factuality.verifiers import LexicalVerifier, VerifierInput, load_verifier, save_pipeline
from hf_factuality.verifiers.registry import _BUILT_IN
from tests.verifiers import CASES


class Constant:
    """A user's own verifier, found by its dotted path."""

    class Inner:
        def verify(self, inputs):
            return [Verification() for _ in inputs]

    def __init__(self, abstained=False):
        self.abstained = abstained

    def verify(self, inputs):
        return [Verification(abstained=self.abstained) for _ in inputs]


class NoVerifier:
    pass


def test_lexical():
    verifier = load_verifier("lexical", threshold=0.9, language="zh")
    assert isinstance(verifier, LexicalVerifier)
    assert (verifier.judge.threshold, verifier.extractor.language) == (0.9, "zh")


@pytest.fixture
def made(monkeypatch):
    """Arguments that the classes of some names were called with, which take what the real ones take."""
    made = []

    def take(name, maker):
        monkeypatch.setattr(_BUILT_IN[name].replace(":", "."), maker)

    take("nli", lambda model, **kwargs: made.append({"model": model, **kwargs}))
    for name in ("llm", "anah"):
        take(name, lambda model, base_url, **kwargs: made.append({"model": model, "base_url": base_url, **kwargs}))
    for name in ("hhem", "minicheck"):
        take(name, lambda model="the default", **kwargs: made.append({"model": model, **kwargs}))
    return made


def test_models_are_passed_on(made):
    load_verifier("nli", model="org/name", batch_size=4)
    load_verifier("nli:org/name", revision="abc")
    load_verifier("nli:C:/folder/model")
    assert made == [
        {"model": "org/name", "batch_size": 4},
        {"model": "org/name", "revision": "abc"},
        {"model": "C:/folder/model"},
    ]


@pytest.mark.parametrize("name", ["hhem", "minicheck"])
def test_models_for_the_task_have_a_default(made, name):
    load_verifier(name)
    load_verifier(f"{name}:org/m", batch_size=2)
    assert made == [{"model": "the default"}, {"model": "org/m", "batch_size": 2}]


@pytest.mark.parametrize("name", ["llm", "anah"])
def test_served_models_need_an_address(made, monkeypatch, name):
    monkeypatch.delenv("HF_FACTUALITY_BASE_URL", raising=False)
    with pytest.raises(ValueError, match=f"'{name}:m' needs the address of its server.*HF_FACTUALITY_BASE_URL"):
        load_verifier(f"{name}:m")
    with pytest.raises(ValueError, match=f"{name!r} needs a model"):
        load_verifier(name, base_url="http://a/v1")
    load_verifier(f"{name}:org/m", base_url="http://a/v1")
    monkeypatch.setenv("HF_FACTUALITY_BASE_URL", "http://b/v1")
    load_verifier(f"{name}:org/m")
    assert made == [{"model": "org/m", "base_url": "http://a/v1"}, {"model": "org/m", "base_url": "http://b/v1"}]


@pytest.mark.parametrize("name", ["lexical", "citations:lexical", f"{__name__}:Constant"])
def test_an_argument_that_a_verifier_does_not_take(name):
    with pytest.raises(ValueError, match="'base_url'"):
        load_verifier(name, base_url="http://a/v1")


def test_a_model_is_given_once():
    with pytest.raises(ValueError, match="'nli:a'.*model='b'"):
        load_verifier("nli:a", model="b")


def test_dotted_path():
    verifier = load_verifier(f"{__name__}:Constant", abstained=True)
    assert verifier.verify([VerifierInput("x")]) == [Verification(abstained=True)]
    assert load_verifier(f"{__name__}:Constant.Inner").verify([]) == []


def test_object_is_returned_as_it_is():
    verifier = Constant()
    assert load_verifier(verifier) is verifier
    with pytest.raises(ValueError, match=r"Constant.*'abstained'"):
        load_verifier(verifier, abstained=True)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        *CASES["unknown_names"],
        (f"{__name__}:Constnat", "'Constnat'.*'Constant'.*'lexical'"),
        (f"{__name__}:NoVerifier", "gives a NoVerifier: .*`verify`"),
    ],
)
def test_unknown_names(name, message):
    with pytest.raises(ValueError, match=message):
        load_verifier(name)


@pytest.mark.parametrize(
    ("given", "message"),
    [(NoVerifier(), "NoVerifier.*`verify`"), (Constant, r"the class Constant; pass Constant\("), (None, "None")],
)
def test_objects_that_are_no_verifier(given, message):
    with pytest.raises(TypeError, match=message):
        load_verifier(given)


def test_a_saved_pipeline(tmp_path):
    save_pipeline(load_verifier("lexical", threshold=0.9), tmp_path)
    assert load_verifier(f"pipeline:{tmp_path}").judge.threshold == 0.9

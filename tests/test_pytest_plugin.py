"""The plugin of pytest, in suites of its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from hf_factuality import assert_supported
from hf_factuality.evaluation.assertions import NotJudgedWarning, loaded_verifier
from hf_factuality.spans import Label, LabeledSpan, Verification


pytest_plugins = ["pytester"]
REPOSITORY = Path(__file__).resolve().parent.parent
EVIDENCE = ["Marie Curie was born in Warsaw in 1867."]
HALF = "Marie Curie was born in Warsaw in 1867. Marie Curie was born in Warsaw in 1890."


class Labels:
    """A verifier that labels words: `x` is contradicted, `?` could not be judged, `!` raises, and others are supported."""

    made = 0

    def __init__(self):
        type(self).made += 1

    def verify(self, inputs):
        return [self._one(item.completion) for item in inputs]

    def _one(self, text):
        if "!" in text:
            raise RuntimeError("the judge is down")
        known = {"x": Label.CONTRADICTED, "?": None}
        spans = [
            LabeledSpan(found.start(), found.end(), known.get(found[0], Label.SUPPORTED), evidence="because")
            for found in re.finditer(r"\S+", text)
        ]
        return Verification(tuple(spans))


@pytest.fixture
def suite(pytester, monkeypatch):
    """Runs a suite with the plugin alone, as it is loaded where the package is installed."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")
    monkeypatch.setenv("PYTEST_ADDOPTS", "")
    monkeypatch.syspath_prepend(REPOSITORY)

    def run(code, *flags, ini="", new_process=False):
        pytester.makepyfile(code)
        if ini:
            pytester.makeini(f"[pytest]\n{ini}\n")
        run = pytester.runpytest_subprocess if new_process else pytester.runpytest_inprocess
        # The plugin may have been imported in this process by another test: pytest warns that it cannot rewrite it then.
        unwarned = "-W", "ignore::pytest.PytestAssertRewriteWarning"
        return run("-p", "hf_factuality.pytest_plugin", "-p", "no:cacheprovider", *unwarned, *flags)

    return run


def test_what_is_supported_passes_and_the_rest_fails_with_its_claims(suite):
    result = suite(
        f"""
        def test_true(assert_supported):
            found = assert_supported("Marie Curie was born in Warsaw in 1867.", {EVIDENCE}, question="Where?")
            assert [span.label for span in found.spans] == ["supported"]

        def test_half(assert_supported):
            assert_supported({HALF!r}, {EVIDENCE}, question="Where was she born?")

        def test_half_is_enough(assert_supported):
            assert_supported({HALF!r}, {EVIDENCE}, 0.5)
        """
    )
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "E * AssertionError: 1 of 2 claims are supported (0.50), at least 0.8 is asked for",
            "E * question: Where was she born?",
            f"E * answer: {HALF}",
            "E * supported * [[]0:39[]] Marie Curie was born in Warsaw in 1867.",
            "E * contradicted * [[]40:79[]] Marie Curie was born in Warsaw in 1890.",
            "E * evidence: Marie Curie was born in Warsaw in 1867.",
            "E * judged by 'small'*",
        ]
    )
    # The line of the test is shown, and none of the library's.
    assert "assertions.py" not in result.stdout.str() and "pytest_plugin.py" not in result.stdout.str()


def test_what_could_not_be_judged_is_never_silently_right(suite):
    result = suite(
        """
        def test_one_claim(assert_supported):
            assert_supported("a b ?", "e")

        def test_all(assert_supported):
            assert_supported("?", "e", max_not_judged=1.0)

        def test_down(assert_supported):
            assert_supported("a !", "e")

        def test_no_evidence(assert_supported):
            assert_supported("a", [])

        def test_nothing(assert_supported):
            assert_supported("<think>a</think>", "e")

        def test_allowed(assert_supported):
            assert_supported("a b c ?", "e", max_not_judged=0.25)

        def test_allowed_and_too_low(assert_supported):
            assert_supported("a x ?", "e", max_not_judged=0.5)
        """,
        "--factuality-verifier",
        "tests.test_pytest_plugin:Labels",
    )
    result.assert_outcomes(passed=1, failed=6, warnings=1)
    result.stdout.fnmatch_lines_random(
        [
            "E * 1 of 3 claims could not be judged, at most 0% may be, and 2 of the others are supported",
            "E * not judged * [[]4:5[]] ?",
            "E * 1 of 1 claims could not be judged, at most 100% may be",
            "E * the answer was not judged: RuntimeError: the judge is down",
            "E * the answer was not judged: no evidence",
            "E * the answer was not judged: nothing of it is in the scope",
            "E * 1 of 2 claims are supported (0.50), at least 0.8 is asked for; 1 of 3 claims could not be judged",
            "*NotJudgedWarning: 1 of 4 claims could not be judged; the others are supported enough",
        ]
    )


@pytest.mark.parametrize("how", ["ini", "flag", "both"])
def test_the_verifier_is_named_by_the_settings_and_made_once(suite, how, monkeypatch):
    """What the flag names comes before what the file of settings does."""
    monkeypatch.setattr(Labels, "made", 0)
    name = "tests.test_pytest_plugin:Labels"
    ini = {"ini": f"factuality_verifier = {name}", "both": "factuality_verifier = no_such"}.get(how, "")
    flags = () if how == "ini" else ("--factuality-verifier", name)
    result = suite(
        """
        import pytest

        @pytest.mark.parametrize("n", range(3))
        def test_it(assert_supported, n):
            assert_supported("a b", "e")

        def test_object(factuality_verifier):
            assert type(factuality_verifier).__name__ == "Labels"

        def test_another(assert_supported):
            with pytest.raises(AssertionError, match="unverifiable"):
                assert_supported("The sea is wide here.", "Ulm lies on the Danube.", verifier="lexical")
        """,
        *flags,
        ini=ini,
    )
    result.assert_outcomes(passed=5)
    assert Labels.made == 1


def test_a_verifier_that_is_not_there_is_named_once_per_test_without_a_traceback(suite):
    result = suite("def test_it(assert_supported): ...", "--factuality-verifier", "lexicl")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*factuality_verifier = lexicl:*lexical*"])
    assert "Traceback" not in result.stdout.str() and "registry.py" not in result.stdout.str()


def test_fixtures_and_options_of_a_suite_come_first(suite, pytester):
    pytester.makeconftest(
        """
        import pytest

        @pytest.fixture
        def assert_supported():
            return "its own"
        """
    )
    suite("def test_it(assert_supported): assert assert_supported == 'its own'").assert_outcomes(passed=1)


UNUSED = """
import sys

def test_nothing_is_loaded():
    heavy = {"torch", "transformers", "numpy", "datasets", "hf_factuality.evaluation", "hf_factuality.verifiers"}
    assert not heavy & set(sys.modules)
"""


def test_a_suite_that_does_not_use_it_loads_nothing(suite):
    suite(UNUSED, new_process=True).assert_outcomes(passed=1)


def test_the_import_costs_little():
    """Seconds of the processor beyond those of pytest; the best of three, since machines are shared."""
    code = "import time, pytest; t = time.process_time(); import hf_factuality.pytest_plugin; print(time.process_time() - t)"
    taken = [
        float(subprocess.run([sys.executable, "-c", code], capture_output=True, check=True).stdout) for _ in "123"
    ]
    assert min(taken) < 0.1


def test_the_package_names_the_plugin():
    assert '"pytest11": ["hf_factuality = hf_factuality.pytest_plugin"]' in (REPOSITORY / "setup.py").read_text()


def test_without_pytest_it_is_a_function():
    assert assert_supported(EVIDENCE[0], EVIDENCE[0]).spans[0].label == "supported"
    messages = [{"role": "user", "content": "Where?"}, {"role": "assistant", "content": EVIDENCE[0]}]
    assert assert_supported(messages, EVIDENCE, 1.0)
    with pytest.raises(AssertionError, match="the answer declines"):
        assert_supported("I don't know.", EVIDENCE)
    with pytest.raises(AssertionError, match="the answer was not judged: no answer"):
        assert_supported([{"role": "assistant", "content": None}], EVIDENCE)
    assert loaded_verifier("lexical") is loaded_verifier("lexical")
    with pytest.warns(NotJudgedWarning, match="1 of 2"):
        assert_supported("a ?", "e", 1.0, Labels(), max_not_judged=0.5)


@pytest.mark.parametrize(
    ("given", "error", "message"),
    [
        ({"at_least": 80}, ValueError, "`at_least` is a share in"),
        ({"max_not_judged": True}, ValueError, "`max_not_judged`"),
        ({"scope": "all"}, ValueError, "`scope`"),
        ({"evidence": {"a": 1}}, TypeError, "`evidence` must be a text or a list of texts"),
        ({"answer": 3}, TypeError, "`answer` must be a text"),
        ({"verifier": "lexicl"}, ValueError, "lexical"),
        ({"verifier": 3}, TypeError, "no verifier"),
    ],
)
def test_wrong_arguments_are_named(given, error, message):
    with pytest.raises(error, match=message):
        assert_supported(**{"answer": "A.", "evidence": "A.", **given})

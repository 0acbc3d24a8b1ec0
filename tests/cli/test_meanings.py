"""A flag of one name means the same in all commands and trainings, and docs/flags.md lists them all."""

import argparse
import inspect
from collections import defaultdict
from pathlib import Path

import pytest

import hf_factuality
from hf_factuality.cli.flags import Flag, flags, page
from hf_factuality.cli.main import _parser
from hf_factuality.cli.shared import FLAGS
from hf_factuality.retrieval import KnowledgeBase


PAGE = Path(__file__).resolve().parents[2] / "docs" / "flags.md"


@pytest.fixture(scope="module")
def by_name():
    found = defaultdict(list)
    for flag in flags():
        found[flag.name].append(flag)
    return found


def test_one_meaning_and_one_type_per_flag(by_name):
    several = {}
    for name, own in by_name.items():
        meanings = {(flag.meaning.casefold(), flag.takes) for flag in own}
        if len(meanings) > 1:
            several[name] = meanings
    assert len(by_name) > 150 and not several


def test_every_flag_says_what_it_means(by_name):
    assert not [flag for own in by_name.values() for flag in own if not flag.meaning]


def test_shared_flags_have_one_definition(by_name):
    """Those of several files of `cli/`; the others are of one command, or of trainings whose configuration defines them."""
    for name, (takes, text) in FLAGS.items():
        expected = Flag(name, "", "", text).meaning.casefold()
        assert {flag.meaning.casefold() for flag in by_name[name]} == {expected}, name
        assert (by_name[name][0].takes == "") == (takes is bool), name


def test_the_page_is_not_stale():
    assert PAGE.read_text(encoding="utf-8") == page(), "run python -m hf_factuality.cli.flags > docs/flags.md"


# Of the command alone, and of the function alone.
ONLY = {
    "agree": ({"json"}, set()),
    "compare": ({"json"}, set()),
    "verify": ({"file", "json"}, {"completions", "keep_rows"}),
    "evaluate": ({"json"}, {"command"}),
    "merge": (set(), {"on_written"}),
    "average": ({"alphas"}, {"on_written"}),  # which are `ratios`
    "push": ({"allow_path", "allow_secret"}, {"allow_paths", "allow_secrets", "on_plan", "patience", "token"}),
    "plan": ({"json"}, {"settings"}),  # the flags of a training
    "serve": (set(), {"on_start"}),
    "view": ({"space"}, {"on_start"}),
    "demo": ({"space"}, {"on_start"}),
    "index": ({"out", "bm25"}, {"path", "show_progress"}),
}
FUNCTIONS = {
    **{
        name: getattr(hf_factuality, name)
        for name in (
            "agree",
            "verify",
            "evaluate",
            "compare",
            "merge",
            "average",
            "push",
            "plan",
            "serve",
            "view",
            "demo",
        )
    },
    **{
        name.replace("_", "-"): getattr(hf_factuality, name)
        for name in dir(hf_factuality)
        if name.startswith("build_")
    },
    "index": KnowledgeBase.build,
}


@pytest.mark.parametrize("command", FUNCTIONS)
def test_arguments_in_python_have_the_names_of_the_flags(command):
    (commands,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    flags = {action.dest for action in commands.choices[command]._actions} - {"help"}
    arguments = set(inspect.signature(FUNCTIONS[command]).parameters)
    if command.startswith("build-"):
        arguments = arguments - {"options"} | set(hf_factuality.BuildArguments.__annotations__)
    assert (flags - arguments, arguments - flags) == ONLY.get(command, (set(), set()))


@pytest.mark.parametrize(
    ("help", "meaning"),
    [
        ("output: folder", "output"),
        ("device (default cuda); or auto", "device"),
        ("Seconds to wait. None: for ever.", "Seconds to wait"),
        ("in .jsonl or .csv", "in .jsonl or .csv"),
        ("", ""),
    ],
)
def test_what_a_meaning_is(help, meaning):
    assert Flag("x", "", "", help).meaning == meaning

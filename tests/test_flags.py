"""Every flag that a message, a page or a script names exists."""

import argparse
import re

import pytest
from trl import TrlParser

from hf_factuality.cli.main import _parser
from hf_factuality.cli.train import METHODS
from tests.test_recipes import REPOSITORY, load_training


FLAG = re.compile(r"(?<![\w/.<!|-])--([a-zA-Z][\w-]*)")
# Of the other programs that pages and scripts call: accelerate launch and torchrun; vllm serve and trl vllm-serve; Slurm; pip,
# git, ER-PRM's released script.
OTHERS = set(
    """
    config_file machine_rank main_process_ip num_machines num_processes rdzv_backend
    host port max_num_seqs reasoning_parser runner tensor_parallel_size
    exclusive gpus_per_node job_name nodelist nodes ntasks ntasks_per_node overlap requeue signal
    no_deps target error_unmatch porcelain stat coefficient container factuality_verifier
    """.split()
)
# Not flags: the beginning of several, which a loop makes.
BEGINNINGS = {"num_"}


def flags_of(parser):
    """All flags of a parser and of its subcommands, with `_`."""
    found = set()
    for action in parser._actions:
        found |= {option[2:].replace("-", "_") for option in action.option_strings if option.startswith("--")}
        if isinstance(action, argparse._SubParsersAction):
            for sub in action.choices.values():
                found |= flags_of(sub)
    return found


@pytest.fixture(scope="module")
def known():
    found = flags_of(_parser()) | {"config"}  # TRL's parser takes it out itself
    for method in METHODS:
        types = load_training(method).TYPES
        for each in types.values() if isinstance(types, dict) else [types]:
            found |= flags_of(TrlParser(each))
    for path in [*(REPOSITORY / "benchmarks").rglob("*.py"), *(REPOSITORY / "examples").rglob("*.py")]:
        text = path.read_text(encoding="utf-8")
        found |= {
            flag.replace("-", "_") for flag in re.findall(r"""(?:add_argument|flag|add)\(\s*"--([\w-]+)""", text)
        }
    return found


FILES = [
    path
    for pattern in (
        "hf_factuality/**/*.py",
        "examples/**/*.py",
        "docs/*.md",
        "*.md",
        "recipes/**/*.yaml",
        "recipes/**/*.sbatch",
    )
    for path in sorted(REPOSITORY.glob(pattern))
    if path.name != "CHANGELOG.md"  # flags of before are named there
]


def test_every_flag_that_is_named_exists(known):
    unknown = {}
    for path in FILES:
        for name in FLAG.findall(path.read_text(encoding="utf-8")):
            flag = name.rstrip("-").replace("-", "_")
            if flag not in known | OTHERS | BEGINNINGS:
                unknown.setdefault(flag, set()).add(path.relative_to(REPOSITORY).as_posix())
    assert len(FILES) > 100 and not unknown, unknown


COMMAND = re.compile(r"(?:^|[`$ ])hf-factuality (\w[\w-]*)((?: +[^`\n]*)?)")


def test_every_command_line_has_flags_of_that_command():
    """`hf-factuality build-preferences ... --flag` on a page or in a docstring, with its continued lines."""
    (commands,) = (action for action in _parser()._actions if isinstance(action, argparse._SubParsersAction))
    wrong, seen = [], 0
    for path in FILES:
        text = re.sub(r"\\\n\s*", " ", path.read_text(encoding="utf-8"))
        for name, rest in COMMAND.findall(text):
            if name not in commands.choices or name in ("plan", "train"):  # which take all settings of a trainer
                continue
            flags = {flag.replace("-", "_") for flag in FLAG.findall(rest.split(" | ")[0].split(" && ")[0])}
            seen += len(flags)
            lacking = flags - flags_of(commands.choices[name])
            wrong += [(path.name, name, flag) for flag in sorted(lacking)]
    assert seen > 50 and not wrong, wrong

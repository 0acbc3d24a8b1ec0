"""All flags of the commands and of the trainings: `python -m hf_factuality.cli.flags > docs/flags.md`."""

from __future__ import annotations

import argparse
import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import fields
from importlib import import_module
from typing import Any, NamedTuple, get_args, get_type_hints

from hf_factuality.cli.main import _parser
from hf_factuality.cli.train import METHODS


class Flag(NamedTuple):
    """A flag of one command: what it takes (`""` for one that stands alone), and its help."""

    name: str
    command: str
    takes: str
    help: str

    @property
    def meaning(self) -> str:
        """The first clause of the help, which is the same for all commands."""
        return re.split(r"[:;,]|\. | \(", self.help)[0].strip().rstrip(".")


def flags() -> list[Flag]:
    """Own flags of all commands and trainings, by name; those that trainings inherit from TRL and transformers are left out."""
    found = [*_of_commands(_parser(), ""), *_of_trainings()]
    return sorted(found, key=lambda flag: (flag.name, not flag.command.startswith("train "), flag.command))


def _of_commands(parser: argparse.ArgumentParser, command: str) -> Iterator[Flag]:
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, sub in action.choices.items():
                yield from _of_commands(sub, f"{command} {name}".strip())
        elif action.option_strings and not isinstance(action, (argparse._HelpAction, argparse._VersionAction)):
            takes = "" if action.nargs == 0 else getattr(action.type, "__name__", "str")
            help = (action.help or "").replace("%(default)s", str(action.default))
            yield Flag(action.option_strings[-1].removeprefix("--"), command, _TYPES.get(takes, takes), help)


# Checks of an argument, by what comes out of them; files are named by texts.
_TYPES = {"whole_number": "int", "seconds": "float", "Path": "str", "json_object": "dict"}


def _of_trainings() -> Iterator[Flag]:
    from hf_factuality.cli.train.shared import introduced_by

    for method in METHODS:
        types = import_module(f"hf_factuality.cli.train.{method}").TYPES
        found: dict[str, Flag] = {}
        for kind in (kind for kinds in (types.values() if isinstance(types, dict) else [types]) for kind in kinds):
            hints = get_type_hints(kind)
            for field in fields(kind):
                if introduced_by(kind, field.name).__module__.startswith("hf_factuality."):
                    told = field.metadata.get("help", "")
                    found[field.name] = Flag(field.name, f"train {method}", _type_of(hints[field.name]), told)
        yield from found.values()


def _type_of(hint: Any) -> str:
    """`int` of `int | None`, and `str` of `list[str]` and of choices."""
    inner = [it for it in get_args(hint) if it is not type(None)]
    if not inner:
        return "" if hint is bool else hint.__name__
    return _type_of(type(inner[0]) if not isinstance(inner[0], type) and not get_args(inner[0]) else inner[0])


def page() -> str:
    """docs/flags.md."""
    rows: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    for flag in flags():
        rows[flag.name, flag.takes, flag.help.removesuffix(".")].append(flag.command)
    all_builders = {command for own in rows.values() for command in own if command.startswith("build-")}
    lines = [
        "# Flags",
        "",
        "All flags of `hf-factuality`, and those of its trainings that are not TRL's or transformers' own. A flag means the same "
        "in every command, and may be written with `-` for `_`. Arguments of the functions in Python have the same names. Made "
        "by `python -m hf_factuality.cli.flags`.",
        "",
        "| flag | takes | meaning | commands |",
        "|---|---|---|---|",
    ]
    for (name, takes, text), commands in rows.items():
        shown = text.replace("|", "\\|").replace("<", "&lt;").replace("*", "\\*")
        named = [command for command in commands if not command.startswith("build-")]
        builders = [command for command in commands if command.startswith("build-")]
        named += ["build-..."] if len(builders) == len(all_builders) else builders
        where = ", ".join(f"`{command}`" for command in named)
        lines.append(f"| `--{name}` | {takes or '-'} | {shown} | {where} |")
    return "\n".join([*lines, ""])


if __name__ == "__main__":
    print(page(), end="")

"""What the trainings share: how their flags are read, and what is refused before any weights are loaded."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import yaml
from trl import TrlParser

from hf_factuality.cli.shared import misspelt_flag, shown_table, with_underscores
from hf_factuality.data.builder import describe_run
from hf_factuality.data.reading import open_dataset
from hf_factuality.io.recipes import RECIPES, find_recipe
from hf_factuality.trainers.log import use_training_log


class _Formatter(argparse.ArgumentDefaultsHelpFormatter):
    """Each flag once, though it may be written with `-` as well, and defaults where they say something."""

    def _format_action_invocation(self, action: argparse.Action) -> str:
        first = action.option_strings[0]
        if action.nargs == 0:
            return ", ".join(action.option_strings) if first == "-h" else first
        return f"{first} {self._format_args(action, action.dest.upper())}"

    def _get_help_string(self, action: argparse.Action) -> str | None:
        return action.help if action.default is None else super()._get_help_string(action)


class TrainingParser(TrlParser):
    """`TrlParser` whose `--help` shows the flags of the method before those of TRL and transformers.

    `--config` may name a recipe of the package, and a flag that does not exist is refused with the nearest one.
    """

    def __init__(self, method: str, types: Iterable[type]):
        from hf_factuality.cli.train import METHODS

        prog = f"hf-factuality train {method}"
        description = f"{METHODS[method]}. Without flags it trains a small model in minutes on a CPU."
        super().__init__(
            types,
            prog=prog,
            usage=f"{prog} [--config FILE] [flags]",
            description=description,
            formatter_class=_Formatter,
            allow_abbrev=False,
        )
        # TRL's parser takes the flag out itself; so it only has to be in the help.
        self.add_argument("--config", default=argparse.SUPPRESS, metavar="FILE", help="YAML of settings, see recipes/")
        self._group(types)

    def _group(self, types: Iterable[type]) -> None:
        """Sort the flags by the class that introduced them: our own, TRL's, those of transformers."""
        names: dict[str, list[str]] = {f"flags of {self.prog.rpartition(' ')[2]}": ["config"]}
        for kind in types:
            for field in fields(kind):
                owner = introduced_by(kind, field.name)
                own = owner.__module__.startswith("hf_factuality.")
                title = next(iter(names)) if own else f"{owner.__module__.partition('.')[0]}'s {owner.__name__}"
                names.setdefault(title, []).append(field.name)
        known: dict[str, list[argparse.Action]] = {action.dest: [] for action in self._actions}
        for action in self._optionals._group_actions:
            known[action.dest].append(action)
        # Transformers' many flags last: fewer of them are needed.
        for title in sorted(names, key=lambda title: title.startswith("transformers")):
            group = self.add_argument_group(title)
            for action in (action for name in names[title] for action in known[name]):
                self._optionals._group_actions.remove(action)
                group._group_actions.append(action)

    def read(self, words: Sequence[str]) -> tuple[Any, ...]:
        """The dataclasses of a command line and of the recipe that it names.

        Raises:
            `ValueError`: if a flag does not exist, or `--config` has no file.
        """
        words = with_recipe(words)
        if said := misspelt_flag(words, self._option_string_actions, self.prog):
            raise ValueError(said)  # before the settings are checked, which would be refused as if it were not there
        self._set_tracker(words)
        if not torch.accelerator.is_available():  # to whose memory nothing is copied; torch would say so
            self.set_defaults(dataloader_pin_memory=False)
        *found, from_file, left = self.parse_args_and_config(
            words, return_remaining_strings=True, separate_remaining_strings=True
        )
        if from_file:
            path = words[words.index("--config") + 1]
            raise ValueError(f"{path} has settings that {self.prog} does not know: {' '.join(from_file)}")
        if left:
            raise ValueError(f"{left[0]!r} is of no flag")
        return tuple(found)

    def _set_tracker(self, words: Sequence[str]) -> None:
        """Take Trackio where it is installed and neither the flags nor the recipe say who tracks the run.

        It logs to this machine: a Space, which would be public, is made only for who asks for it.
        """
        from transformers.integrations import is_trackio_available

        known = {action.dest for action in self._actions}
        if "report_to" not in known or not is_trackio_available():
            return
        recipe = Path(words[words.index("--config") + 1]) if "--config" in words else None
        named = {word.partition("=")[0].removeprefix("--") for word in words}
        named |= (
            {*(yaml.safe_load(recipe.read_text(encoding="utf-8")) or ())} if recipe and recipe.is_file() else set()
        )
        if "report_to" not in named:
            self.set_defaults(report_to="trackio", trackio_static_space_id=False)


def with_recipe(words: Sequence[str]) -> list[str]:
    """A command line as TRL's parser reads it: `--config FILE` in two words, and where that file is."""
    words = [part for word in words for part in (word.split("=", 1) if word.startswith("--config=") else [word])]
    if "--config" in words:
        place = words.index("--config") + 1
        if place == len(words) or words[place].startswith("--"):
            raise ValueError("--config needs the name of a file")
        words[place] = str(find_recipe(words[place]))
    return words


def introduced_by(kind: type, name: str) -> type:
    """The class that introduced a field of a dataclass, and not one that changed its default."""
    return [owner for owner in kind.__mro__ if name in owner.__dict__.get("__annotations__", ())][-1]


def read_flags(
    method: str, types: Sequence[type], words: Sequence[str], real: Sequence[str], demo: str = "closed-world"
) -> tuple[Any, ...]:
    """Whether a run is on data of the user's, and its flags as dataclasses.

    It is if one of the flags `real` is given, or one that every such run has. Otherwise the recipe `demo` is read, or that of
    the flag `--demo` where a method has several, which trains a small model on data made for it.
    """
    words = with_underscores(words)
    given = dict(zip((word.partition("=")[0] for word in words), map(_value_of, words, [*words[1:], ""]), strict=True))
    own = not given.keys().isdisjoint(("--config", "--model_name_or_path", *real))
    if "--demo" in given:  # which may be asked for with another model and other settings
        own = not given.keys().isdisjoint(real)
    if (RECIPES / method / f"{given.get('--demo')}.yaml").is_file():
        demo = given["--demo"]
    asks = not given.keys().isdisjoint(("--help", "-h"))
    recipe = [] if own or asks or "--config" in given else ["--config", str(RECIPES / method / f"{demo}.yaml")]
    return own, *TrainingParser(method, types).read([*recipe, *words])


def _value_of(word: str, behind: str) -> str:
    """What a flag is set to, in the same word or in the one behind it."""
    return word.partition("=")[2] or behind


def model_name(model):
    """The model of `--model_name_or_path`."""
    if not model.model_name_or_path:
        raise ValueError("name the model to train with --model_name_or_path")
    return model.model_name_or_path


def load_split(script, *columns, **arguments):
    """The dataset that the flags of TRL's `ScriptArguments` name, which has one of these lists of columns."""
    if not script.dataset_name:
        raise ValueError("name the data to train on with --dataset_name: a repository on the Hub, a folder or a file")
    name = script.dataset_name, script.dataset_config, script.dataset_train_split
    dataset = open_dataset(*name, columns, **arguments)
    dataset.info.description = describe_run(script.dataset_name) or dataset.info.description  # for the card
    return dataset


def set_model_kwargs(training, model):
    """How the weights are loaded, as TRL's `ModelConfig` says it; what the settings of the training say goes first."""
    chosen = {"attn_implementation": model.attn_implementation, "dtype": model.dtype, "revision": model.model_revision}
    training.model_init_kwargs = {**chosen, **(training.model_init_kwargs or {})}


def train_and_publish(trainer, dataset_name, demo=None, what="The model and its card"):
    """Train, save and publish; with a demo also what it measures before and after. `what` says what lies in the folder then."""
    args = trainer.args
    if demo:
        demo.measure("before", trainer)
    use_training_log(trainer)
    trainer.train(resume_from_checkpoint=args.resume_from_checkpoint)
    trainer.save_model()
    if demo:
        demo.measure("after", trainer)
        trainer.card_results = demo.report(args.output_dir)
    trainer.create_model_card(dataset_name=dataset_name)
    trainer.accelerator.print(f"{what} are in {args.output_dir}")
    if args.push_to_hub:
        trainer.push_to_hub(dataset_name=dataset_name)


def print_measured(trainer):
    """The table of what a trainer measured at its end, from the file of results that it wrote."""
    from hf_factuality.evaluation.model import result_cells
    from hf_factuality.hub.results import format_value, load_results

    path = Path(trainer.args.output_dir) / trainer._results
    if path.is_file() and trainer.figures:
        rows = [result_cells(entry) for entry in load_results(path)["results"]]
    else:
        rows = [{"measure": name, "value": format_value(value)} for name, value in trainer.figures.items()]
    if rows:
        trainer.accelerator.print(f"\n{shown_table(rows)}\n")

"""What the scripts refuse alike, before any weights are loaded."""

import sys

from hf_factuality.data.builder import describe_run
from hf_factuality.data.reading import open_dataset


def given(*flags):
    """Whether one of these flags was given, or one of those that every real run has: else the closed world is meant."""
    names = {argument.partition("=")[0] for argument in sys.argv[1:]}
    return bool(names & {"--config", "--model_name_or_path", *flags})


def model_name(model):
    """The model of `--model_name_or_path`."""
    if not model.model_name_or_path:
        raise ValueError("name the model to train with --model_name_or_path")
    return model.model_name_or_path


def load_split(script, *columns, **arguments):
    """The dataset that the flags of TRL's `ScriptArguments` name, which has one of these lists of columns."""
    if not script.dataset_name:
        raise ValueError("name the data to train on with --dataset_name: a repository on the Hub, or a folder")
    name = script.dataset_name, script.dataset_config, script.dataset_train_split
    dataset = open_dataset(*name, columns, **arguments)
    dataset.info.description = describe_run(script.dataset_name) or dataset.info.description  # for the card
    return dataset


def set_model_kwargs(training, model):
    """How the weights are loaded, as TRL's `ModelConfig` says it; what the settings of the training say goes first."""
    chosen = {"attn_implementation": model.attn_implementation, "dtype": model.dtype, "revision": model.model_revision}
    training.model_init_kwargs = {**chosen, **(training.model_init_kwargs or {})}

"""What a configuration says that a checkpoint must hold, and the check that it does."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from hf_factuality.checkpoints.tensors import TensorSource, same
from hf_factuality.errors import CheckpointError


_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "depth")
_WRAPPERS = ("_fsdp_wrapped_module.", "_checkpoint_wrapped_module.", "_orig_mod.")


@dataclass
class Expected:
    """The model of a configuration.

    A checkpoint has one of the `shapes`: names and shapes as the class of this version of transformers has them, or, where they
    differ, as it writes them into files. `tied` leads to the names that files have tied weights under; `transposed` are those
    that are stored as (in, out), `linear` those of linear modules, `integers` those whose numbers are no floating-point ones.
    `written` leads from names in files to those of the class, where transformers only renames a tensor; `vocabulary` are those with a row per token, the input embeddings first; `settings` what the file of the configuration must
    say otherwise, by its keys.
    """

    architecture: str
    shapes: list[dict[str, tuple[int, ...]]]
    tied: dict[str, str] = field(default_factory=dict)
    generation: str | None = None
    transposed: frozenset[str] = frozenset()
    integers: frozenset[str] = frozenset()
    linear: frozenset[str] = frozenset()
    written: dict[str, str] = field(default_factory=dict)
    vocabulary: tuple[str, ...] = ()
    settings: dict[tuple[str, ...], Any] = field(default_factory=dict)

    @property
    def vocab_size(self) -> int | None:
        """Rows of the input embeddings."""
        return self.shapes[0][self.vocabulary[0]][0] if self.vocabulary else None

    @property
    def names(self) -> list[str]:
        """Of its tensors, one for those that are tied."""
        return [name for name in self.shapes[0] if name not in self.tied]


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object from a file; `CheckpointError` if there is none."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_once)
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{path} cannot be read as JSON ({' '.join(str(error).split())[:120]})") from error
    if not isinstance(found, dict):
        raise CheckpointError(f"{path} holds a {type(found).__name__}, not a JSON object")
    return found


def check_not_quantised(folder: Path) -> None:
    """Raise if the configuration of a folder says that its weights are quantised: the numbers mean nothing by themselves."""
    config = read_json(folder / "config.json")
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        for key in ("quantization_config", "compression_config"):
            if found := part.get(key):
                kind = found.get("quant_method") if isinstance(found, dict) else None
                raise CheckpointError(
                    f"{folder / 'config.json'} has a {key} ({kind or 'of no named method'}): quantised weights cannot be cast, "
                    "averaged or added to; pass the model in 16 or 32 bits (of an adapter as `base_model`), or the "
                    "folder of a configuration without it as `model_config` if the weights are not quantised"
                )


def check_layers(folder: Path, most: int) -> None:
    """Raise if the configuration of a folder has more layers than a checkpoint has tensors: they would all be built."""
    config = read_json(folder / "config.json")
    for part in (config, *(value for value in config.values() if isinstance(value, dict))):
        for key in _LAYERS:
            if isinstance(part.get(key), (int, float)) and part[key] > most:
                raise CheckpointError(
                    f"{folder / 'config.json'} has {key} {part[key]}, and the checkpoint {most} tensors; it is of another model"
                )


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if odd := [key for key, value in pairs if found[key] is not value and found[key] != value]:
        raise ValueError(f"{odd[0]!r} comes twice, with two values")
    return found


def expected_model(
    folder: Path, trust_remote_code: bool = False, vocab_size: int | None = None, tied: bool = True
) -> Expected:
    """Build the model of a folder's `config.json` without memory for its weights.

    `vocab_size` replaces that of the configuration; `tied=False` builds it with an output layer of its own.
    """
    import transformers
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM
    from transformers.pytorch_utils import Conv1D

    written = read_json(folder / "config.json")
    if written.get("auto_map") and not trust_remote_code:
        raise CheckpointError(
            f"{folder / 'config.json'} asks for the code of its repository (auto_map); pass trust_remote_code=True "
            "(`trust_remote_code`) to run it"
        )
    try:
        config = AutoConfig.from_pretrained(folder, trust_remote_code=trust_remote_code)
        config._attn_implementation = "eager"  # another may be a kernel, to be downloaded and run
        settings = _set(config, vocab_size, tied)
        name = next(iter(written.get("architectures") or ()), None)
        with torch.device("meta"):
            if written.get("auto_map"):
                auto = AutoModelForCausalLM if "AutoModelForCausalLM" in written["auto_map"] else AutoModel
                model = auto.from_config(config, trust_remote_code=True)
            elif name is None:
                model = AutoModelForCausalLM.from_config(config)
            elif name not in _model_classes():
                raise ValueError(f"transformers {transformers.__version__} has no model class {name}")
            else:
                model = getattr(transformers, name)(config)
        generation = model.generation_config.to_json_string() if model.can_generate() else None
    except Exception as error:  # whatever a configuration of somebody else runs into
        reason = " ".join(str(error).split())[:200]
        raise CheckpointError(f"no model can be built from {folder / 'config.json'}: {reason}") from error
    state = model.state_dict()
    shapes, renamed = [{key: tuple(value.shape) for key, value in state.items()}], {}
    written = _written_names(model, state)
    written_shapes = {key: tuple(value.shape) for key, value in written.items()}
    if written and written_shapes != shapes[0]:
        shapes.append(written_shapes)
        names = {id(value): key for key, value in state.items()}
        renamed = {key: names[id(value)] for key, value in written.items() if names.get(id(value), key) != key}
    aliases = dict(getattr(model, "all_tied_weights_keys", None) or {})
    transposed = (f"{name}.weight" for name, module in model.named_modules() if isinstance(module, Conv1D))
    integers = frozenset(key for key, value in state.items() if not value.dtype.is_floating_point)
    linear, vocabulary = linear_names(model), _vocabulary(model)
    expected = Expected(
        type(model).__name__,
        shapes,
        aliases,
        generation,
        frozenset(transposed),
        integers,
        linear,
        renamed,
        vocabulary,
        settings,
    )
    if vocab_size not in (None, expected.vocab_size):
        raise CheckpointError(
            f"{vocabulary[0]!r} of the {expected.architecture} in {folder / 'config.json'} has {expected.vocab_size} rows, and "
            f"not {vocab_size}, with that vocab_size"
        )
    return expected


def _set(config: Any, vocab_size: int | None, tied: bool) -> dict[tuple[str, ...], Any]:
    """Change a configuration; what was changed, by the keys of its file."""
    settings: dict[tuple[str, ...], Any] = {}
    text = config.get_text_config()
    if vocab_size is not None:
        inside = [key for key in config.sub_configs if getattr(config, key, None) is text]
        settings[(*inside[:1], text.attribute_map.get("vocab_size", "vocab_size"))] = text.vocab_size = vocab_size
    if not tied:
        config.tie_word_embeddings = settings[("tie_word_embeddings",)] = False
    return settings


def _vocabulary(model: torch.nn.Module) -> tuple[str, ...]:
    """Names of the weights and biases of the input and the output embeddings."""
    try:
        modules = [model.get_input_embeddings(), model.get_output_embeddings()]
    except (AttributeError, NotImplementedError):  # of a model that reads no tokens
        return ()
    if not isinstance(getattr(modules[0], "weight", None), torch.Tensor):
        return ()
    held = [modules[0].weight, *(p for module in modules if module is not None for p in module.parameters())]
    names = list(model.named_parameters(remove_duplicate=False))
    return tuple(dict.fromkeys(name for tensor in held for name, parameter in names if parameter is tensor))


def linear_names(model: torch.nn.Module) -> frozenset[str]:
    """Names of the weights and biases of linear modules, those of GPT-2 too."""
    from transformers.pytorch_utils import Conv1D

    found = ((name, module) for name, module in model.named_modules() if isinstance(module, (torch.nn.Linear, Conv1D)))
    return frozenset(f"{name}.{key}" for name, module in found for key, _ in module.named_parameters(recurse=False))


def _model_classes() -> set[str]:
    """Names of the classes that the Auto classes of transformers make; nothing else of it is called with a configuration."""
    from transformers.models.auto import modeling_auto

    tables = [table for name, table in vars(modeling_auto).items() if name.endswith("_MAPPING_NAMES")]
    entries = [entry for table in tables for entry in table.values()]
    return {name for entry in entries for name in ((entry,) if isinstance(entry, str) else entry)}


def _written_names(model: Any, state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The tensors as transformers would write them; experts that it fuses are apart there. Empty if it cannot be told."""
    try:
        from transformers.core_model_loading import revert_weight_conversion

        return dict(revert_weight_conversion(model, dict(state)))
    except Exception:  # another version of transformers, or a conversion that needs the numbers
        return {}


def match_names(found: Mapping[str, TensorSource], expected: Expected, where: str) -> dict[str, TensorSource]:
    """The tensors of the model by its names, without what wrappers and savers put in front; others (an optimizer's) are left out."""
    plain: dict[str, TensorSource] = {}
    for name, tensor in found.items():
        name = str(name)  # a pickle may have other keys
        for wrapper in _WRAPPERS:
            name = name.replace(wrapper, "")
        if name in plain:
            raise CheckpointError(
                f"{where} has {name!r} twice, with and without a wrapper's name; take one of them out"
            )
        plain[name] = tensor
    whole: set[str] = set()
    best: tuple[int, dict[str, TensorSource], dict[str, tuple[int, ...]]] = (-1, {}, {})
    for shapes in expected.shapes:
        for prefix in _prefixes(plain, shapes):
            inside = {name[len(prefix) :]: tensor for name, tensor in plain.items() if name.startswith(prefix)}
            fits = len(inside.keys() & shapes.keys())
            if fits > best[0]:
                best = (fits, inside, shapes)
            # An optimizer may keep a number per weight under the weight's name.
            if (
                "optim" not in prefix
                and not _missing(inside, shapes, expected)
                and all(inside[name].shape == shape for name, shape in shapes.items() if name in inside)
            ):
                whole.add(prefix)
    if len(whole) > 1:
        names = " and ".join(repr(prefix) for prefix in sorted(whole))
        raise CheckpointError(
            f"{where} holds the model several times, under {names}; merge a copy that holds one of them"
        )
    _, inside, shapes = best
    _check(inside, shapes, expected, where)
    return _without_tied(inside, expected, where)


def _prefixes(names: Iterable[str], shapes: Mapping[str, Any]) -> list[str]:
    longest = max(shapes, key=lambda name: name.count("."), default="")
    ends = {name[: -len(longest)] for name in names if name == longest or name.endswith("." + longest)}
    return ["", *sorted(ends - {""}, key=len)]


def _missing(found: Mapping[str, TensorSource], shapes: Mapping[str, tuple], expected: Expected) -> list[str]:
    partners = {**expected.tied, **{kept: alias for alias, kept in expected.tied.items()}}
    return [name for name in shapes if name not in found and partners.get(name) not in found]


def _check(found: Mapping[str, TensorSource], shapes: Mapping[str, tuple], expected: Expected, where: str) -> None:
    missing = _missing(found, shapes, expected)
    spare = [name for name in found if name not in shapes]
    model = f"{expected.architecture} of the config.json"
    advice = "the config.json is of another model, or the checkpoint is not whole; see `model_config`"
    odd = [
        name for name in shapes if name in found and found[name].dtype.is_floating_point == (name in expected.integers)
    ]
    if odd:
        raise CheckpointError(
            f"{where}: {odd[0]!r} is {found[odd[0]].dtype}, and of another kind in the {model}{_more(odd)}; quantised weights "
            "are not read: pass the model in 16 or 32 bits"
        )
    wrong = [name for name, shape in shapes.items() if name in found and found[name].shape != shape]
    if wrong:
        name = wrong[0]
        raise CheckpointError(
            f"{where}: {name!r} has shape {list(found[name].shape)}, and {list(shapes[name])} in the {model}{_more(wrong)}; {advice}"
        )
    if missing or spare:
        parts = [
            f"{word} {names[0]!r}{_more(names)}"
            for word, names in (("lacks", missing), ("has a spare", spare))
            if names
        ]
        raise CheckpointError(f"{where} {' and '.join(parts)}, by the {model}; {advice}")


def _more(names: list[str]) -> str:
    return f" ({len(names)} such names)" if len(names) > 1 else ""


def _without_tied(found: dict[str, TensorSource], expected: Expected, where: str) -> dict[str, TensorSource]:
    kept = dict(found)
    for alias, name in expected.tied.items():
        if alias not in found:
            continue
        tensor = kept.pop(alias)
        if name in found and not same(tensor, found[name]):
            raise CheckpointError(
                f"{where}: the config.json ties {alias!r} to {name!r}, but the checkpoint has two different tensors; set "
                "tie_word_embeddings to false in a copy of the config and pass its folder as `model_config`"
            )
        kept.setdefault(name, tensor)
    return kept

"""LoRA adapters, added to the weights they belong to."""

from __future__ import annotations

import math
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch

from hf_factuality.checkpoints.model import Expected, match_names
from hf_factuality.checkpoints.tensors import TensorSource, changed, same
from hf_factuality.errors import CheckpointError


ADAPTER_CONFIG = "adapter_config.json"
_LORA = re.compile(r"(.*)\.lora_(embedding_)?([AB])(?:\.[^.]+)?(?:\.weight)?")
_TOKENS = re.compile(r"(.*)\.token_adapter\.trainable_tokens_delta(?:\.[^.]+)?")
_SAVED = re.compile(r"\.modules_to_save\.")
_SAVED_AS = re.compile(r"\.modules_to_save\.[^.]+\.")
_WRAPPERS = re.compile(r"\.(?:base_layer|original_module|token_adapter)(?=\.)")
_PREFIX = "base_model.model."
_REWRITTEN = ("pissa", "olora", "corda", "loftq", "lora_ga")
_NOT_ADDED = (
    "use_dora",
    "use_qalora",
    "target_parameters",
    "layer_replication",
    "alora_invocation_tokens",
    "lora_bias",
    "use_bdlora",
    "arrow_config",
    "kasa_config",
    "monteclora_config",
)
_OTHER_WAY = "load it with peft and call merge_and_unload()"
# Python reads these otherwise than RE2, or not at all.
_READ_OTHERWISE = re.compile(r"\{,|\[:|\\[QEC]")
_WITHOUT_REPEATS = re.compile(r"[\w.\\^$|()-]*")
_LONGEST = 1_000  # characters of a pattern
_SECONDS = 30  # for patterns that repeat something, which are matched against a few names at a time
_TOGETHER = 64


def split_adapter(tensors: Mapping[str, TensorSource]) -> tuple[dict[str, TensorSource], dict[str, TensorSource]]:
    """The weights without what PEFT's wrappers add to their names, and what the adapter has of its own."""
    base, adapter = {}, {}
    for name, tensor in tensors.items():
        name = str(name).removeprefix(_PREFIX)
        if "lora_" in name.rpartition(".")[0] or ".lora_" in name or _SAVED.search(name) or _TOKENS.fullmatch(name):
            adapter[name] = tensor
        else:
            base[_WRAPPERS.sub("", name)] = tensor
    return base, adapter


def check_start(config: Mapping[str, Any], where: Path) -> None:
    """Raise if training began by rewriting the base, so that the matrices do not belong to the base as it was published."""
    start = str(config.get("init_lora_weights", "")).lower()
    if start.startswith(_REWRITTEN):
        raise CheckpointError(
            f"{where} has init_lora_weights={start!r}, which rewrites the base before training; this is not merged here: "
            f"{_OTHER_WAY}"
        )


@dataclass
class _Changes:
    """What an adapter has for a model, by the model's names.

    `whole` are whole weights, those in `saved` of `modules_to_save`, with a copy of the weight before training in `copies`;
    `tokens` rows and their numbers; `pairs` the matrices A and B, those in `embeddings` as embeddings have them.
    """

    whole: dict[str, TensorSource] = field(default_factory=dict)
    saved: set[str] = field(default_factory=set)
    copies: dict[str, TensorSource] = field(default_factory=dict)
    tokens: dict[str, tuple[TensorSource, list[int]]] = field(default_factory=dict)
    pairs: dict[str, dict[str, TensorSource]] = field(default_factory=dict)
    embeddings: set[str] = field(default_factory=set)

    def own(self, names: Sequence[str]) -> dict[str, list[str]]:
        """Which of the names of one weight are trained by that name, by how."""
        kinds = {"modules_to_save": self.saved, "trainable_token_indices": self.tokens, "LoRA": self.pairs}
        found = {kind: [name for name in names if name in held] for kind, held in kinds.items()}
        return {kind: held for kind, held in found.items() if held}


class Adapter:
    """LoRA matrices, whole weights and rows of tokens that replace the model's, with their `adapter_config.json`."""

    def __init__(self, tensors: Mapping[str, TensorSource], config: Mapping[str, Any], where: Path):
        self.tensors, self.config, self.where = tensors, config, where
        kind = config.get("peft_type", "LORA")
        if kind != "LORA":
            raise CheckpointError(f"{where} is of type {kind}; only LoRA is merged here: {_OTHER_WAY}")
        for key in _NOT_ADDED:
            if config.get(key):
                raise CheckpointError(f"{where} uses {key}, which is not merged here: {_OTHER_WAY}")

    def fold(
        self, base: Mapping[str, TensorSource], build: Callable[..., Expected], where: str
    ) -> tuple[dict[str, TensorSource], Expected, list[str]]:
        """The weights of a model with the adapter added, the model that they are of, and notes for the user.

        `build` makes the model of the configuration, with another `vocab_size` or `tied=False` if asked to. The weights are those
        of PEFT's `merge_and_unload`, on a base whose embeddings were resized to the adapter's first. There is one exception: LoRA,
        or rows of tokens, for one of two tied weights. PEFT's merge adds them to both; here they come apart, as in training.
        """
        plain = build()
        changes = self._changes(plain)
        held = next((t.shape[0] for name, t in base.items() if _is_vocabulary(str(name), t, plain)), plain.vocab_size)
        rows = self._vocab_size(changes, plain) or held
        # The configuration may be the base's, or the adapter's, which is of the resized model.
        of_base = build(vocab_size=held) if held != plain.vocab_size == rows else plain
        weights = match_names(base, of_base, where)
        weights = {of_base.written.get(name, name): tensor for name, tensor in weights.items()}
        apart = self._join_tied(changes, plain)
        settings = {} if rows == plain.vocab_size else {"vocab_size": rows}
        settings |= {"tied": False} if apart else {}
        after = build(**settings) if settings else plain
        for kept, *aliases in apart:
            weights |= dict.fromkeys(aliases, weights[kept])
        self._check_names(changes, weights, after)
        shapes = {name: shape for known in reversed(after.shapes) for name, shape in known.items()}
        for name, tensor in changes.whole.items():
            if tensor.shape != shapes[name]:
                raise CheckpointError(
                    f"{self.where} has {name!r} of shape {list(tensor.shape)}, and the model {list(shapes[name])}; it is of "
                    "another model"
                )
            weights[name] = _cast(tensor, weights[name].dtype)
        for name in after.vocabulary:
            if name in weights and name not in changes.whole and weights[name].shape != shapes[name]:
                weights[name] = self._resized(name, weights[name], rows)
        for name, (delta, indices) in changes.tokens.items():
            weights[name] = self._with_tokens(name, weights[name], delta, indices)
        scales = self._scales(changes.pairs)
        for name, pair in changes.pairs.items():
            flip = name in changes.embeddings or name in after.transposed
            weights[name] = self._folded(name, pair, weights[name], scales[name], flip, name in changes.embeddings)
        notes = [f"{' and '.join(map(repr, group))} are no longer tied, as in the adapter" for group in apart]
        if rows != held:
            notes.append(f"the vocabulary was resized from {held} to {rows} rows, as that of the adapter")
        return weights, after, notes

    def _changes(self, expected: Expected) -> _Changes:
        """Sort the tensors, and raise if the configuration names what is not among them."""
        found, known = _Changes(), {name for shapes in expected.shapes for name in shapes}
        tied = {*expected.tied, *expected.tied.values()}
        entries = self.config.get("modules_to_save") or []
        if not isinstance(entries, list) or not all(isinstance(entry, str) and entry for entry in entries):
            raise CheckpointError(f"{self.where} has modules_to_save {entries!r:.60}, which is no list of names")
        for name, tensor in self.tensors.items():
            name = str(name).removeprefix(_PREFIX)
            if match := _TOKENS.fullmatch(name):
                found.tokens[f"{match[1]}.weight"] = (tensor, self._indices(match[1], expected))
            elif match := _LORA.fullmatch(name):
                module, embedding, matrix = match.groups()
                pair = found.pairs.setdefault(f"{module}.weight", {})
                if matrix in pair:
                    raise CheckpointError(
                        f"{self.where} has several adapters ({name!r} is not the only matrix {matrix} of its layer); merge a "
                        "copy that holds one"
                    )
                pair[matrix] = tensor
                found.embeddings |= {f"{module}.weight"} if embedding else set()
            else:
                plain = _SAVED.sub(".", _WRAPPERS.sub("", name), count=1)
                if plain not in known:  # the adapter's name may stand there
                    plain = _SAVED_AS.sub(".", _WRAPPERS.sub("", name), count=1)
                if ".original_module." in name:
                    found.copies |= {plain: tensor} if plain in tied else {}
                    continue
                if _SAVED.search(name) or _is_in(plain, entries):
                    found.saved.add(plain)
                self._put(found.whole, plain, plain, tensor)
        for name, pair in found.pairs.items():
            if pair.keys() != {"A", "B"}:
                module = name.removesuffix(".weight")
                raise CheckpointError(f"{self.where} has only one of the two matrices of {module!r}")
        for name in sorted(expected.shapes[0]):
            if _is_in(name, entries) and not any(other in found.whole for other in _names(name, expected)):
                raise CheckpointError(f"{self.where} lacks {name!r}, which belongs to its modules_to_save")
        if self.config.get("trainable_token_indices") and not found.tokens:
            raise CheckpointError(f"{self.where} has trainable_token_indices, and lacks their rows")
        return found

    def _indices(self, module: str, expected: Expected) -> list[int]:
        """Which tokens the rows of a module are."""
        found, names = self.config.get("trainable_token_indices"), _names(f"{module}.weight", expected)
        if isinstance(found, dict):  # a tied module has them by another name
            modules = [module, *(name.removesuffix(".weight") for name in names)]
            found = next((held for one in modules for key, held in found.items() if one.endswith(key)), None)
        elif not set(names).intersection(expected.vocabulary[:1]):
            found = None
        if not isinstance(found, list) or not all(type(index) is int for index in found):
            raise CheckpointError(f"{self.where} does not say which tokens the rows of {module!r} are")
        return found

    def _vocab_size(self, changes: _Changes, expected: Expected) -> int | None:
        """Rows of the embeddings that the adapter was trained with, if it has any of them."""
        shapes = {name: tensor.shape[:1] for name, tensor in (changes.copies | changes.whole).items()}
        for name, pair in changes.pairs.items():
            embedding = name in changes.embeddings
            shapes[name] = shapes.get(name) or (pair["A"].shape[1:] if embedding else pair["B"].shape[:1])
        shapes = {name: shape for name, shape in shapes.items() if name in expected.vocabulary and len(shape) == 1}
        first = next(iter(shapes.items()), None)
        for name, shape in shapes.items():
            if shape != first[1]:
                raise CheckpointError(
                    f"{self.where} has {first[0]!r} of {first[1][0]} tokens and {name!r} of {shape[0]}; they are of two models"
                )
        return None if first is None else first[1][0]

    def _join_tied(self, changes: _Changes, expected: Expected) -> list[list[str]]:
        """Bring changes of tied weights under the name that is kept, or return the names if the weights come apart."""
        apart, ensured = [], bool(self.config.get("ensure_weight_tying"))
        for kept in dict.fromkeys(expected.tied.values()):
            names = _names(kept, expected)
            own = changes.own(names)
            rows = [changes.tokens[name][1] for name in names if name in changes.tokens]
            alike = all(row == rows[0] for row in rows)
            if len(own) > 1 and (ensured or rows) or ensured and not alike:
                places = sorted({name for held in own.values() for name in held})
                raise CheckpointError(
                    f"{self.where} trains {' and '.join(map(repr, places))} by {' and '.join(own)}, and the base ties them; "
                    "this is not merged here"
                )
            if rows:  # PEFT ties rows of output embeddings to equal ones of the input embeddings
                separate = not alike or not any(name in changes.tokens for name in expected.vocabulary[:1])
            elif "modules_to_save" in own:
                separate = not (ensured and _named_by_peft(self.config["modules_to_save"]))
            else:
                separate = bool(own) and not (ensured and self._trained_as_one(changes, names))
            if separate:
                apart.append(names)
            shared: dict[str, TensorSource] = {}
            # What was trained replaces the copy from before, of the names that it was trained for.
            for name in names:
                if name in changes.copies and (separate or not own.get("modules_to_save")):
                    self._put(shared, kept, name, changes.copies[name])
                if name in changes.whole and not (separate and name in changes.saved):
                    self._put(shared, kept, name, changes.whole.pop(name))
            receivers = [name for name in names if name not in changes.whole] if separate else [kept]
            changes.whole |= {name: tensor for name in receivers for tensor in shared.values()}
            if not separate:
                self._join(changes, names)
        return apart

    def _trained_as_one(self, changes: _Changes, names: Sequence[str]) -> bool:
        """Whether the matrices of all names of a weight are the same, and so are their scales."""
        held = {name: changes.pairs[name] for name in names if name in changes.pairs}
        if len(held) == 1:
            return _named_by_peft([name.removesuffix(".weight") for name in held])
        scales, found = self._scales(held), []
        for name, pair in held.items():
            a, b = pair["A"].read(), pair["B"].read()
            found.append((scales[name], *((b.T, a.T) if name in changes.embeddings else (a, b))))
        first = found[0]
        return all(
            scale == first[0] and torch.equal(a, first[1]) and torch.equal(b, first[2]) for scale, a, b in found[1:]
        )

    def _join(self, changes: _Changes, names: Sequence[str]) -> None:
        """Bring rows and matrices, which are the same for all names of a weight, under the first of them."""
        deltas: dict[str, TensorSource] = {}
        for name in names:
            if name in changes.tokens:
                delta, indices = changes.tokens.pop(name)
                self._put(deltas, names[0], name, delta)
                changes.tokens[names[0]] = (delta, indices)
        held = [name for name in names if name in changes.pairs]
        if held:
            pair, embedding = changes.pairs[held[0]], held[0] in changes.embeddings
            changes.pairs = {name: other for name, other in changes.pairs.items() if name not in names} | {
                names[0]: pair
            }
            changes.embeddings = changes.embeddings.difference(names) | ({names[0]} if embedding else set())

    def _put(self, found: dict[str, TensorSource], key: str, name: str, tensor: TensorSource) -> None:
        if key in found and not same(found[key], tensor):
            raise CheckpointError(
                f"{self.where} has two different tensors for {key!r}, one of them as {name!r}; the model has one"
            )
        found.setdefault(key, tensor)

    def _check_names(self, changes: _Changes, weights: Mapping[str, TensorSource], expected: Expected) -> None:
        """Raise unless each change is of a weight that the model has, and has by that name alone if it was trained alone."""
        for name in (*changes.whole, *changes.tokens, *changes.pairs):
            if name not in weights:
                raise CheckpointError(
                    f"{self.where} has {name!r}, which the model does not have; it is of another model"
                )
        for name in weights:
            if name in expected.tied:
                raise CheckpointError(
                    f"{self.where} trains {name!r} or {expected.tied[name]!r} alone, and the base ties the two, also with "
                    "tie_word_embeddings=False; merged, they would differ"
                )

    def _resized(self, name: str, weight: TensorSource, rows: int) -> TensorSource:
        """The first rows of a weight of the base; new ones are random in training, so they are not made up here."""
        if rows > weight.shape[0]:
            raise CheckpointError(
                f"{self.where} has a vocabulary of {rows} tokens, and the base of {weight.shape[0]}; the adapter lacks {name!r}, "
                "whose new rows are needed: save it again with save_embedding_layers=True"
            )

        def fill(out: torch.Tensor) -> None:
            whole = weight.view()
            out.copy_((weight.read() if whole is None else whole)[:rows])

        return TensorSource((rows, *weight.shape[1:]), weight.dtype, fill, fault=weight.fault)

    def _with_tokens(self, name: str, weight: TensorSource, delta: TensorSource, indices: list[int]) -> TensorSource:
        if delta.shape != (len(indices), *weight.shape[1:]) or not indices:
            raise CheckpointError(
                f"{self.where} has rows of shape {list(delta.shape)} for the {len(indices)} tokens of {name!r}, which has shape "
                f"{list(weight.shape)}"
            )
        odd = [index for index in indices if not 0 <= index < weight.shape[0]]
        if odd:
            raise CheckpointError(
                f"{self.where} trains token {odd[0]} of {name!r}, which has {weight.shape[0]} rows; if the vocabulary was "
                "resized, save the adapter again with save_embedding_layers=True"
            )

        def put(whole: torch.Tensor) -> None:
            whole.index_copy_(0, torch.tensor(indices), delta.read().to(whole.dtype))

        return changed(weight, put, delta)

    def _folded(
        self,
        name: str,
        pair: Mapping[str, TensorSource],
        base: TensorSource,
        scale: float,
        flip: bool,
        embedding: bool,
    ) -> TensorSource:
        # By the layer: fan_in_fan_out of the configuration is that of the layer which PEFT wrapped last.
        a, b = pair["A"], pair["B"]
        shape = (*b.shape[:1], *a.shape[1:])
        if (
            not (len(a.shape) == len(b.shape) == 2 and a.shape[0] == b.shape[1])
            or base.shape != shape[:: -1 if flip else 1]
        ):
            raise CheckpointError(
                f"{self.where}: matrices {list(a.shape)} and {list(b.shape)} do not fit {name!r} of shape {list(base.shape)}; "
                "they are of another model, or of layers that are not merged here"
            )
        # PEFT gives the product the weight's dtype before it is added for embeddings and MiCA.
        rounded = embedding or str(self.config.get("init_lora_weights")).lower() == "mica"
        return changed(base, partial(_add, a, b, scale, flip, rounded), a, b)

    def _scales(self, pairs: Mapping[str, Mapping[str, TensorSource]]) -> dict[str, float]:
        """By how much the product of each pair is multiplied."""
        modules, found = [name.removesuffix(".weight") for name in pairs], {}
        if not modules:
            return found
        patterns, module = self.config.get("alpha_pattern") or {}, modules[0]
        try:
            keys = _first_matches(list(patterns.keys()), modules)
            for name, module in zip(pairs, modules, strict=True):
                rank = (*pairs[name]["A"].shape[:1], 0)[0]
                alpha = (
                    patterns[keys[module]] if module in keys else self.config["lora_alpha"]
                )  # PEFT and verl write it
                found[name] = alpha / (math.sqrt(rank) if self.config.get("use_rslora") else rank)
                if not math.isfinite(found[name]):
                    raise ValueError(f"{alpha} is not finite")
        except (AttributeError, TypeError, ValueError, LookupError, ArithmeticError) as error:
            raise CheckpointError(
                f"the configuration of the adapter in {self.where} does not say how {module!r} is scaled: lora_alpha or "
                f"alpha_pattern cannot be used ({error})"
            ) from error
        return found


def _first_matches(patterns: Sequence[str], modules: Sequence[str]) -> dict[str, str]:
    """The first of PEFT's patterns that matches, by module; `ValueError` for one that cannot be used.

    Patterns are somebody else's, and Python's `re` may take years for one. The time of RE2, by way of pyarrow, grows with the
    lengths of pattern and name only; what it cannot read is refused.
    """
    if not patterns:
        return {}
    import pyarrow as pa
    import pyarrow.compute as compute

    found, left, end = {}, pa.array(modules, pa.string()), time.monotonic() + _SECONDS
    for pattern in patterns:
        try:
            if len(pattern) > _LONGEST:
                raise ValueError(f"it has {len(pattern)} characters")
            whole = rf"(.*\.)?({pattern})$"
            re.compile(whole)  # what PEFT cannot use
            if _READ_OTHERWISE.search(pattern):
                raise ValueError("RE2 reads it otherwise than Python")
            step, hits = (
                max(1, len(left)) if _WITHOUT_REPEATS.fullmatch(pattern) else _TOGETHER,
                [pa.array([], pa.bool_())],
            )
            for start in range(0, len(left), step):
                if step == _TOGETHER and time.monotonic() > end:
                    raise ValueError(f"the patterns take more than {_SECONDS} s")
                hits.append(compute.match_substring_regex(left[start : start + step], f"^(?:{whole})"))
        except (re.error, RecursionError, ArithmeticError, ValueError) as error:
            reason = " ".join(str(error).split())[:120]
            raise ValueError(
                f"{pattern[:60]!r}: {reason}; write names of modules there, or patterns that RE2 reads"
            ) from error
        hit = pa.concat_arrays(hits)
        found |= dict.fromkeys(left.filter(hit).to_pylist(), pattern)
        left = left.filter(compute.invert(hit))
    return found


def _named_by_peft(modules: Sequence[str]) -> bool:
    """Whether PEFT ties what was trained for a module to what is tied to it: by these names alone."""
    return any(module.rpartition(".")[2] in ("embed_tokens", "lm_head") for module in modules)


def _is_vocabulary(name: str, tensor: TensorSource, expected: Expected) -> bool:
    """Whether it is a weight of the base that has a row per token, with whatever is in front of its name."""
    return len(tensor.shape) == 2 and any(name == known or name.endswith(f".{known}") for known in expected.vocabulary)


def _names(name: str, expected: Expected) -> list[str]:
    """All names of a weight, the kept one first."""
    kept = expected.tied.get(name, name)
    return [kept, *(alias for alias, other in expected.tied.items() if other == kept)]


def _is_in(name: str, modules: Sequence[str]) -> bool:
    """Whether a weight belongs to one of some modules, which PEFT knows by how their names end."""
    outer = accumulate(name.split(".")[:-1], lambda before, part: f"{before}.{part}")
    return any(module.endswith(tuple(modules)) for module in outer)


def _cast(tensor: TensorSource, dtype: torch.dtype) -> TensorSource:
    """It in another dtype, rounded to it."""
    return (
        tensor
        if tensor.dtype == dtype
        else changed(TensorSource(tensor.shape, dtype, tensor.fill, fault=tensor.fault), _same)
    )


def _same(_: torch.Tensor) -> None:
    """No change."""


def _add(a: TensorSource, b: TensorSource, scale: float, flip: bool, rounded: bool, weight: torch.Tensor) -> None:
    """Add the product of matrices (out, r) and (r, in), or its transpose if `flip`, to a weight: the whole product in float32,
    since parts of it need not round as PEFT's.
    """
    product = b.read().float() @ a.read().float()
    product = product.T if flip else product
    rows = max(1, 2**17 // max(1, weight.shape[1]))  # at a time, as what they are converted to is in memory too
    for some, more in zip(weight.split(rows), product.split(rows), strict=True):
        delta = more * scale
        some.add_(delta.to(weight.dtype) if rounded else delta)

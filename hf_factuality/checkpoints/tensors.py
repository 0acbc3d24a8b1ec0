"""Tensors of a checkpoint, put together from pieces a block at a time."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise, product
from typing import Protocol

import torch

from hf_factuality.errors import CheckpointError


Interval = tuple[int, int]
"""Half-open: start, stop."""
Rows = Callable[[int, int], torch.Tensor]
BLOCK_BYTES = 2 * 1024**2
"""How much of a tensor is in memory at once, where a row of it is not larger."""


class Source(Protocol):
    """A tensor that is read in order.

    `shape` (`tuple[int, ...]`) and `dtype` (`torch.dtype`) are known before anything is read. `identity`, if it is not `None`,
    is equal for two tensors that are the same bytes of a file.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    identity: object

    def blocks(self, limit: int = BLOCK_BYTES) -> Iterator[torch.Tensor]:
        """One-dimensional CPU tensors that follow one another, in row-major order, of about `limit` bytes at most."""


@dataclass(frozen=True)
class Piece:
    """A part of a tensor, and where in it the part lies.

    Args:
        rows (`Callable[[int, int], torch.Tensor]`):
            Rows `start` to `stop` of the part (of its dimension 0).
        intervals (`tuple[tuple[tuple[int, int], ...], ...]`):
            For every dimension the intervals of the whole tensor that the part holds, one after another.
    """

    rows: Rows
    intervals: tuple[tuple[Interval, ...], ...]

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the part."""
        return tuple(sum(stop - start for start, stop in dim) for dim in self.intervals)


@dataclass
class Assembled:
    """A tensor that lies in pieces.

    Args:
        shape (`tuple[int, ...]`):
            Of the whole tensor.
        dtype (`torch.dtype`):
            Of the pieces.
        pieces (`Sequence[Piece]`):
            In any order; together they are the whole tensor, once.
        layout (`tuple[int, ...]`, *optional*):
            Shape that the intervals refer to, if it is not `shape`: the flat length, for partitions of flat buffers.
        identity (`object`, *optional*):
            See [`Source`].
        fault (`str`, *optional*):
            Why it cannot be read, after "it is".
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    pieces: Sequence[Piece]
    layout: tuple[int, ...] | None = None
    identity: object = None
    fault: str | None = None

    def covered(self) -> bool:
        """Whether every element lies in exactly one piece."""
        return _covered(self._layout(), tuple(sorted({p.intervals for p in self.pieces}))) and len(self.pieces) == len(
            {p.intervals for p in self.pieces}
        )

    def blocks(self, limit: int = BLOCK_BYTES) -> Iterator[torch.Tensor]:
        layout = self._layout()
        if not math.prod(layout):
            return
        # (start, stop) of the whole's rows, first of them in the piece, the piece
        runs: list[tuple[int, int, int, Piece]] = []
        for piece in self.pieces:
            first = 0
            for start, stop in piece.intervals[0]:
                if stop > start:
                    runs.append((start, stop, first, piece))
                first += stop - start
        cuts = sorted({cut for run in runs for cut in run[:2]})
        parts: list[list[tuple[int, int, int, Piece]]] = [[] for _ in cuts]
        for run in runs:
            for number in range(bisect_left(cuts, run[0]), bisect_left(cuts, run[1])):
                parts[number].append(run)
        width = math.prod(layout[1:])
        step = max(1, limit // max(1, width * self.dtype.itemsize))
        for (low, high), here in zip(pairwise(cuts), parts, strict=False):
            for start in range(low, high, step):
                stop = min(high, start + step)
                yield self._block(start, stop, here, layout).reshape(-1)

    def _layout(self) -> tuple[int, ...]:
        return (self.layout if self.layout is not None else self.shape) or (1,)

    def _block(self, start: int, stop: int, runs: Sequence, layout: tuple[int, ...]) -> torch.Tensor:
        found = [(piece, piece.rows(first + start - low, first + stop - low)) for low, _, first, piece in runs]
        if len(found) == 1 and tuple(found[0][1].shape) == (stop - start, *layout[1:]):
            return found[0][1]  # no copy of what is mapped
        block = torch.empty((stop - start, *layout[1:]), dtype=self.dtype)
        for piece, rows in found:
            for target, part in _places(piece.intervals[1:]):
                block[(slice(None), *target)] = rows[(slice(None), *part)]
        return block


def _places(intervals: Sequence[Sequence[Interval]]) -> Iterator[tuple[tuple[slice, ...], tuple[slice, ...]]]:
    """Slices of the whole and slices of the part that hold the same, over all combinations of intervals."""
    each = []
    for dim in intervals:
        first, slices = 0, []
        for start, stop in dim:
            slices.append((slice(start, stop), slice(first, first + stop - start)))
            first += stop - start
        each.append(slices)
    for chosen in product(*each):
        yield tuple(pair[0] for pair in chosen), tuple(pair[1] for pair in chosen)


@lru_cache(maxsize=1024)
def _covered(shape: tuple[int, ...], pieces: tuple[tuple[tuple[Interval, ...], ...], ...]) -> bool:
    boxes = [box for piece in pieces for box in product(*piece) if all(stop > start for start, stop in box)]
    return not math.prod(shape) or _tiles(shape, boxes, 0)


def _tiles(shape: tuple[int, ...], boxes: Sequence[tuple[Interval, ...]], dim: int) -> bool:
    if dim == len(shape):
        return len(boxes) == 1
    cuts = sorted({0, shape[dim]}.union(*(box[dim] for box in boxes)))
    if cuts[0] < 0 or cuts[-1] > shape[dim]:
        return False
    inside: list[list[tuple[Interval, ...]]] = [[] for _ in cuts]
    for box in boxes:
        for number in range(bisect_left(cuts, box[dim][0]), bisect_left(cuts, box[dim][1])):
            inside[number].append(box)
    return all(found and _tiles(shape, found, dim + 1) for found in inside[:-1])


def whole(tensor: torch.Tensor) -> Assembled:
    """A tensor in one piece: in memory, or mapped.

    Args:
        tensor (`torch.Tensor`):
            On the CPU.
    """
    shape = tuple(tensor.shape)
    if tensor.layout != torch.strided or tensor.is_meta:
        return _unreadable(tensor)
    flat = tensor.reshape(1) if not shape else tensor
    return Assembled(shape, tensor.dtype, (piece_of(flat, full(flat.shape)),), identity=address(tensor))


def _unreadable(tensor: torch.Tensor) -> Assembled:
    """A tensor that may be in a file, as long as nobody wants it."""
    kind = "on the meta device, so without numbers" if tensor.is_meta else f"sparse ({tensor.layout})"
    fault = f"{kind}; save it as a dense tensor with its numbers"

    def rows(start: int, stop: int) -> torch.Tensor:
        raise CheckpointError(f"a tensor of shape {list(tensor.shape)} is {fault}")

    shape = tuple(tensor.shape)
    return Assembled(shape, tensor.dtype, (Piece(rows, full(shape or (1,))),), fault=fault)


def piece_of(tensor: torch.Tensor, intervals: tuple[tuple[Interval, ...], ...]) -> Piece:
    """A piece that is a tensor in memory, or mapped."""
    return Piece(lambda start, stop: verified(tensor)[start:stop], intervals)


def verified(tensor: torch.Tensor) -> torch.Tensor:
    """The same tensor; if it is mapped from a file that has a checksum of it, that is compared the first time.

    Raises:
        `CheckpointError`: the file is damaged.
    """
    if (member := getattr(tensor.untyped_storage(), "member", None)) is not None:
        member.check()
    return tensor


def full(shape: Sequence[int]) -> tuple[tuple[Interval, ...], ...]:
    """Intervals of a piece that is the whole."""
    return tuple(((0, size),) for size in shape)


def address(tensor: torch.Tensor) -> tuple:
    """What is equal for two tensors that are the same bytes."""
    return (tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def same(first: Source, second: Source) -> bool:
    """Whether two tensors hold the same bytes, shape and dtype."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if first.identity is not None and first.identity == second.identity:
        return True
    return all(torch.equal(as_bytes(a), as_bytes(b)) for a, b in aligned(first, second))


def aligned(first: Source, second: Source) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Blocks of two tensors of one shape, cut at the same places."""
    others, rest = second.blocks(), None
    for block in first.blocks():
        while len(block):
            if rest is None or not len(rest):
                rest = next(others)
            count = min(len(block), len(rest))
            yield block[:count], rest[:count]
            block, rest = block[count:], rest[count:]


def as_bytes(block: torch.Tensor) -> torch.Tensor:
    """Bytes of a one-dimensional tensor, as `uint8`; a copy only where its elements do not follow one another."""
    # A tensor of one element counts as contiguous whatever its stride is, and is not viewed as bytes with any but 1.
    return block.resolve_neg().contiguous().as_strided((len(block),), (1,)).view(torch.uint8)


def overflows(block: torch.Tensor, cast: torch.Tensor) -> bool:
    """Whether numbers of a floating-point block became infinite in a dtype of a smaller range."""
    if cast.dtype == block.dtype or torch.finfo(cast.dtype).max >= torch.finfo(block.dtype).max:
        return False
    return _not_finite(cast) and bool((cast.isinf() & ~block.isinf()).any())


def has_nan(block: torch.Tensor) -> bool:
    """Whether a floating-point block has a NaN. Infinities are not counted."""
    if not block.dtype.is_floating_point:
        return False
    if block.dtype.itemsize == 1:
        block = block.float()
    return _not_finite(block) and bool(block.isnan().any())


def _not_finite(block: torch.Tensor) -> bool:
    # A sum is NaN or infinite if a summand is, and much faster than asking each; it may overflow too: then look again.
    return not math.isfinite(block.sum(dtype=torch.float32).item())


def check_cover(name: str, tensor: Assembled, what: str) -> None:
    """Raise unless the pieces are the whole tensor, once.

    Raises:
        `CheckpointError`: a part is missing or comes twice.
    """
    if not tensor.covered():
        held = sum(math.prod(piece.shape) for piece in tensor.pieces)
        raise CheckpointError(
            f"the {what} of {name!r} do not add up to its shape {list(tensor.shape)}: they hold {held} elements of "
            f"{math.prod(tensor.shape)}; a part is missing, comes twice or is of another run"
        )

"""Tensors of a checkpoint, which are read when their numbers are asked for, in one piece or in several."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import product

import torch

from hf_factuality.errors import CheckpointError


Interval = tuple[int, int]
"""Half-open: start, stop."""


@dataclass(frozen=True)
class Piece:
    """A part of a tensor: how it is read, and for every dimension the intervals of the whole that it holds, in order."""

    read: Callable[[], torch.Tensor]
    intervals: tuple[tuple[Interval, ...], ...]


@dataclass(frozen=True)
class Source:
    """A tensor whose shape and dtype are known, and whose numbers `fill` writes into a tensor of that shape and any dtype.

    `fault` says why it cannot be read, after "it is". `pieces` are those that `fill` reads, if it only reads.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    fill: Callable[[torch.Tensor], None]
    pieces: Sequence[Piece] = ()
    fault: str | None = None

    def read(self) -> torch.Tensor:
        """All of it, in new memory."""
        found = torch.empty(self.shape, dtype=self.dtype)
        self.fill(found)
        return found


def assembled(
    shape: Sequence[int],
    dtype: torch.dtype,
    pieces: Sequence[Piece],
    layout: tuple[int, ...] | None = None,
    fault: str | None = None,
) -> Source:
    """A tensor of pieces; `layout` is the shape that their intervals refer to, if it is another (of a flat buffer)."""
    fill = partial(_fill, pieces, tuple(shape) if layout is None else layout)
    return Source(tuple(shape), dtype, fill, pieces, fault)


def _fill(pieces: Sequence[Piece], layout: tuple[int, ...], out: torch.Tensor) -> None:
    place = out.view(layout)
    for piece in pieces:
        part = piece.read()
        for target, inside in _places(piece.intervals):
            place[target].copy_(part[inside])


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


def check_cover(name: str, shape: tuple[int, ...], pieces: Sequence[Piece], what: str) -> None:
    """Raise unless every element of a tensor lies in exactly one of its pieces."""
    found = [box for piece in pieces for box in product(*piece.intervals)]
    boxes = [box for box in found if all(stop > start for start, stop in box)]
    if math.prod(shape) and not _tiles(shape, boxes, 0):
        count = sum(math.prod(stop - start for start, stop in box) for box in boxes)
        raise CheckpointError(
            f"the {what} of {name!r} do not add up to its shape {list(shape)}: they hold {count} elements of "
            f"{math.prod(shape)}; a part is missing, comes twice or is of another run"
        )


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


def same(first: Source, second: Source) -> bool:
    """Whether two tensors hold the same bytes, shape and dtype; piece by piece, where both are cut alike."""
    if first.shape != second.shape or first.dtype != second.dtype:
        return False
    if [piece.intervals for piece in first.pieces] == [piece.intervals for piece in second.pieces]:
        pairs = [(one.read, other.read) for one, other in zip(first.pieces, second.pieces, strict=True)]
    else:
        pairs = [(first.read, second.read)]
    return all(torch.equal(_as_bytes(one()), _as_bytes(other())) for one, other in pairs)


def _as_bytes(tensor: torch.Tensor) -> torch.Tensor:
    # One element counts as contiguous whatever its stride is, and is not viewed as bytes with any but 1.
    return tensor.resolve_neg().contiguous().as_strided((tensor.numel(),), (1,)).view(torch.uint8)

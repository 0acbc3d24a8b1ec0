"""Tensors of a checkpoint, which are read when their numbers are asked for, in one piece or in several."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from threading import RLock

import torch

from hf_factuality.errors import CheckpointError


WITHOUT_SCALE = "whose numbers mean nothing without their scale"
_ONE_CHANGE = RLock()  # what a change needs is in memory once; one change may be made of another's result
Interval = tuple[int, int]
"""Half-open: start, stop."""


@dataclass(frozen=True)
class TensorPiece:
    """A part of a tensor: how it is read, and for every dimension the intervals of the whole that it holds, in order."""

    read: Callable[[], torch.Tensor]
    intervals: tuple[tuple[Interval, ...], ...]


@dataclass(frozen=True)
class TensorSource:
    """A tensor whose shape and dtype are known, and whose numbers `fill` writes into a tensor of that shape and any dtype.

    `fault` says why it cannot be read, after "it is". `pieces` are those that `fill` reads, if it only reads; `layout` is the
    shape that their intervals refer to.
    """

    shape: tuple[int, ...]
    dtype: torch.dtype
    fill: Callable[[torch.Tensor], None]
    pieces: Sequence[TensorPiece] = ()
    fault: str | None = None
    layout: tuple[int, ...] = ()

    @property
    def needs_scale(self) -> bool:
        """Whether its numbers are of a dtype that is used with a scale beside it, which is not known here."""
        return self.dtype.is_floating_point and self.dtype.itemsize == 1

    def read(self) -> torch.Tensor:
        """All of it, in new memory."""
        found = torch.empty(self.shape, dtype=self.dtype)
        self.fill(found)
        return found

    def view(self) -> torch.Tensor | None:
        """All of it without new memory, if it lies in one piece of a file."""
        if len(self.pieces) != 1 or self.layout != self.shape or any(len(dim) > 1 for dim in self.pieces[0].intervals):
            return None
        found = self.pieces[0].read()
        return found if found.is_contiguous() else None

    def beside(self, *others: torch.Tensor) -> Iterator[tuple[torch.Tensor, ...]]:
        """Its numbers part by part, each with the same part of other tensors of its shape, which lie in rows."""
        pieces, layout = self.pieces, self.layout
        if not pieces and math.prod(self.shape):  # it is computed
            whole = self.read()
            pieces, layout = [TensorPiece(lambda: whole, tuple(((0, size),) for size in self.shape))], self.shape
        for piece in pieces:
            part = piece.read()
            for target, inside in _places(piece.intervals):
                yield (part[inside], *(other.view(layout)[target] for other in others))


def assembled(
    shape: Sequence[int],
    dtype: torch.dtype,
    pieces: Sequence[TensorPiece],
    layout: tuple[int, ...] | None = None,
    fault: str | None = None,
) -> TensorSource:
    """A tensor of pieces; `layout` is the shape that their intervals refer to, if it is another (of a flat buffer)."""

    def fill(out: torch.Tensor) -> None:
        for part, place in found.beside(out):
            place.copy_(part)

    found = TensorSource(tuple(shape), dtype, fill, pieces, fault, tuple(shape) if layout is None else layout)
    return found


def changed(base: TensorSource, change: Callable[[torch.Tensor], None], *others: TensorSource) -> TensorSource:
    """A tensor with a change that is made in its dtype, in place and one tensor at a time; `others` are read by the change."""

    def fill(out: torch.Tensor) -> None:
        with _ONE_CHANGE:
            whole = out if out.dtype == base.dtype else torch.empty(base.shape, dtype=base.dtype)
            base.fill(whole)
            change(whole)
            if whole is not out:
                out.copy_(whole)

    fault = next((source.fault for source in (base, *others) if source.fault), None)
    for source in (base, *others):
        if source.needs_scale and not fault:
            fault = f"made of {source.dtype}, {WITHOUT_SCALE}; pass a base and an adapter in 16 or 32 bits"
    return TensorSource(base.shape, base.dtype, fill, fault=fault)


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


def check_cover(name: str, shape: tuple[int, ...], pieces: Sequence[TensorPiece], what: str) -> None:
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


def same(first: TensorSource, second: TensorSource) -> bool:
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

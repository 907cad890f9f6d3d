"""What could make a small graph large or endless: lengths of loops, and shapes that are written in it."""

from __future__ import annotations

from math import prod
from typing import TYPE_CHECKING

from sojourn.errors import GraphRefused

if TYPE_CHECKING:
    from collections.abc import Sequence

    Known = Sequence[tuple[int, ...] | None]
    """The whole numbers that each input is known to be, where that is known."""

MOST_ROUNDS = 10_000
"""Of one loop."""
LARGEST_TENSOR = 1 << 28
"""Numbers of a tensor whose shape is written in the graph; what depends on the data is left to the limit of memory."""
_LARGEST_WINDOW = 1 << 16
_WINDOWS = frozenset((b"kernel_shape", b"strides", b"dilations", b"pads", b"output_padding", b"output_shape"))
_SHAPE_INPUTS = {b"ConstantOfShape": 0, b"Expand": 1, b"Tile": 1, b"CenterCropPad": 1, b"Resize": 3, b"Col2Im": 1}
"""The input that says how large the output is, or how often the input is in it."""
_ONE_SIZE = {b"OneHot": 1, b"TopK": 1}


def trip_count(known: tuple[int, ...] | None, where: str) -> int:
    """How often a loop goes round at most: a constant of the graph, whatever its condition says."""
    if known is None or len(known) != 1:
        raise GraphRefused(f"{where}: how often it goes round must be a constant of the graph")
    if not 0 <= known[0] <= MOST_ROUNDS:
        raise GraphRefused(f"{where} goes round {known[0]:,} times, and {MOST_ROUNDS:,} are allowed")
    return known[0]


def check_window(attribute: bytes, numbers: tuple[int, ...], where: str) -> None:
    """Refuse a window, or what is around it, that no image is as large as."""
    if attribute in _WINDOWS and any(abs(each) > _LARGEST_WINDOW for each in numbers):
        raise GraphRefused(f"{where} is {max(numbers, key=abs):,}, and {_LARGEST_WINDOW:,} is allowed")


def check_growth(operator: bytes, known: Known, where: str) -> None:
    """Refuse a size that is written in the graph and is out of all proportion."""
    if (size := _written_size(operator, known)) > LARGEST_TENSOR:
        raise GraphRefused(f"{where} makes a tensor of {size:,} numbers, and {LARGEST_TENSOR:,} are allowed")


def _written_size(operator: bytes, known: Known) -> int:
    """How many numbers an operator makes, as far as the graph says it; 0 where it does not."""
    if operator in _SHAPE_INPUTS:
        return prod(abs(each) for each in _of(known, _SHAPE_INPUTS[operator]) if each)
    if operator in _ONE_SIZE:
        return max(_of(known, _ONE_SIZE[operator]), default=0)
    if operator == b"Pad":
        return max((abs(each) for each in _of(known, 1)), default=0)
    if operator == b"Range" and len(known) == 3 and all(each is not None and len(each) == 1 for each in known):
        start, limit, step = (each[0] for each in known if each)
        return max(0, (limit - start) // step) if step else LARGEST_TENSOR + 1
    return 0


def _of(known: Known, at: int) -> tuple[int, ...]:
    return (known[at] or ()) if at < len(known) else ()

"""Bringing values from one scale to another, as an owner says it: "0..1 to 0..16"."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
_FORM = re.compile(rf"\s*{_NUMBER}\s*\.\.\s*{_NUMBER}\s+to\s+{_NUMBER}\s*\.\.\s*{_NUMBER}\s*")
_WHOLE = re.compile(r"(?<![\d.])(\d+)\.\.")
_BLOCK = 1024


class Scaling(NamedTuple):
    """What `low` and `high` become; values between and beyond go along the same line."""

    low: float
    high: float
    new_low: float
    new_high: float


def scaling_of(text: str) -> Scaling:
    """The scaling in a text such as "0..255 to 0..1"; ValueError where it is none."""
    # "0..1": without a space the number before the dots would take the first of them for its own.
    found = _FORM.fullmatch(_WHOLE.sub(r"\1 ..", text))
    made = Scaling(*map(float, found.groups())) if found else None
    if made is None or made.low == made.high or made.new_low == made.new_high:
        raise ValueError(
            f'{text[:80]!r} is no scale: say from where to where, such as "0..255 to 0..1" (what is 0 stays 0, what is '
            "255 becomes 1)"
        )
    return made


def scaled(x: NDArray[np.generic], scaling: Scaling) -> NDArray[np.float32]:
    """The values on the new scale, as float32."""
    import numpy as np  # noqa: PLC0415  # settings are read without it

    low, high, new_low, new_high = scaling
    out = np.empty(x.shape, np.float32)
    # Block by block: float64 of a whole data set would be eight times its size.
    for at in range(0, len(x), _BLOCK):
        wide = x[at : at + _BLOCK].astype(np.float64)
        out[at : at + _BLOCK] = (wide - low) / (high - low) * (new_high - new_low) + new_low
    return out

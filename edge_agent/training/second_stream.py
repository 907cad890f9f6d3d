"""Objectives with a second stream on a device: which graph a visit trains with, and which frozen models it is given.

The term itself is a part of the kit's graph (`coordinator.compiling.two_streams`): here is no arithmetic. A weight of
0, or a visit without one of its frozen models, takes the plain graph: then every bit is that of plain SGD.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from edge_agent.training.objectives import Plain

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from sojourn.parts import TwoStreamPart

    Vector = NDArray[np.float32]


class TwoStream(Plain):
    """The gradient of the kit's two-stream graph, at the frozen models and with the numbers of this visit."""

    def __init__(self, anchors: Sequence[Vector], scalars: Sequence[float]) -> None:
        """`anchors` are whole vectors, with state."""
        self.anchors, self.scalars = tuple(anchors), tuple(scalars)


def begin_two_stream(
    settings: TwoStreamPart, handed: Vector, received: Mapping[str, Vector], memory: Mapping[str, Vector]
) -> Plain:
    """The objective of a visit: `handed` is the model that it was given, the others by name; all are whole vectors."""
    known = {"received": handed.copy(), **received, **memory}
    anchors = [known[name] for name in settings.anchors if name in known]
    if len(anchors) < len(settings.anchors) or (settings.scalars and not settings.scalars[0]):
        return Plain()
    return TwoStream(anchors, settings.scalars)

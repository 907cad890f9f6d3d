"""A model that is tested together with a frozen trunk (FedFusion): its answers come from a graph of their own."""

from __future__ import annotations

from copy import copy
from functools import cached_property
from typing import TYPE_CHECKING, Self

from sojourn.model.graphs import Graphs
from sojourn.model.kit_rules import check_fused

if TYPE_CHECKING:
    import numpy as np
    import onnxruntime
    from numpy.typing import NDArray

    from sojourn.protocol.spec import Kit


def can_be_fused(kit: Kit) -> bool:
    """Whether a kit tells how its model answers with another's trunk; only of plain classifiers it does."""
    return bool(kit.two_stream and kit.two_stream.fused)


class FusedGraphs(Graphs):
    """A kit's graphs, of which the answers are those of a model that is fused with the trunk of `anchor`."""

    anchor: NDArray[np.float32]

    def with_trunk(self, anchor: NDArray[np.float32]) -> Self:
        """The same with another model's trunk."""
        _ = self._fused  # opened once for all
        other = copy(self)
        other.anchor = anchor
        return other

    def outputs(self, vector: NDArray[np.float32], x: NDArray[np.generic]) -> NDArray[np.float32]:
        """The fused model's answers for a batch."""
        feeds = {"vector": vector, "x": x, "anchor_0": self.anchor}
        found: NDArray[np.float32] = self._fused.run([self.learns.answers], feeds)[0]
        return found

    @cached_property
    def _fused(self) -> onnxruntime.InferenceSession:
        check_fused(self._kit)
        return self._session("fused", "the graph of the fused model")

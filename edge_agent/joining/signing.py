"""Signs what a device made of a visit, with the key that it joined with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.joining.files import NODE_KEY
from sojourn.protocol.node_signing import NodeKey
from sojourn.protocol.statements import VisitStatement, digests_of, found_digest, pairs, sign, task_digest

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from sojourn.protocol.messages import Visit, Visited
    from sojourn.protocol.signed_hop import HopSignature


def visit_signer(device: str, folder: Path) -> Callable[[Visit, Visited], HopSignature]:
    """What signs the results of a device; its key is read now, and a key that is not there is an error now."""
    key = NodeKey.load(folder / NODE_KEY)

    def signed(order: Visit, answer: Visited) -> HopSignature:
        return sign(key, statement_of(device, order, answer))

    return signed


def statement_of(device: str, order: Visit, answer: Visited) -> VisitStatement:
    """What the device says of a visit."""
    steps = answer.metrics.get("steps", 0.0)
    return VisitStatement(
        device,
        order.id,
        order.kit.digest,
        task_digest(order.task),
        pairs(digests_of(order.vectors)),
        pairs(digests_of(answer.vectors)),
        answer.samples,
        int(steps) if 0 <= steps < 1 << 40 else 0,
        found_digest(answer.signature) if order.task.kind == "estimate" else b"",
    )

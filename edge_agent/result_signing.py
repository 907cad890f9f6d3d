"""Signs the results of a device with the key from joining the fleet."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from sojourn.joining.identity import NODE_KEY
from sojourn.protocol.messages import Visit, Visited
from sojourn.protocol.signing import NodeKey, VisitStatement, digests_of, found_digest, pairs, sign, task_digest
from sojourn.protocol.wire import HopSignature


def visit_signer(device: str, folder: Path) -> Callable[[Visit, Visited], HopSignature]:
    """Return the function that signs the results of a device; a missing key raises an error immediately."""
    key = NodeKey.load(folder / NODE_KEY)

    def signed(order: Visit, answer: Visited) -> HopSignature:
        return sign(key, statement_of(device, order, answer))

    return signed


def statement_of(device: str, order: Visit, answer: Visited) -> VisitStatement:
    """Return the statement that the device signs for a result."""
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

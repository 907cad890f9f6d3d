"""Whether a result is signed by the device that it comes from, where the coordinator has said with which key.

The coordinator looks again. A result that it would not take costs a hop here, and a whole tour there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from sojourn.protocol.signed_hop import SignedHop

if TYPE_CHECKING:
    from hierarchy.edge.gate import Passed
    from hierarchy.edge.records import TourState
    from sojourn.protocol.messages import Visited
    from sojourn.protocol.wire import Ref


def given_to(tour: TourState) -> dict[str, Ref]:
    """What a device of the present wave is handed."""
    return {name: ref for name, ref in tour.handout.items() if name != "gate"}


def unsigned(tour: TourState, device: str, result: Visited) -> str | None:
    """Why a result is not the device's own word."""
    order = tour.order
    key = order.keys.get(device) if order.keys else None
    if key is None:
        return None
    if not result.signed:
        return "the result is not signed, and this device has joined with a key of its own"
    # Cryptography is loaded only where somebody signs.
    from sojourn.protocol.statements import (  # noqa: PLC0415
        VisitStatement,
        digests_of,
        found_digest,
        is_signed,
        pairs,
        task_digest,
    )

    statement = VisitStatement(
        device,
        result.visit,
        order.kit.digest,
        task_digest(order.task),
        pairs(digests_of(given_to(tour))),
        pairs(digests_of(result.vectors)),
        result.samples,
        result.signed.steps,
        found_digest(result.signature) if order.task.kind == "estimate" else b"",
    )
    return (
        None if is_signed(statement, key, result.signed.signature) else "the result is not what the device has signed"
    )


def signed_hop(tour: TourState, result: Visited, passed: Passed) -> SignedHop | msgspec.UnsetType:
    """What the coordinator is told of a signed result that was kept; unset for one that is not signed."""
    if not result.signed:
        return msgspec.UNSET
    kept, handed = passed.vectors.get("model"), passed.handout.get("model")
    return SignedHop(
        result.visit.attempt,
        {name: ref.digest for name, ref in given_to(tour).items()},
        {name: ref.digest for name, ref in result.vectors.items()},
        result.samples,
        result.signed.steps,
        result.signed.signature,
        kept.digest if kept else b"",
        handed.digest if handed else b"",
    )

"""Whether a release is what its orders say: what devices would refuse is refused before it goes anywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from coordinator.releases.file import LARGEST_CARD, LARGEST_GRAPH, read_card
from coordinator.rollout_records import AHEAD
from sojourn.errors import DataError
from sojourn.protocol.release import Order
from sojourn.protocol.wire import Ref

if TYPE_CHECKING:
    from sojourn.protocol.release_messages import Rollout
    from sojourn.store.blobs import BlobStore


class CheckCard(msgspec.Struct, frozen=True, tag="check-card"):
    """Read the card that came with a rollout, and tell whether it is of the release that its order names."""

    ticket: str
    order: Order
    card: Ref


class CardChecked(msgspec.Struct, frozen=True, tag="card-checked"):
    """Why the card is not the order's; None if it is."""

    ticket: str
    line: str
    objection: str | None


def unsigned(message: Rollout, public: str) -> str | None:
    """Which order of a rollout the holder of the fleet's key did not give; None if both are signed."""
    for name, order in (("forward", message.forward), ("back", message.back)):
        if not order.signed_by(public):
            return (
                f"the order {name} is not signed with the fleet's release key, whose public half is {public}: sign it "
                "with the private half (--key)"
            )
    return None


def misfit(message: Rollout, forward: Order, newest: int) -> str | None:
    """What no device could obey in a rollout, or what would keep later ones from being obeyed; None if nothing.

    `newest` is the highest serial number that any order of the line has.
    """
    goods = forward.goods
    if goods is None or (goods.graph.digest, goods.card.digest) != (message.graph.digest, message.card.digest):
        return "the order does not name the release that came with it"
    if (goods.graph.size, goods.card.size) != (message.graph.size, message.card.size):
        return "the order names other sizes than the release that came with it has"
    if goods.graph.size > LARGEST_GRAPH or goods.card.size > LARGEST_CARD:
        return f"a graph may have {LARGEST_GRAPH:,} bytes and a card {LARGEST_CARD:,}: this release has more"
    if forward.serial > newest + AHEAD:
        return (
            f"order {forward.serial} is more than {AHEAD:,} ahead of {newest}, the newest of the line: serial numbers "
            "would run out. --after takes the number that devices say they obey already"
        )
    return None


def check_card(work: CheckCard, blobs: BlobStore) -> CardChecked:
    """Read the card and compare; the graph is not run here: devices try it, each in a process of its own."""
    order = work.order
    try:
        card = read_card(blobs.read(work.card.digest), "the release")
    except DataError as error:
        return CardChecked(work.ticket, order.line, str(error))
    if (card.line, card.version) == (order.line, order.version):
        return CardChecked(work.ticket, order.line, None)
    found, wanted = f"{card.line} {card.version}", f"{order.line} {order.version}"
    return CardChecked(work.ticket, order.line, f"the card is of {found}, and the order of {wanted}")

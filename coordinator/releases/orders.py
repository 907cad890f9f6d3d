"""The two orders that an operator signs for a rollout, and checks of a release against its orders."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec

from coordinator.releases.file import LARGEST_CARD, LARGEST_GRAPH, ReleaseFile, read_card
from coordinator.rollout_records import AHEAD
from sojourn.errors import ConfigError, DataError
from sojourn.protocol.release import LineView, Order, SignedOrder, sign
from sojourn.protocol.release_messages import Rollout
from sojourn.protocol.wire import Ref
from sojourn.store.blobs import BlobStore

if TYPE_CHECKING:
    from sojourn.protocol.signing import Signer


def orders_for(
    release: ReleaseFile, known: LineView | None, fleet: str, signer: Signer, *, after: int = 0
) -> tuple[SignedOrder, SignedOrder]:
    """Return the order to the release, and the order back to the version that the fleet should serve now.

    `after` is a serial number that devices have seen but an older journal of the coordinator has not.
    """
    card = release.card
    serial = max(known.serial if known else 0, after)
    forward = Order(fleet, card.line, serial + 1, card.version, release.goods)
    version, goods = (known.serves, known.goods) if known else (0, None)
    back = Order(fleet, card.line, serial + 2, version, goods, rollback=True)
    return sign(forward, signer), sign(back, signer)


def shares_of(text: str) -> tuple[float, ...]:
    """Parse stages such as `5%,25%,100%`; shares such as 0.05 are also accepted."""
    shares = tuple(_share(word.strip(), text) for word in text.split(","))
    rising = all(a < b for a, b in pairwise(shares))
    if not rising or shares[-1] != 1.0:
        raise ConfigError(f"--stages {text!r}: each stage must be larger than the previous one, the last 100%")
    return shares


def worse_of(text: str) -> float:
    """Parse the share by which a metric may become worse, such as `10%` or `0.1`; it may be above 100%."""
    share = _number(text.strip())
    if not 0 <= share < 1e9:
        raise ConfigError(f"--max-worse {text!r} is not a share: write 10%, or 0.1")
    return share


def _number(word: str) -> float:
    """Parse a share; -1 if it is not a number."""
    try:
        return float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
    except ValueError:
        return -1.0


def _share(word: str, text: str) -> float:
    share = _number(word)
    if not 0 < share <= 1:
        raise ConfigError(f"--stages {text!r}: {word!r} is not a share: write 5%, or 0.05")
    return share


class CheckCard(msgspec.Struct, frozen=True, tag="check-card"):
    """Read the card of a rollout, and check that it is of the release in the order."""

    ticket: str
    order: Order
    card: Ref


class CardChecked(msgspec.Struct, frozen=True, tag="card-checked"):
    """Why the card does not match the order; None if it does."""

    ticket: str
    line: str
    objection: str | None


def unsigned(message: Rollout, public: str) -> str | None:
    """Return which order of a rollout is not signed with the fleet's key; None if both are signed."""
    for name, order in (("forward", message.forward), ("back", message.back)):
        if not order.signed_by(public):
            return (
                f"the order {name} is not signed with the fleet's release key, whose public key is {public}: sign it "
                "with the private key (--key)"
            )
    return None


def misfit(message: Rollout, forward: Order, newest: int) -> str | None:
    """Return why devices would refuse a rollout, or later rollouts after it; None if it is valid.

    `newest` is the highest serial number of any order of the line.
    """
    goods = forward.goods
    if goods is None or (goods.graph.digest, goods.card.digest) != (message.graph.digest, message.card.digest):
        return "the order is not for the release that was sent with it"
    if (goods.graph.size, goods.card.size) != (message.graph.size, message.card.size):
        return "the order has other sizes than the release that was sent with it"
    if goods.graph.size > LARGEST_GRAPH or goods.card.size > LARGEST_CARD:
        return f"the release is too large: a graph may have {LARGEST_GRAPH:,} bytes and a card {LARGEST_CARD:,}"
    if forward.serial > newest + AHEAD:
        return (
            f"order {forward.serial} is more than {AHEAD:,} ahead of {newest}, the newest of the line: serial numbers "
            "would run out. Set --after to the serial number that devices report"
        )
    return None


def check_card(work: CheckCard, blobs: BlobStore) -> CardChecked:
    """Read the card and compare it with the order; devices run the graph, each in a separate process."""
    order = work.order
    try:
        card = read_card(blobs.read(work.card.digest), "the release")
    except DataError as error:
        return CardChecked(work.ticket, order.line, str(error))
    if (card.line, card.version) == (order.line, order.version):
        return CardChecked(work.ticket, order.line, None)
    found, wanted = f"{card.line} {card.version}", f"{order.line} {order.version}"
    return CardChecked(work.ticket, order.line, f"the card is of {found}, and the order is of {wanted}")

"""The two orders that an operator signs when a rollout begins: the one that brings the release, and the way back."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from sojourn.errors import ConfigError
from sojourn.protocol.release import Order, sign

if TYPE_CHECKING:
    from coordinator.releases.file import ReleaseFile
    from sojourn.protocol.release import LineView, SignedOrder
    from sojourn.protocol.signing import Signer


def orders_for(
    release: ReleaseFile, known: LineView | None, fleet: str, signer: Signer, *, after: int = 0
) -> tuple[SignedOrder, SignedOrder]:
    """Forward to the release, and back to what the fleet is meant to serve now, with serial numbers that follow.

    `after` is a serial number that devices have seen and the coordinator has not: its journal is an older one.
    """
    card = release.card
    serial = max(known.serial if known else 0, after)
    forward = Order(fleet, card.line, serial + 1, card.version, release.goods)
    version, goods = (known.serves, known.goods) if known else (0, None)
    back = Order(fleet, card.line, serial + 2, version, goods, rollback=True)
    return sign(forward, signer), sign(back, signer)


def shares_of(text: str) -> tuple[float, ...]:
    """The stages in a text such as `5%,25%,100%`; shares such as 0.05 are understood, too."""
    shares = tuple(_share(word.strip(), text) for word in text.split(","))
    rising = all(a < b for a, b in pairwise(shares))
    if not rising or shares[-1] != 1.0:
        raise ConfigError(f"--stages {text!r}: each stage must reach more than the one before, and the last 100%")
    return shares


def worse_of(text: str) -> float:
    """By which share a figure may become worse, as in `10%` or `0.1`; more than all of it is allowed."""
    share = _number(text.strip())
    if not 0 <= share < 1e9:
        raise ConfigError(f"--max-worse {text!r} is not a share: write 10%, or 0.1")
    return share


def _number(word: str) -> float:
    """The share in a word; -1 where there is none."""
    try:
        return float(word.removesuffix("%")) / (100 if word.endswith("%") else 1)
    except ValueError:
        return -1.0


def _share(word: str, text: str) -> float:
    share = _number(word)
    if not 0 < share <= 1:
        raise ConfigError(f"--stages {text!r}: {word!r} is not a share: write 5%, or 0.05")
    return share

"""A release out of its folder into memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.errors import InvalidMessage, ModelError
from sojourn.model.predictor import ReleasePredictor
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.release import Card

if TYPE_CHECKING:
    from edge_agent.releases.folder import ReleaseFolder, ServedFiles


def load(folder: ReleaseFolder, served: ServedFiles, threads: int = 1) -> ReleasePredictor:
    """A version from its files, if they are whole and the graph is what the card says."""
    graph, card = folder.read(served)
    return ReleasePredictor(graph, card_of(card, served), threads)


def card_of(data: bytes, served: ServedFiles) -> Card:
    """The card of this version."""
    try:
        card = unpack_blob(data, Card)
    except InvalidMessage as error:
        raise ModelError(f"the card of release {served.version} of {served.line} is none: {error}") from error
    if (card.line, card.version) != (served.line, served.version):
        raise ModelError(
            f"the card of release {served.version} of {served.line} is of release {card.version} of {card.line}"
        )
    return card

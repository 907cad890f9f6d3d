"""What a task asks of a device besides its objective, in the words of an offer.

A device is asked only for what its offer lists. An agent that was made before there was a list knows all that there was
then, which is what stands here; a new encoding, optimiser or estimator is a word more, and goes only to those who list
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, get_args

import msgspec

from sojourn.parts import Encoding, Estimator

if TYPE_CHECKING:
    from collections.abc import Iterable

    from sojourn.parts import Training
    from sojourn.protocol.wire import Offer

_OPTIMISERS = ("sgd", "adam")
ABILITIES = (
    *(f"encoding {word}" for word in get_args(Encoding)),
    *(f"optimiser {word}" for word in _OPTIMISERS),
    *(f"estimator {form.__struct_config__.tag}" for form in get_args(Estimator)),
)
"""All that the agent here can do."""
FIRST = frozenset(ABILITIES)
"""What an agent can do whose offer has no list."""


def asked(encoding: Encoding, training: Training, estimator: Estimator) -> frozenset[str]:
    """The words for what a job's tasks ask of a device."""
    return frozenset(
        {
            f"encoding {encoding}",
            f"optimiser {training.optimiser}",
            f"estimator {estimator.__struct_config__.tag}",
        }
    )


def able(offer: Offer | None, objective: str, words: Iterable[str]) -> bool:
    """Whether a device offers an objective and all of these; one that offers nothing is asked for nothing."""
    if offer is None or objective not in offer.objectives:
        return False
    known = FIRST if offer.abilities is msgspec.UNSET else frozenset(offer.abilities)
    return known.issuperset(words)

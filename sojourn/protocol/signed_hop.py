"""How a device's signature of a visit travels: to the edge server, and from there to the coordinator.

Apart from `sojourn.protocol.statements`, so that who only passes it on needs no cryptography.
"""

from __future__ import annotations

from typing import Annotated

import msgspec

from sojourn.protocol.limits import Digest, Number, Samples, Steps

SIGNATURE_BYTES = 64
PUBLIC_KEY_BYTES = 32
NodeSignature = Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
PublicKey = Annotated[bytes, msgspec.Meta(min_length=PUBLIC_KEY_BYTES, max_length=PUBLIC_KEY_BYTES)]
Digests = Annotated[
    dict[Annotated[str, msgspec.Meta(min_length=1, max_length=64)], Digest], msgspec.Meta(max_length=16)
]


class HopSignature(msgspec.Struct, frozen=True, array_like=True):
    """A device's signature of what it says of a visit, and the steps that it says it made."""

    steps: Steps
    signature: NodeSignature


class SignedHop(msgspec.Struct, frozen=True, array_like=True):
    """What a device signed of a visit that was kept, as far as the coordinator cannot know it, and what came next.

    kept, handed: what the edge server made of the model that the device returned: its exact checkpoint, and how it
    goes to the next device. They are the same as what was returned, unless the job compresses, the gate has shortened
    the update, or the models of a wave are merged.
    """

    attempt: tuple[Number, Number]
    given: Digests
    returned: Digests
    samples: Samples
    steps: Steps
    signature: NodeSignature
    kept: Annotated[bytes, msgspec.Meta(max_length=32)]
    handed: Annotated[bytes, msgspec.Meta(max_length=32)]

"""The wire form of a device's signature of a visit: to the edge server, and from there to the coordinator.

It is separate from `sojourn.protocol.signing`, so that forwarding it needs no cryptography.
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
    """A device's signature of its statement about a visit, and the steps that it reports."""

    steps: Steps
    signature: NodeSignature


class SignedHop(msgspec.Struct, frozen=True, array_like=True):
    """A device's signed statement about a counted visit, without what the coordinator knows, and the following model.

    kept, handed: the digests of the edge server's exact checkpoint of the returned model, and of what it sends to the
    next device. They equal the returned digest, unless the job compresses, the gate shortened the update, or the models
    of a wave are merged.
    """

    attempt: tuple[Number, Number]
    given: Digests
    returned: Digests
    samples: Samples
    steps: Steps
    signature: NodeSignature
    kept: Annotated[bytes, msgspec.Meta(max_length=32)]
    handed: Annotated[bytes, msgspec.Meta(max_length=32)]

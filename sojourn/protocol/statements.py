"""What a device signs of a visit: which visit, which task, what it was given, what it made of it, and of how much data.

The signature is over the msgpack of the statement. Who checks it puts the statement together again from what it knows
itself, so that only what cannot be known elsewhere travels with the signature.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Annotated

import msgspec

from sojourn.protocol.limits import Digest, Name, Samples, Steps
from sojourn.protocol.node_signing import FOR_VISIT, signed_for
from sojourn.protocol.signed_hop import Digests, HopSignature
from sojourn.protocol.wire import Task, VisitId

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sojourn.protocol.node_signing import NodeKey
    from sojourn.protocol.wire import Ref

_PACK = msgspec.msgpack.Encoder()
_TASK = msgspec.msgpack.Decoder(Task)
Pairs = tuple[tuple[str, bytes], ...]


class VisitStatement(msgspec.Struct, frozen=True, array_like=True):
    """What a device says of one visit, with its name to it."""

    device: Name
    visit: VisitId
    kit: Digest
    task: Digest
    given: Pairs
    """The digests of the vectors that it was handed, by name, in the order of their names."""
    returned: Pairs
    """The digests of those that it returned, as they travel."""
    samples: Samples
    steps: Steps
    found: Annotated[bytes, msgspec.Meta(max_length=32)]
    """The digest of the signature that an estimate found; empty where there is none."""


def task_digest(task: Task) -> bytes:
    """A task by its bytes, as they are for whoever read it from the wire."""
    return hashlib.sha256(_PACK.encode(_TASK.decode(_PACK.encode(task)))).digest()


def found_digest(signature: tuple[float, ...] | None) -> bytes:
    """What an estimate found, by its bytes."""
    return hashlib.sha256(_PACK.encode(tuple(map(float, signature)))).digest() if signature is not None else b""


def digests_of(vectors: Mapping[str, Ref]) -> Digests:
    """The digests of vectors, by name."""
    return {name: ref.digest for name, ref in vectors.items()}


def pairs(digests: Mapping[str, bytes]) -> Pairs:
    """Digests in the order of their names, as they are signed."""
    return tuple(sorted(digests.items()))


def sign(key: NodeKey, statement: VisitStatement) -> HopSignature:
    """A statement's signature, and what cannot be known but from it."""
    return HopSignature(statement.steps, key.sign_for(FOR_VISIT, _PACK.encode(statement)))


def is_signed(statement: VisitStatement, key: bytes, signature: bytes) -> bool:
    """Whether the node with this public key has made this statement."""
    return signed_for(FOR_VISIT, key, _PACK.encode(statement), signature)

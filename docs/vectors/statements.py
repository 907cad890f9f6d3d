"""The bytes that a device signs for a visit, and their signature."""

from __future__ import annotations

from typing import Any

import msgspec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from docs.vectors.cast import KIT, TASK, VISIT
from docs.vectors.json_values import to_json
from sojourn.protocol.signing import FOR_VISIT, NodeKey, VisitStatement, found_digest, pairs, sign, task_digest

KEY = NodeKey(Ed25519PrivateKey.from_private_bytes(bytes(range(32))))
_PACK = msgspec.msgpack.Encoder()


def make() -> dict[str, Any]:
    """Return a statement for a visit with training and one for an estimate."""
    given, returned = {"model": b"\1" * 32, "control": b"\2" * 32}, {"model": b"\3" * 32}
    trained = VisitStatement(
        "pi-1", VISIT, KIT.digest, task_digest(TASK), pairs(given), pairs(returned), 60, 8, found_digest(None)
    )
    found = found_digest((0.75, 0.125))
    estimated = msgspec.structs.replace(trained, returned=(), steps=0, found=found)
    return {"statements": [_statement("trained", trained), _statement("estimated", estimated)]}


def _statement(name: str, statement: VisitStatement) -> dict[str, Any]:
    return {
        "name": name,
        "task": _PACK.encode(TASK).hex(),
        "statement": to_json(msgspec.to_builtins(statement, builtin_types=(bytes,))),
        "hex": (FOR_VISIT + _PACK.encode(statement)).hex(),
        "public_key": KEY.public_bytes.hex(),
        "signature": sign(KEY, statement).signature.hex(),
    }

"""Keys, mandates and withdrawals for tests."""

from __future__ import annotations

from functools import cache
from typing import Any

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sojourn.protocol.mandates import (
    Mandate,
    SignedMandate,
    SignedWithdrawal,
    Withdrawal,
    sign_mandate,
    sign_withdrawal,
)
from sojourn.protocol.signing import Signer
from tests.sojourn.protocol.examples import TASK, D

NOW = 1_800_000_000.0
DAY = 86_400.0


@cache
def key_of(name: str) -> Signer:
    """A private key, the same each time."""
    return Signer(Ed25519PrivateKey.from_private_bytes(name.encode().ljust(32, b".")[:32]))


def mandate(**changes: Any) -> Mandate:
    """A mandate with default terms."""
    plain: dict[str, Any] = {
        "fleet": "fleet",
        "job": "job",
        "serial": 5,
        "operator": "ann",
        "issued": NOW,
        "ends": NOW + DAY,
        "kit": D,
        "model": "mlp",
        "classes": ("a", "b"),
        "class_count": 2,
        "tasks": (TASK,),
        "rounds": 3,
        "visits": 4,
        "returns": {"model": 1000},
    }
    return Mandate(**(plain | changes))


def signed(by: str = "ann", **changes: Any) -> SignedMandate:
    """Return a signed mandate."""
    return sign_mandate(mandate(**changes), key_of(by))


def withdrawn(by: str = "ann", **changes: Any) -> SignedWithdrawal:
    """Return a signed withdrawal."""
    plain: dict[str, Any] = {
        "fleet": "fleet", "job": "job", "serial": 5, "operator": by, "issued": NOW, "ends": NOW + DAY,
    }  # fmt: skip
    return sign_withdrawal(Withdrawal(**(plain | changes)), key_of(by))

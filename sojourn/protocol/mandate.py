"""A mandate: what the devices of a fleet may be asked to do for one job, signed with a key that no server holds.

A device with operators' keys does only what a mandate says, exactly: this kit, these tasks, so many rounds and visits,
these vectors back, at these sites, until then. Of a job only the mandate with the highest serial number counts, so that
an operator narrows one by signing another; a withdrawal ends all up to its own number.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from sojourn.protocol.decoders import decoded
from sojourn.protocol.limits import Digest, Label, Moment, Name, Number, Size, Text
from sojourn.protocol.wire import Task, VectorName

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from sojourn.protocol.signing import Signer

MANDATE_CONTEXT = b"sojourn-mandate-1"
WITHDRAWAL_CONTEXT = b"sojourn-withdrawal-1"
SIGNATURE_BYTES = 64
LARGEST = 16_384
"""Bytes of a mandate: with a hundred classes and all sites of a fleet it is far less."""
NAMED = 100
"""So many classes are named in a mandate; the kit's digest covers all of them."""

Serial = Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]
Ed25519Signature = Annotated[bytes, msgspec.Meta(min_length=SIGNATURE_BYTES, max_length=SIGNATURE_BYTES)]
_T = TypeVar("_T")


class Mandate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who may have what done on a device's data, and until when. One with fields unknown here is not obeyed."""

    fleet: Name
    job: Name
    serial: Serial
    operator: Label
    """What the person who signs it is called; the key says who it was."""
    purpose: Text = ""
    """What it is for, in words for the owners of devices."""
    issued: Moment
    ends: Moment
    """Both in seconds since 1970."""
    kit: Digest
    """Of all graphs, with their classes, input and probe, as one blob."""
    model: Label
    classes: Annotated[tuple[Label, ...], msgspec.Meta(max_length=NAMED)]
    """The first of them."""
    class_count: Number
    sites: Annotated[tuple[Name, ...], msgspec.Meta(max_length=100)] = ()
    """The only sites at which it holds; empty for all of the fleet."""
    tasks: Annotated[tuple[Task, ...], msgspec.Meta(min_length=1, max_length=8)]
    """What may be asked, to the letter: epochs, batch, optimiser, objective, estimator, encoding, threads."""
    rounds: Number
    """The last round in which it holds."""
    visits: Number
    """How many results one device gives, estimations included."""
    returns: Annotated[dict[VectorName, Size], msgspec.Meta(max_length=16)]
    """The vectors that may leave a device, and their largest sizes in bytes."""
    figures: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0
    """How many numbers may describe a device's data, where an estimator asks it to."""

    def __post_init__(self) -> None:
        if self.ends <= self.issued:
            raise ValueError("Expected a mandate to end after it was issued")


class Withdrawal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The mandates of a job up to this serial number hold no longer: stop, and delete what was for them."""

    fleet: Name
    job: Name
    serial: Serial
    operator: Label
    issued: Moment
    ends: Moment
    """When the last of them ends in any case: then nobody needs to remember this."""


class SignedMandate(msgspec.Struct, frozen=True, array_like=True):
    """A mandate as it travels: the bytes that were signed."""

    mandate: Annotated[bytes, msgspec.Meta(max_length=LARGEST)]
    signature: Ed25519Signature

    def read(self) -> Mandate | None:
        """What it says, whoever signed it; None where that is no mandate that this version understands."""
        return _read(self.mandate, Mandate)

    def signer(self, keys: Iterable[str]) -> str | None:
        """The first of these public keys that it was signed with, if there is one."""
        return _signer(keys, self.mandate, self.signature, MANDATE_CONTEXT)


class SignedWithdrawal(msgspec.Struct, frozen=True, array_like=True):
    """A withdrawal as it travels."""

    withdrawal: Annotated[bytes, msgspec.Meta(max_length=1000)]
    signature: Ed25519Signature

    def read(self) -> Withdrawal | None:
        """What it says, whoever signed it; None where that is no withdrawal."""
        return _read(self.withdrawal, Withdrawal)

    def signer(self, keys: Iterable[str]) -> str | None:
        """The first of these public keys that it was signed with, if there is one."""
        return _signer(keys, self.withdrawal, self.signature, WITHDRAWAL_CONTEXT)


def sign_mandate(mandate: Mandate, signer: Signer) -> SignedMandate:
    """The mandate with its signature, as it travels."""
    data = msgspec.msgpack.encode(mandate)
    return SignedMandate(data, signer.sign(data, MANDATE_CONTEXT))


def sign_withdrawal(withdrawal: Withdrawal, signer: Signer) -> SignedWithdrawal:
    """The withdrawal with its signature, as it travels."""
    data = msgspec.msgpack.encode(withdrawal)
    return SignedWithdrawal(data, signer.sign(data, WITHDRAWAL_CONTEXT))


def unlike(mandate: Mandate, job: str, kit: bytes, task: Task) -> str | None:
    """How a task goes beyond a mandate, in words; None where it is what was signed."""
    if job != mandate.job:
        return f"it is for the job {mandate.job!r}"
    if kit != mandate.kit:
        return f"it is for another kit: {mandate.kit.hex()[:12]}, not {kit.hex()[:12]}"
    if task not in mandate.tasks:
        return f"this task was not signed: {_difference(task, mandate.tasks)}"
    return None


def beyond(mandate: Mandate, vectors: Mapping[str, Any], figures: int) -> str | None:
    """How a result is more than a mandate lets a device return, in words; `vectors` are references by name."""
    for name, ref in vectors.items():
        if name not in mandate.returns:
            return f"the vector {name!r} may not leave this device"
        if ref.size > mandate.returns[name]:
            return f"the vector {name!r} has {ref.size} bytes, and {mandate.returns[name]} may leave this device"
    if figures > mandate.figures:
        return f"{figures} numbers describe the data here, and {mandate.figures} may leave this device"
    return None


def _difference(task: Task, signed: tuple[Task, ...]) -> str:
    """What is asked otherwise than in the signed task of the same kind."""
    alike = [each for each in signed if each.kind == task.kind]
    if not alike:
        return f"to {task.kind}"
    asked, allowed = (msgspec.to_builtins(each) for each in (task, alike[0]))
    flat, known = _flat(asked), _flat(allowed)
    found = [
        f"{key} {flat.get(key)!r}, not {known.get(key)!r}"
        for key in {**flat, **known}
        if flat.get(key) != known.get(key)
    ]
    return "; ".join(found[:4])[:300]


def _flat(table: dict[str, Any], before: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in table.items():
        flat |= _flat(value, f"{before}{key}.") if isinstance(value, dict) else {f"{before}{key}": value}
    return flat


def _read(data: bytes, form: type[_T]) -> _T | None:
    try:
        return decoded(data, form)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None


def _signer(keys: Iterable[str], data: bytes, signature: bytes, context: bytes) -> str | None:
    from sojourn.protocol.signing import verify  # noqa: PLC0415  # cryptography's megabytes only where keys are

    return next((key for key in keys if verify(key, data, signature, context)), None)

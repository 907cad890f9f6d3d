"""Mandates: the tasks of a job that devices may do, signed with a key that no server holds, and their messages."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from sojourn.protocol.limits import Digest, Ed25519Signature, Label, Moment, Name, Number, Size, Text, decoded_or_none
from sojourn.protocol.operator_messages import Jobs
from sojourn.protocol.registry import ANY_ROLE, SUBMITTERS, TO_DEVICE, TO_SITE, Answer, Message, OperatorRequest
from sojourn.protocol.wire import Ref, Task, VectorName

if TYPE_CHECKING:
    from sojourn.protocol.signing import Signer


# A mandate describes what the devices of a fleet may do for one job, signed with a key that no server holds.
#
# A device with operators' keys does exactly what a mandate permits: its kit, its tasks, its maximum rounds and visits,
# its returned vectors, its sites, until its end. Only a job's mandate with the highest serial counts, so that an
# operator can restrict one by signing another; a withdrawal ends all up to its own serial.

MANDATE_CONTEXT = b"sojourn-mandate-1"
WITHDRAWAL_CONTEXT = b"sojourn-withdrawal-1"
LARGEST = 16_384
"""Maximum bytes of a mandate; a hundred classes and all sites of a fleet need far less."""
NAMED = 100
"""Maximum classes listed in a mandate; the kit's digest covers all of them."""

Serial = Annotated[int, msgspec.Meta(ge=1, lt=1 << 53)]


class Mandate(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The permitted uses of a device's data, their operator and their end. Devices refuse unknown fields."""

    fleet: Name
    job: Name
    serial: Serial
    operator: Label
    """The name of the signer; the key proves the identity."""
    purpose: Text = ""
    """The purpose of the job, for the owners of devices."""
    issued: Moment
    ends: Moment
    """Both in seconds since 1970."""
    kit: Digest
    """The digest of all graphs, with their classes, input and probe, as one blob."""
    model: Label
    classes: Annotated[tuple[Label, ...], msgspec.Meta(max_length=NAMED)]
    """The first of the classes."""
    class_count: Number
    sites: Annotated[tuple[Name, ...], msgspec.Meta(max_length=100)] = ()
    """The only sites at which the mandate is valid; empty for all of the fleet."""
    tasks: Annotated[tuple[Task, ...], msgspec.Meta(min_length=1, max_length=8)]
    """The permitted tasks, exactly: epochs, batch, optimiser, objective, estimator, encoding, threads."""
    rounds: Number
    """The last round for which the mandate is valid."""
    visits: Number
    """Maximum results of one device, including estimations."""
    returns: Annotated[dict[VectorName, Size], msgspec.Meta(max_length=16)]
    """The vectors that a device may send, and their maximum sizes in bytes."""
    signature_size: Annotated[int, msgspec.Meta(ge=0, le=4096)] = 0
    """Maximum numbers that describe a device's data, if an estimator requires them."""

    def __post_init__(self) -> None:
        if self.ends <= self.issued:
            raise ValueError("Expected a mandate to end after it was issued")


class Withdrawal(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The mandates of a job up to this serial are withdrawn: stop the job, and delete its data."""

    fleet: Name
    job: Name
    serial: Serial
    operator: Label
    issued: Moment
    ends: Moment
    """When the last of them ends: then this withdrawal can be forgotten."""


class SignedMandate(msgspec.Struct, frozen=True, array_like=True):
    """A mandate on the wire: the bytes that were signed."""

    mandate: Annotated[bytes, msgspec.Meta(max_length=LARGEST)]
    signature: Ed25519Signature

    def read(self) -> Mandate | None:
        """Return the mandate, without checking its signature; None if this version cannot read it."""
        return decoded_or_none(self.mandate, Mandate)

    def signer(self, keys: Iterable[str]) -> str | None:
        """Return the first of these public keys that signed it, or None."""
        return _signer(keys, self.mandate, self.signature, MANDATE_CONTEXT)


class SignedWithdrawal(msgspec.Struct, frozen=True, array_like=True):
    """A withdrawal on the wire."""

    withdrawal: Annotated[bytes, msgspec.Meta(max_length=1000)]
    signature: Ed25519Signature

    def read(self) -> Withdrawal | None:
        """Return the withdrawal, without checking its signature; None if it cannot be read."""
        return decoded_or_none(self.withdrawal, Withdrawal)

    def signer(self, keys: Iterable[str]) -> str | None:
        """Return the first of these public keys that signed it, or None."""
        return _signer(keys, self.withdrawal, self.signature, WITHDRAWAL_CONTEXT)


def sign_mandate(mandate: Mandate, signer: Signer) -> SignedMandate:
    """Sign a mandate."""
    data = msgspec.msgpack.encode(mandate)
    return SignedMandate(data, signer.sign(data, MANDATE_CONTEXT))


def sign_withdrawal(withdrawal: Withdrawal, signer: Signer) -> SignedWithdrawal:
    """Sign a withdrawal."""
    data = msgspec.msgpack.encode(withdrawal)
    return SignedWithdrawal(data, signer.sign(data, WITHDRAWAL_CONTEXT))


def unlike(mandate: Mandate, job: str, kit: bytes, task: Task) -> str | None:
    """Return how a task differs from what a mandate permits, or None."""
    if job != mandate.job:
        return f"it is for the job {mandate.job!r}"
    if kit != mandate.kit:
        return f"it is for another kit: {mandate.kit.hex()[:12]}, not {kit.hex()[:12]}"
    if task not in mandate.tasks:
        return f"this task was not signed: {_difference(task, mandate.tasks)}"
    return None


def beyond(mandate: Mandate, vectors: Mapping[str, Any], signature_size: int) -> str | None:
    """Return how a result exceeds what a mandate lets a device return, or None; `vectors` are references by name."""
    for name, ref in vectors.items():
        if name not in mandate.returns:
            return f"the vector {name!r} may not leave this device"
        if ref.size > mandate.returns[name]:
            return f"the vector {name!r} has {ref.size} bytes, but only {mandate.returns[name]} may leave this device"
    if signature_size > mandate.signature_size:
        return (
            f"{signature_size} numbers describe the data here, but only {mandate.signature_size} may leave this device"
        )
    return None


def _difference(task: Task, signed: tuple[Task, ...]) -> str:
    """Return the difference from the signed task of the same kind."""
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


def _signer(keys: Iterable[str], data: bytes, signature: bytes, context: bytes) -> str | None:
    from sojourn.protocol.signing import verify  # noqa: PLC0415  # imports cryptography, which needs megabytes

    return next((key for key in keys if verify(key, data, signature, context)), None)


Constants = Annotated[tuple[float, ...], msgspec.Meta(max_length=4096)]


class Normalisation(msgspec.Struct, frozen=True):
    """The mean and deviation by which a job's graphs normalise raw values; one number, or one for each channel.

    Targets have the same by their last axis, if a task has scaled targets.
    """

    mean: Constants | None
    std: Constants | None
    target_mean: Constants | None = None
    target_std: Constants | None = None

    @property
    def scaling(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Mean and deviation of targets, if they are scaled."""
        return (self.target_mean, self.target_std) if self.target_mean and self.target_std else None


class KitDetails(Answer, frozen=True, tag="kit-details"):
    """The answer to `read-kit`: the kit as a blob, and the constants and versions that compiled it.

    Compiling the job again needs none of its data. From the data, the kit contains only the input's shape, the classes,
    the range of values and the normalisation.
    """

    verbatim = True
    job: Name
    kit: Ref
    normalisation: Normalisation
    compilers: Annotated[tuple[Label, ...], msgspec.Meta(max_length=16)] = ()
    """The versions of the packages that compiled it."""
    serial: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] = 0
    """The highest serial of the job's mandates and withdrawals; 0 for none."""


class ReadKit(OperatorRequest[KitDetails], frozen=True, tag="read-kit"):
    """Request a job's kit, to sign it."""

    roles = ANY_ROLE
    job: Name


class SignJob(OperatorRequest[Jobs], frozen=True, tag="sign-job"):
    """Let a job be sent to devices with this mandate."""

    roles = SUBMITTERS
    mandate: SignedMandate

    @property
    def subject(self) -> str:
        """The job and the mandate's serial."""
        mandate = self.mandate.read()
        return f"{mandate.job} {mandate.serial}" if mandate else "?"


class WithdrawJob(OperatorRequest[Jobs], frozen=True, tag="withdraw-job"):
    """End a job, and withdraw its mandates on all devices."""

    roles = SUBMITTERS
    withdrawal: SignedWithdrawal

    @property
    def subject(self) -> str:
        """The job and the serial of the last mandate that ends."""
        withdrawal = self.withdrawal.read()
        return f"{withdrawal.job} {withdrawal.serial}" if withdrawal else "?"


class Recall(Message, frozen=True, tag="recall"):
    """A withdrawal for devices; an edge server sends it to all of them."""

    routes = TO_SITE | TO_DEVICE
    withdrawal: SignedWithdrawal

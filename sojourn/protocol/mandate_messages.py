"""The messages about mandates: what a signer asks of a coordinator, and what ends a mandate on devices."""

from __future__ import annotations

from typing import Annotated

import msgspec

from sojourn.protocol.limits import Label, Name
from sojourn.protocol.mandate import SignedMandate, SignedWithdrawal
from sojourn.protocol.wire import Ref

Constants = Annotated[tuple[float, ...], msgspec.Meta(max_length=4096)]


class Normalisation(msgspec.Struct, frozen=True):
    """What a job's graphs take off raw values and divide them by; one number, or one for each channel.

    Of targets the same, by the last axis, where a task has such.
    """

    mean: Constants | None
    std: Constants | None
    target_mean: Constants | msgspec.UnsetType = msgspec.UNSET
    target_std: Constants | msgspec.UnsetType = msgspec.UNSET

    @property
    def scaling(self) -> tuple[tuple[float, ...], tuple[float, ...]] | None:
        """Mean and deviation of targets, if they are scaled."""
        return (self.target_mean, self.target_std) if self.target_mean and self.target_std else None


class ReadKit(msgspec.Struct, frozen=True, tag="read-kit", tag_field="kind"):
    """Tell a job's kit, to sign it."""

    ticket: Name
    job: Name


class KitTold(msgspec.Struct, frozen=True, tag="kit-told", tag_field="kind"):
    """The answer to `read-kit`: the kit as a blob, and what it was compiled with besides the job's file.

    Whoever compiles the job again needs none of its data: of that only the input's shape, the classes and the range of
    values, which stand in the kit, and the normalisation went into it.
    """

    ticket: Name
    job: Name
    kit: Ref
    normalisation: Normalisation | None
    """None where an earlier version compiled the job."""
    compilers: Annotated[tuple[Label, ...], msgspec.Meta(max_length=16)] = ()
    """The versions of what made it, in words."""
    serial: Annotated[int, msgspec.Meta(ge=0, lt=1 << 53)] = 0
    """The highest number of a mandate or a withdrawal that the job had; 0 for none."""


class SignJob(msgspec.Struct, frozen=True, tag="sign-job", tag_field="kind"):
    """Let a job go to devices with this mandate. Answered by `jobs`."""

    ticket: Name
    mandate: SignedMandate


class WithdrawJob(msgspec.Struct, frozen=True, tag="withdraw-job", tag_field="kind"):
    """End a job, and its mandates on all devices. Answered by `jobs`."""

    ticket: Name
    withdrawal: SignedWithdrawal


class Recall(msgspec.Struct, frozen=True, tag="recall", tag_field="kind"):
    """A withdrawal on its way to devices; an edge server hands it to all of them."""

    withdrawal: SignedWithdrawal

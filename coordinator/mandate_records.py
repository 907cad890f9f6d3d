"""The records of mandates at a coordinator: which job has which, and what was withdrawn."""

from __future__ import annotations

import msgspec

from sojourn.protocol.mandate import SignedMandate, SignedWithdrawal


class JobMandated(msgspec.Struct, frozen=True, tag="job-mandated/1"):
    """An operator signed what devices may be asked for a job; `ticket` is what the operator called the request."""

    job: str
    mandate: SignedMandate
    ticket: str


class MandateWithdrawn(msgspec.Struct, frozen=True, tag="mandate-withdrawn/1"):
    """An operator withdrew a job's mandates: sites are told until the last of them would have ended."""

    job: str
    withdrawal: SignedWithdrawal
    at: float


Withdrawals = dict[str, SignedWithdrawal]
"""By job, those of which a mandate might still hold."""
KEPT = 256
"""At most so many, the newest."""


def withdrawn(known: Withdrawals, record: MandateWithdrawn) -> Withdrawals:
    """What is kept with one more, without those that no longer matter."""
    all_of_them = {**known, record.job: record.withdrawal}
    read = {job: it for job, signed in all_of_them.items() if (it := signed.read()) and it.ends > record.at}
    return {job: all_of_them[job] for job in list(read)[-KEPT:]}

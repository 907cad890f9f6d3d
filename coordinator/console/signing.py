"""Signing a job: its kit is waited for, compiled again here and compared, and what is to be signed is made of it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

import msgspec

from coordinator.jobs.settings import read_job
from coordinator.machine.mandate_requests import compilers
from coordinator.rounds.mandate_terms import LONGEST, mandate_for
from coordinator.rounds.rebuilding import check_kit
from sojourn.errors import InvalidMessage, JobError
from sojourn.protocol.envelope import unpack_blob
from sojourn.protocol.mandate import Withdrawal, sign_mandate, sign_withdrawal
from sojourn.protocol.spec import Kit
from sojourn.store.blobs import ref_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from coordinator.console.operator import Operator
    from coordinator.rounds.mandate_terms import Terms
    from sojourn.protocol.mandate import Mandate
    from sojourn.protocol.signing import Signer
    from sojourn.protocol.wire import JobView

PAUSE = 0.5
AHEAD = 86_400.0
"""Seconds by which clocks of operators may differ."""


def prepared(
    operator: Operator, name: str, text: str, terms: Terms, say: Callable[[str], None], *, trusting: bool = False
) -> Mandate:
    """The mandate for a job as this text says, when its kit is there and was found to be the text's own.

    trusting: do not compile it again, and take the coordinator's word for what the kit is.
    """
    _wait_for_kit(operator, name, say)
    job = read_job(text, f"job {name}")
    told, content = operator.kit(name)
    try:
        kit = unpack_blob(content, Kit)
    except InvalidMessage as error:
        raise JobError(f"the coordinator's kit cannot be read: {error}") from error
    if not trusting:
        say("compiling the job again, to compare")
        check_kit(job, kit, told.normalisation, say, told.compilers, compilers())
    digest, now = ref_of(content).digest, time.time()
    if told.serial > 1000 * (now + AHEAD):
        raise JobError(
            f"the coordinator says that the job's last mandate has the number {told.serial}, which is of a time to "
            "come: its clock or yours is wrong, or it is not to be trusted; submit the job under another name"
        )
    return mandate_for(job, kit, digest, terms, fleet=operator.fleet, now=now, after=told.serial)


def give(operator: Operator, mandate: Mandate, signer: Signer) -> JobView:
    """Sign, and let the job go on."""
    return operator.sign(sign_mandate(mandate, signer))


def withdraw(operator: Operator, name: str, who: str, signer: Signer) -> tuple[JobView, ...]:
    """Sign that all mandates of a job so far hold no longer, and let devices be told.

    Numbers of mandates are times: one that was signed by a clock ahead of this one outlives it, which the answer shows.
    """
    now = time.time()
    it = Withdrawal(
        fleet=operator.fleet, job=name, serial=int(now * 1000), operator=who, issued=now, ends=now + LONGEST
    )
    return operator.withdraw(sign_withdrawal(it, signer))


def same_job(mine: str, theirs: str) -> bool:
    """Whether two texts of job files mean the same job, with the same tasks for devices."""
    return msgspec.json.encode(read_job(mine, "mine")) == msgspec.json.encode(read_job(theirs, "theirs"))


def _wait_for_kit(operator: Operator, name: str, say: Callable[[str], None]) -> None:
    told = ""
    while (view := operator.job(name)).status in ("queued", "compiling"):
        if (text := view.detail or view.status) != told:
            say(f"job {name}: {text}")
            told = text
        time.sleep(PAUSE)
    if view.status in ("refused", "failed", "stopped") and not view.round:
        raise JobError(f"job {name} is {view.status}: {view.detail}")

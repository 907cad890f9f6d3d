"""What operators may ask: which role each request needs, and which of them are acts that go into the audit log."""

from __future__ import annotations

import tomllib
from typing import TYPE_CHECKING, get_args

from sojourn.protocol.audit import InspectAudit
from sojourn.protocol.fleet_messages import AwaitChange, ForgetDevice, InspectFleet
from sojourn.protocol.job_messages import Continue, ReadJob, Remove
from sojourn.protocol.limits import LABEL
from sojourn.protocol.mandate_messages import ReadKit, SignJob, WithdrawJob
from sojourn.protocol.messages import Export, Inspect, Stop, Submit
from sojourn.protocol.operators import OperatorRole
from sojourn.protocol.release_messages import InspectReleases, MakeRelease, ReadCard, Rollout, Steer

if TYPE_CHECKING:
    from sojourn.protocol.messages import Message

ALL: tuple[OperatorRole, ...] = get_args(OperatorRole)
NEEDED: dict[type, tuple[OperatorRole, ...]] = {
    **dict.fromkeys((Inspect, InspectFleet, AwaitChange, InspectReleases, InspectAudit), ALL),
    **dict.fromkeys((ReadJob, ReadKit, ReadCard), ALL),
    **dict.fromkeys((Submit, Stop, Continue, Remove, SignJob, WithdrawJob, ForgetDevice), ("submitter", "owner")),
    Export: ("submitter", "releaser", "owner"),
    **dict.fromkeys((MakeRelease, Rollout, Steer), ("releaser", "owner")),
}
"""The roles that may make each request."""
ACTS = frozenset(form for form, roles in NEEDED.items() if roles != ALL)
"""The requests that change something, or take a model out: each is an entry of the audit log."""


def what_of(message: Message) -> str:
    """A request in a few words: what the operator signs, and what the log says."""
    verb = str(message.__struct_config__.tag)
    return f"{verb} {_subject(message)}".strip()[:LABEL]


def _subject(message: Message) -> str:
    match message:
        case Submit():
            return job_name(message.job)
        case SignJob():
            mandate = message.mandate.read()
            return f"{mandate.job} {mandate.serial}" if mandate else "?"
        case WithdrawJob():
            withdrawal = message.withdrawal.read()
            return f"{withdrawal.job} {withdrawal.serial}" if withdrawal else "?"
        case Rollout():
            order = message.forward.read()
            return f"{order.line} {order.version}" if order else "?"
        case Steer():
            return f"{message.line} {message.action}"
        case ForgetDevice():
            return message.device
        case Continue():
            devices = f" devices {message.devices}" if message.devices else ""
            return f"{message.job} {message.rounds or ''}".strip() + devices
        case _:
            return str(getattr(message, "job", None) or "")


def job_name(text: str) -> str:
    """The name in a job file's text; `?` where there is none."""
    try:
        name = tomllib.loads(text).get("name", "?")
    except (tomllib.TOMLDecodeError, RecursionError):
        return "?"
    return name[:63] if isinstance(name, str) else "?"

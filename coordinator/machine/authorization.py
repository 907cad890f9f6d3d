"""Authorize operators' requests with trusted keys, and record every action in the audit log."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from coordinator.audit_records import AuditRecorded
from coordinator.machine.answers import drop_oldest, fitting, refuse
from sojourn.errors import InvalidMessage
from sojourn.node.machine import Append, Effect, Send
from sojourn.protocol.envelope import unpack_inner
from sojourn.protocol.limits import TEXT
from sojourn.protocol.operator_messages import Refused
from sojourn.protocol.operators import (
    DONE,
    REFUSED,
    Audit,
    AuditEntry,
    InspectAudit,
    OperatorEntry,
    RequestSignature,
    SignedRequest,
)
from sojourn.protocol.registry import Answer, OperatorRequest
from sojourn.protocol.topics import Address
from sojourn.rate_limiter import Rate, RateLimiter

if TYPE_CHECKING:
    from coordinator.machine.job_queue import JobQueue
    from coordinator.machine.tours import KeysOf


def _no_keys(_devices: object) -> dict[str, bytes]:
    return {}


@dataclass(frozen=True)
class Trust:
    """The public keys that a coordinator trusts. Without any, it accepts all requests and results, as in a demo."""

    release_key: str = ""
    """Key that verifies releases; without it, the coordinator does not verify them."""
    mandate_keys: Mapping[str, str] = field(default_factory=dict)
    """Operators' keys, mapped to their owners. If there are any, a job waits for a mandate signed with one of them."""
    roles: Callable[[], Mapping[str, OperatorEntry]] | None = None
    """Returns each operator's role; None to accept every name in the coordinator's `operators`."""
    device_keys: KeysOf = _no_keys
    """Returns the keys with which devices sign their results."""


# Every operator request passes through this module, and every action is recorded.
#
# With an operators file, a request must have a recent signature from an operator whose role permits it, and it is
# accepted once. Without the file, the broker's access rules alone decide who may use an operator's name.

SIGNATURE_WINDOW = 1800.0
"""Maximum difference in seconds between a request's date and this clock; clients repeat a request until answered."""
MAX_PENDING = 256
"""Maximum number of actions waiting for their result. The oldest is dropped first, and recorded when it is repeated."""
REFUSAL_RATE = Rate(1 / 600, 20.0)
"""Rate at which refused requests get an audit entry: a burst of 20, then one in ten minutes; others are counted."""
PAGE_SIZE = 200
NO_KEY = "this coordinator accepts only signed requests: name your key with --operator-key (SOJOURN_OPERATOR_KEY)"


@dataclass(frozen=True)
class ReceivedRequest:
    """A request with its operator and, if it is signed, its signature."""

    operator: str
    message: OperatorRequest[Any]
    proof: RequestSignature | None = None


class RequestAuthorizer:
    """Authorizes requests and writes the audit log. It calls `operators` each time: the file may change."""

    def __init__(
        self, fleet: str, cloud: str, queue: JobQueue, operators: Callable[[], Mapping[str, OperatorEntry]] | None
    ) -> None:
        self._fleet, self._cloud, self._queue, self._operators = fleet, cloud, queue, operators
        self._pending: dict[tuple[str, str], ReceivedRequest] = {}
        """Authorized actions that have no result yet, by operator and ticket."""
        self._rate = RateLimiter()
        self._unlisted = 0

    def authorize(self, sender: Address, message: OperatorRequest[Any], date: float) -> ReceivedRequest | str:
        """Return the request if it is permitted, otherwise the reason why not."""
        received = self._read(sender, message)
        if isinstance(received, str) or self._operators is None:
            return received
        entry = self._operators().get(received.operator)
        if received.proof is None:
            return NO_KEY
        name = received.operator
        if name != sender.name:  # the answer would go to the wrong operator
            return f"{name!r} signed the request, and {sender.name!r} sent it: give your name with --operator"
        if entry is None or not received.proof.signed_by(entry.key):
            return f"{name!r} is not an operator of this coordinator, or uses another key than the one listed here"
        if why := self._misused(received, date):
            return why
        roles = received.message.roles
        if entry.role not in roles:
            return (
                f"{received.message.what.split()[0]!r} needs the role {' or '.join(roles)}, and {name} is {entry.role}"
            )
        return received

    def knows(self, name: str) -> bool:
        """Return whether an operator with a key has this name."""
        return self._operators is not None and name in self._operators()

    def _read(self, sender: Address, message: OperatorRequest[Any]) -> ReceivedRequest | str:
        if not isinstance(message, SignedRequest):
            return ReceivedRequest(sender.name, message)
        try:
            inner = unpack_inner(message.message)
        except InvalidMessage as error:
            return f"the request cannot be read: {error}"
        request = message.proof.read()
        if not isinstance(inner, OperatorRequest) or isinstance(inner, SignedRequest) or request is None:
            return "the message is not an operator request"
        received = ReceivedRequest(sender.name, inner)  # without trusted keys the signature proves nothing
        if self._operators is not None:
            received = ReceivedRequest(request.operator, inner, message.proof)
        same = hashlib.sha256(message.message).digest() == request.digest
        known = request.what == received.message.what and request.ticket == message.ticket == inner.ticket
        return received if same and known else "the signature is for another request"

    def _misused(self, received: ReceivedRequest, date: float) -> str | None:
        """Return why the signature is not valid here and now, or None."""
        request = received.proof.read() if received.proof else None
        if request is None or (request.fleet, request.cloud) != (self._fleet, self._cloud):
            return "the request was signed for another coordinator"
        if abs(request.at - date) > SIGNATURE_WINDOW:
            return f"the request was signed {date - request.at:,.0f} s ago by this clock: set your clock, or try again"
        return None

    def find_performed(self, received: ReceivedRequest) -> AuditEntry | None:
        """Return the audit entry of a signed action that was already performed, so that it is not repeated.

        Without signatures a ticket proves nothing: the handler of the request detects repeats.
        """
        if received.proof is None or not received.message.audited:
            return None
        return self._find(received)

    def _find(self, received: ReceivedRequest) -> AuditEntry | None:
        asked, proven = received.message, received.proof is not None
        return self._queue.durable.audit.find(received.operator, asked.ticket, asked.what, proven=proven)

    def track(self, received: ReceivedRequest) -> None:
        """Record the result of this action once it is known."""
        if not received.message.audited:
            return
        key = received.operator, received.message.ticket
        self._pending.pop(key, None)
        self._pending[key] = received
        drop_oldest(self._pending, MAX_PENDING)

    @property
    def has_pending(self) -> bool:
        """Whether any action still waits for its result."""
        return bool(self._pending)

    def with_entries(self, effects: list[Effect], date: float) -> list[Effect]:
        """Return the effects with an audit entry before each answer to an action."""
        done: list[Effect] = []
        for effect in effects:
            if isinstance(effect, Send) and isinstance(answer := effect.message, Answer):
                received = self._pending.pop((effect.to.name, answer.ticket), None)
                refused = answer.reason if isinstance(answer, Refused) else None
                done += self._logged(received, refused, date) if received else []
            done.append(effect)
        return done

    def refuse(self, sender: Address, message: OperatorRequest[Any], reason: str, date: float) -> list[Effect]:
        """Refuse a request and record the refusal."""
        read = self._read(sender, message)
        # An unproven request is logged without its signature.
        received = (
            replace(read, proof=None) if isinstance(read, ReceivedRequest) else ReceivedRequest(sender.name, message)
        )
        return [*self._logged(received, reason, date), *refuse(sender, message.ticket, reason)]

    def _logged(self, received: ReceivedRequest, refused: str | None, date: float) -> list[Effect]:
        detail = refused or ""
        if refused is not None and received.proof is None:  # unauthenticated clients must not fill the log
            if not self._rate.allows("refused", REFUSAL_RATE, date):
                self._unlisted += 1
                return []
            if self._unlisted:
                detail = f"{detail} (before it, {self._unlisted} more were refused)"
                self._unlisted = 0
        log, known = self._queue.durable.audit, self._find(received)
        if refused is None and known and known.outcome == DONE:  # a repeat of the same request
            return []
        entry = AuditEntry(
            log.next_number,
            date,
            received.operator,
            received.message.what,
            DONE if refused is None else REFUSED,
            detail[:TEXT],
            received.message.ticket,
            received.proof,
            log.head,
        )
        record = AuditRecorded(entry)
        self._queue.durable.apply(record)
        return [Append(record, sync=True)]

    def inspect(self, sender: Address, message: InspectAudit, _now: float) -> list[Effect]:
        """Send a page of the audit log."""
        entries = self._queue.durable.audit.entries
        first = max(0, message.after + 1 - entries[0].number) if entries else 0
        page, more = fitting(((str(it.number), it) for it in entries[first:]), PAGE_SIZE)
        return [Send(sender, Audit(message.ticket, page, bool(more)))]

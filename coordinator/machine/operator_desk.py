"""Who asks, and whether they may: every request of an operator comes through here, and every act is written down.

With an operators' file a request counts only with a signature, of a role that may make it, made a moment ago, and once.
Without one all is done that the broker lets somebody ask under an operator's name, as before there were keys.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from coordinator.audit_records import ActLogged
from coordinator.machine.acts import ACTS, NEEDED, what_of
from coordinator.machine.paging import fitting
from sojourn.errors import InvalidMessage
from sojourn.node.machine import Append, Send
from sojourn.node.quotas import Quota, SpeakingRate
from sojourn.protocol.audit import DONE, REFUSED, Audit, AuditEntry
from sojourn.protocol.envelope import unpack_inner
from sojourn.protocol.limits import TEXT
from sojourn.protocol.messages import Refused
from sojourn.protocol.operators import RequestSignature, SignedRequest

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from coordinator.audit_records import AuditLog
    from coordinator.state import CoordinatorState
    from sojourn.node.machine import Effect
    from sojourn.protocol.audit import InspectAudit
    from sojourn.protocol.messages import Message
    from sojourn.protocol.operators import OperatorEntry
    from sojourn.protocol.topics import Address

WINDOW = 1800.0
"""Seconds that a request may be old, or ahead of the clock here: it is repeated until it is answered."""
PENDING = 256
"""At most so many acts wait for their end; the oldest is forgotten first, and written down when it is asked again."""
REFUSALS = Quota(0, 0, 0, 1 / 600, 20.0)
"""How many refused requests have an entry of their own: 20 at once, then one in ten minutes; the others are counted."""
PAGE = 200
NO_KEY = "this coordinator takes only what an operator signed: name your key with --operator-key (SOJOURN_OPERATOR_KEY)"


@dataclass(frozen=True)
class AskedRequest:
    """A request as it was made: by whom, what, and what proves it."""

    who: str
    message: Message
    ticket: str
    proof: RequestSignature | None = None

    @property
    def what(self) -> str:
        """The request in a few words."""
        return what_of(self.message)


class OperatorDesk:
    """Lets in what may be asked, and writes the audit log. `operators` is asked each time: its file may change."""

    def __init__(self, fleet: str, cloud: str, operators: Callable[[], Mapping[str, OperatorEntry]] | None) -> None:
        self._fleet, self._cloud, self._operators = fleet, cloud, operators
        self._pending: dict[tuple[str, str], AskedRequest] = {}
        """Acts that were let in and are not answered yet, by operator and ticket."""
        self._rate = SpeakingRate()
        self._unlisted = 0

    def admitted(self, sender: Address, message: Message, date: float) -> AskedRequest | str:
        """The request, if it may be made; else why not."""
        asked = self._read(sender, message)
        if isinstance(asked, str) or self._operators is None:
            return asked
        entry = self._operators().get(asked.who)
        if asked.proof is None:
            return NO_KEY
        if asked.who != sender.name:  # the answer would go to somebody else
            return f"{asked.who!r} signed the request, and {sender.name!r} sent it: give your name with --operator"
        if entry is None or not asked.proof.signed_by(entry.key):
            return f"{asked.who!r} is not an operator of this coordinator, or has another key here"
        if why := self._misused(asked, date):
            return why
        roles = NEEDED.get(type(asked.message), ())
        if entry.role not in roles:
            return f"{asked.what.split()[0]!r} needs the role {' or '.join(roles)}, and {asked.who} is {entry.role}"
        return asked

    def knows(self, name: str) -> bool:
        """Whether this is the name of an operator with a key."""
        return self._operators is not None and name in self._operators()

    def _read(self, sender: Address, message: Message) -> AskedRequest | str:
        if not isinstance(message, SignedRequest):
            return AskedRequest(sender.name, message, getattr(message, "ticket", ""))
        try:
            inner = unpack_inner(message.message)
        except InvalidMessage as error:
            return f"the request cannot be read: {error}"
        request = message.proof.read()
        if type(inner) not in NEEDED or request is None:
            return "the request is none that an operator makes"
        asked = AskedRequest(sender.name, inner, message.ticket)  # without keys it proves nothing
        if self._operators is not None:
            asked = AskedRequest(request.operator, inner, message.ticket, message.proof)
        same = hashlib.sha256(message.message).digest() == request.digest
        known = request.what == asked.what and request.ticket == message.ticket == getattr(inner, "ticket", "")
        return asked if same and known else "the request is not what was signed"

    def _misused(self, asked: AskedRequest, date: float) -> str | None:
        """Whether a signature is for another coordinator, or of another time."""
        request = asked.proof.read() if asked.proof else None
        if request is None or (request.fleet, request.cloud) != (self._fleet, self._cloud):
            return "the request was signed for another coordinator"
        if abs(request.at - date) > WINDOW:
            return (
                f"the request was signed {date - request.at:,.0f} s ago by the clock here: set your clock, or ask again"
            )
        return None

    def earlier(self, log: AuditLog, asked: AskedRequest) -> AuditEntry | None:
        """What was written down of a signed act that was answered before: it is not done again.

        Without signatures a ticket proves nothing, and whoever handles the request looks at it as ever.
        """
        if asked.proof is None or type(asked.message) not in ACTS:
            return None
        return log.find(asked.who, asked.ticket, asked.what, proven=True)

    def expect(self, asked: AskedRequest) -> None:
        """An act was let in: its end is written down."""
        if type(asked.message) not in ACTS:
            return
        key = asked.who, asked.ticket
        self._pending.pop(key, None)
        self._pending[key] = asked
        while len(self._pending) > PENDING:
            del self._pending[next(iter(self._pending))]

    @property
    def waits(self) -> bool:
        """Whether the end of an act is still to be written down."""
        return bool(self._pending)

    def with_entries(self, durable: CoordinatorState, effects: list[Effect], date: float) -> list[Effect]:
        """The same effects, with an entry of the log before each answer to an act."""
        done: list[Effect] = []
        for effect in effects:
            asked = None
            if isinstance(effect, Send) and effect.to.role == "cloud":
                answer = effect.message
                asked = self._pending.pop((effect.to.name, getattr(answer, "ticket", "")), None)
            if asked:
                refused = answer.reason if isinstance(answer, Refused) else None
                done += self._logged(durable, asked, refused, date)
            done.append(effect)
        return done

    def refuse(
        self, durable: CoordinatorState, sender: Address, message: Message, reason: str, date: float
    ) -> list[Effect]:
        """Say no, and write it down."""
        read = self._read(sender, message)
        ticket = getattr(message, "ticket", "")
        # What cannot be proven is told as what it is: somebody's word.
        asked = read if isinstance(read, AskedRequest) else AskedRequest(sender.name, message, ticket)
        asked = replace(asked, proof=None)
        return [*self._logged(durable, asked, reason, date), Send(sender, Refused(ticket, reason))]

    def _logged(self, durable: CoordinatorState, asked: AskedRequest, refused: str | None, date: float) -> list[Effect]:
        detail = refused or ""
        if refused is not None and asked.proof is None:  # anybody can have as many of these as they like
            if not self._rate.allows("refused", REFUSALS, date):
                self._unlisted += 1
                return []
            if self._unlisted:
                detail = f"{detail} (before it, {self._unlisted} more were refused)"
                self._unlisted = 0
        log = durable.audit
        known = log.find(asked.who, asked.ticket, asked.what, proven=asked.proof is not None)
        if refused is None and known and known.outcome == DONE:  # it was only asked again
            return []
        entry = AuditEntry(
            log.next_number,
            date,
            asked.who,
            asked.what,
            DONE if refused is None else REFUSED,
            detail[:TEXT],
            asked.ticket,
            asked.proof,
            log.head,
        )
        record = ActLogged(entry)
        durable.apply(record)
        return [Append(record, sync=True)]

    def tell(self, durable: CoordinatorState, sender: Address, message: InspectAudit) -> list[Effect]:
        """A page of the log."""
        entries = durable.audit.entries
        first = max(0, message.after + 1 - entries[0].number) if entries else 0
        page, more = fitting(((str(it.number), it) for it in entries[first:]), PAGE)
        return [Send(sender, Audit(message.ticket, page, bool(more)))]

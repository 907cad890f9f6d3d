"""Asking a coordinator over a link: again until it answers, fetching what it has for us, serving what we have for it.

This is no `sojourn.node.Node`: operators share a name, and so an inbox, so that none of them has a presence on the
broker, a boot that others could count messages by, or a store. What a node asks and fetches with is used here too.
"""

from __future__ import annotations

import hashlib
import logging
import os
import queue
import secrets
import time
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

import msgspec

from coordinator.machine.acts import what_of
from sojourn import __version__
from sojourn.errors import InvalidBlob, InvalidMessage, JobError, LinkError, UserError
from sojourn.links.mqtt import MqttLink
from sojourn.node.exchange import Exchange
from sojourn.node.machine import Linked, Pulled
from sojourn.node.outbox import Outbox
from sojourn.protocol import topics
from sojourn.protocol.audit import Audit, InspectAudit
from sojourn.protocol.envelope import Packet, pack, unpack
from sojourn.protocol.fleet_messages import AwaitChange, Changed, Fleet, ForgetDevice, InspectFleet
from sojourn.protocol.job_messages import JobText, Removed
from sojourn.protocol.mandate_messages import KitTold, ReadKit, SignJob, WithdrawJob
from sojourn.protocol.messages import Chunk, Exported, Fetch, FetchHashes, Gone, Hashes, Inspect, Jobs, Refused
from sojourn.protocol.operators import Request, SignedRequest, sign_request
from sojourn.protocol.release_messages import CardTold, ReadCard, ReleaseMade, Releases
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch
from sojourn.store.blobs import ref_of, verified
from sojourn.store.memory_blobs import MemoryBlobs
from sojourn.text import clean_lines, cleaned

if TYPE_CHECKING:
    from collections.abc import Callable

    from sojourn.links.link import Link
    from sojourn.links.settings import BrokerSettings
    from sojourn.protocol.job_messages import Continue, ReadJob, Remove
    from sojourn.protocol.messages import Export, Message, Stop, Submit
    from sojourn.protocol.release_messages import InspectReleases, MakeRelease, Rollout, Steer
    from sojourn.protocol.signing import Signer
    from sojourn.protocol.wire import Ref

    Question = (
        InspectFleet | ForgetDevice | Inspect | Submit | Stop | Export | Continue | Remove | ReadJob
        | MakeRelease | Rollout | Steer | InspectReleases | ReadKit | SignJob | WithdrawJob
        | InspectAudit | AwaitChange | ReadCard
    )  # fmt: skip

PATIENCE = 30.0
"""Seconds for a coordinator that is running to answer, also on a busy machine."""
_Answer = TypeVar(
    "_Answer", Jobs, Exported, Removed, JobText, Fleet, ReleaseMade, Releases, KitTold, Audit, Changed, CardTold
)
_ANSWERS = (
    Jobs, Exported, Removed, JobText, Fleet, ReleaseMade, Releases, KitTold, Audit, Changed, CardTold, Refused
)  # fmt: skip
SINCE: dict[type, str] = {
    InspectFleet: "0.4.0",
    **dict.fromkeys((AwaitChange, ReadCard), "0.9.0"),
    **dict.fromkeys((ReadKit, SignJob, WithdrawJob, InspectAudit, SignedRequest), "0.8.0"),
}
"""The questions that the first coordinators do not know, and the version that brought them."""
log = logging.getLogger(__name__)


class CoordinatorClient:
    """A person's questions to one coordinator, and its answers; the link opens with the first question."""

    def __init__(
        self, broker: BrokerSettings, fleet: str, cloud: str, name: str, link: Link | None, signer: Signer | None = None
    ) -> None:
        """`signer`: the operator's own key; with it every question is signed."""
        self._signer = signer
        self.fleet = topics.check_name(fleet, "fleet")
        self.cloud = Address("cloud", topics.check_name(cloud, "coordinator"))
        self._me = Address("cloud", topics.check_name(name, "operator"))
        self._broker = broker
        named = broker if broker.username is not None else msgspec.structs.replace(broker, username=name)
        # Every process has a client id of its own, or two operators of one name would throw each other out.
        self._link = link or MqttLink(named, f"{name}-{secrets.token_hex(4)}")
        self._epoch = Epoch(1, os.urandom(8))
        self._number = 0
        self._inbox: queue.SimpleQueue[Message | Linked | None] = queue.SimpleQueue()
        self._blobs = MemoryBlobs()
        self._exchange = Exchange(self._blobs, self._send, lambda _: self._link.payload_limit)
        self._open = False
        self._was_up = False
        self._down: str | None = None

    def close(self) -> None:
        """Close the link."""
        self._link.close()

    def interrupt(self) -> None:
        """Let whoever waits for an answer look up; from any thread."""
        self._inbox.put(None)

    # --- what the link reports, on its own thread

    def link_up(self, link: Link) -> None:  # noqa: ARG002
        """The broker is there: what was asked before was not heard."""
        self._was_up, self._down = True, None
        self._inbox.put(Linked())

    def link_down(self, link: Link, reason: str) -> None:  # noqa: ARG002
        """The broker is gone, or was never there."""
        self._down = reason
        self._inbox.put(None)

    def arrived(self, link: Link, topic: str, payload: bytes) -> None:  # noqa: ARG002
        """A message came; only the coordinator's are of interest."""
        route = topics.read(self.fleet, topic)
        if route is None or route.node != self._me or route.sender != self.cloud.name:
            return
        try:
            self._inbox.put(unpack(payload, self.cloud, self._me, mend=True).message)  # type: ignore[arg-type]
        except InvalidMessage as error:
            log.warning("dropped a message from %s: %s", self.cloud.name, error)

    # --- asking

    def ask(self, question: Question, form: type[_Answer], patience: float) -> _Answer:
        """Ask until it is answered; a coordinator that answers other questions, and not this one, is too old."""
        since = SINCE[SignedRequest] if self._signer else SINCE.get(type(question))
        asked = self._signed(question) if self._signer else question
        if since is None:
            return self._ask(asked, form, patience)
        try:
            return self._ask(asked, form, patience / 2)
        except LinkError:
            with suppress(JobError):  # one that answers so knows of signatures
                self._ask(Inspect(f"{question.ticket}-known"), Jobs, patience / 2)
        try:
            return self._ask(asked, form, patience / 4)  # it may have started only now
        except LinkError as error:
            raise UserError(
                f"coordinator {self.cloud.name!r} is of a version before {since}, which does not know this question: "
                f"update it (this is version {__version__})"
            ) from error

    def ask_unless(self, question: AwaitChange, stop: Callable[[], bool], patience: float) -> Changed | None:
        """Ask something that is answered later; None as soon as `stop` says so, of which `interrupt` reminds.

        The answer may come after all while another question is asked, and is lost then: it is asked again.
        """
        asked, deadline = self._signed(question) if self._signer else question, time.monotonic() + patience
        self._open_link()
        self._send(self.cloud, asked)
        while not stop():
            answer = self._next(deadline)
            if isinstance(answer, Changed | Refused) and answer.ticket == question.ticket:
                if isinstance(answer, Refused):
                    raise JobError(clean_lines(answer.reason))
                return cleaned(answer)
            if isinstance(answer, Linked):
                self._send(self.cloud, asked)
            self._give_up_if_in_vain(time.monotonic() > deadline, patience)
        return None

    def _signed(self, question: Question) -> SignedRequest:
        """A question with the operator's signature."""
        assert self._signer is not None  # noqa: S101  # callers have looked
        data = msgspec.msgpack.encode(question)
        request = Request(
            self.fleet,
            self.cloud.name,
            self._me.name,
            time.time(),
            question.ticket,
            what_of(question),
            hashlib.sha256(data).digest(),
        )
        return SignedRequest(question.ticket, data, sign_request(request, self._signer))

    def _ask(self, question: Question | SignedRequest, form: type[_Answer], patience: float) -> _Answer:
        """Ask until the answer with our ticket is here; what is fetched of us meanwhile is a sign of life."""
        self._open_link()
        outbox, deadline = Outbox(), time.monotonic() + patience
        sends = outbox.ask("it", self.cloud, question, time.monotonic())
        while True:
            for send in sends:
                self._send(send.to, send.message)
            answer = self._next(min(deadline, outbox.wake_at() or deadline))
            if isinstance(answer, _ANSWERS) and answer.ticket == question.ticket:
                break
            now = time.monotonic()
            if self._serve(answer, now):
                deadline = now + patience
            self._give_up_if_in_vain(now > deadline, patience)
            sends = outbox.hasten(now) if isinstance(answer, Linked) else outbox.due(now)
        if isinstance(answer, Refused):
            raise JobError(clean_lines(answer.reason))
        if not isinstance(answer, form):
            raise LinkError(f"coordinator {self.cloud.name!r} answered with {type(answer).__name__}")
        # It is shown on a terminal; what is compared, or goes into a file, stays as it is.
        return answer if isinstance(answer, JobText | KitTold | Audit) else cleaned(answer)

    def _open_link(self) -> None:
        if not self._open:
            self._open = True
            self._link.open(self, [topics.inbox_filter(self.fleet, self._me)], None)

    def offer(self, *contents: bytes) -> list[Ref]:
        """Let the coordinator fetch these from here, while a question waits for its answer."""
        refs = [ref_of(content) for content in contents]
        for content, ref in zip(contents, refs, strict=True):
            self._blobs.put(content, ref.digest)
        self._exchange.grant(self.cloud, [ref.digest for ref in refs])
        return refs

    def _serve(self, message: Message | Linked | None, now: float) -> bool:
        """Send what is fetched; what another operator of our name has is theirs to send."""
        if not isinstance(message, Fetch | FetchHashes) or not self._blobs.has(message.digest):
            return False
        return self._exchange.handle(self.cloud, message, now)[1]

    def _next(self, until: float) -> Message | Linked | None:
        """What happens next; None when time is up or the link is down."""
        try:
            return self._inbox.get(timeout=max(0.0, until - time.monotonic()))
        except queue.Empty:
            return None

    def _give_up_if_in_vain(self, late: bool, patience: float) -> None:
        if self._down is not None and (late or not self._was_up):
            raise LinkError(self._down)
        if late:
            raise LinkError(
                f"no answer from coordinator {self.cloud.name!r} at {self._broker.address} in {patience:g} s: is it "
                f"running, in the fleet {self.fleet!r}, with {self._me.name!r} among its operators?"
            )

    def fetch(self, ref: Ref) -> bytes:
        """The content of a blob that the coordinator has for us."""
        if ref.inline is not None:
            return verified(ref.inline, ref)
        deadline = time.monotonic() + PATIENCE
        outcomes = self._exchange.pull(ref, self.cloud, time.monotonic())
        while not outcomes:
            message = self._next(min(deadline, self._exchange.wake_at() or deadline))
            now = time.monotonic()
            if isinstance(message, Hashes | Chunk | Gone) and message.digest == ref.digest:
                deadline = now + PATIENCE
                outcomes, _ = self._exchange.handle(self.cloud, message, now)
            self._exchange.tick(now)
            self._give_up_if_in_vain(now > deadline, PATIENCE)
        if not isinstance(outcomes[0], Pulled):
            raise InvalidBlob("the coordinator no longer has what it made: ask for it again")
        return self._blobs.read(ref.digest)

    def _send(self, to: Address, message: Message) -> None:
        self._number += 1
        payload = pack(Packet(self._number, self._epoch, message))
        self._link.publish(topics.inbox(self.fleet, to, self._me.name), payload)

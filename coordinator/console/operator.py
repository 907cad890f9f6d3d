"""The operator's side: asks a coordinator, and asks again until it answers.

Other operators may share the name, and so the inbox: answers are told apart by the ticket of the question.
"""

from __future__ import annotations

import logging
import os
import queue
import secrets
import time
from typing import TYPE_CHECKING, Literal, Self, TypeVar

import msgspec

from sojourn.errors import InvalidBlob, InvalidMessage, JobError, LinkError
from sojourn.links.mqtt import MqttLink
from sojourn.node.exchange import Exchange
from sojourn.node.machine import Linked, Pulled
from sojourn.node.outbox import Outbox
from sojourn.protocol import topics
from sojourn.protocol.envelope import Packet, pack, unpack
from sojourn.protocol.messages import (
    Chunk,
    Export,
    Exported,
    Fetch,
    FetchHashes,
    Gone,
    Hashes,
    Inspect,
    Jobs,
    Refused,
    Stop,
    Submit,
)
from sojourn.protocol.release_messages import InspectReleases, MakeRelease, ReleaseMade, Releases, Rollout, Steer
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Epoch
from sojourn.store.blobs import ref_of, verified
from sojourn.store.memory_blobs import MemoryBlobs

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from coordinator.releases.file import ReleaseFile
    from coordinator.releases.making import Wanted
    from sojourn.links.link import Link
    from sojourn.links.settings import BrokerSettings
    from sojourn.protocol.messages import Message
    from sojourn.protocol.release import HealthRules, LineView, SignedOrder
    from sojourn.protocol.wire import JobView, Ref

    Question = Inspect | Submit | Stop | Export | MakeRelease | Rollout | Steer | InspectReleases

PATIENCE = 10.0
"""Seconds for a coordinator that is there to answer."""
EXPORT_PATIENCE = 300.0
"""Seconds for an export: the model is put together and checked first."""
RELEASE_PATIENCE = 900.0
"""Seconds for a release: it is compared with torch, and measured on the whole test set."""
ROLLOUT_PATIENCE = 60.0
"""Seconds for a coordinator to fetch the next piece of a release, or to say that it begins."""
_Answer = TypeVar("_Answer", Jobs, Exported, ReleaseMade, Releases)
_ANSWERS = (Jobs, Exported, ReleaseMade, Releases, Refused)
log = logging.getLogger(__name__)


class Operator:
    """A person's connection to a coordinator, open for as long as the `with` block."""

    def __init__(
        self, broker: BrokerSettings, *, fleet: str, cloud: str, name: str = "operator", link: Link | None = None
    ) -> None:
        self.fleet = topics.check_name(fleet, "fleet")
        self._cloud = Address("cloud", topics.check_name(cloud, "coordinator"))
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

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._link.close()

    def jobs(self, patience: float = PATIENCE) -> tuple[JobView, ...]:
        """All jobs, without their history."""
        return self._ask_jobs(Inspect(_ticket()), patience)

    def job(self, name: str, since: int = 0, patience: float = PATIENCE) -> JobView:
        """One job, with at most a hundred rounds of its history from one on."""
        return self._ask_jobs(Inspect(_ticket(), name, since), patience)[0]

    def submit(self, text: str) -> JobView:
        """Queue the job in a TOML text."""
        return self._ask_jobs(Submit(_ticket(), text), PATIENCE)[0]

    def stop(self, name: str) -> JobView:
        """End a job."""
        return self._ask_jobs(Stop(_ticket(), name), PATIENCE)[0]

    def export(self, name: str) -> tuple[bytes, float]:
        """The newest model of a job as ONNX, and its accuracy."""
        self.job(name)  # whether it is there is known at once; an export takes its time
        answer = self._ask(Export(_ticket(), name), Exported, EXPORT_PATIENCE)
        return self._fetch(answer.model), answer.accuracy

    def make_release(self, job: str, wanted: Wanted) -> ReleaseFile:
        """A release of a job's newest model, as the coordinator makes it."""
        from coordinator.releases.file import put_together  # noqa: PLC0415  # only who makes one needs it

        self.job(job)
        question = MakeRelease(
            _ticket(), job, wanted.line, wanted.version, wanted.encoding, wanted.notes, wanted.max_loss
        )
        answer = self._ask(question, ReleaseMade, RELEASE_PATIENCE)
        return put_together(self._fetch(answer.card), self._fetch(answer.graph), f"the release of {job}")

    def releases(self, line: str | None = None) -> tuple[LineView, ...]:
        """All model lines, or one with its devices if there is one of that name."""
        return self._ask(InspectReleases(_ticket(), line), Releases, PATIENCE).lines

    def steer(self, line: str, action: Literal["pause", "resume", "rollback"]) -> LineView:
        """Pause, resume or undo the rollout of a line."""
        return self._ask_line(Steer(_ticket(), line, action), PATIENCE)

    def rollout(
        self,
        forward: SignedOrder,
        back: SignedOrder,
        release: ReleaseFile,
        stages: Sequence[float],
        rules: HealthRules,
        *,
        undo: bool = True,
    ) -> LineView:
        """Begin to bring a release to the fleet; until the coordinator has all of it, it is served from here."""
        graph, card = ref_of(release.graph), ref_of(release.card_bytes)
        self._blobs.put(release.graph, graph.digest)
        self._blobs.put(release.card_bytes, card.digest)
        self._exchange.grant(self._cloud, [graph.digest, card.digest])
        question = Rollout(_ticket(), forward, back, graph, card, tuple(stages), rules, undo)
        return self._ask_line(question, ROLLOUT_PATIENCE)

    # --- what the link tells, on its own thread

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
        if route is None or route.node != self._me or route.sender != self._cloud.name:
            return
        try:
            self._inbox.put(unpack(payload, self._cloud, self._me).message)  # type: ignore[arg-type]
        except InvalidMessage as error:
            log.warning("dropped a message from %s: %s", self._cloud.name, error)

    # --- asking

    def _ask_jobs(self, question: Inspect | Submit | Stop, patience: float) -> tuple[JobView, ...]:
        answer = self._ask(question, Jobs, patience)
        if not (answer.jobs or isinstance(question, Inspect)):
            raise LinkError(f"coordinator {self._cloud.name!r} answered without a job")
        return answer.jobs

    def _ask_line(self, question: Rollout | Steer, patience: float) -> LineView:
        answer = self._ask(question, Releases, patience)
        if not answer.lines:
            raise LinkError(f"coordinator {self._cloud.name!r} answered without a model line")
        return answer.lines[0]

    def _ask(self, question: Question, form: type[_Answer], patience: float) -> _Answer:
        """Ask until the answer with our ticket is here; what is fetched of us meanwhile is a sign of life."""
        if not self._open:
            self._open = True
            self._link.open(self, [topics.inbox_filter(self.fleet, self._me)], None)
        outbox, deadline = Outbox(), time.monotonic() + patience
        sends = outbox.ask("it", self._cloud, question, time.monotonic())
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
            raise JobError(answer.reason)
        if not isinstance(answer, form):
            raise LinkError(f"coordinator {self._cloud.name!r} answered with {type(answer).__name__}")
        return answer

    def _serve(self, message: Message | Linked | None, now: float) -> bool:
        """Send what is fetched; what another operator of our name has is theirs to send."""
        if not isinstance(message, Fetch | FetchHashes) or not self._blobs.has(message.digest):
            return False
        return self._exchange.handle(self._cloud, message, now)[1]

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
                f"no answer from coordinator {self._cloud.name!r} at {self._broker.address} in {patience:g} s: is it "
                f"running, in the fleet {self.fleet!r}, with {self._me.name!r} among its operators?"
            )

    def _fetch(self, ref: Ref) -> bytes:
        """The content of a blob that the coordinator has for us."""
        if ref.inline is not None:
            return verified(ref.inline, ref)
        deadline = time.monotonic() + PATIENCE
        outcomes = self._exchange.pull(ref, self._cloud, time.monotonic())
        while not outcomes:
            message = self._next(min(deadline, self._exchange.wake_at() or deadline))
            now = time.monotonic()
            if isinstance(message, Hashes | Chunk | Gone) and message.digest == ref.digest:
                deadline = now + PATIENCE
                outcomes, _ = self._exchange.handle(self._cloud, message, now)
            self._exchange.tick(now)
            self._give_up_if_in_vain(now > deadline, PATIENCE)
        if not isinstance(outcomes[0], Pulled):
            raise InvalidBlob("the coordinator no longer has what it made: ask for it again")
        return self._blobs.read(ref.digest)

    def _send(self, to: Address, message: Message) -> None:
        self._number += 1
        payload = pack(Packet(self._number, self._epoch, message))
        self._link.publish(topics.inbox(self.fleet, to, self._me.name), payload)


def _ticket() -> str:
    return secrets.token_hex(8)

"""The intake of a node: messages and presence of permitted peers, within their rate limits.

Everything else is counted, logged once for each sender and reason, and dropped.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence

from sojourn.errors import InvalidMessage
from sojourn.links.link import Link
from sojourn.logs import NO_SUBJECT, About, subject
from sojourn.node.machine import Event, ForeignMessage, Machine, NodeRemoved, Present
from sojourn.node.peers import MAX_DEVICES_PER_SITE, QUOTAS, SENDERS, NameClashes, clash_warning
from sojourn.node.transport import Delivery, read_delivery
from sojourn.protocol import topics
from sojourn.protocol.envelope import unpack, unpack_presence
from sojourn.protocol.messages import Birth, Death
from sojourn.protocol.registry import OperatorRequest
from sojourn.protocol.topics import Address, Role
from sojourn.protocol.wire import Epoch
from sojourn.rate_limiter import RateLimiter

OTHERS = "others"
"""The common name under which further senders of dropped messages are counted."""
MAX_WARNINGS = 1000
"""At most this many warnings about dropped messages are logged."""
log = logging.getLogger("sojourn")


class Reception:
    """Reads what the links of a node receive, and checks the senders."""

    def __init__(
        self, fleet: str, machine: Machine, links: Mapping[Role, Link], rate_limiter: RateLimiter | None = None
    ) -> None:
        """`rate_limiter` limits the messages of each peer; without it there is no limit."""
        self.dropped: Counter[str] = Counter()
        """Dropped messages by sender."""
        self.rate_limiter = rate_limiter
        self._fleet = fleet
        self._machine = machine
        self._address = machine.address
        self._links = links
        self._inbox = topics.inbox(fleet, machine.address, "")
        self._extra_topics: dict[Role, Sequence[str]] = {}
        self._epochs: dict[Address, Epoch] = {}
        """The boots of the nodes that are online."""
        self._clashes = NameClashes()
        self._clashing: set[Address] = set()
        """Names whose clash was logged."""
        self._warned: set[tuple[str, str]] = set()
        """Senders and reasons of dropped messages that were logged."""

    def listen_to(self, role: Role, filters: Sequence[str]) -> None:
        """Also subscribe to topics of other programs, at the broker of the nodes of this role."""
        self._extra_topics[role] = filters

    def filters(self, link: Link) -> list[str]:
        """The topics to subscribe to on a link."""
        watched = [
            topics.state_filter(self._fleet, role) for role in self._machine.watches if self._links[role] is link
        ]
        others = [topic for role, named in self._extra_topics.items() if self._links[role] is link for topic in named]
        return [topics.inbox_filter(self._fleet, self._address), *watched, *others]

    def link_up(self, link: Link) -> None:
        """Note that a link is up again: the first presence may be old."""
        self._clashes.linked([role for role, its in self._links.items() if its is link])

    def read(self, link: Link, topic: str, payload: bytes, now: float) -> Delivery | Sequence[Event]:
        """Return the message or the events in a payload that a link received; none if it is dropped."""
        try:
            sender = self._sender(link, topic)
            if sender is not None:
                return read_delivery(payload, sender, self._address)
            if self._extra_topics and not topics.is_of_protocol(topic):
                return (ForeignMessage(topic, payload),)
            return self._presence(link, topic, payload, now)
        except InvalidMessage as error:
            route = topics.read(self._fleet, topic)
            self.drop(route.sender or route.node.name if route else "?", str(error))
            return ()

    def admit(self, delivery: Delivery) -> None:
        """Raise InvalidMessage for a message of an earlier boot of its sender."""
        known = self._epochs.get(delivery.sender)
        if known is not None and delivery.epoch.count < known.count:
            raise InvalidMessage("from an earlier boot")

    def limit(self, sender: Address, now: float) -> None:
        """Count a message; raises InvalidMessage if its sender has sent too many. Blobs are not counted."""
        if self.rate_limiter and not self.rate_limiter.allows(sender, QUOTAS[sender.role].messages, now):
            raise InvalidMessage("over the message rate limit")

    def drop(self, sender: str, reason: str) -> None:
        """Count a dropped message; log the first for each sender and reason."""
        sender = sender if sender in self.dropped or len(self.dropped) < SENDERS else OTHERS
        self.dropped[sender] += 1
        warning = (sender, reason[:40])
        if warning not in self._warned and len(self._warned) < MAX_WARNINGS:
            self._warned.add(warning)
            log.warning("dropped a message from %s: %s", sender, reason)

    def operator_request(self, link: Link, topic: str, payload: bytes, now: float) -> tuple[Address, str] | None:
        """Return the operator who sent a request to a coordinator, and its ticket; None if it is not such a request."""
        if self._address.role != "cloud":
            return None
        try:
            sender = self._sender(link, topic)
            if sender is None or sender.role != "cloud":
                return None
            message = unpack(payload, sender, self._address).message
            if not isinstance(message, OperatorRequest):
                return None
            self.limit(sender, now)
        except InvalidMessage:
            return None
        return sender, message.ticket

    def _sender(self, link: Link, topic: str) -> Address | None:
        """Return the sender of a message to this node; None if the topic is not that of its inbox."""
        if not topic.startswith(self._inbox) or not topics.is_name(name := topic[len(self._inbox) :]):
            return None
        role = self._machine.role_of(name)
        if role is None or self._links.get(role) is not link:
            raise InvalidMessage(f"{name} may not write to {self._address} on this link")
        return topics.Address(role, name)

    def _presence(self, link: Link, topic: str, payload: bytes, now: float) -> Sequence[Event]:
        route = topics.read(self._fleet, topic)
        if route is None:
            raise InvalidMessage(f"unexpected topic {topic[:200]!r}")
        node = route.node
        if route.sender is not None:
            raise InvalidMessage(f"{route.sender} may not write to {node} on this link")
        if node.role not in self._machine.watches or self._links[node.role] is not link:
            raise InvalidMessage(f"this node does not watch the presence of {node}")
        if not payload:  # it was removed from the fleet, and the broker's retained presence was cleared
            self._clashes.forget(node)
            epoch = self._epochs.pop(node, None)
            return (NodeRemoved(node),) if epoch is None else (Present(node, epoch, Death()), NodeRemoved(node))
        self.limit(node, now)
        packet, clash = unpack_presence(payload), False
        if isinstance(packet.message, Birth):
            if node not in self._epochs and len(self._epochs) >= MAX_DEVICES_PER_SITE:
                raise InvalidMessage(f"there are {MAX_DEVICES_PER_SITE} nodes already")
            clash = self._has_clash(node, packet.epoch, now)
            self._epochs[node] = packet.epoch
        elif self._epochs.get(node) == packet.epoch:
            del self._epochs[node]
            self._clashes.left(node, packet.epoch, now)
        return (Present(node, packet.epoch, packet.message, clash),)  # type: ignore[arg-type]

    def _has_clash(self, node: Address, epoch: Epoch, now: float) -> bool:
        """Return whether two running nodes use this name; log a warning once per clash."""
        clash = self._clashes.born(node, self._epochs.get(node), epoch, now)
        if clash and node not in self._clashing:
            about = About(device=node.name) if node.role == "device" else NO_SUBJECT
            log.warning("%s", clash_warning(node), extra=subject(about))
        (self._clashing.add if clash else self._clashing.discard)(node)
        return clash

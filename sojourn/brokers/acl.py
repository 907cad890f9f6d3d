"""Mosquitto's access control list: the topics that each member and Home Assistant can read and write."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

from sojourn.protocol import topics
from sojourn.protocol.topics import Address, check_name

# Write permissions have no `+` wildcard. A member can therefore retain at most one message for each receiver, and the
# number of members bounds the broker's memory.

CLEANER = "sojourn.fleet"
"""The user that clears retained messages of removed members; no member can have this name, because names have no
dot."""
MemberRole = Literal["device", "edge", "cloud", "operator", "home-assistant"]
_USER = "%u"


class Members(msgspec.Struct, frozen=True, kw_only=True):
    """The names of a broker's members by role, and of former members."""

    devices: tuple[str, ...] = ()
    edges: tuple[str, ...] = ()
    clouds: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    barred: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()
    """Home Assistant's user names, if any; edge servers publish their devices for them."""
    home_prefix: str = topics.PREFIX

    def peers(self, role: MemberRole) -> list[Address]:
        """Return the members that exchange messages with a member of this role."""
        match role:
            case "device":
                return _addresses("edge", self.edges)
            case "edge":
                return [*_addresses("cloud", self.clouds), *_addresses("device", self.devices)]
            case "cloud":  # operators have the same kind of inbox
                return [*_addresses("edge", self.edges), *_addresses("cloud", self.operators)]
            case "operator":
                return _addresses("cloud", self.clouds)
            case "home-assistant":  # it only reads retained messages
                return []


def acl_lines(fleet: str, members: Members, cleared: Sequence[str] = ()) -> str:
    """The ACL of a fleet: patterns for the devices, and a block for each server and operator.

    Barred names can neither publish nor subscribe, regardless of the patterns. `CLEANER` can write the `cleared`
    topics.

    The ACL relies on user names. A broker without passwords or client certificates accepts any claimed name; the ACL
    then prevents accidents, not attacks.
    """
    check_name(fleet, "fleet")
    for name in members.devices:
        check_name(name, "device")
    blocks = [_devices(fleet, members)]
    blocks += [_block(name, _edge(fleet, check_name(name, "edge server"), members)) for name in members.edges]
    blocks += [_block(name, _cloud(fleet, check_name(name, "coordinator"), members)) for name in members.clouds]
    blocks += [_block(name, _operator(fleet, check_name(name, "operator"), members)) for name in members.operators]
    blocks += [_block(name, home_rules(fleet, check_name(name, "Home Assistant"), members)) for name in members.homes]
    blocks += [_block(name, ["deny #"]) for name in members.barred]
    if cleared:
        blocks.append(_block(CLEANER, [f"write {topic}" for topic in cleared]))
    return "\n".join(blocks)


def retained_topics(fleet: str, name: str, role: MemberRole, members: Members) -> list[str]:
    """Return the topics that may have retained messages from or for a member: presence first, then inboxes."""
    if role == "home-assistant":
        return home_retained_topics(fleet, members)
    own = Address("cloud" if role == "operator" else role, name)
    peers = [peer for peer in members.peers(role) if peer.name != name]
    sent = [topics.inbox(fleet, peer, name) for peer in peers]
    received = [topics.inbox(fleet, own, peer.name) for peer in peers]
    shown = mirror_topics(fleet, members, name) if role == "device" and members.homes else []
    return [topics.state(fleet, own), *sent, *received, *shown]


def _devices(fleet: str, members: Members) -> str:
    """Return the patterns, which apply to every user, so that a new device needs no separate line."""
    lines = [f"pattern read {topics.inbox_filter(fleet, Address('device', _USER))}"]
    lines += [f"pattern write {topics.inbox(fleet, edge, _USER)}" for edge in members.peers("device")]
    lines.append(f"pattern write {topics.state(fleet, Address('device', _USER))}")
    return "".join(f"{line}\n" for line in lines)


def _edge(fleet: str, name: str, members: Members) -> list[str]:
    return [
        *_server(fleet, Address("edge", name), "device"),
        *edge_rules(fleet, name, members),
        *_writes(fleet, name, members.peers("edge")),
    ]


def _cloud(fleet: str, name: str, members: Members) -> list[str]:
    return [*_server(fleet, Address("cloud", name), "edge"), *_writes(fleet, name, members.peers("cloud"))]


def _server(fleet: str, own: Address, watched: topics.Role) -> list[str]:
    """Return the read rules, before the long list of write rules: mosquitto checks line by line."""
    return [
        f"read {topics.inbox_filter(fleet, own)}",
        f"read {topics.state_filter(fleet, watched)}",
        f"write {topics.state(fleet, own)}",
    ]


def _operator(fleet: str, name: str, members: Members) -> list[str]:
    inbox = topics.inbox_filter(fleet, Address("cloud", name))
    return [f"read {inbox}", *_writes(fleet, name, members.peers("operator"))]


def _addresses(role: topics.Role, names: Iterable[str]) -> list[Address]:
    return [Address(role, name) for name in names]


def _writes(fleet: str, sender: str, receivers: Iterable[Address]) -> list[str]:
    return [f"write {topics.inbox(fleet, to, sender)}" for to in receivers]


def _block(name: str, rules: Sequence[str]) -> str:
    return f"user {name}\n" + "".join(f"topic {rule}\n" for rule in rules)


# Rules for Home Assistant, if the fleet has an account for it: edge servers can publish their devices for it. Home
# Assistant reads these and their presence, and writes only its own status.


def mirror_topics(fleet: str, members: Members, device: str) -> list[str]:
    """Return the topics on which a broker's edge servers publish a device for Home Assistant."""
    return [topic for edge in members.edges for topic in topics.all_topics(members.home_prefix, fleet, edge, device)]


def edge_rules(fleet: str, edge: str, members: Members) -> list[str]:
    """Return an edge server's rules for Home Assistant; empty without an account for it."""
    if not members.homes:
        return []
    prefix = members.home_prefix
    writes = [topic for device in members.devices for topic in topics.all_topics(prefix, fleet, edge, device)]
    return [
        f"read {topics.status(prefix)}",
        f"read {topics.device_state_filter(fleet, edge)}",
        *(f"write {topic}" for topic in writes),
    ]


def home_rules(fleet: str, name: str, members: Members) -> list[str]:
    """Return Home Assistant's rules; they deny what the later patterns would allow a device of the same name."""
    device = Address("device", name)
    return [
        f"deny {topics.state(fleet, device)}",
        f"deny {topics.inbox_filter(fleet, device)}",
        *(f"deny {topics.inbox(fleet, Address('edge', edge), name)}" for edge in members.edges),
        f"read {members.home_prefix}/#",
        f"read {topics.device_state_filter(fleet, '+')}",
        f"read {topics.state_filter(fleet, 'edge')}",
        f"write {topics.status(members.home_prefix)}",
    ]


def home_retained_topics(fleet: str, members: Members) -> list[str]:
    """Return the topics with retained messages that were only for Home Assistant."""
    those = [topic for device in members.devices for topic in mirror_topics(fleet, members, device)]
    return [topics.status(members.home_prefix), *those]

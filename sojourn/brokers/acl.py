"""Who may say what to whom, as an access control list for mosquitto.

Every topic that somebody may write is named: none has a `+`. So nobody can leave more retained messages at the broker
than there are others to write to, and its memory is bounded by the members of the fleet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import msgspec

from sojourn.brokers import home_acl
from sojourn.protocol import home_topics, topics
from sojourn.protocol.topics import Address, check_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

CLEANER = "sojourn.fleet"
"""Who clears what removed members left behind; no member can be called so, as names have no dot."""
MemberRole = Literal["device", "edge", "cloud", "operator", "home-assistant"]
_USER = "%u"


class Members(msgspec.Struct, frozen=True, kw_only=True):
    """The names of all who may connect to a broker, by their roles, and of those who may no longer."""

    devices: tuple[str, ...] = ()
    edges: tuple[str, ...] = ()
    clouds: tuple[str, ...] = ()
    operators: tuple[str, ...] = ()
    barred: tuple[str, ...] = ()
    homes: tuple[str, ...] = ()
    """Whom edge servers show their devices, where anybody is there for it: Home Assistant."""
    home_prefix: str = home_topics.PREFIX

    def peers(self, role: MemberRole) -> list[Address]:
        """Whom a member of this role speaks with; all of them, and nobody else, speak with it."""
        match role:
            case "device":
                return _addresses("edge", self.edges)
            case "edge":
                return [*_addresses("cloud", self.clouds), *_addresses("device", self.devices)]
            case "cloud":  # operators have an inbox of the same kind
                return [*_addresses("edge", self.edges), *_addresses("cloud", self.operators)]
            case "operator":
                return _addresses("cloud", self.clouds)
            case "home-assistant":  # it reads what is retained, and speaks with nobody
                return []


def acl_lines(fleet: str, members: Members, cleared: Sequence[str] = ()) -> str:
    """The ACL of a fleet: patterns for the devices, and a block for each server and operator.

    Who is barred may say and hear nothing, whatever the patterns allow. The `cleared` topics may be written by
    `CLEANER`.

    It is worth as much as the usernames. A broker without passwords or client certificates takes any name that a
    client claims; the list then prevents accidents, not attacks.
    """
    check_name(fleet, "fleet")
    for name in members.devices:
        check_name(name, "device")
    blocks = [_devices(fleet, members)]
    blocks += [_block(name, _edge(fleet, check_name(name, "edge server"), members)) for name in members.edges]
    blocks += [_block(name, _cloud(fleet, check_name(name, "coordinator"), members)) for name in members.clouds]
    blocks += [_block(name, _operator(fleet, check_name(name, "operator"), members)) for name in members.operators]
    blocks += [
        _block(name, home_acl.home_rules(fleet, check_name(name, "Home Assistant"), members)) for name in members.homes
    ]
    blocks += [_block(name, ["deny #"]) for name in members.barred]
    if cleared:
        blocks.append(_block(CLEANER, [f"write {topic}" for topic in cleared]))
    return "\n".join(blocks)


def left_behind(fleet: str, name: str, role: MemberRole, members: Members) -> list[str]:
    """The topics on which a retained message of a member, or for it, may be: presence first, then inboxes."""
    if role == "home-assistant":
        return home_acl.left_behind(fleet, members)
    own = Address("cloud" if role == "operator" else role, name)
    peers = [peer for peer in members.peers(role) if peer.name != name]
    sent = [topics.inbox(fleet, peer, name) for peer in peers]
    received = [topics.inbox(fleet, own, peer.name) for peer in peers]
    shown = home_acl.shown(fleet, members, name) if role == "device" and members.homes else []
    return [topics.state(fleet, own), *sent, *received, *shown]


def _devices(fleet: str, members: Members) -> str:
    """Patterns hold for everyone who connects, so a new device needs no line of its own among them."""
    lines = [f"pattern read {topics.inbox_filter(fleet, Address('device', _USER))}"]
    lines += [f"pattern write {topics.inbox(fleet, edge, _USER)}" for edge in members.peers("device")]
    lines.append(f"pattern write {topics.state(fleet, Address('device', _USER))}")
    return "".join(f"{line}\n" for line in lines)


def _edge(fleet: str, name: str, members: Members) -> list[str]:
    return [
        *_server(fleet, Address("edge", name), "device"),
        *home_acl.edge_rules(fleet, name, members),
        *_writes(fleet, name, members.peers("edge")),
    ]


def _cloud(fleet: str, name: str, members: Members) -> list[str]:
    return [*_server(fleet, Address("cloud", name), "edge"), *_writes(fleet, name, members.peers("cloud"))]


def _server(fleet: str, own: Address, watched: topics.Role) -> list[str]:
    """What is read, before the long list of what may be written: mosquitto looks at one line after another."""
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

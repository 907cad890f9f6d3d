"""Who may say what to whom, as an access control list for mosquitto."""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.protocol import topics
from sojourn.protocol.topics import Address, check_name

if TYPE_CHECKING:
    from collections.abc import Sequence

_ANY = "+"
_USER = "%u"


def acl_lines(
    fleet: str, edges: Sequence[str], clouds: Sequence[str], operators: Sequence[str], barred: Sequence[str] = ()
) -> str:
    """The ACL of a fleet: three patterns for every device, and a block for each server and operator.

    Who is `barred` may say and hear nothing, whatever the patterns allow.

    It is worth as much as the usernames. A broker without passwords or client certificates takes any name that a
    client claims; the list then prevents accidents, not attacks.
    """
    check_name(fleet, "fleet")
    blocks = [_devices(fleet)]
    blocks += [_block(name, _edge(fleet, check_name(name, "edge server"))) for name in edges]
    blocks += [_block(name, _cloud(fleet, check_name(name, "coordinator"))) for name in clouds]
    blocks += [_block(name, _operator(fleet, check_name(name, "operator"))) for name in operators]
    blocks += [_block(name, ["deny #"]) for name in barred]
    return "\n".join(blocks)


def _devices(fleet: str) -> str:
    """Patterns hold for everyone who connects, so a new device needs no line of its own."""
    return (
        f"pattern write {topics.inbox(fleet, Address('edge', _ANY), _USER)}\n"
        f"pattern read {topics.inbox_filter(fleet, Address('device', _USER))}\n"
        f"pattern write {topics.state(fleet, Address('device', _USER))}\n"
    )


def _edge(fleet: str, name: str) -> list[str]:
    return [
        f"read {topics.inbox_filter(fleet, Address('edge', name))}",
        f"write {topics.inbox(fleet, Address('device', _ANY), name)}",
        f"read {topics.state_filter(fleet, 'device')}",
        f"write {topics.state(fleet, Address('edge', name))}",
        f"write {topics.inbox(fleet, Address('cloud', _ANY), name)}",
    ]


def _cloud(fleet: str, name: str) -> list[str]:
    return [
        f"read {topics.inbox_filter(fleet, Address('cloud', name))}",
        f"write {topics.inbox(fleet, Address('edge', _ANY), name)}",
        # Answers to operators, who have an inbox of the same kind.
        f"write {topics.inbox(fleet, Address('cloud', _ANY), name)}",
        f"read {topics.state_filter(fleet, 'edge')}",
        f"write {topics.state(fleet, Address('cloud', name))}",
    ]


def _operator(fleet: str, name: str) -> list[str]:
    return [
        f"read {topics.inbox_filter(fleet, Address('cloud', name))}",
        f"write {topics.inbox(fleet, Address('cloud', _ANY), name)}",
    ]


def _block(name: str, rules: Sequence[str]) -> str:
    return f"user {name}\n" + "".join(f"topic {rule}\n" for rule in rules)

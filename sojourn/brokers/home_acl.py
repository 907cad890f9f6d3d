"""What an access control list says of Home Assistant: only where a fleet has an account for it.

Edge servers may then show it their devices. It reads that and their presence, and writes nothing but that it is back.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from sojourn.protocol import home_topics, topics
from sojourn.protocol.topics import Address

if TYPE_CHECKING:
    from sojourn.brokers.acl import Members


def shown(fleet: str, members: Members, device: str) -> list[str]:
    """The topics on which the edge servers of a broker show one device."""
    return [
        topic for edge in members.edges for topic in home_topics.all_topics(members.home_prefix, fleet, edge, device)
    ]


def edge_rules(fleet: str, edge: str, members: Members) -> list[str]:
    """What an edge server may do for Home Assistant; nothing where there is none."""
    if not members.homes:
        return []
    prefix = members.home_prefix
    writes = [topic for device in members.devices for topic in home_topics.all_topics(prefix, fleet, edge, device)]
    return [
        f"read {home_topics.status(prefix)}",
        f"read {home_topics.device_state_filter(fleet, edge)}",
        *(f"write {topic}" for topic in writes),
    ]


def home_rules(fleet: str, name: str, members: Members) -> list[str]:
    """What Home Assistant may do: not what the patterns let a device of its name do, which come after these rules."""
    device = Address("device", name)
    return [
        f"deny {topics.state(fleet, device)}",
        f"deny {topics.inbox_filter(fleet, device)}",
        *(f"deny {topics.inbox(fleet, Address('edge', edge), name)}" for edge in members.edges),
        f"read {members.home_prefix}/#",
        f"read {home_topics.device_state_filter(fleet, '+')}",
        f"read {topics.state_filter(fleet, 'edge')}",
        f"write {home_topics.status(members.home_prefix)}",
    ]


def left_behind(fleet: str, members: Members) -> list[str]:
    """The topics on which something is retained that was for Home Assistant alone."""
    those = [topic for device in members.devices for topic in shown(fleet, members, device)]
    return [home_topics.status(members.home_prefix), *those]

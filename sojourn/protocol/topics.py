"""The two topic patterns, known only here.

sojourn/1/<fleet>/<role>/<to>/in/<from>     everything addressed to a node
sojourn/1/<fleet>/<role>/<node>/state       retained presence: birth, and the will as its death
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Literal, get_args

import msgspec

from sojourn.errors import ConfigError

TOPICS = 1
"""The version of the topics. It is apart from that of the wire (`sojourn.WIRE`), whose versions hear each other."""
Role = Literal["device", "edge", "cloud"]
ROLES: tuple[str, ...] = get_args(Role)

_NAME = re.compile(r"[a-z0-9-]{1,63}")


class Address(msgspec.Struct, frozen=True, order=True):
    """Where a node is found: its role and its name, which is unique in the fleet."""

    role: Role
    name: str

    def __str__(self) -> str:
        return f"{self.role}/{self.name}"


class Route(msgspec.Struct, frozen=True):
    """A topic, read: an inbox message when `sender` is given, else the presence of `node`."""

    node: Address
    sender: str | None


def check_name(name: str, what: str = "name") -> str:
    """The name, if it may stand in a topic."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{what} {name!r} is not a valid name: use 1 to 63 of the characters a-z, 0-9 and '-'",
        )
    return name


@lru_cache(1 << 16)
def is_name(name: str) -> bool:
    """Whether a name may stand in a topic."""
    return _NAME.fullmatch(name) is not None


def inbox(fleet: str, to: Address, sender: str) -> str:
    """The topic for a message to a node."""
    return f"sojourn/{TOPICS}/{fleet}/{to.role}/{to.name}/in/{sender}"


def state(fleet: str, node: Address) -> str:
    """The topic of a node's retained presence."""
    return f"sojourn/{TOPICS}/{fleet}/{node.role}/{node.name}/state"


def inbox_filter(fleet: str, node: Address) -> str:
    """What a node subscribes to for its inbox."""
    return inbox(fleet, node, "+")


def state_filter(fleet: str, role: Role) -> str:
    """What a node subscribes to for the presence of all nodes of a role."""
    return f"sojourn/{TOPICS}/{fleet}/{role}/+/state"


def is_of_protocol(topic: str) -> bool:
    """Whether a topic is one of nodes, of whatever fleet: not one of other programs."""
    return topic.startswith(f"sojourn/{TOPICS}/")


def is_state(topic: str) -> bool:
    """Whether a topic, or a filter, is one of presence and not of an inbox."""
    return topic.endswith("/state")


def read(fleet: str, topic: str) -> Route | None:
    """What a topic says, or None for one that is not ours."""
    match topic.split("/"):
        case ["sojourn", wire, in_fleet, role, name, *rest] if wire == str(TOPICS) and in_fleet == fleet:
            pass
        case _:
            return None
    if role not in ROLES or not _NAME.fullmatch(name):
        return None
    node = Address(role, name)  # type: ignore[arg-type]  # checked against ROLES above
    match rest:
        case ["state"]:
            return Route(node, None)
        case ["in", sender] if _NAME.fullmatch(sender):
            return Route(node, sender)
        case _:
            return None

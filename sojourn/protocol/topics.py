"""The MQTT topics of the protocol, and those with which Home Assistant discovers the devices of a site."""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from typing import Annotated, Literal, get_args

import msgspec

from sojourn.errors import ConfigError

# The two topic patterns, defined only here.
#
# sojourn/1/<fleet>/<role>/<to>/in/<from>     the inbox of a node
# sojourn/1/<fleet>/<role>/<node>/state       retained presence: birth, and the will as its death

TOPICS = 1
"""The version of the topics, separate from that of the wire (`sojourn.WIRE`), whose versions share these topics."""
Role = Literal["device", "edge", "cloud"]
ROLES: tuple[str, ...] = get_args(Role)

_NAME = re.compile(r"[a-z0-9-]{1,63}")


class Address(msgspec.Struct, frozen=True, order=True):
    """The address of a node: its role and its name, which is unique in the fleet."""

    role: Role
    name: str

    def __str__(self) -> str:
        return f"{self.role}/{self.name}"


class Route(msgspec.Struct, frozen=True):
    """A parsed topic: an inbox message if `sender` is set, otherwise the presence of `node`."""

    node: Address
    sender: str | None


def check_name(name: str, what: str = "name") -> str:
    """Return the name if it is valid in a topic, otherwise raise an error."""
    if not _NAME.fullmatch(name):
        raise ConfigError(
            f"{what} {name!r} is not a valid name: use 1 to 63 of the characters a-z, 0-9 and '-'",
        )
    return name


@lru_cache(1 << 16)
def is_name(name: str) -> bool:
    """Return whether a name is valid in a topic."""
    return _NAME.fullmatch(name) is not None


def inbox(fleet: str, to: Address, sender: str) -> str:
    """Return the topic for a message to a node."""
    return f"sojourn/{TOPICS}/{fleet}/{to.role}/{to.name}/in/{sender}"


def state(fleet: str, node: Address) -> str:
    """Return the topic of a node's retained presence."""
    return f"sojourn/{TOPICS}/{fleet}/{node.role}/{node.name}/state"


def inbox_filter(fleet: str, node: Address) -> str:
    """Return the subscription of a node for its inbox."""
    return inbox(fleet, node, "+")


def state_filter(fleet: str, role: Role) -> str:
    """Return the subscription for the presence of all nodes of a role."""
    return f"sojourn/{TOPICS}/{fleet}/{role}/+/state"


def is_of_protocol(topic: str) -> bool:
    """Return whether a topic belongs to the nodes of any fleet, rather than to other programs."""
    return topic.startswith(f"sojourn/{TOPICS}/")


def is_state(topic: str) -> bool:
    """Return whether a topic, or a filter, is one of presence and not of an inbox."""
    return topic.endswith("/state")


def read(fleet: str, topic: str) -> Route | None:
    """Parse a topic; None if it is not one of this fleet's."""
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


# The topics with which an edge server publishes its devices to Home Assistant, in addition to the protocol's.
#
# <prefix>/device/<id>/config                                  retained discovery, as Home Assistant reads it
# <prefix>/status                                              Home Assistant's status, published when it is back
# sojourn/home-assistant/<fleet>/<edge>/<device>/state         retained state of a device, as JSON

Prefix = Annotated[str, msgspec.Meta(pattern=r"^(?!sojourn(/|\Z))[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*\Z", max_length=64)]
"""The prefix of Home Assistant's topics, which must not be this protocol's."""
PREFIX: Prefix = "homeassistant"
"""Home Assistant's default prefix."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")
_KEPT = 80


def check_prefix(prefix: str) -> str:
    """Return the prefix if it is valid, otherwise raise an error."""
    try:
        return msgspec.convert(prefix, Prefix)
    except msgspec.ValidationError:
        raise ConfigError(
            f"the prefix {prefix[:80]!r} is not valid for Home Assistant's topics: use A-Z, a-z, 0-9, '_' and '-', at "
            "most 64, in levels between '/', and not `sojourn`"
        ) from None


def object_id(fleet: str, edge: str, device: str) -> str:
    """Return a device's id for Home Assistant, unique per edge server so that two at one broker do not conflict."""
    return safe_id(f"sojourn_{fleet}_{edge}_{device}")


def safe_id(text: str) -> str:
    """Return the text if it is a valid id, otherwise its valid characters and a hash, so that it is unique."""
    if _ID.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', text)[:_KEPT]}_{digest}"


def discovery(prefix: str, identity: str) -> str:
    """Return the topic with which Home Assistant discovers a device."""
    return f"{prefix}/device/{identity}/config"


def status(prefix: str) -> str:
    """Return the topic of Home Assistant's status."""
    return f"{prefix}/status"


def device_state(fleet: str, edge: str, device: str) -> str:
    """Return the topic of a device's state."""
    return f"sojourn/home-assistant/{fleet}/{edge}/{device}/state"


def device_state_filter(fleet: str, edge: str) -> str:
    """Return the subscription of an edge server for the states that it published earlier."""
    return device_state(fleet, edge, "+")


def read_device(fleet: str, edge: str, topic: str) -> str | None:
    """Return the device whose state a topic holds, or None for another topic."""
    before, after = device_state(fleet, edge, "+").split("+")
    if not (topic.startswith(before) and topic.endswith(after)):
        return None
    return topic[len(before) : -len(after)]


def all_topics(prefix: str, fleet: str, edge: str, device: str) -> list[str]:
    """Return all topics with retained messages about a device for Home Assistant."""
    return [discovery(prefix, object_id(fleet, edge, device)), device_state(fleet, edge, device)]

"""Where an edge server leaves its devices for Home Assistant: topics beside those of the protocol, for no node.

<prefix>/device/<id>/config                                  retained discovery, as Home Assistant reads it
<prefix>/status                                              Home Assistant says here when it is back
sojourn/home-assistant/<fleet>/<edge>/<device>/state         retained state of a device, as JSON
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated

import msgspec

from sojourn.errors import ConfigError

Prefix = Annotated[str, msgspec.Meta(pattern=r"^(?!sojourn(/|\Z))[A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*\Z", max_length=64)]
"""The beginning of Home Assistant's topics; not that of our own."""
PREFIX: Prefix = "homeassistant"
"""What Home Assistant listens to unless it is told otherwise."""
_ID = re.compile(r"[A-Za-z0-9_-]{1,100}")
_KEPT = 80


def check_prefix(prefix: str) -> str:
    """The prefix, if it can be one."""
    try:
        return msgspec.convert(prefix, Prefix)
    except msgspec.ValidationError:
        raise ConfigError(
            f"the prefix {prefix[:80]!r} cannot be one of Home Assistant's topics: use A-Z, a-z, 0-9, '_' and '-', at "
            "most 64, in levels between '/', and not `sojourn`"
        ) from None


def object_id(fleet: str, edge: str, device: str) -> str:
    """A device's id for Home Assistant: an edge server has its own, so that two at one broker do not overwrite."""
    return safe_id(f"sojourn_{fleet}_{edge}_{device}")


def safe_id(text: str) -> str:
    """The text, if it can be an id; else what can stay of it, and a hash of all of it, so that no two are the same."""
    if _ID.fullmatch(text):
        return text
    digest = hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()[:16]
    return f"{re.sub(r'[^A-Za-z0-9_-]', '_', text)[:_KEPT]}_{digest}"


def discovery(prefix: str, identity: str) -> str:
    """The topic on which Home Assistant finds a device."""
    return f"{prefix}/device/{identity}/config"


def status(prefix: str) -> str:
    """The topic on which Home Assistant says that it is here."""
    return f"{prefix}/status"


def device_state(fleet: str, edge: str, device: str) -> str:
    """The topic of a device's state."""
    return f"sojourn/home-assistant/{fleet}/{edge}/{device}/state"


def device_state_filter(fleet: str, edge: str) -> str:
    """What an edge server subscribes to for the states that it left before."""
    return device_state(fleet, edge, "+")


def read_device(fleet: str, edge: str, topic: str) -> str | None:
    """Whose state a topic holds, or None for another topic."""
    before, after = device_state(fleet, edge, "+").split("+")
    if not (topic.startswith(before) and topic.endswith(after)):
        return None
    return topic[len(before) : -len(after)]


def all_topics(prefix: str, fleet: str, edge: str, device: str) -> list[str]:
    """Where something of a device is retained for Home Assistant."""
    return [discovery(prefix, object_id(fleet, edge, device)), device_state(fleet, edge, device)]

"""The messages about a device for Home Assistant: one retained discovery message, and its state as JSON.

Discovery is by device: one message names all entities (Home Assistant 2024.12 and later). Everything is ASCII, since
Home Assistant decodes the entities as ISO 8859-1. That lets their availability be the edge server's own presence
message, which is msgpack, and which the broker replaces by the last will when the edge server dies.
"""

from __future__ import annotations

import json
from typing import Annotated, Any

import msgspec

import sojourn
from sojourn.protocol import topics
from sojourn.protocol.limits import FiniteFloat, Name, Number
from sojourn.protocol.release_messages import ReleaseReport
from sojourn.protocol.topics import Address
from sojourn.protocol.wire import Offer
from sojourn.text import clean

MAX_LINES = 8
"""At most this many model lines of one device have an entity."""
MAX_STATE_BYTES = 8_000
"""An upper bound on the size of a state that this code publishes."""
SHOWN = 250
"""Maximum characters of a text that is an entity's state; Home Assistant takes at most 255."""
_LABEL = 60
NONE = "none"
"""Shown if no release is served, or no reason is known."""

_LATIN = "iso-8859-1"
"""An encoding that decodes any bytes."""
_IS_BORN = "{{ 'online' if 'birth' in value else 'offline' }}"

Shown = Annotated[str, msgspec.Meta(max_length=SHOWN)]


class ShownRelease(msgspec.Struct, frozen=True):
    """A model line of a device, with the field names of Home Assistant's update entity."""

    installed_version: Shown = NONE
    """The version that the device reports to serve."""
    latest_version: Shown = NONE
    """The version that the device was last ordered to serve."""
    in_progress: bool = False

    def ordered(self, version: int) -> ShownRelease:
        """Take an order for this version; 0 for none."""
        return msgspec.structs.replace(self, latest_version=_version(version))


class ShownDevice(msgspec.Struct, frozen=True):
    """The state of a device as Home Assistant reads it."""

    online: bool = False
    training: bool = False
    visits: Number = 0
    """The number of kept visits."""
    loss: FiniteFloat | None = None
    reason: Shown = ""
    """Why the last visit failed; empty if it was kept."""
    releases: Annotated[dict[Name, ShownRelease], msgspec.Meta(max_length=MAX_LINES)] = {}

    def encoded(self) -> bytes:
        """Return the state as published."""
        return as_json(msgspec.to_builtins(self))


def reported_release(known: ShownRelease | None, report: ReleaseReport) -> ShownRelease:
    """Take a device's report of the version it serves and of its progress with an order.

    For a line without a known order, the served version counts as the latest release.
    """
    installed = _version(report.version)
    return ShownRelease(
        installed, known.latest_version if known else installed, report.state in ("fetching", "checking")
    )


def read_state(payload: bytes) -> ShownDevice | None:
    """Decode a retained state; None if this code did not publish it."""
    if len(payload) > MAX_STATE_BYTES:
        return None
    try:
        return msgspec.json.decode(payload, type=ShownDevice)
    except msgspec.MsgspecError:
        return None


def shown(text: str) -> str:
    """Return a peer's text as the state of an entity: one short line without control or invisible characters."""
    return clean(text, SHOWN)


def as_json(value: object) -> bytes:
    """Encode as compact ASCII JSON."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def discovery_payload(fleet: str, edge: str, device: str, offer: Offer | None, lines: list[str]) -> bytes:
    """Return the message by which Home Assistant discovers a device and its entities; `lines` are its model lines."""
    identity = topics.object_id(fleet, edge, device)
    components = {
        key: {"unique_id": f"{identity}_{key}", "encoding": _LATIN, **entity}
        for key, entity in [*_ENTITIES.items(), *(_release(line) for line in lines[:MAX_LINES])]
    }
    presence = {"topic": topics.state(fleet, Address("edge", edge)), "value_template": _IS_BORN}
    return as_json(
        {
            "device": _device(identity, device, offer),
            "origin": {"name": "Sojourn", "sw_version": sojourn.__version__},
            "availability": [presence],
            "state_topic": topics.device_state(fleet, edge, device),
            "components": components,
        }
    )


def _device(identity: str, device: str, offer: Offer | None) -> dict[str, Any]:
    labels = {"model": clean(offer.machine, _LABEL), "sw_version": clean(offer.version, _LABEL)} if offer else {}
    known = {key: text for key, text in labels.items() if text}
    return {"identifiers": [identity], "name": clean(device, _LABEL), "manufacturer": "Sojourn", **known}


def _release(line: str) -> tuple[str, dict[str, str]]:
    """Return an entity for the served and the ordered release; without a command topic it is read-only."""
    return f"release_{topics.safe_id(line)}", {
        "platform": "update",
        "name": f"Release {line}",
        "title": line,
        "value_template": f"{{{{ ({_field('releases')} or {{}}).get('{line}', {{}}) | to_json }}}}",
    }


def _field(name: str) -> str:
    """Return a template expression for a field; empty if the device was removed and its state with it."""
    return f"(value_json | default({{}})).get('{name}')"


def _version(number: int) -> str:
    return str(number) if number else NONE


_ENTITIES: dict[str, dict[str, Any]] = {
    "online": {
        "platform": "binary_sensor",
        "name": "Online",
        "device_class": "connectivity",
        "entity_category": "diagnostic",
        "value_template": f"{{{{ 'ON' if {_field('online')} else 'OFF' }}}}",
    },
    "training": {
        "platform": "binary_sensor",
        "name": "Training",
        "device_class": "running",
        "value_template": f"{{{{ 'ON' if {_field('training')} else 'OFF' }}}}",
    },
    "visits": {
        "platform": "sensor",
        "name": "Visits",
        "state_class": "total_increasing",
        "unit_of_measurement": "visits",
        "value_template": f"{{{{ {_field('visits')} }}}}",
    },
    "loss": {
        "platform": "sensor",
        "name": "Last loss",
        "state_class": "measurement",
        "suggested_display_precision": 4,
        "value_template": f"{{{{ {_field('loss')} }}}}",
    },
    "reason": {
        "platform": "sensor",
        "name": "Last reason",
        "entity_category": "diagnostic",
        "value_template": f"{{{{ {_field('reason')} or '{NONE}' }}}}",
    },
}
"""The entities of every device."""

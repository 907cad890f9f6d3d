"""What Home Assistant reads of a device: one retained discovery message, and its state as JSON.

Discovery is by device: one message names all entities (Home Assistant 2024.12 and later). Everything is ASCII, since
the entities are read as ISO 8859-1: so their availability can be the edge server's own presence, which is msgpack, and
which the broker turns into a death by the last will that is there already.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

import sojourn
from sojourn.protocol import home_topics, topics
from sojourn.protocol.limits import Figure, Name, Number
from sojourn.protocol.topics import Address
from sojourn.text import clean

if TYPE_CHECKING:
    from sojourn.protocol.release_messages import ReleaseReport
    from sojourn.protocol.wire import Offer

LINES = 8
"""Model lines of one device that have an entity; those beyond it have none."""
STATE_BYTES = 8_000
"""More than any state has that was left by us."""
SHOWN = 250
"""Characters of a text that is an entity's state: Home Assistant takes at most 255."""
_LABEL = 60
NONE = "none"
"""What is shown where no release is served, and no reason is known."""

_LATIN = "iso-8859-1"
"""Reads any bytes."""
_IS_BORN = "{{ 'online' if 'birth' in value else 'offline' }}"

Shown = Annotated[str, msgspec.Meta(max_length=SHOWN)]


class ShownRelease(msgspec.Struct, frozen=True):
    """A model line of a device, under the names that Home Assistant's update entity has for it."""

    installed_version: Shown = NONE
    """What the device serves, as it says."""
    latest_version: Shown = NONE
    """What it was told to serve last."""
    in_progress: bool = False

    def ordered(self, version: int) -> ShownRelease:
        """The device was told to serve this version; 0 for none."""
        return msgspec.structs.replace(self, latest_version=_version(version))


class ShownDevice(msgspec.Struct, frozen=True):
    """The state of a device as Home Assistant reads it."""

    online: bool = False
    training: bool = False
    visits: Number = 0
    """Those whose result was kept."""
    loss: Figure | None = None
    reason: Shown = ""
    """Why the last visit came to nothing; empty after one that was kept."""
    releases: Annotated[dict[Name, ShownRelease], msgspec.Meta(max_length=LINES)] = {}

    def encoded(self) -> bytes:
        """As it is published."""
        return as_json(msgspec.to_builtins(self))


def reported_release(known: ShownRelease | None, report: ReleaseReport) -> ShownRelease:
    """A device says what it serves, and where it is with what it was told.

    Of a line that nobody has heard of, what the device serves is the latest release as far as is known.
    """
    installed = _version(report.version)
    return ShownRelease(
        installed, known.latest_version if known else installed, report.state in ("fetching", "checking")
    )


def read_state(payload: bytes) -> ShownDevice | None:
    """What a state that was left before says; None where it is none of ours."""
    if len(payload) > STATE_BYTES:
        return None
    try:
        return msgspec.json.decode(payload, type=ShownDevice)
    except msgspec.MsgspecError:
        return None


def shown(text: str) -> str:
    """A peer's text as the state of an entity: one line, without what turns or hides letters, and short."""
    return clean(text, SHOWN)


def as_json(value: object) -> bytes:
    """Short, and ASCII only."""
    return json.dumps(value, separators=(",", ":"), allow_nan=False).encode()


def discovery_payload(fleet: str, edge: str, device: str, offer: Offer | None, lines: list[str]) -> bytes:
    """The message by which Home Assistant finds a device and its entities; `lines` are its model lines."""
    identity = home_topics.object_id(fleet, edge, device)
    components = {
        key: {"unique_id": f"{identity}_{key}", "encoding": _LATIN, **entity}
        for key, entity in [*_ENTITIES.items(), *(_release(line) for line in lines[:LINES])]
    }
    presence = {"topic": topics.state(fleet, Address("edge", edge)), "value_template": _IS_BORN}
    return as_json(
        {
            "device": _device(identity, device, offer),
            "origin": {"name": "Sojourn", "sw_version": sojourn.__version__},
            "availability": [presence],
            "state_topic": home_topics.device_state(fleet, edge, device),
            "components": components,
        }
    )


def _device(identity: str, device: str, offer: Offer | None) -> dict[str, Any]:
    said = {"model": clean(offer.machine, _LABEL), "sw_version": clean(offer.version, _LABEL)} if offer else {}
    known = {key: text for key, text in said.items() if text}
    return {"identifiers": [identity], "name": clean(device, _LABEL), "manufacturer": "Sojourn", **known}


def _release(line: str) -> tuple[str, dict[str, str]]:
    """An entity that says which release is served and which is to be; without a topic for commands, so read-only."""
    return f"release_{home_topics.safe_id(line)}", {
        "platform": "update",
        "name": f"Release {line}",
        "title": line,
        "value_template": f"{{{{ ({_field('releases')} or {{}}).get('{line}', {{}}) | to_json }}}}",
    }


def _field(name: str) -> str:
    """What a template reads; nothing of a state that was taken away because its device was removed."""
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
"""What every device has."""

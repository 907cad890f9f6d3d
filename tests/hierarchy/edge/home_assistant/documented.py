"""Home Assistant's documentation of device discovery and the used entities, as strict types.

Transcribed from the documentation of the MQTT integration (device discovery, binary sensor, sensor, update), only the
fields in use; other fields are rejected. `tests/home_assistant/check.py` verifies this with Home Assistant itself.
"""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

Id = Annotated[str, msgspec.Meta(pattern=r"^[a-zA-Z0-9_-]+\Z")]
Filled = Annotated[str, msgspec.Meta(min_length=1)]
Topic = Annotated[str, msgspec.Meta(pattern=r"^[^+#\x00]+\Z", max_length=240)]
Template = Annotated[str, msgspec.Meta(pattern=r"^\{\{.+\}\}\Z")]


class _Closed(msgspec.Struct, forbid_unknown_fields=True):
    pass


class Device(_Closed):
    identifiers: Annotated[list[Id], msgspec.Meta(min_length=1)]
    name: Filled
    manufacturer: Filled
    model: Filled | msgspec.UnsetType = msgspec.UNSET
    sw_version: Filled | msgspec.UnsetType = msgspec.UNSET


class Origin(_Closed):
    name: Filled
    sw_version: Filled


class Availability(_Closed):
    topic: Topic
    value_template: Template


class _Entity(_Closed, tag_field="platform"):
    unique_id: Id
    name: Filled
    encoding: Filled
    value_template: Template


class BinarySensor(_Entity, tag="binary_sensor"):
    device_class: Literal["connectivity", "running"]
    entity_category: Literal["diagnostic"] | msgspec.UnsetType = msgspec.UNSET


class Sensor(_Entity, tag="sensor"):
    state_class: Literal["measurement", "total_increasing"] | msgspec.UnsetType = msgspec.UNSET
    unit_of_measurement: Filled | msgspec.UnsetType = msgspec.UNSET
    suggested_display_precision: int | msgspec.UnsetType = msgspec.UNSET
    entity_category: Literal["diagnostic"] | msgspec.UnsetType = msgspec.UNSET


class Update(_Entity, tag="update"):
    """Without `command_topic`, Home Assistant cannot install anything."""

    title: Filled


class Discovery(_Closed):
    device: Device
    origin: Origin
    availability: list[Availability]
    state_topic: Topic
    components: dict[Id, BinarySensor | Sensor | Update]


def read_discovery(payload: bytes) -> Discovery:
    """Decode a discovery message; fails if it is not ASCII or differs from the documentation."""
    assert payload.isascii()
    found = msgspec.json.decode(payload, type=Discovery)
    ids = [entity.unique_id for entity in found.components.values()]
    assert len(set(ids)) == len(ids)
    return found

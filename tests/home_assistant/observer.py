"""Home Assistant itself, without its pages: its core and its MQTT integration on a broker, controlled by lines.

Runs with the Python of an environment in which `homeassistant` is installed, and knows nothing of Sojourn. Each line
that comes on standard input is a question as JSON, each answer a line: `states`, `entities`, `schemas`, `end`.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import logging
import sys
import tempfile
import types
from pathlib import Path
from typing import Any

import voluptuous as vol
from homeassistant import auth, bootstrap, config_entries, const, core, loader
from homeassistant.components.mqtt import binary_sensor, sensor, update, util
from homeassistant.helpers import entity_registry

PLATFORMS = {"binary_sensor": binary_sensor, "sensor": sensor, "update": update}
SHARED = ("availability", "device", "origin", "state_topic")
"""What Home Assistant hands on from a device's message to its components."""


def later_schema(folder: Path) -> Any:
    """`DEVICE_DISCOVERY_SCHEMA` of a later version: its own `schemas.py` and `const.py`, on this version's helpers."""
    package = types.ModuleType("later_mqtt")
    package.__path__ = [str(folder)]
    sys.modules["later_mqtt"] = package
    sys.modules["later_mqtt.util"] = util
    if not hasattr(const, "CONF_MODEL_ID"):
        const.CONF_MODEL_ID = "model_id"
    found = {}
    for name in ("const", "schemas"):
        spec = importlib.util.spec_from_file_location(f"later_mqtt.{name}", folder / f"{name}.py")
        assert spec
        assert spec.loader
        module = sys.modules[spec.name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        found[name] = module
    return found["schemas"].DEVICE_DISCOVERY_SCHEMA


def judged(payload: dict[str, Any], later: Any) -> list[str]:
    """What the validators object to in a device's discovery message; nothing is fine."""
    objections = []
    try:
        later(payload)
    except vol.Invalid as error:
        objections.append(f"device: {error}")
    for key, component in payload["components"].items():
        config = {**{name: payload[name] for name in SHARED if name in payload}, **component}
        platform = config.pop("platform")
        try:
            taken = PLATFORMS[platform].DISCOVERY_SCHEMA(config)
        except vol.Invalid as error:
            objections.append(f"{key}: {error}")
            continue
        if unknown := config.keys() - taken.keys():
            objections.append(f"{key}: unknown to {platform}: {sorted(unknown)}")
    return objections


async def started(folder: str, port: int, username: str) -> core.HomeAssistant:
    """The core, and the integration as if a person had set it up."""
    hass = core.HomeAssistant(folder)
    hass.config.skip_pip = True
    loader.async_setup(hass)
    hass.config_entries = config_entries.ConfigEntries(hass, {})
    await bootstrap.async_load_base_functionality(hass)
    hass.auth = await auth.auth_manager_from_config(hass, [], [])
    await hass.async_start()
    entry = config_entries.ConfigEntry(
        version=1, minor_version=1, domain="mqtt", title="site", source="user",
        data={"broker": "127.0.0.1", "port": port, "username": username, "discovery": True},
    )  # fmt: skip
    await hass.config_entries.async_add(entry)
    assert entry.state is config_entries.ConfigEntryState.LOADED
    return hass


def answered(hass: core.HomeAssistant, question: dict[str, Any], later: Any) -> Any:
    match question["ask"]:
        case "states":
            return {
                each.entity_id: [each.state, each.attributes.get("latest_version")] for each in hass.states.async_all()
            }
        case "entities":
            return sorted(entity_registry.async_get(hass).entities)
        case "schemas":
            return judged(question["payload"], later)
        case unknown:
            raise ValueError(unknown)


async def main(folder: str, port: int, username: str, schemas: Path) -> None:
    later = later_schema(schemas)
    hass = await started(folder, port, username)
    print(json.dumps({"version": const.__version__}), flush=True)
    while line := await asyncio.to_thread(sys.stdin.readline):
        print(json.dumps(answered(hass, json.loads(line), later)), flush=True)
    await hass.async_stop()


if __name__ == "__main__":
    logging.basicConfig(level=logging.ERROR, stream=sys.stderr)
    with tempfile.TemporaryDirectory(prefix="home-assistant-") as place:
        Path(place, "configuration.yaml").write_text("")
        asyncio.run(main(place, int(sys.argv[1]), sys.argv[2], Path(sys.argv[3])))

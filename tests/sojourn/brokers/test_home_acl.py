"""Home Assistant's account at a broker: its permissions, those of edge servers for it, and its removal."""

from __future__ import annotations

import stat
from functools import partial
from pathlib import Path

import msgspec
import pytest

from sojourn.brokers import fleet as folders
from sojourn.brokers.acl import CLEANER, Members, acl_lines, retained_topics
from sojourn.brokers.maintenance import clear
from sojourn.errors import ConfigError
from tests.forked import sojourn
from tests.sojourn.brokers.brokers import Node
from tests.sojourn.brokers.guarded_broker import FLEET, GuardedBroker
from tests.waiting import LIMIT, wait_until

WITHOUT = Members(devices=("d1", "d2"), edges=("e",), clouds=("c",), operators=("o",))
WITH = msgspec.structs.replace(WITHOUT, homes=("ha",), home_prefix="homes/here")
STATE = "sojourn/home-assistant/fleet/e"
T = "sojourn/1/fleet"


def config(name: str) -> str:
    return f"homes/here/device/sojourn_fleet_e_{name}/config"


def block(rules: str, name: str) -> list[str]:
    return rules.partition(f"user {name}\n")[2].partition("\n\n")[0].strip().splitlines()


def test_acl_without_home_account_has_no_home_rules() -> None:
    rules = acl_lines("fleet", WITHOUT)
    assert "home" not in rules
    for name in ("c", "o"):
        assert block(rules, name) == block(acl_lines("fleet", WITH), name)


def test_home_rules_name_every_topic() -> None:
    rules = acl_lines("fleet", WITH)
    assert block(rules, "ha") == [
        f"topic deny {T}/device/ha/state",
        f"topic deny {T}/device/ha/in/+",
        f"topic deny {T}/edge/e/in/ha",
        "topic read homes/here/#",
        "topic read sojourn/home-assistant/fleet/+/+/state",
        f"topic read {T}/edge/+/state",
        "topic write homes/here/status",
    ]
    edge = set(block(rules, "e")) - set(block(acl_lines("fleet", WITHOUT), "e"))
    assert edge == {
        "topic read homes/here/status",
        f"topic read {STATE}/+/state",
        *(f"topic write {config(name)}" for name in ("d1", "d2")),
        *(f"topic write {STATE}/{name}/state" for name in ("d1", "d2")),
    }
    with pytest.raises(ConfigError):
        acl_lines("fleet", msgspec.structs.replace(WITH, homes=("a/b",)))


def test_cleanup_lists_topics_of_device_and_home_assistant() -> None:
    both = [config("d1"), f"{STATE}/d1/state"]
    assert retained_topics("fleet", "d1", "device", WITH)[-2:] == both
    assert not set(both) & set(retained_topics("fleet", "d1", "device", WITHOUT))
    left = retained_topics("fleet", "ha", "home-assistant", WITHOUT)
    assert left[:2] == ["homeassistant/status", "homeassistant/device/sojourn_fleet_e_d1/config"]
    assert len(left) == 5


def test_command_creates_read_only_account_and_removal_ends_it(tmp_path: Path) -> None:
    broker = GuardedBroker(tmp_path / "fleet")
    for name in ("d", "gone"):
        broker.add(name)
    edge = broker.add_local("e", "edge")
    where = ["--fleet-folder", str(broker.folder)]
    made = sojourn("fleet", "add-home-assistant", "--prefix", "homes", *where)
    password = broker.folder / "home-assistant.password"
    assert str(password) in made
    assert password.read_text().strip() not in made
    assert stat.S_IMODE(password.stat().st_mode) == 0o600
    assert "home-assistant" in sojourn("fleet", "list", *where)
    look = msgspec.structs.replace(edge, username="home-assistant", password=password.read_text().strip())
    shown = {name: [f"homes/device/sojourn_{FLEET}_e_{name}/config", f"sojourn/home-assistant/{FLEET}/e/{name}/state"]
             for name in ("d", "gone")}  # fmt: skip
    with broker:
        with Node(look, "home-assistant", ["#"]) as home, Node(edge, "e", ["homes/status"]) as server:
            for topic in (*shown["d"], *shown["gone"]):
                server.link.publish(topic, b"x", retain=True)
            wait_until(
                partial(_has_received, home, {*shown["d"], *shown["gone"]}), "what is shown", lambda: home.ear.received
            )
            for topic in (shown["d"][0], f"sojourn/1/{FLEET}/edge/e/in/home-assistant", "homes/other", "homes/status"):
                home.link.publish(topic, b"from-home")
            home.assert_acknowledged()
            wait_until(lambda: server.ear.received, "Home Assistant's status")
            assert server.ear.received == [("homes/status", b"from-home")]
            assert {topic for topic, payload in home.ear.received if payload == b"from-home"} <= {"homes/status"}
        left = folders.remove(broker.folder, "gone")
        broker.reload()
        assert clear(broker.folder, "gone", left, LIMIT)
        with Node(look, "home-assistant", [f"sojourn/home-assistant/{FLEET}/e/+/state"]) as home:
            home.assert_receives(b"x")
            home.link.publish("homes/status", b"from-home")  # answered after all that was kept
            home.assert_acknowledged()
            assert _has_received(home, {shown["d"][1]})
        left = folders.remove(broker.folder, "home-assistant")
        assert not {f"topic write {topic}" for topic in shown["d"]} & set(_edge_block(broker))
        broker.reload()
        assert clear(broker.folder, "home-assistant", left, LIMIT)


def _edge_block(broker: GuardedBroker) -> list[str]:
    rules = (broker.folder / "broker" / "acl").read_text()
    assert CLEANER in rules
    return block(rules, "e")


def _has_received(node: Node, topics: set[str]) -> bool:
    return {topic for topic, _ in node.ear.received if topic.startswith(("homes/device", "sojourn/home"))} == topics


def test_prefix_inside_our_own_topics_is_rejected(tmp_path: Path) -> None:
    broker = GuardedBroker(tmp_path / "fleet")
    with pytest.raises(AssertionError, match="prefix"):
        sojourn("fleet", "add-home-assistant", "--prefix", "sojourn/1", "--fleet-folder", str(broker.folder))
    assert "home-assistant" not in (broker.folder / "fleet.toml").read_text()

"""Local brokers."""

from __future__ import annotations

import re
import signal
import socket
import stat
import subprocess
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Literal

import msgspec
import pytest

from sojourn.brokers import local_broker as broker_module
from sojourn.brokers.acl import CLEANER, Members, acl_lines, retained_topics
from sojourn.brokers.local_broker import find_mosquitto, start_broker
from sojourn.errors import BrokerError, ConfigError
from sojourn.links.settings import BrokerSettings, BrokerTls, LocalBroker
from tests.forked import Forked
from tests.ports import free_ports, is_listening
from tests.processes import has_ended
from tests.sojourn.brokers.brokers import Node
from tests.waiting import LIMIT, wait_until

ROOT = Path(__file__).parents[3]
Kind = Literal["mosquitto", "amqtt"]
KINDS: list[Kind] = ["mosquitto", "amqtt"]


def has_received(node: Node, topics: set[str]) -> bool:
    return {topic for topic, _ in node.ear.received} == topics


@pytest.mark.parametrize("kind", KINDS)
def test_broker_starts_serves_and_stops(kind: Kind, tmp_path: Path) -> None:
    # Not just any free port: the system could give it to another test as soon as the broker stops.
    with start_broker(LocalBroker(kind=kind, port=free_ports(1)[0]), tmp_path) as broker:
        assert (broker.kind, broker.host) == (kind, "127.0.0.1")
        with Node(broker.settings, "self", ["t"]) as node:
            assert node.link.payload_limit == 256_000
            node.link.publish("t", bytes(256_000))
            node.assert_receives(bytes(256_000))
    assert has_ended(broker.pid)
    assert not is_listening(broker.port)
    broker.stop()


@pytest.mark.parametrize("kind", KINDS)
def test_error_names_port_in_use(kind: Kind, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "_CONNECT_TIMEOUT", 0.05)  # nothing will answer
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BrokerError, match=f"port {port} on 127.0.0.1 .*choose another port"):
            start_broker(LocalBroker(kind=kind, port=port), tmp_path)


def test_error_recommends_broker_already_on_the_port(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(broker_module, "_CONNECT_TIMEOUT", LIMIT)
    with (
        start_broker(LocalBroker(), tmp_path) as running,
        pytest.raises(BrokerError, match=rf"a broker already listens on 127\.0\.0\.1:{running.port}.*use that one"),
    ):
        start_broker(LocalBroker(port=running.port), tmp_path / "second")


@pytest.mark.parametrize(("host", "open_to_all"), [("127.0.0.1", False), ("0.0.0.0", True)])
def test_broker_on_other_address_is_reachable_and_warns(host: str, open_to_all: bool, tmp_path: Path) -> None:
    output, warned = tmp_path / "printed", tmp_path / "warned"
    running = Forked(["broker", "--host", host, "--port", "0"], output, tmp_path, errors=warned)
    listening = re.compile(rf"is listening on {re.escape(host)}:(\d+);")
    wait_until(lambda: listening.search(output.read_text()), "the broker to listen", warned.read_text)
    port = int(listening.findall(output.read_text())[0])
    # Linux has all of 127.0.0.0/8; a listener on 127.0.0.1 cannot be reached at another of these addresses.
    assert is_listening(port, "127.0.0.2") == open_to_all
    assert is_listening(port)
    if open_to_all:
        wait_until(lambda: "accepts any client that can reach it" in warned.read_text(), "the warning")
    running.terminate()
    assert running.wait(LIMIT) == 0
    assert ("accepts any client that can reach it" in warned.read_text()) == open_to_all


def test_failed_start_shows_broker_log(tmp_path: Path) -> None:
    tls = BrokerTls(certificate_file=str(tmp_path / "nowhere"), key_file=str(tmp_path / "nowhere"))
    with pytest.raises(BrokerError, match=r"mosquitto ended with code 1; .*\n.*(?s:.)*nowhere"):
        start_broker(LocalBroker(kind="mosquitto", tls=tls), tmp_path)


def test_mosquitto_is_found_outside_path(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    assert find_mosquitto() is not None
    monkeypatch.setattr(broker_module, "_SEARCH_FOLDERS", ())
    assert find_mosquitto() is None


def test_missing_mosquitto_falls_back_to_amqtt_with_warning(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tmp_path: Path,
) -> None:
    monkeypatch.setattr(broker_module, "find_mosquitto", lambda: None)
    with start_broker(LocalBroker(), tmp_path) as broker:
        assert broker.kind == "amqtt"
    assert [message.split(";")[0] for message in caplog.messages] == ["mosquitto was not found"]
    with pytest.raises(BrokerError, match="need mosquitto"):
        start_broker(LocalBroker(users={"a": "b"}), tmp_path)
    with pytest.raises(BrokerError, match="apt install"):
        start_broker(LocalBroker(kind="mosquitto"), tmp_path)


PARENT = """
import sys, threading
from pathlib import Path
from sojourn.brokers.local_broker import start_broker
from sojourn.links.settings import LocalBroker
print(start_broker(LocalBroker(kind=sys.argv[1]), Path(sys.argv[2])).pid, flush=True)
sys.argv[3] == "stay" and threading.Event().wait()
"""


@pytest.mark.parametrize("end", ["stay", "leave"])
@pytest.mark.parametrize("kind", KINDS)
def test_broker_stops_with_its_parent_process(kind: Kind, end: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", PARENT, kind, str(tmp_path), end]
    with subprocess.Popen(command, stdout=subprocess.PIPE, cwd=ROOT) as parent:
        assert parent.stdout is not None
        pid = int(parent.stdout.readline())
        if end == "stay":
            assert not has_ended(pid)
            parent.send_signal(signal.SIGKILL)
    wait_until(lambda: has_ended(pid), "the broker's end")


def test_broker_outlives_the_thread_that_started_it(tmp_path: Path) -> None:
    started = []
    thread = threading.Thread(target=lambda: started.append(start_broker(LocalBroker(kind="mosquitto"), tmp_path)))
    thread.start()
    thread.join()
    with started[0] as broker, Node(broker.settings) as node:
        assert node.ear.ups == 1


def test_password_file_is_hashed_and_private(tmp_path: Path) -> None:
    broker = start_broker(LocalBroker(kind="mosquitto", users={"node": "in:clear"}), tmp_path)
    with broker, Node(BrokerSettings(host=broker.host, port=broker.port, password="in:clear"), "node"):
        pass
    files = list(tmp_path.iterdir())
    assert not any(b"in:clear" in file.read_bytes() for file in files)
    assert stat.S_IMODE((tmp_path / "mosquitto.passwords").stat().st_mode) == 0o600
    with pytest.raises(ConfigError, match="a:b"):
        start_broker(LocalBroker(kind="mosquitto", users={"a:b": "c"}), tmp_path)


def test_broker_settings_reject_unknown_keys_and_bad_values() -> None:
    for text in (b'{"hots": "x"}', b'{"port": 0}', b'{"keepalive": 0}', b'{"tls": {"ca": "x"}}'):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(text, type=BrokerSettings)
    decoded = msgspec.json.decode(b'{"tls": {"ca_file": "ca.pem"}, "protocol": "5"}', type=BrokerSettings)
    assert decoded.effective_port == 8883


MEMBERS = Members(devices=("d1", "d2"), edges=("e",), clouds=("c",), operators=("o",))
DESIGNED = """\
pattern read sojourn/1/fleet/device/%u/in/+
pattern write sojourn/1/fleet/edge/e/in/%u
pattern write sojourn/1/fleet/device/%u/state

user e
topic read sojourn/1/fleet/edge/e/in/+
topic read sojourn/1/fleet/device/+/state
topic write sojourn/1/fleet/edge/e/state
topic write sojourn/1/fleet/cloud/c/in/e
topic write sojourn/1/fleet/device/d1/in/e
topic write sojourn/1/fleet/device/d2/in/e

user c
topic read sojourn/1/fleet/cloud/c/in/+
topic read sojourn/1/fleet/edge/+/state
topic write sojourn/1/fleet/cloud/c/state
topic write sojourn/1/fleet/edge/e/in/c
topic write sojourn/1/fleet/cloud/o/in/c

user o
topic read sojourn/1/fleet/cloud/o/in/+
topic write sojourn/1/fleet/cloud/c/in/o
"""


def test_acl_matches_design_and_rejects_invalid_names() -> None:
    assert acl_lines("fleet", MEMBERS) == DESIGNED
    for wrong in (Members(edges=("#",)), Members(devices=("+",)), Members(clouds=("a/b",)), Members(operators=("",))):
        with pytest.raises(ConfigError, match="is not a valid name"):
            acl_lines("fleet", wrong)


def test_acl_write_rules_never_use_wildcards() -> None:
    members = Members(
        devices=tuple(f"d{number}" for number in range(50)),
        edges=("e1", "e2", "e3"),
        clouds=("c1", "c2"),
        operators=("o1", "o2"),
        barred=("x",),
    )
    left = retained_topics("fleet", "d7", "device", members)
    lines = acl_lines("fleet", members, left).splitlines()
    writes = [line for line in lines if " write " in line or " readwrite " in line]
    assert len(writes) == (3 + 1) + 3 * (1 + 2 + 50) + 2 * (1 + 3 + 2) + 2 * 2 + len(left)
    assert not [line for line in writes if "+" in line or "#" in line]


def test_cleanup_lists_every_topic_a_removed_member_could_use() -> None:
    t = "sojourn/1/fleet"
    assert retained_topics("fleet", "d1", "device", MEMBERS) == [
        f"{t}/device/d1/state", f"{t}/edge/e/in/d1", f"{t}/device/d1/in/e",
    ]  # fmt: skip
    assert retained_topics("fleet", "e", "edge", MEMBERS) == [
        f"{t}/edge/e/state", f"{t}/cloud/c/in/e", f"{t}/device/d1/in/e", f"{t}/device/d2/in/e",
        f"{t}/edge/e/in/c", f"{t}/edge/e/in/d1", f"{t}/edge/e/in/d2",
    ]  # fmt: skip
    rules = acl_lines("fleet", MEMBERS, retained_topics("fleet", "o", "operator", MEMBERS))
    assert rules.endswith(
        f"\nuser {CLEANER}\ntopic write {t}/cloud/o/state\ntopic write {t}/cloud/c/in/o\ntopic write {t}/cloud/o/in/c\n"
    )


def test_acl_allows_each_role_only_its_own_topics(tmp_path: Path) -> None:
    t = "sojourn/1/fleet"
    rules = acl_lines("fleet", MEMBERS)
    names = ("d1", "d2", "e", "c", "o")
    allowed = {
        "d1": [f"{t}/edge/e/in/d1", f"{t}/device/d1/state"],
        "d2": [f"{t}/edge/e/in/d2", f"{t}/device/d2/state"],
        "e": [f"{t}/device/d1/in/e", f"{t}/device/d2/in/e", f"{t}/edge/e/state", f"{t}/cloud/c/in/e"],
        "c": [f"{t}/edge/e/in/c", f"{t}/cloud/o/in/c", f"{t}/cloud/c/state"],
        "o": [f"{t}/cloud/c/in/o"],
    }
    forbidden = {
        "d1": [
            *(f"{t}/device/d2/in/e", f"{t}/device/d2/in/d1", f"{t}/device/d2/state", f"{t}/edge/e/in/d2"),
            *(f"{t}/edge/e/state", f"{t}/cloud/c/in/d1", f"{t}/cloud/c/in/o"),
        ],
        "e": [f"{t}/cloud/c/in/d1", f"{t}/cloud/c/in/o", f"{t}/device/d1/in/c", f"{t}/cloud/c/state"],
        "c": [f"{t}/device/d1/in/c", f"{t}/edge/e/state"],
        "o": [f"{t}/device/d1/in/o", f"{t}/edge/e/in/c", f"{t}/cloud/c/state"],
    }
    reads = {
        "d1": {f"{t}/device/d1/in/e"},
        "d2": {f"{t}/device/d2/in/e"},
        "e": {f"{t}/edge/e/in/d1", f"{t}/edge/e/in/d2", f"{t}/edge/e/in/c"}
        | {f"{t}/device/d1/state", f"{t}/device/d2/state"},
        "c": {f"{t}/cloud/c/in/e", f"{t}/cloud/c/in/o", f"{t}/edge/e/state"},
        "o": {f"{t}/cloud/o/in/c"},
    }
    users = {name: f"{name}-password" for name in names}
    with start_broker(LocalBroker(kind="mosquitto", users=users, acl=rules), tmp_path) as broker:
        nodes = {
            name: Node(
                BrokerSettings(host=broker.host, port=broker.port, password=users[name]),
                name,
                # All members subscribe to everything: the broker grants it, but delivers only permitted messages.
                ["#"],
            )
            for name in names
        }
        for name, node in nodes.items():
            for topic in forbidden.get(name, []) + allowed[name]:
                node.link.publish(topic, b"x")
        for name, node in nodes.items():
            wait_until(partial(has_received, node, reads[name]), f"all messages that {name} may receive")
        for node in nodes.values():
            # All messages are checked by now; the reply to this one arrives after all earlier messages.
            node.link.publish("anything", b"x")
            node.assert_acknowledged()
        for node in nodes.values():
            node.link.close()
        assert {name: sorted(topic for topic, _ in node.ear.received) for name, node in nodes.items()} == {
            name: sorted(topics) for name, topics in reads.items()
        }

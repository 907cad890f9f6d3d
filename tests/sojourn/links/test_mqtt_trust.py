"""Authentication of an MQTT link and of the broker: passwords and certificates."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from cryptography import x509
from msgspec.structs import replace

from edge_agent.settings import AgentSettings
from edge_agent.setup.connection_checks import refusal_of
from edge_agent.setup.preflight import of_broker
from sojourn.brokers.acl import Members, acl_lines
from sojourn.brokers.local_broker import Broker, start_broker
from sojourn.data.source import DataSettings
from sojourn.errors import ConfigError, LinkError
from sojourn.joining.client import DoorAddress, ask, trusting
from sojourn.joining.messages import Hello
from sojourn.links.connection_errors import SET_THE_CLOCK
from sojourn.links.mqtt import MqttLink
from sojourn.links.settings import BrokerSettings, BrokerTls, LocalBroker, Protocol, TlsSettings
from tests.sojourn.brokers.brokers import Authority, Node
from tests.there import there

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.mark.parametrize("protocol", ["5", "3.1.1", "auto"])
def test_right_password_connects_and_wrong_one_is_rejected(tmp_path: Path, protocol: Protocol) -> None:
    (tmp_path / "secret").write_text("right\n")
    with start_broker(LocalBroker(kind="mosquitto", users={"node": "right"}), tmp_path / "broker") as broker:
        bare = BrokerSettings(host=broker.host, port=broker.port, protocol=protocol)
        with Node(replace(bare, password="right"), "node"):
            pass
        with Node(replace(bare, password_file=str(tmp_path / "secret")), "node"):
            pass
        with Node(replace(bare, password="wrong"), "node", wait=False) as wrong:
            wrong.assert_reported("refused", "not authorised")
        with Node(replace(bare, username=""), "node", wait=False) as nameless:
            nameless.assert_reported("refused", "not authorised")
        assert wrong.ear.ups == nameless.ear.ups == 0


def test_unusable_password_file_error_names_remedy(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"cannot read the password file .*nowhere .*create it"):
        MqttLink(BrokerSettings(password_file=str(tmp_path / "nowhere")), "a")
    (tmp_path / "empty").write_text("\n")
    with pytest.raises(ConfigError, match="on one line"):
        MqttLink(BrokerSettings(password_file=str(tmp_path / "empty")), "a")
    with pytest.raises(ConfigError, match="both"):
        MqttLink(BrokerSettings(password="x", password_file="y"), "a")
    assert "hush" not in repr(BrokerSettings(password="hush"))


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("ca"))


@pytest.fixture(scope="module")
def stranger(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("stranger"), "stranger-ca")


@pytest.fixture(scope="module")
def broker(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker with a certificate that asks clients for none."""
    certificate, key = authority.issue("broker", "127.0.0.1")
    tls = BrokerTls(certificate_file=certificate, key_file=key)
    with start_broker(LocalBroker(kind="mosquitto", tls=tls), tmp_path_factory.mktemp("broker")) as started:
        yield started


@pytest.fixture(scope="module")
def strict(authority: Authority, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A broker that identifies a client only by its certificate."""
    certificate, key = authority.issue("strict", "127.0.0.1")
    tls = BrokerTls(certificate_file=certificate, key_file=key, ca_file=str(authority.file))
    rules = acl_lines("fleet", Members(edges=("edge-1",)))
    settings = LocalBroker(kind="mosquitto", tls=tls, acl=rules)
    with start_broker(settings, tmp_path_factory.mktemp("strict")) as started:
        yield started


def over_tls(broker: Broker, tls: bool | TlsSettings, host: str = "127.0.0.1") -> BrokerSettings:
    return BrokerSettings(host=host, port=broker.port, tls=tls)


@pytest.mark.parametrize("protocol", ["5", "3.1.1"])
def test_broker_of_configured_ca_is_trusted(broker: Broker, authority: Authority, protocol: Protocol) -> None:
    tls = TlsSettings(ca_file=str(authority.file))
    settings = BrokerSettings(host="127.0.0.1", port=broker.port, tls=tls, protocol=protocol)
    with Node(settings, "receiver", ["t"]) as receiver, Node(settings, "sender") as sender:
        for n in range(50):
            sender.link.publish("t", bytes([n]) * 60_000)
        for n in range(50):
            receiver.assert_receives(bytes([n]) * 60_000)


@pytest.mark.parametrize(("begins", "more"), [(400.0, ""), (-400.0, "renew the certificate")])
def test_certificate_out_of_date_is_reported_as_wrong_clock(
    authority: Authority, tmp_path: Path, begins: float, more: str
) -> None:
    certificate, key = authority.issue("of-another-time", "127.0.0.1", begins=begins)
    tls = BrokerTls(certificate_file=certificate, key_file=key)
    valid = x509.load_pem_x509_certificate(Path(certificate).read_bytes())
    dates = f"is valid from {valid.not_valid_before_utc:%Y-%m-%d} to {valid.not_valid_after_utc:%Y-%m-%d}"
    with start_broker(LocalBroker(kind="mosquitto", tls=tls), tmp_path) as broker:
        settings = over_tls(broker, TlsSettings(ca_file=str(authority.file)))
        refused = there(refusal_of(settings, "fleet", "pi-1"))
        finding = of_broker(agent_settings(tmp_path, settings))
        with pytest.raises(LinkError) as at_the_door:
            ask(DoorAddress("127.0.0.1", broker.port), trusting(authority.file.read_text()), Hello())
    for text in (refused, finding.text, str(at_the_door.value)):
        assert text.startswith("this machine's date is ")
        assert dates in text
        assert "set this machine's clock" in text
        assert more in text
        assert "trusted" not in text
    assert finding.remedy == SET_THE_CLOCK


def agent_settings(folder: Path, broker: BrokerSettings) -> AgentSettings:
    return AgentSettings(name="pi-1", data=DataSettings(path=str(folder)), broker=broker)


def test_broker_of_another_ca_is_not_trusted(broker: Broker, stranger: Authority) -> None:
    with Node(over_tls(broker, TlsSettings(ca_file=str(stranger.file))), wait=False) as node:
        node.assert_reported("not trusted", "check ca_file")
    with Node(over_tls(broker, tls=True), wait=False) as by_the_system:
        by_the_system.assert_reported("not trusted")
    assert node.ear.ups == by_the_system.ear.ups == 0


def test_certificate_for_another_host_is_not_trusted(broker: Broker, authority: Authority) -> None:
    with Node(over_tls(broker, TlsSettings(ca_file=str(authority.file)), "localhost"), wait=False) as node:
        node.assert_reported("is for another host", "localhost")


def test_insecure_mode_accepts_any_certificate(broker: Broker) -> None:
    with Node(over_tls(broker, TlsSettings(insecure=True), "localhost")) as node:
        assert node.ear.ups == 1


def test_tls_on_one_side_only_is_reported(broker: Broker, tmp_path: Path) -> None:
    with Node(BrokerSettings(host="127.0.0.1", port=broker.port), wait=False) as plain:
        plain.assert_reported("if that is its TLS port, switch tls on")
    plain_broker = start_broker(LocalBroker(kind="mosquitto"), tmp_path)
    with plain_broker, Node(over_tls(plain_broker, tls=True), wait=False) as node:
        node.assert_reported("check that this is its TLS port")


def test_client_identity_comes_from_its_certificate(strict: Broker, authority: Authority) -> None:
    """The broker ignores the username and client id that a client claims."""
    nodes = {}
    for name in ("edge-1", "device-1"):
        certificate, key = authority.issue(name)
        tls = TlsSettings(ca_file=str(authority.file), certificate_file=certificate, key_file=key)
        nodes[name] = over_tls(strict, tls)
    inbox = "sojourn/1/fleet/edge/edge-1/in/+"
    with Node(nodes["edge-1"], "edge-1", [inbox]) as edge, Node(nodes["device-1"], "device-2") as liar:
        liar.link.publish("sojourn/1/fleet/edge/edge-1/in/device-2", b"a lie")
        liar.link.publish("sojourn/1/fleet/edge/edge-1/in/device-1", b"the truth")
        edge.assert_receives(b"the truth")
        assert edge.ear.payloads == [b"the truth"]


def test_missing_or_foreign_client_certificate_is_reported(
    strict: Broker, authority: Authority, stranger: Authority
) -> None:
    with Node(over_tls(strict, TlsSettings(ca_file=str(authority.file))), wait=False) as node:
        node.assert_reported("requires a client certificate")
    certificate, key = stranger.issue("device-1")
    tls = TlsSettings(ca_file=str(authority.file), certificate_file=certificate, key_file=key)
    with Node(over_tls(strict, tls), wait=False) as foreign:
        foreign.assert_reported("does not trust the CA of this client's certificate")


def test_missing_or_mismatched_tls_files_are_a_config_error(authority: Authority, tmp_path: Path) -> None:
    certificate, _ = authority.issue("one")
    _, key = authority.issue("two")
    text = tmp_path / "text.pem"
    text.write_text("not a certificate")
    for tls, words in (
        (TlsSettings(ca_file=str(tmp_path / "nowhere")), "cannot read the ca_file .*nowhere"),
        (TlsSettings(ca_file=str(text)), "has unexpected content"),
        (TlsSettings(certificate_file=certificate, key_file=key), "the key must belong to the certificate"),
        (TlsSettings(key_file=key), "without certificate_file"),
    ):
        with pytest.raises(ConfigError, match=words):
            MqttLink(BrokerSettings(tls=tls), "node")


def test_default_port_follows_tls() -> None:
    assert BrokerSettings().effective_port == 1883
    assert BrokerSettings(tls=True).effective_port == 8883
    assert BrokerSettings(tls=True, port=1).effective_port == 1

"""Detection of addresses that only this machine can reach."""

import pytest

from sojourn.links.settings import BrokerSettings
from sojourn.loopback import is_loopback


@pytest.mark.parametrize(
    "host",
    ["localhost", "LocalHost", "127.0.0.1", "127.0.0.2", "127.255.255.255", "::1", "0:0:0:0::1", "::ffff:127.0.0.1"],
)
def test_loopback_addresses_are_recognised(host: str) -> None:
    assert is_loopback(host)
    assert BrokerSettings(host=host).is_local


@pytest.mark.parametrize(
    "host",
    [
        "127.example.com", "127.0.0.1.example.com", "localhost.example.com", "mylocalhost", "",
        "0.0.0.0", "128.0.0.1", "192.168.1.10", "::", "fe80::1", "::ffff:192.168.1.10", "127.1", "127.0.0.256", "[::1]",
    ],
)  # fmt: skip
def test_other_addresses_and_names_are_not_loopback(host: str) -> None:
    assert not is_loopback(host)
    assert not BrokerSettings(host=host).is_local

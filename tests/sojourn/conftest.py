"""Long timeouts for links and doors under test, so that a slow machine does not end a connection."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sojourn.brokers import join_server, maintenance
from sojourn.joining import client
from sojourn.links import mqtt, session
from tests.waiting import LIMIT


@pytest.fixture(scope="module", autouse=True)
def unhurried() -> Iterator[None]:
    """Otherwise a link to a stalled broker would fall back to MQTT 3.1.1, or close with unsent messages."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mqtt, "_CONNACK_TIMEOUT", LIMIT)
        patch.setattr(mqtt, "_FIRST_CONNACK_TIMEOUT", LIMIT)
        patch.setattr(mqtt, "_FLUSH_SECONDS", LIMIT)
        patch.setattr(session, "_CONNECT_SECONDS", LIMIT)
        patch.setattr(maintenance, "_REPLY_TIMEOUT", LIMIT)
        patch.setattr(join_server, "SECONDS", LIMIT)
        patch.setattr(client, "SECONDS", LIMIT)
        yield

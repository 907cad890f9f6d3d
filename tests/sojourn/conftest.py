"""Links and doors under test give nobody up for being slow: only what a test is about may end a connection."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sojourn.brokers import clearing, door
from sojourn.joining import asking
from sojourn.links import mqtt, session
from tests.waiting import LIMIT


@pytest.fixture(scope="module", autouse=True)
def unhurried() -> Iterator[None]:
    """A link that waits seconds for a stalled broker would turn to MQTT 3.1.1, or leave with its messages unsent."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mqtt, "_PATIENCE", LIMIT)
        patch.setattr(mqtt, "_FIRST_PATIENCE", LIMIT)
        patch.setattr(mqtt, "_FLUSH_SECONDS", LIMIT)
        patch.setattr(session, "_CONNECT_SECONDS", LIMIT)
        patch.setattr(clearing, "_ANSWER_SECONDS", LIMIT)
        patch.setattr(door, "SECONDS", LIMIT)
        patch.setattr(asking, "SECONDS", LIMIT)
        yield

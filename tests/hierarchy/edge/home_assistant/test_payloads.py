"""The messages for Home Assistant: only documented fields, safe ids, clean and short texts."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hierarchy.edge.home_assistant.payloads import (
    MAX_LINES,
    SHOWN,
    ShownDevice,
    ShownRelease,
    discovery_payload,
    read_state,
    reported_release,
    shown,
)
from sojourn.errors import ConfigError
from sojourn.protocol import topics
from sojourn.protocol.release_messages import ReleaseReport
from sojourn.protocol.wire import Offer
from tests.hierarchy.edge.home_assistant.documented import Sensor, Update, read_discovery

OFFER = Offer("0.9.0", "Raspberry Pi 4", "onnxruntime 1.20", 4, 1 << 30, ("plain",), "digits")
HOSTILE = "<script>alert(1)</script>\x1b[31m\u202egnp.exe\r\n{{ states('x') }}" + "x" * 300


def test_device_has_the_documented_entities() -> None:
    found = read_discovery(discovery_payload("sojourn", "edge-1", "pi-1", OFFER, ["digits"]))
    assert list(found.components) == ["online", "training", "visits", "loss", "reason", "release_digits"]
    assert found.device.identifiers == ["sojourn_sojourn_edge-1_pi-1"]
    assert (found.device.name, found.device.model, found.device.sw_version) == ("pi-1", OFFER.machine, OFFER.version)
    assert found.state_topic == "sojourn/home-assistant/sojourn/edge-1/pi-1/state"
    assert [each.topic for each in found.availability] == ["sojourn/1/sojourn/edge/edge-1/state"]
    visits, release = found.components["visits"], found.components["release_digits"]
    assert isinstance(visits, Sensor)
    assert visits.state_class == "total_increasing"
    assert isinstance(release, Update)
    assert "get('releases') or {}).get('digits', {}) | to_json" in release.value_template


def test_device_texts_are_cleaned_and_truncated() -> None:
    offer = msgspec.structs.replace(OFFER, machine=HOSTILE[:200], version="\x00\u202e")
    payload = discovery_payload("f", "e", "d", offer, [])
    found = read_discovery(payload)
    assert found.device.sw_version is msgspec.UNSET  # nothing of it could be shown
    assert len(msgspec.json.decode(payload)["device"]["model"]) <= 60
    assert not any(ord(letter) < 32 or letter == "\u202e" for letter in json.loads(payload)["device"]["model"])


def test_release_entities_are_bounded() -> None:
    lines = [f"line-{number}" for number in range(MAX_LINES + 5)]
    found = read_discovery(discovery_payload("f", "e", "d", None, lines))
    assert sum(isinstance(each, Update) for each in found.components.values()) == MAX_LINES


@given(st.text(max_size=300))
def test_any_text_yields_a_safe_id(text: str) -> None:
    assert topics.safe_id(text).isascii()
    assert 1 <= len(topics.safe_id(text)) <= 100
    assert set(topics.safe_id(text)) <= set("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_-")


def test_changed_ids_stay_unique() -> None:
    names = ["a b", "a.b", "a/b", "a\u00e9b", "a_b", "a" * 101, "a" * 102, "", "\x00", "#", "+"]
    assert len({topics.safe_id(name) for name in names}) == len(names)
    assert topics.safe_id("a_b") == "a_b"
    longest = "x" * 63
    for topic in topics.all_topics("p" * 64, longest, longest, longest):
        assert len(topic) <= 240


@pytest.mark.parametrize("prefix", ["", "#", "a/+", "a//b", "/a", "sojourn", "sojourn/1", "x" * 65, "a b", "a\n"])
def test_invalid_prefix_is_rejected(prefix: str) -> None:
    with pytest.raises(ConfigError, match="prefix"):
        topics.check_prefix(prefix)


def test_prefix_may_have_levels() -> None:
    assert topics.check_prefix("home/assistant_2") == "home/assistant_2"
    assert topics.check_prefix("sojourners") == "sojourners"


@given(st.text(max_size=1000))
def test_reason_fits_into_a_state(text: str) -> None:
    assert len(shown(text)) <= SHOWN
    state = ShownDevice(reason=shown(text))
    assert state.encoded().isascii()
    assert read_state(state.encoded()) == state


def test_state_round_trips_and_invalid_input_is_ignored() -> None:
    state = ShownDevice(True, False, 7, 0.25, "lost: x", {"digits": ShownRelease("1", "2", in_progress=True)})
    assert read_state(state.encoded()) == state
    assert json.loads(state.encoded())["releases"]["digits"] == {
        "installed_version": "1",
        "latest_version": "2",
        "in_progress": True,
    }
    many = json.dumps({"releases": {f"l{number}": {} for number in range(MAX_LINES + 1)}}).encode()
    for wrong in (b"", b"{", b"[]", b'{"visits": -1}', b'{"loss": 1e300}', b'{"releases": {"A B": {}}}', many):
        assert read_state(wrong) is None
    assert read_state(b" " * 9000) is None


def test_release_shows_served_and_ordered_version() -> None:
    first = reported_release(None, ReleaseReport("digits", 3, 2, "serving"))
    assert first == ShownRelease("2", "2", in_progress=False)
    ordered = first.ordered(3)
    assert ordered == ShownRelease("2", "3", in_progress=False)
    fetching = reported_release(ordered, ReleaseReport("digits", 4, 2, "fetching"))
    assert fetching == ShownRelease("2", "3", in_progress=True)
    assert reported_release(fetching, ReleaseReport("digits", 4, 3, "serving")) == ShownRelease("3", "3")
    gone = fetching.ordered(0)
    assert reported_release(gone, ReleaseReport("digits", 5, 0, "withdrawn")) == ShownRelease("none", "none")

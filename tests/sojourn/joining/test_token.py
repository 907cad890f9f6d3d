"""Tokens: their content, and the errors for incomplete ones."""

from __future__ import annotations

import base64
import zlib

import pytest

from sojourn.errors import ConfigError
from sojourn.joining.messages import PREFIX, Token, invitation_id, new_secret, read_token

TOKEN = Token("cloud.example.org", 8885, b"\1" * 16, b"\2" * 16)


def test_token_round_trips_as_one_short_line() -> None:
    assert read_token(f" {TOKEN.text}\n") == TOKEN
    assert len(TOKEN.text) < 120
    assert not set(TOKEN.text) & set(" \n\"'$\\;|&")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "this is not a token"),
        ("sojourn-join-2.AAAA", "this is not a token"),
        (TOKEN.text[:-3], "incomplete"),
        (TOKEN.text[:40] + ("A" if TOKEN.text[40] != "A" else "B") + TOKEN.text[41:], "incomplete"),
        (PREFIX + "!" * 40, "incomplete"),
        (PREFIX + "A" * 5000, "this is not a token"),
        (PREFIX, "incomplete"),
    ],
)
def test_incomplete_token_is_rejected_with_reason(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_token(text)


def test_malformed_token_body_is_rejected() -> None:
    for body in (
        b"\xc0",
        b"\x94\xa0\x01\xc4\x00\xc4\x00",
        b"\x94\xa1h\x00\xc4\x10" + b"1" * 16 + b"\xc4\x10" + b"2" * 16,
    ):
        text = PREFIX + base64.urlsafe_b64encode(body + zlib.crc32(body).to_bytes(4)).decode().rstrip("=")
        with pytest.raises(ConfigError):
            read_token(text)


def test_secrets_are_unique_and_hidden_from_ids_and_repr() -> None:
    first, second = new_secret(), new_secret()
    assert first != second
    assert invitation_id(first) != invitation_id(second)
    assert first.hex() not in invitation_id(first)
    assert repr(TOKEN) == "Token(host='cloud.example.org', port=8885)"

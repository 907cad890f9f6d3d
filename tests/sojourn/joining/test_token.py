"""Tokens: what they hold, and what is said of one that is not whole."""

from __future__ import annotations

import base64
import zlib

import pytest

from sojourn.errors import ConfigError
from sojourn.joining.token import PREFIX, Token, invitation_id, new_secret, read_token

TOKEN = Token("cloud.example.org", 8885, b"\1" * 16, b"\2" * 16)


def test_a_token_is_one_short_line_that_reads_back_as_it_was() -> None:
    assert read_token(f" {TOKEN.text}\n") == TOKEN
    assert len(TOKEN.text) < 120
    assert not set(TOKEN.text) & set(" \n\"'$\\;|&")


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("", "this is no token"),
        ("sojourn-join-2.AAAA", "this is no token"),
        (TOKEN.text[:-3], "not whole"),
        (TOKEN.text[:40] + ("A" if TOKEN.text[40] != "A" else "B") + TOKEN.text[41:], "not whole"),
        (PREFIX + "!" * 40, "not whole"),
        (PREFIX + "A" * 5000, "this is no token"),
        (PREFIX, "not whole"),
    ],
)
def test_a_token_that_is_not_whole_is_refused_with_words(text: str, why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        read_token(text)


def test_whatever_stands_in_a_token_it_is_read_or_refused() -> None:
    for body in (
        b"\xc0",
        b"\x94\xa0\x01\xc4\x00\xc4\x00",
        b"\x94\xa1h\x00\xc4\x10" + b"1" * 16 + b"\xc4\x10" + b"2" * 16,
    ):
        text = PREFIX + base64.urlsafe_b64encode(body + zlib.crc32(body).to_bytes(4)).decode().rstrip("=")
        with pytest.raises(ConfigError):
            read_token(text)


def test_secrets_differ_and_are_known_by_what_does_not_tell_them() -> None:
    first, second = new_secret(), new_secret()
    assert first != second
    assert invitation_id(first) != invitation_id(second)
    assert first.hex() not in invitation_id(first)
    assert repr(TOKEN) == "Token(host='cloud.example.org', port=8885)"

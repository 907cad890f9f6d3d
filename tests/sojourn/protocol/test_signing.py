"""Keys and signatures."""

from __future__ import annotations

import base64
import stat
from pathlib import Path

import pytest
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from sojourn.errors import ConfigError
from sojourn.protocol.signing import Signer, check_public, verify


def test_signature_verifies_only_exact_message_and_key(tmp_path: Path) -> None:
    signer = Signer.generate(tmp_path / "key")
    signature = signer.sign(b"order")
    assert len(signature) == 64
    assert verify(signer.public, b"order", signature)
    assert not verify(signer.public, b"Order", signature)
    assert not verify(signer.public, b"order", signature[:-1] + bytes([signature[-1] ^ 1]))
    assert not verify(signer.public, b"order", b"")
    assert not verify(Signer.generate(tmp_path / "other").public, b"order", signature)


def test_key_file_is_private_and_never_overwritten(tmp_path: Path) -> None:
    path = tmp_path / "key"
    signer = Signer.generate(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert Signer.load(path).public == signer.public
    assert Signer.load(path).sign(b"x") == signer.sign(b"x")
    with pytest.raises(ConfigError, match="exists"):
        Signer.generate(path)
    assert len(base64.b64decode(signer.public)) == 32


def test_signature_includes_its_context(tmp_path: Path) -> None:
    """With the key of RFC 8032, test 1: a signature without context is not valid for an order."""
    seed = bytes.fromhex("9d61b19deffd5a60ba844af492ec2cc44449c5697b326919703bac031cae7f60")
    key = Ed25519PrivateKey.from_private_bytes(seed)
    path = tmp_path / "key"
    pem = serialization.Encoding.PEM
    path.write_bytes(key.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    signer = Signer.load(path)
    assert base64.b64decode(signer.public).hex() == "d75a980182b10ab7d54bfed3c964073a0ee172f3daa62325af021a68f707511a"
    assert not verify(signer.public, b"order", key.sign(b"order"))
    assert signer.sign(b"order") == key.sign(b"sojourn-order-1order")


def test_invalid_key_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be read"):
        Signer.load(tmp_path / "none")
    with pytest.raises(ConfigError, match="cannot be written"):
        Signer.generate(tmp_path / "no" / "folder")
    text = tmp_path / "text"
    text.write_text("hello")
    with pytest.raises(ConfigError, match="does not contain a private key"):
        Signer.load(text)
    other = ec.generate_private_key(ec.SECP256R1())
    pem = serialization.Encoding.PEM
    text.write_bytes(other.private_bytes(pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()))
    with pytest.raises(ConfigError, match="of another kind"):
        Signer.load(text)
    for wrong in ("", "hello", "aGVsbG8=", "ü" * 44):
        with pytest.raises(ConfigError, match=r"agent.toml: .* is not the base64 of a public key"):
            check_public(wrong, "agent.toml")

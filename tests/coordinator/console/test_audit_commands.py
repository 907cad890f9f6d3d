"""The commands `sojourn fleet audit` and `sojourn fleet operators`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Self

import msgspec
import pytest
from typer.testing import CliRunner

from coordinator.admin.fleet_commands import app
from coordinator.admin.settings import OperatorRoles, guarded_by, read_operators
from coordinator.console import options
from sojourn.errors import ConfigError
from sojourn.protocol.operators import AuditEntry
from sojourn.protocol.signing import Signer, read_publics
from tests.sojourn.protocol.test_audit import OPERATORS, log

if TYPE_CHECKING:
    from pathlib import Path


class FakeOperator:
    """A connection to a coordinator that has this log."""

    def __init__(self, entries: list[AuditEntry]) -> None:
        self.entries, self.flags = entries, ""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def audit(self) -> list[AuditEntry]:
        return self.entries


def run(*words: str, entries: list[AuditEntry] | None = None) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(options, "_connection", lambda **_: FakeOperator(entries or []))
        return CliRunner().invoke(app, words, catch_exceptions=False)


ACTS = ("submit a", "stop a", "remove a")


def test_audit_shows_log_and_verifies_it() -> None:
    done = run("audit", entries=log(*ACTS))
    assert done.exit_code == 0
    assert "submit a" in done.output
    assert f"3 entries, complete; the newest has the hash {log(*ACTS)[-1].digest.hex()}" in done.output
    printed = json.loads(run("audit", "--json", "--last", "1", entries=log(*ACTS)).stdout)
    assert [it["what"] for it in printed["entries"]] == ["remove a"]
    assert printed["faults"] == []
    assert run("audit", "--verify").exit_code == 0


def test_missing_or_changed_entry_is_reported_and_verify_fails() -> None:
    entries = log(*ACTS)
    short = [entries[0], entries[2]]
    assert "WRONG: entries are missing between 1 and 3" in run("audit", entries=short).output
    assert run("audit", "--verify", entries=short).exit_code == 1
    changed = [entries[0], msgspec.structs.replace(entries[1], who="ben"), entries[2]]
    done = run("audit", "--verify", entries=changed)
    assert done.exit_code == 1
    assert "entry 2 was changed, or 3 does not follow it" in done.output


def test_truncated_log_is_detected_by_expected_hash(tmp_path: Path) -> None:
    entries = log(*ACTS)
    kept = entries[-1].digest.hex()
    assert run("audit", "--verify", "--expect", kept[:16], entries=log(*ACTS, "submit b")).exit_code == 0
    done = run("audit", "--verify", "--expect", kept, entries=entries[:2])
    assert done.exit_code == 1
    assert "were removed or rewritten" in done.output
    file = tmp_path / "operators.toml"
    file.write_text(f'[operators.ann]\nkey = "{OPERATORS["ann"].key}"\nrole = "owner"\n')
    assert run("audit", "--verify", "--operators-file", str(file), entries=entries).exit_code == 0


def test_operators_are_added_removed_and_rekeyed(tmp_path: Path) -> None:
    (tmp_path / "coordinator").mkdir()
    for name in ("ann", "vera", "new"):
        (tmp_path / f"{name}.pub").write_text(Signer.generate(tmp_path / f"{name}.key").public)
    folder = ("--fleet-folder", str(tmp_path))

    def add(name: str, key: str, role: str, *more: str) -> Any:
        words = ("operators", "add", name, "--public", str(tmp_path / key), "--role", role, *more, *folder)
        return CliRunner().invoke(app, words)

    done = add("ann", "ann.pub", "owner")
    assert "ann has the role owner" in done.output
    assert 'operators_file = "operators.toml"' in done.output
    roles = OperatorRoles(tmp_path / "coordinator" / "operators.toml")
    add("vera", "vera.pub", "viewer")
    assert {name: it.role for name, it in roles().items()} == {"ann": "owner", "vera": "viewer"}
    assert list(read_publics(tmp_path / "operators.pub").values()) == ["ann"]
    assert "--replace" in str(add("ann", "new.pub", "owner").exception)
    add("ann", "new.pub", "owner", "--replace")
    assert roles()["ann"].key == Signer.load(tmp_path / "new.key").public
    assert "role" in str(add("eve", "new.pub", "king").exception)
    done = CliRunner().invoke(app, ("operators", "remove", "ann", *folder))
    assert "no owner is left" in done.output
    assert json.loads(CliRunner().invoke(app, ("operators", "list", "--json", *folder)).stdout).keys() == {"vera"}
    assert "vera" in guarded_by(roles, {})[0]


def test_broken_operators_file_keeps_previous_operators(tmp_path: Path, caplog) -> None:
    file = tmp_path / "operators.toml"
    file.write_text(f'[operators.ann]\nkey = "{OPERATORS["ann"].key}"\nrole = "owner"\n')
    roles = OperatorRoles(file)
    file.write_text("[operators")
    assert set(roles()) == {"ann"}
    assert "keeping the previous operators" in caplog.text
    file.unlink()
    assert set(roles()) == {"ann"}
    with pytest.raises(ConfigError):
        read_operators(file)
    file.write_text('[operators.ann]\nkey = "x"\nrole = "owner"\n')
    with pytest.raises(ConfigError, match="the key of ann"):
        read_operators(file)


def test_access_rules_are_described_at_startup() -> None:
    open_, unsigned = guarded_by(None, {})
    assert "may request everything" in open_
    assert "jobs go to devices unsigned" in unsigned
    assert guarded_by(None, {"k": "ann"})[1] == "mandates: jobs wait until one of these has signed them: ann"

"""The options for reading data are the same in all commands of the agent, and in its settings file."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import msgspec
import pytest
from typer.testing import CliRunner

from edge_agent.commands import app
from edge_agent.settings import AgentSettings
from edge_agent.setup import preflight
from edge_agent.setup.agent_file import settings_of, table_of
from edge_agent.setup.commands import agent_flags
from sojourn.data.source import DataSettings
from sojourn.settings import read_settings

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS = (
    "--data", "/data.csv", "--label", "state", "--header", "--scale", "0..10 to 0..1", "--target", "load", "--target",
    "power", "--ignore", "id", "--ignore", "note", "--time", "when", "--series", "machine",
)  # fmt: skip
MEANT = DataSettings(
    path="/data.csv", label="state", header=True, scale="0..10 to 0..1", targets=("load", "power"),
    ignore=("id", "note"), time="when", series="machine",
)  # fmt: skip


class Settings(Exception):
    """Carries the settings that a command would start with."""


def test_all_commands_take_the_same_data_options(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(_path: str, command: list[str]) -> None:
        flags = next(each for each in command if each.startswith("{"))
        values: dict[str, Any] = msgspec.json.decode(flags)
        del values["verbose"]
        raise Settings(read_settings(None, values, AgentSettings))

    def check(settings: AgentSettings, _demands: Any) -> None:
        raise Settings(settings)

    monkeypatch.setattr(os, "execv", begin)
    monkeypatch.setattr(preflight, "preflight", check)
    for command in ("run", "preflight"):
        done = CliRunner().invoke(app, [command, "--name", "pi", *OPTIONS])
        assert isinstance(done.exception, Settings), done.output
        assert done.exception.args[0].data == MEANT
    file = tmp_path / "agent.toml"
    done = CliRunner().invoke(app, ["init", str(file), "--yes", "--no-check", "--name", "pi", *OPTIONS])
    assert done.exit_code == 0, done.output
    assert read_settings(str(file), {}, AgentSettings).data == MEANT
    assert settings_of(table_of(agent_flags(name="pi", data="/data.csv"), {})).data.ignore == ()

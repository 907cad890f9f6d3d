"""Options by their old names: understood, with a word of warning, and hidden."""

from __future__ import annotations

from importlib.metadata import entry_points

import pytest
import typer
from typer.testing import CliRunner

from sojourn.cli import GROUP, app
from sojourn.renamed_options import RENAMED, with_new_names


def test_an_old_name_is_understood_and_warned_of(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    old, new = (
        CliRunner().invoke(app, ["plan", "--devices", "2", name, "no-such-board"]) for name in ("--profile", "--board")
    )
    assert str(old.exception) == str(new.exception)
    assert "no-such-board" in str(new.exception)
    assert "--profile is now called --board" in old.stderr
    assert not new.stderr


def test_only_options_of_that_command_are_renamed() -> None:
    assert with_new_names(["plan", "--profile=x", "--seed", "1"])[0] == ["plan", "--board=x", "--seed", "1"]
    for words in (["broker", "--port", "1"], ["simulate", "--profile"], ["plan", "--", "--profile"], []):
        assert with_new_names(words) == (words, [])


@pytest.mark.parametrize("command", RENAMED, ids=" ".join)
def test_a_command_has_the_new_names_and_not_the_old_ones(command: tuple[str, ...]) -> None:
    (entry,) = entry_points(group=GROUP, name=command[0])
    found = typer.main.get_command(entry.load())
    for word in command[1:]:
        found = found.commands[word]  # type: ignore[attr-defined]
    known = {name for each in found.params for name in each.opts}
    assert known >= set(RENAMED[command].values())
    assert not known & RENAMED[command].keys()

"""Every `sojourn ...` on a page is valid: all its commands and flags exist."""

from __future__ import annotations

import re
import shlex
from typing import Any, NamedTuple

import pytest
import typer

from sojourn.cli import app
from tests.docs.pages import ROOT, blocks, pages

INLINE = re.compile(r"`([^`]*)`", re.DOTALL)
PROMPT = re.compile(r"^(?:\w+\$ +|sudo +|\S*/bin/|SOJOURN_\w+=\S+ +)+")
OLDER = {"CHANGELOG.md"}
"""Pages with commands of earlier versions."""
ELLIPSIS = {"...", "…"}
ROOT_COMMAND = typer.main.get_command(app)


class Shown(NamedTuple):
    """A command on a page; `whole` if it can be typed as shown."""

    page: str
    text: str
    whole: bool


def shown() -> list[Shown]:
    found = []
    for path in pages():
        name, text = str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
        if name in OLDER or name.startswith("docs/decisions/"):
            continue
        in_blocks = [(line, True) for block in blocks(text) if block.language in {"", "sh"} for line in block.commands]
        in_prose = [
            (" ".join(code.split()), False) for code in INLINE.findall(re.sub(r"(?ms)^ *```.*?^ *```", "", text))
        ]
        for line, whole in in_blocks + in_prose:
            for part in re.split(r" && | \|\| |; (?:do )?| \| ", line):
                bare = PROMPT.sub("", part.strip())
                if re.match(r"sojourn (?=[a-z-])", bare):
                    found.append(Shown(name, bare, whole))
    return list(dict.fromkeys(found))


SHOWN = shown()


def words_of(text: str) -> list[str]:
    """Return the words of a command up to a comment, a redirection or an ellipsis."""
    words = shlex.split(text, comments=True)
    ends = [at for at, word in enumerate(words) if word in ELLIPSIS or re.match(r"\d?[<>]|&$", word)]
    return words[1 : min(ends, default=len(words))]


def resolved(words: list[str]) -> tuple[Any, list[str], Any]:
    """Return the command that the first words name, its remaining words, and its context."""
    command, context = ROOT_COMMAND, typer.Context(ROOT_COMMAND, info_name="sojourn")
    while hasattr(command, "resolve_command") and words and not words[0].startswith("-"):
        name, command, words = command.resolve_command(context, words)
        context = typer.Context(command, info_name=name, parent=context)
    return command, words, context


@pytest.mark.parametrize("each", SHOWN, ids=lambda each: f"{each.page}: {each.text}")
def test_command_on_a_page_is_valid(each: Shown) -> None:
    words = words_of(each.text)
    assert words, each
    command, rest, context = resolved(words)
    options = {flag: option for option in command.params for flag in (*option.opts, *option.secondary_opts)}
    options |= dict.fromkeys(["--help"], None)
    for word in rest:
        flag = word.partition("=")[0]
        if re.match(r"--?[a-z]", flag):
            assert flag in options, f"{each.page}: `sojourn {' '.join(words)}` has no {flag}; it has {sorted(options)}"
    if each.whole and not hasattr(command, "resolve_command"):
        command.make_parser(context).parse_args(args=list(rest))


def test_commands_are_found_on_the_pages() -> None:
    assert len(SHOWN) > 100
    assert {"README.md", "deploy/README.md", "docs/devices.md"} <= {each.page for each in SHOWN}


@pytest.mark.parametrize(
    "text", ["sojourn job sumbit job.toml", "sojourn job submit job.toml --wacth", "sojourn agent run --name"]
)
def test_invalid_command_on_a_page_is_detected(text: str) -> None:
    with pytest.raises((Exception, SystemExit)):  # typer's click has no public types
        test_command_on_a_page_is_valid(Shown("a page", text, whole=True))

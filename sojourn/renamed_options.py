"""Options that had another name before: the old one is understood for a few versions more, with a word of warning."""

from __future__ import annotations

from sojourn.text import clean

RENAMED: dict[tuple[str, ...], dict[str, str]] = {
    ("compare",): {"--profile": "--board"},
    ("plan",): {"--profile": "--board"},
}
"""By command: each old name with the one that all commands have for the thing."""
UNTIL = "0.9.0"


def with_new_names(arguments: list[str]) -> tuple[list[str], list[str]]:
    """The words after `sojourn` with options by their names of today, and a warning for each that had an old one."""
    renamed = next((names for command, names in RENAMED.items() if tuple(arguments[: len(command)]) == command), {})
    words, warnings = [], []
    for at, word in enumerate(arguments):
        name, equals, value = word.partition("=")
        if name not in renamed or "--" in arguments[:at]:
            words.append(word)
            continue
        words.append(f"{renamed[name]}{equals}{value}")
        warnings.append(f"{clean(name)} is now called {renamed[name]}; the old name ends with version {UNTIL}")
    return words, warnings

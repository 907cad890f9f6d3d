"""The script that refuses words which have a plainer one."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci" / "check-words"
WORDS = """
[words]
told = "reported"
figure = "metric"
[phrases]
"of its own" = "separate"
[allow]
"plots/*" = ["figure"]
"LICENSE" = ["*"]
"""


@pytest.fixture
def check(tmp_path: Path):
    """Write these files into a new repository, and run the script on those of them that are named."""
    (tmp_path / ".ci").mkdir()
    (tmp_path / ".ci" / "check-words").write_bytes(SCRIPT.read_bytes())

    def run(files: dict[str, str], *named: str, words: str = WORDS) -> tuple[int, list[str]]:
        (tmp_path / ".ci" / "words.toml").write_text(words + '".ci/*" = ["*"]\n')
        for name, text in files.items():
            (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
            (tmp_path / name).write_text(text)
        for command in (["git", "init", "-q"], ["git", "add", "."]):
            subprocess.run(command, cwd=tmp_path, check=True)
        command = [sys.executable, ".ci/check-words", *named]
        done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
        return done.returncode, (done.stdout + done.stderr).splitlines()

    return run


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("retold, stoldi, on its own\n", []),
        ("\ntold_rounds = TourTold(TOLD)\n", ["a.py:2: 'told': write reported"]),
        ("# a process of\n# its own\n", ["a.py:1: 'of its own': write separate"]),
    ],
)
def test_names_and_phrases_are_found(check, text: str, found: list[str]) -> None:
    code, output = check({"a.py": text})
    assert (code, output[:1]) == (int(bool(found)), found)


def test_allow_exempts_words_in_matching_files(check) -> None:
    code, output = check({"plots/deep/a.py": "figure, told\n", "LICENSE": "told\n"})
    assert (code, output[0]) == (1, "plots/deep/a.py:1: 'told': write reported")
    assert len(output) == 2


def test_only_named_files_are_checked(check) -> None:
    files = {"a.md": "told\n", "b.md": "plain\n"}
    assert check(files, "b.md") == (0, [])
    assert check(files, "a.md")[0] == 1


def test_binary_files_are_skipped(check, tmp_path: Path) -> None:
    (tmp_path / "font").write_bytes(b"told \xff")
    assert check({}) == (0, [])


@pytest.mark.parametrize(
    ("words", "message"),
    [("[word]\n", "unknown table [word]"), ('[allow]\n"x" = ["tolt"]\n', "[allow] 'x'"), ("[allow\n", "Expected")],
)
def test_invalid_list_is_an_error(check, words: str, message: str) -> None:
    code, output = check({}, words=words)
    assert code == 2
    assert message in output[0]


def test_missing_file_is_an_error(check) -> None:
    code, output = check({}, "gone.md")
    assert (code, len(output)) == (2, 1)

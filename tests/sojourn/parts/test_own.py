"""A user's module is found where it may lie, and one that is not found names the folders that were looked at."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sojourn.errors import ConfigError
from sojourn.parts.own import own_module

ROOT = Path(__file__).parents[3]
TRY = "import sys; from sojourn.parts.own import own_module; print(own_module(sys.argv[1]).WHAT)"


@pytest.fixture(autouse=True)
def in_a_folder_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def tried(folder: Path, *flags: str, name: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """What a Python in this folder finds; the code of this checkout comes by PYTHONPATH."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in (str(ROOT), path) if each)}
    command = [sys.executable, *flags, "-c", TRY, name]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)


def test_a_module_in_the_working_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "own_here_for_test.py").write_text("WHAT = 'here'")
    assert own_module("own_here_for_test").WHAT == "here"
    sys.modules.pop("own_here_for_test")


def test_a_file_in_the_working_folder_takes_no_other_module_s_place(tmp_path: Path) -> None:
    (tmp_path / "msgpack.py").write_text("WHAT = 'mine'")
    assert own_module("msgpack").__file__ != str(tmp_path / "msgpack.py")


def test_a_process_that_must_not_look_there_does_not(tmp_path: Path) -> None:
    (tmp_path / "own_here_for_test.py").write_text("WHAT = 'here'")
    assert tried(tmp_path, name="own_here_for_test").stdout == "here\n"
    refused = tried(tmp_path, "-P", name="own_here_for_test")
    assert "there is no own_here_for_test.py in " in refused.stderr


def test_a_folder_of_pythonpath_is_looked_at(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "own_there_for_test.py").write_text("WHAT = 'there'")
    assert tried(Path("/"), "-P", name="own_there_for_test", path=str(tmp_path / "models")).stdout == "there\n"


def test_one_that_is_not_found_names_the_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as in a notebook
    with pytest.raises(ConfigError, match=r"there is no nowhere\.py in .*: put it into one of them") as caught:
        own_module("nowhere.at_all")
    assert str(caught.value).count(f"{tmp_path}") == 1
    assert "lib-dynload" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("import not_there_for_test", "it needs not_there_for_test, which is not installed: install it with pip"),
        ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
        ("class", "cannot be imported: SyntaxError: "),
    ],
)
def test_one_that_is_found_and_fails_says_why(tmp_path: Path, text: str, said: str) -> None:
    (tmp_path / "own_failing_for_test.py").write_text(text)
    with pytest.raises(ConfigError) as caught:
        own_module("own_failing_for_test")
    assert said in str(caught.value)


@pytest.mark.parametrize("name", ["models/net.py", "./models/net.py", "models/net"])
def test_the_name_of_a_file_is_turned_into_the_module_s(name: str) -> None:
    with pytest.raises(ConfigError, match=r"is a file: name the module, as Python imports it: models\.net$"):
        own_module(name)


def test_a_folder_of_ones_own_is_looked_into(tmp_path: Path) -> None:
    (tmp_path / "own_in_folder_for_test.py").write_text("WHAT = 'in a folder'")
    assert own_module("own_in_folder_for_test", str(tmp_path)).WHAT == "in a folder"


def test_a_module_of_the_same_name_from_elsewhere_is_not_taken(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("WHAT = 'mine'")
    with pytest.raises(ConfigError, match=r"the module 'random' is taken from .*random\.py, not from .*another name"):
        own_module("random", str(tmp_path))


def test_a_folder_that_anyone_may_write_to_is_refused(tmp_path: Path) -> None:
    (tmp_path / "own_open_for_test.py").write_text("WHAT = 'anything'")
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match=r"may be written to by anyone, and code in it would run as this program"):
        own_module("own_open_for_test", str(tmp_path))
    with pytest.raises(ConfigError, match="there is no folder"):
        own_module("own_open_for_test", str(tmp_path / "nowhere"))

"""Loading of users' modules: the searched folders, and the errors for modules that cannot be loaded."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from sojourn.errors import ConfigError
from sojourn.parts.custom_code import own_module

ROOT = Path(__file__).parents[3]
TRY = "import sys; from sojourn.parts.custom_code import own_module; print(own_module(sys.argv[1]).WHAT)"


@pytest.fixture(autouse=True)
def separate_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    return tmp_path


def tried(folder: Path, *flags: str, name: str, path: str = "") -> subprocess.CompletedProcess[str]:
    """Run Python in this folder, with this checkout on PYTHONPATH."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(each for each in (str(ROOT), path) if each)}
    command = [sys.executable, *flags, "-c", TRY, name]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment, check=False)


def test_module_in_working_folder_is_found(tmp_path: Path) -> None:
    (tmp_path / "own_here_for_test.py").write_text("WHAT = 'here'")
    assert own_module("own_here_for_test").WHAT == "here"
    sys.modules.pop("own_here_for_test")


def test_file_in_working_folder_does_not_shadow_a_package(tmp_path: Path) -> None:
    (tmp_path / "msgpack.py").write_text("WHAT = 'mine'")
    assert own_module("msgpack").__file__ != str(tmp_path / "msgpack.py")


def test_safe_path_process_ignores_the_working_folder(tmp_path: Path) -> None:
    (tmp_path / "own_here_for_test.py").write_text("WHAT = 'here'")
    assert tried(tmp_path, name="own_here_for_test").stdout == "here\n"
    refused = tried(tmp_path, "-P", name="own_here_for_test")
    assert "there is no own_here_for_test.py in " in refused.stderr


def test_pythonpath_folder_is_searched(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    (tmp_path / "models" / "own_there_for_test.py").write_text("WHAT = 'there'")
    assert tried(Path("/"), "-P", name="own_there_for_test", path=str(tmp_path / "models")).stdout == "there\n"


def test_missing_module_error_names_searched_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", ["", *sys.path])  # as in a notebook
    with pytest.raises(
        ConfigError, match=r"there is no nowhere\.py in .*: copy it into one of these folders"
    ) as caught:
        own_module("nowhere.at_all")
    assert str(caught.value).count(f"{tmp_path}") == 1
    assert "lib-dynload" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import not_there_for_test", "it needs not_there_for_test, which is not installed: install it with pip"),
        ("1 / 0", "cannot be imported: ZeroDivisionError: division by zero"),
        ("class", "cannot be imported: SyntaxError: "),
    ],
)
def test_failing_module_error_states_the_cause(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "own_failing_for_test.py").write_text(text)
    with pytest.raises(ConfigError) as caught:
        own_module("own_failing_for_test")
    assert message in str(caught.value)


@pytest.mark.parametrize("name", ["models/net.py", "./models/net.py", "models/net"])
def test_file_name_error_suggests_the_module_name(name: str) -> None:
    with pytest.raises(
        ConfigError, match=r"is a file name: write the module name, as for Python's import: models\.net$"
    ):
        own_module(name)


def test_configured_folder_is_searched(tmp_path: Path) -> None:
    (tmp_path / "own_in_folder_for_test.py").write_text("WHAT = 'in a folder'")
    assert own_module("own_in_folder_for_test", str(tmp_path)).WHAT == "in a folder"


def test_module_of_same_name_elsewhere_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "random.py").write_text("WHAT = 'mine'")
    with pytest.raises(
        ConfigError, match=r"the module 'random' was imported from .*random\.py, not from .*rename your module"
    ):
        own_module("random", str(tmp_path))


def test_world_writable_folder_is_rejected(tmp_path: Path) -> None:
    (tmp_path / "own_open_for_test.py").write_text("WHAT = 'anything'")
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match=r"is world-writable, and its code would run as this program"):
        own_module("own_open_for_test", str(tmp_path))
    with pytest.raises(ConfigError, match=r"the folder .* does not exist"):
        own_module("own_open_for_test", str(tmp_path / "nowhere"))

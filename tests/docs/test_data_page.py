"""The files on the page about data are read as described there."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from sojourn.data.source import DataSettings, load_data, read_content
from sojourn.data.summary import survey
from sojourn.protocol.task import Window
from tests.sojourn.data.tasks import form_of

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
FILES = re.findall(r"```text\n(.*?)```", PAGE, re.DOTALL)


def file_with(word: str) -> str:
    (found,) = (text for text in FILES if word in text.partition("\n")[0])
    return str(found)


@pytest.mark.parametrize(
    ("word", "form", "settings", "x", "y"),
    [
        (
            "width",
            form_of("multilabel", (2,), (2,), classes=("red", "round")),
            {},
            [[2.5, 1], [2, 3.5], [1.5, 1.5]],
            [[1, 1], [0, 0], [0, 1]],
        ),
        (
            "hour",
            form_of("regression", (2,), (2,), names=("load", "temperature")),
            {"scale": "0..1 to 0..2"},
            [[14, pytest.approx(1.22)], [16, pytest.approx(1.16)]],
            [[310, 18.5], [405, 19]],
        ),
        (
            "vibration",
            form_of("reconstruction", (2,), normal=("normal",)),
            {},
            [[pytest.approx(0.11), 4]],
            [0],
        ),
        (
            "machine",
            form_of("forecast", (1, 2), (1, 1), window=Window(1, 1), names=("temperature",)),
            {"time": "time", "series": "machine"},
            [[[310, 18.5]]],
            [[[pytest.approx(18.6)]]],
        ),
    ],
)
def test_example_files_are_read_as_described(
    tmp_path: Path, word: str, form: Any, settings: Any, x: Any, y: Any
) -> None:
    path = tmp_path / "data.csv"
    path.write_text(file_with(word), encoding="utf-8")
    samples = load_data(DataSettings(path=str(path), **settings), form)
    assert samples.x[:].tolist() == x
    assert samples.y[:].tolist() == y
    assert not survey(DataSettings(path=str(path), **settings), form.task or None).summary.fault


def test_example_image_list_is_read(tmp_path: Path) -> None:
    (tmp_path / "targets.csv").write_text(file_with("file"), encoding="utf-8")
    form = form_of("regression", (1, 2, 2), (2,), names=("temperature", "load"))
    content = read_content(DataSettings(path=str(tmp_path)), "train", form.input, (), form.task or None)
    assert content.skipped == ("2 rows of targets.csv without an image: '2026/05/01.png', '2026/05/02.png'",)


def test_every_key_on_the_page_exists() -> None:
    (keys,) = re.findall(r"\[data\] {5,}# of an agent\n(.*?)```", PAGE, re.DOTALL)
    assert {line.partition(" =")[0] for line in keys.splitlines()} <= set(DataSettings.__struct_fields__)

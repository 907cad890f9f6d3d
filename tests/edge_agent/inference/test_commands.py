"""`sojourn agent predict`: every kind of file, plain and JSON output, and errors with a remedy."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from PIL import Image
from typer.testing import CliRunner

from edge_agent.commands import app
from sojourn.errors import DataError, NoRelease
from sojourn.protocol.release import ProbeCheck
from sojourn.protocol.spec import InputSpec
from tests.edge_agent.releases.releases_made import LINE, Shop, card_of, graph_of


@pytest.fixture
def shop(tmp_path: Path) -> Shop:
    shop = Shop(tmp_path / "store")
    shop.serve(2)
    return shop


def rows(shop: Shop, file: Path, *more: str, line: str = LINE) -> list[list[tuple[str, float]]]:
    done = CliRunner().invoke(app, ["predict", line, str(file), "--store", str(shop.store), "--json", *more])
    if done.exception:
        raise done.exception
    answer: Any = msgspec.json.decode(done.stdout)
    assert answer["line"] == line
    return [[(each["class"], round(each["probability"], 3)) for each in row] for row in answer["rows"]]


DOG = [("dog", 0.787), ("owl", 0.107), ("cat", 0.107)]
"""exp(2) / (exp(2) + 2) is 0.787."""


@pytest.mark.parametrize(
    "content",
    ["a,b,c\n0,1,0\n", "0,1,0\n", "a;b;c;label\n0;1;0;owl\n", "label,a,b,c\nowl,0,1,0\n", "0,1,0,owl\n"],
)
def test_csv_is_read_with_or_without_header_and_labels(shop: Shop, tmp_path: Path, content: str) -> None:
    (tmp_path / "rows.csv").write_text(content)
    assert rows(shop, tmp_path / "rows.csv") == [DOG]


def test_npy_and_npz_arrays_are_read(shop: Shop, tmp_path: Path) -> None:
    one = np.array([0, 1, 0])
    np.save(tmp_path / "one.npy", one)
    np.save(tmp_path / "columns.npy", np.asfortranarray(np.stack([one, one])))
    np.savez(tmp_path / "labelled.npz", x=one[None], y=[0])
    np.savez(tmp_path / "lonely.npz", pictures=one[None].astype(np.uint8))
    assert rows(shop, tmp_path / "one.npy") == [DOG]
    assert rows(shop, tmp_path / "columns.npy") == [DOG, DOG]
    assert rows(shop, tmp_path / "labelled.npz", "--top", "1") == [DOG[:1]]
    assert rows(shop, tmp_path / "lonely.npz") == [DOG]


def test_image_file_is_read(shop: Shop, tmp_path: Path) -> None:
    weights = np.array([[1, 0], [0, 1], [0, 1], [0, 1]], np.float32) / 255
    probe = ProbeCheck(1, np.zeros(4, "<f4").tobytes(), np.zeros(2, "<f4").tobytes(), 0.0)
    card = card_of(1, weights, line="pictures", classes=("left", "other"), input=InputSpec((2, 2)), probe=probe)
    shop.serve(1, card=card, graph=graph_of(weights, shape=(2, 2)))
    image = Image.new("RGB", (40, 40))
    image.paste((255, 255, 255), (0, 0, 20, 20))
    image.save(tmp_path / "light.png")
    assert rows(shop, tmp_path / "light.png", line="pictures")[0][0][0] == "left"


def test_text_output_lists_the_top_classes(shop: Shop, tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.eye(3))
    done = CliRunner().invoke(app, ["predict", LINE, str(tmp_path / "x.npy"), "--store", str(shop.store), "--top", "2"])
    assert done.exit_code == 0
    assert done.stderr == f"{LINE} version 2\n"
    assert done.stdout.splitlines()[1] == "     1  dog  78.7 %   owl  10.7 %"


def test_file_errors_name_the_problem(shop: Shop, tmp_path: Path) -> None:
    np.save(tmp_path / "wide.npy", np.zeros((2, 5)))
    (tmp_path / "gap.csv").write_text("a,b,c\n0,1,0\n0,,0\n")
    (tmp_path / "wide.csv").write_text("1,2,3,4,5,6\n")
    np.savez(tmp_path / "two.npz", a=np.zeros(3), b=np.zeros(3))
    (tmp_path / "text.npy").write_text("hello")
    for name, message in (
        ("wide.npy", r"has the shape \(2, 5\); expected one or more samples of shape \(3,\)"),
        ("gap.csv", "line 3: expected 3 numbers"),
        ("wide.csv", "6 columns"),
        ("two.npz", "no array x .found: a, b"),
        ("text.npy", "cannot be read as NPY"),
        ("missing.csv", "missing.csv"),
        ("missing.npy", "missing.npy"),
        ("missing.png", "which is not an image"),
    ):
        with pytest.raises(DataError, match=message):
            rows(shop, tmp_path / name)


def test_missing_release_error_suggests_the_rollout_command(shop: Shop, tmp_path: Path) -> None:
    with pytest.raises(NoRelease, match="rollout"):
        rows(shop, tmp_path / "x.npy", line="plants")
    command = [sys.executable, "-m", "sojourn.cli", "agent", "predict", "plants", "x.npy", "--store", str(shop.store)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"NO_COLOR": "1"})
    assert done.returncode == 2
    assert done.stderr.startswith("error: no release of 'plants' found in")


def test_files_are_read_with_the_agent_settings(shop: Shop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    data = 'path = "train.csv"\nscale = "0..10 to 0..1"\nignore = ["id", "absent"]\nlabel = "state"'
    (tmp_path / "agent.toml").write_text(f'name = "pi"\nstore = "{shop.store}"\n[data]\n{data}\n')
    (tmp_path / "other.toml").write_text(
        'name = "pi"\nstore = "elsewhere"\n[data]\npath = "train.csv"\nscale = "0..5 to 0..1"\n'
    )
    (tmp_path / "rows.csv").write_text("id,a,b,c,state\nx7,0,10,0,ok\n")
    (tmp_path / "plain.csv").write_text("a,b,c\n0,1,0\n")
    assert rows(shop, tmp_path / "rows.csv") == [DOG]
    assert rows(shop, tmp_path / "plain.csv", "--scale", "0..1 to 0..1") == [DOG]
    done = CliRunner().invoke(app, ["predict", LINE, "rows.csv", "--settings", "agent.toml", "--json"])
    assert (done.exit_code, "files are read with the settings of [data] in agent.toml" in done.stderr) == (0, True)
    (tmp_path / "agent.toml").rename(tmp_path / "mine.toml")
    assert rows(shop, tmp_path / "plain.csv") == [DOG]
    assert rows(shop, tmp_path / "rows.csv", "--settings", "mine.toml") == [DOG]
    (tmp_path / "other.toml").rename(tmp_path / "agent.toml")
    assert rows(shop, tmp_path / "plain.csv") == [DOG]  # the settings belong to an agent with another store

"""README is followed literally: from a clone to a custom model, trained on custom images over a broker."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import onnxruntime
import pytest
from PIL import Image

from sojourn.data.source import DataSettings, describe
from tests.docs.pages import ROOT, blocks, section
from tests.docs.walk import BACK, FIRST, README, commands

PETS = {"cat": (200, 60, 40), "dog": (40, 70, 200)}
IMAGES = {"pi-1": 30, "pi-2": 24, "test": 25}
UNSHARED: tuple[list[str], ...] = (["unshare", "--net"], ["unshare", "--user", "--map-root-user", "--net"], [])
"""Ways to get a network in which the page's port and address are free; the last one is the machine's own network."""


@pytest.fixture(scope="module")
def clone():
    """Return a folder like a clone, with images; its path is short, since it contains sockets."""
    folder = Path(tempfile.mkdtemp(prefix="hour-"))
    random = np.random.default_rng(0)
    for owner, count in IMAGES.items():
        for pet, colour in PETS.items():
            place = folder / "photos" / owner / pet
            place.mkdir(parents=True)
            for number in range(1, count + 1):
                size = (*random.integers(30, 60, 2), 3)
                pixels = np.clip(np.array(colour) + random.normal(0, 60, size), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(place / f"{number}.jpg")
    yield folder
    shutil.rmtree(folder)


def a_network() -> list[str]:
    allowed = [way for way in UNSHARED if not way or subprocess.run([*way, "true"], check=False).returncode == 0]
    return allowed[0]


@pytest.mark.timeout(900)
def test_readme_leads_from_a_clone_to_a_custom_model(clone: Path) -> None:
    command = [*a_network(), sys.executable, "-m", "tests.docs.walk", str(clone)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    steps = json.loads(done.stdout)
    failed = [each for each in steps if each["code"] not in (0, None)]
    assert (done.returncode, failed) == (0, []), done.stderr
    output = {each["command"]: each["output"] for each in steps}
    assert "60 samples" in output["sojourn agent preflight --name pi-1 --data photos/pi-1 --job job.toml"]
    assert "job pets: done, 5 rounds are done" in output["sojourn job submit job.toml --watch"]
    assert "pets 1 is done; 2 serving" in next(text for typed, text in output.items() if "release rollout" in typed)
    assert "cat" in output["sojourn agent predict pets photos/test/cat/1.jpg --name pi-1"].split("\n")[1].split()[1]
    session = onnxruntime.InferenceSession(clone / "pets.onnx")
    assert session.get_inputs()[0].shape[1:] == [3, 32, 32]
    assert all(len(line) <= 80 for line in output["sojourn job submit job.toml --watch"].splitlines() if "│" in line)


def test_first_hour_takes_twelve_commands_and_two_files() -> None:
    before = [line for block in blocks(section(README, "## Try it")) for line in block.commands]
    assert before == ["git clone <this repository> sojourn && cd sojourn", "make demo"]
    assert len(before) + len(commands(FIRST)) <= 12
    assert [block.language for block in blocks(section(README, FIRST)) if block.language] == ["python", "toml"]


def test_commands_are_read_from_the_page() -> None:
    assert commands(FIRST)[-1] == "sojourn job export pets -o pets.onnx"
    assert commands(BACK)[0] == "sojourn release key release.key"


def test_sample_images_can_be_created(tmp_path: Path) -> None:
    (block,) = blocks(section(README, "### Create sample images"))
    subprocess.run(["bash", "-c", block.text.replace("python ", f"{sys.executable} ", 1)], cwd=tmp_path, check=True)
    for owner in ("pi-1", "pi-2", "test"):
        found = describe(DataSettings(path=str(tmp_path / "photos" / owner)))
        assert found == f"images {owner}"
        for digit in ("three", "eight"):
            assert len(list((tmp_path / "photos" / owner / digit).glob("*.png"))) > 40

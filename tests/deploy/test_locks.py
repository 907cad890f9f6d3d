"""The files with hashes contain all that is needed, for every machine and Python, and pip accepts nothing else."""

from __future__ import annotations

import hashlib
import re
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from deploy.lock_file import INSTALLS, MACHINES, PYTHONS, Install, Pin, fits, read_lock, supported, write_lock
from deploy.make_lock import cpu_builds
from deploy.needed import constraints, needed

GLIBC = 28
"""The glibc version in docs/systems.md: 2.28."""


@pytest.mark.parametrize("kind", INSTALLS)
def test_lock_files_pin_required_packages_at_tested_versions(kind: str) -> None:
    pins = read_lock(INSTALLS[kind].file)
    assert {pin.name: pin.version for pin in pins} == needed(kind)
    tested = constraints()
    assert {pin.name for pin in pins if tested.get(pin.name) != pin.version} <= {"setuptools"}
    assert write_lock(INSTALLS[kind], pins) == INSTALLS[kind].file.read_text()


@pytest.mark.parametrize("kind", INSTALLS)
def test_every_package_has_a_wheel_for_every_platform(kind: str) -> None:
    pins = read_lock(INSTALLS[kind].file)
    for python in PYTHONS:
        for machine in MACHINES:
            tags = supported(python, machine, GLIBC)
            lacking = [pin.name for pin in pins if not any(fits(wheel, tags) for wheel in pin.wheels)]
            assert (python, machine, lacking) == (python, machine, [])
    assert all(re.fullmatch(r"[0-9a-f]{64}", hash_) for pin in pins for hash_ in pin.wheels.values())


def test_device_lock_is_a_subset_without_torch_or_builders() -> None:
    device, cloud = ({pin.name: pin for pin in read_lock(INSTALLS[kind].file)} for kind in ("device", "cloud"))
    assert device.items() <= cloud.items()
    assert not {"torch", "onnx", "scikit-learn", "setuptools", "pip"} & set(device)
    assert cloud["torch"].wheels == cpu_builds("torch")
    assert cloud["torchvision"].wheels.items() > cpu_builds("torchvision").items()
    assert all("+cpu" in wheel for wheel in cloud["torch"].wheels)
    assert not [name for name in cloud if name.startswith(("nvidia", "cuda", "triton"))]


def make_wheel(folder: Path, content: str) -> Path:
    """Make the smallest package that pip installs."""
    path = folder / "trifle-1.0-py3-none-any.whl"
    about = "trifle-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as wheel:
        wheel.writestr("trifle.py", content)
        wheel.writestr(f"{about}/METADATA", "Metadata-Version: 2.1\nName: trifle\nVersion: 1.0\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")
    return path


def test_pip_accepts_only_the_wheel_with_the_locked_hash(tmp_path: Path) -> None:
    wheel = make_wheel(tmp_path, "")
    install = Install(tmp_path / "requirements.txt", "a trial")
    hashes = {"trifle-1.0-py2-none-any.whl": "0" * 64, wheel.name: hashlib.sha256(wheel.read_bytes()).hexdigest()}
    install.file.write_text(write_lock(install, [Pin("trifle", "1.0", hashes)]))
    assert read_lock(install.file) == [Pin("trifle", "1.0", hashes)]

    def pip(target: str) -> subprocess.CompletedProcess[str]:
        words = ["--isolated", "--no-index", "--find-links", str(tmp_path), "--target", str(tmp_path / target)]
        checked = ["--require-hashes", "--no-deps", "--only-binary", ":all:", "-r", str(install.file)]
        command = [sys.executable, "-m", "pip", "install", *words, *checked]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert pip("first").returncode == 0
    assert (tmp_path / "first" / "trifle.py").exists()
    make_wheel(tmp_path, "import harm")
    done = pip("second")
    assert done.returncode == 1
    assert "DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "second").exists()

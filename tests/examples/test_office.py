"""The example of photographs by domain: simulated and over Mosquitto, on the stand-in."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from examples.office.__main__ import main
from examples.office.photographs import photographs
from fleet_sim.datasets import FOLDER, load

SMALL = ("--rounds", "1", "--devices", "4")


def test_simulated_and_live_runs_yield_the_same_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "nothing"))
    main([*SMALL, "--output", str(tmp_path / "simulated")])
    simulated = capsys.readouterr().out
    main([*SMALL, "--live", "--output", str(tmp_path / "live")])
    live = capsys.readouterr().out
    results = [re.findall(r"accuracy \S+ % loss \S+ visits 4 failed 0", text) for text in (simulated, live)]
    assert len(results[0]) == 1
    assert results[0] == results[1]
    for text in (simulated, live):
        assert text.startswith("Data: a stand-in made of digits")
        numbers = re.findall(r"carries ([\d,]+) bytes .* has ([\d,]+), of which ([\d,]+) are frozen", text)[0]
        head, whole, frozen = (int(each.replace(",", "")) for each in numbers)
        assert head + frozen == whole
        assert re.search(r"seconds of the processor: first epoch \d+\.\d\d, later ones \d+\.\d\d\.", text)
    models = [(tmp_path / way / "model.onnx").read_bytes() for way in ("simulated", "live")]
    assert models[0] == models[1]


def test_stand_in_data_has_four_domains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(FOLDER, str(tmp_path / "nothing"))
    path, described = photographs(tmp_path)
    assert "not on this machine" in described
    found = load(str(path))
    assert found.x_train.shape[1:] == (3, 32, 32)
    assert found.domains is not None
    assert sorted(set(found.domains)) == [0, 1, 2, 3]
    plain, inverted, _, coloured = (found.x_train[found.domains == domain].mean(axis=(0, 2, 3)) for domain in range(4))
    assert inverted.mean() > plain.mean()
    assert coloured[0] > coloured[1] > coloured[2]


def test_real_data_set_is_used_if_present(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    draw = np.random.default_rng(1)
    x, y = draw.integers(0, 256, (40, 64, 64, 3), np.uint8), np.arange(40) % 10
    np.savez(tmp_path / "office_caltech10_64.npz", x_train=x, y_train=y, x_test=x, y_test=y, d_train=y % 4)
    monkeypatch.setenv(FOLDER, str(tmp_path))
    path, described = photographs(tmp_path)
    assert described.startswith("Office-Caltech-10")
    assert load(str(path)).x_train.shape == (40, 3, 64, 64)

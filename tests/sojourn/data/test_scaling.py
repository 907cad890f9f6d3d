"""Scaling of values by data.scale."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from sojourn.data.samples import SampleForm
from sojourn.data.source import DataSettings, Scaling, load_data, parse_scaling, scaled
from sojourn.errors import ConfigError
from sojourn.protocol.spec import InputSpec
from sojourn.settings import validated

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("0..255 to 0..1", Scaling(0, 255, 0, 1)),
        (" -1.5 .. 1.5  to  0 .. 16 ", Scaling(-1.5, 1.5, 0, 16)),
        ("1e-3..1e3 to .5..-2", Scaling(0.001, 1000, 0.5, -2)),
        ("0.0..1.0 to 0.0..16.0", Scaling(0, 1, 0, 16)),
    ],
)
def test_valid_scales_are_parsed(text: str, meant: Scaling) -> None:
    assert parse_scaling(text) == meant


@pytest.mark.parametrize("text", ["", "255", "0..1", "1..1 to 0..2", "0..1 to 3..3", "0-1 to 0-16", "nan..1 to 0..1"])
def test_invalid_scales_are_rejected_with_an_example(text: str) -> None:
    with pytest.raises(ConfigError, match=r'such as "0\.\.255 to 0\.\.1"'):
        validated({"path": "x", "scale": text}, DataSettings, "agent.toml")


def test_scaling_maps_ends_exactly_and_the_rest_linearly() -> None:
    x = np.array([[0, 51, 255]], np.uint8)
    assert scaled(x, parse_scaling("0..255 to 0..1")).tolist() == [[0.0, np.float32(0.2), 1.0]]
    assert scaled(x, parse_scaling("0..255 to -1..1"))[0, 2] == 1.0
    assert scaled(np.array([2.0]), parse_scaling("0..1 to 0..16")).tolist() == [32.0]


def test_device_trains_on_scaled_values(tmp_path: Path) -> None:
    np.savez(tmp_path / "data.npz", x=np.array([[0.0, 1.0], [0.5, 0.25]]), y=np.array([0, 1]))
    form = SampleForm(InputSpec((2,)), ("0", "1"))
    settings = DataSettings(path=str(tmp_path / "data.npz"), scale="0..1 to 0..16")
    assert load_data(settings, form).x.tolist() == [[0, 16], [8, 4]]

"""Reading NPZ files, and the errors for unreadable ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from sojourn.data.npz import array_of, names_of, open_npz
from sojourn.errors import DataError

X, Y = np.arange(6, dtype=np.float32).reshape(3, 2), np.array([0, 1, 0])


def npz(folder: Path, **arrays: Any) -> Path:
    path = folder / "data.npz"
    np.savez(path, **arrays)
    return path


def test_arrays_are_read_by_name(tmp_path: Path) -> None:
    path = npz(tmp_path, x=X, y=Y)
    for way in (path, str(path)):
        with open_npz(way) as file:
            assert list(file) == ["x", "y"]
            assert array_of(way, file, "x").tolist() == X.tolist()
            assert array_of(way, file, "y").tolist() == [0, 1, 0]


def test_missing_array_error_lists_available_arrays_and_advice(tmp_path: Path) -> None:
    path = npz(tmp_path, pixels=X, y=Y)
    with pytest.raises(DataError) as caught, open_npz(path) as file:
        array_of(path, file, "x")
    assert (
        str(caught.value) == f"{path} has no array 'x' (found: pixels, y); an NPZ file with arrays x and y is required"
    )
    with pytest.raises(DataError, match=r".found: pixels, y.; call it x$"), open_npz(path) as file:
        array_of(path, file, "x", "call it x")


def test_empty_npz_is_reported_as_having_no_arrays(tmp_path: Path) -> None:
    path = npz(tmp_path)
    with open_npz(path) as file:
        assert names_of(file) == "none"
        with pytest.raises(DataError, match=r"has no array 'x' .found: none."):
            array_of(path, file, "x")


def test_missing_file_error_names_this_machine(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    with pytest.raises(DataError) as caught, open_npz(path):
        pass
    assert str(caught.value) == f"{path} does not exist on this machine"


def test_single_array_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    with path.open("wb") as file:
        np.save(file, X)
    with pytest.raises(DataError) as caught, open_npz(path):
        pass
    assert str(caught.value) == f"{path} is a single array; an NPZ file with arrays x and y is required"


@pytest.mark.parametrize("content", [b"", b"no zip at all", b"PK\x03\x04 cut off"])
def test_file_of_another_format_is_rejected(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"data\.npz cannot be read as NPZ: \S"), open_npz(path):
        pass


def test_damage_found_while_reading_an_array_names_the_file(tmp_path: Path) -> None:
    path = npz(tmp_path, x=np.zeros((300, 4)), y=Y)
    data = bytearray(path.read_bytes())
    data[400:420] = b"\xff" * 20
    path.write_bytes(data)
    with open_npz(path) as file:
        assert array_of(path, file, "y").tolist() == [0, 1, 0]
    with pytest.raises(DataError, match=r"data\.npz cannot be read as NPZ: Bad CRC-32"), open_npz(path) as file:
        array_of(path, file, "x")


def test_pickled_array_is_never_loaded(tmp_path: Path) -> None:
    path = npz(tmp_path, x=X, y=np.array([{}] * 3))
    with pytest.raises(DataError, match="cannot be read as NPZ: Object arrays"), open_npz(path) as file:
        array_of(path, file, "y")


def test_error_without_message_is_reported_by_its_type(tmp_path: Path) -> None:
    path = npz(tmp_path, x=X, y=Y)
    with pytest.raises(DataError, match=r"cannot be read as NPZ: EOFError$"), open_npz(path):
        raise EOFError


def test_data_error_passes_through_unchanged(tmp_path: Path) -> None:
    path = npz(tmp_path, x=X, y=Y)
    with pytest.raises(DataError, match=r"^labels are wrong$"), open_npz(path):
        raise DataError("labels are wrong")

"""NPZ files: one way to open them, and what is said of those that cannot be."""

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


def test_arrays_are_read_by_their_names(tmp_path: Path) -> None:
    path = npz(tmp_path, x=X, y=Y)
    for way in (path, str(path)):
        with open_npz(way) as file:
            assert list(file) == ["x", "y"]
            assert array_of(way, file, "x").tolist() == X.tolist()
            assert array_of(way, file, "y").tolist() == [0, 1, 0]


def test_an_array_that_is_not_there_is_named_with_those_that_are_and_what_to_do(tmp_path: Path) -> None:
    path = npz(tmp_path, pixels=X, y=Y)
    with pytest.raises(DataError) as caught, open_npz(path) as file:
        array_of(path, file, "x")
    assert str(caught.value) == f"{path} has no array 'x', only pixels, y; an NPZ with arrays x and y is needed"
    with pytest.raises(DataError, match=r"only pixels, y; call it x$"), open_npz(path) as file:
        array_of(path, file, "x", "call it x")


def test_a_file_without_arrays_is_said_to_have_none(tmp_path: Path) -> None:
    path = npz(tmp_path)
    with open_npz(path) as file:
        assert names_of(file) == "none at all"
        with pytest.raises(DataError, match="has no array 'x', only none at all"):
            array_of(path, file, "x")


def test_a_file_that_is_missing_is_said_to_be_missing_here(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    with pytest.raises(DataError) as caught, open_npz(path):
        pass
    assert str(caught.value) == f"{path}: there is no such file on this machine"


def test_a_single_array_is_not_enough(tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    with path.open("wb") as file:
        np.save(file, X)
    with pytest.raises(DataError) as caught, open_npz(path):
        pass
    assert str(caught.value) == f"{path} is a single array; an NPZ with arrays x and y is needed"


@pytest.mark.parametrize("content", [b"", b"no zip at all", b"PK\x03\x04 cut off"])
def test_a_file_of_another_kind_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "data.npz"
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"data\.npz cannot be read as NPZ: \S"), open_npz(path):
        pass


def test_damage_that_shows_only_when_an_array_is_read_is_said_of_the_file(tmp_path: Path) -> None:
    path = npz(tmp_path, x=np.zeros((300, 4)), y=Y)
    data = bytearray(path.read_bytes())
    data[400:420] = b"\xff" * 20
    path.write_bytes(data)
    with open_npz(path) as file:
        assert array_of(path, file, "y").tolist() == [0, 1, 0]
    with pytest.raises(DataError, match=r"data\.npz cannot be read as NPZ: Bad CRC-32"), open_npz(path) as file:
        array_of(path, file, "x")


def test_what_only_pickle_can_read_is_never_loaded(tmp_path: Path) -> None:
    path = npz(tmp_path, x=X, y=np.array([{}] * 3))
    with pytest.raises(DataError, match="cannot be read as NPZ: Object arrays"), open_npz(path) as file:
        array_of(path, file, "y")


def test_an_error_without_words_is_told_by_its_kind(tmp_path: Path) -> None:
    path = npz(tmp_path, x=X, y=Y)
    with pytest.raises(DataError, match=r"cannot be read as NPZ: EOFError$"), open_npz(path):
        raise EOFError


def test_errors_that_name_the_fault_themselves_pass_through(tmp_path: Path) -> None:
    path = npz(tmp_path, x=X, y=Y)
    with pytest.raises(DataError, match=r"^labels are wrong$"), open_npz(path):
        raise DataError("labels are wrong")

"""Files with weights: what is read, and what of a stranger's is refused before it does harm."""

from __future__ import annotations

import json
import os
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from coordinator.models.weights_file import LARGEST, read_weights
from sojourn.errors import ModelError

WEIGHT, BIAS = torch.arange(6.0).reshape(2, 3), torch.tensor([0.5, -0.5])


def packed(header: Any, data: bytes, length: int | None = None) -> bytes:
    """A safetensors file of these parts, which may lie."""
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if length is None else length).to_bytes(8, "little") + text + data


def entry(shape: list[int], begin: int, end: int, dtype: str = "F32") -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": [begin, end]}


HEADER = {"__metadata__": {"format": "pt"}, "fc.weight": entry([2, 3], 0, 24), "fc.bias": entry([2], 24, 32)}
DATA = WEIGHT.numpy().tobytes() + BIAS.numpy().tobytes()


def test_safetensors_are_read(tmp_path: Path) -> None:
    path = tmp_path / "it.safetensors"
    path.write_bytes(packed(HEADER, DATA))
    found = read_weights(str(path))
    assert found.source == "it.safetensors"
    assert found.tensors.keys() == {"fc.weight", "fc.bias"}
    assert torch.equal(found.tensors["fc.weight"], WEIGHT)
    assert torch.equal(found.tensors["fc.bias"], BIAS)


def test_half_precision_and_empty_tensors_are_read(tmp_path: Path) -> None:
    path = tmp_path / "it.safetensors"
    half = WEIGHT.to(torch.bfloat16)
    header = {"a": entry([2, 3], 0, 12, "BF16"), "none": entry([0, 3], 12, 12), "n": entry([], 12, 20, "I64")}
    path.write_bytes(packed(header, half.view(torch.int16).numpy().tobytes() + (7).to_bytes(8, "little")))
    found = read_weights(str(path)).tensors
    assert torch.equal(found["a"], half)
    assert found["none"].shape == (0, 3)
    assert found["n"].item() == 7


HUGE = 1 << 47


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "no safetensors file, or cut off"),
        (packed(HEADER, DATA)[:5], "cut off"),
        (packed(HEADER, DATA)[:60], "cut off"),
        (packed(HEADER, DATA)[:-1], "cut off or damaged"),
        (packed(HEADER, DATA + b"x"), "cut off or damaged"),
        (packed(HEADER, DATA, length=1 << 63), "its header would have 9,223,372,036,854,775,808 bytes"),
        (packed(HEADER, DATA, length=0), "its header would have 0 bytes"),
        (packed(b"{" * 100, b""), "header cannot be read"),
        (packed(b'{"a": ' + 100_000 * b"[" + 100_000 * b"]" + b"}", b""), "header cannot be read"),
        (packed(b"\xff\xfe{}", b""), "header cannot be read"),
        (packed([1, 2], b""), "header cannot be read"),
        (packed({}, b""), "it has 0 tensors"),
        (packed({"a": {"dtype": "F32"}}, b""), "header cannot be read"),
        (packed({"a": entry([1], 0, 4, "Q4")}, b"1234"), "is of type 'Q4'"),
        (packed({"a": entry([-1, -1], 0, 4)}, b"1234"), "header cannot be read"),
        (packed({"a": entry([2], 0, 4)}, b"1234"), "needs 8 bytes, and its place is from 0 to 4"),
        (packed({"a": entry([HUGE, HUGE], 0, 4)}, b"1234"), "the file is damaged"),
        (packed({"a": entry([1], -4, 0)}, b"1234"), "header cannot be read"),
        (packed({"a": entry([HUGE // 4], 0, HUGE)}, b"1234"), "cut off or damaged"),
        (packed({"a": entry([1], 4, 8)}, b"12345678"), "begins at byte 4 instead of 0"),
        (packed({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}, b"1234"), "begins at byte 0 instead of 4"),
        (packed({"a": entry([1], 8, 4)}, b"1234"), "the file is damaged"),
        (packed({"a": entry([1] * 17, 0, 4)}, b"1234"), "header cannot be read"),
    ],
)
def test_a_safetensors_file_that_lies_is_refused(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "it.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=words):
        read_weights(str(path))


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_a_state_dict_is_read(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "it.pth"
    torch.save(OrderedDict(weight=WEIGHT, bias=BIAS), path, _use_new_zipfile_serialization=zipped)
    found = read_weights(str(path)).tensors
    assert torch.equal(found["weight"], WEIGHT)
    assert torch.equal(found["bias"], BIAS)


class Bomb:
    """Unpickled by pickle itself, it makes a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_code_in_a_state_dict_is_never_run(tmp_path: Path, zipped: bool) -> None:
    path, mark = tmp_path / "it.pth", tmp_path / "mark"
    torch.save({"weight": WEIGHT, "bias": Bomb(mark)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ModelError, match=r"it holds posix\.mkdir, which is code or an object, and only weights are"):
        read_weights(str(path))
    assert not mark.exists()
    torch.load(path, weights_only=False)
    assert mark.exists()  # it would have gone off


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"epoch": 3, "state_dict": {"weight": WEIGHT}}, "'epoch' is a int and no tensor"),
        ([WEIGHT], "it holds a list and no state dict"),
        ({}, "it holds a dict and no state dict"),
        ({"weight": WEIGHT.to_sparse()}, "'weight' is sparse"),
        ({1: WEIGHT}, "no state dict"),
    ],
)
def test_what_is_no_state_dict_is_said_so(tmp_path: Path, value: Any, words: str) -> None:
    path = tmp_path / "it.pt"
    torch.save(value, path)
    with pytest.raises(ModelError, match=words):
        read_weights(str(path))


def test_a_whole_module_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "it.pt"
    torch.save(torch.nn.Linear(2, 3), path)
    with pytest.raises(ModelError, match=r"torch\.nn\.modules\.linear\.Linear, which is code or an object"):
        read_weights(str(path))


def test_a_file_that_would_grow_is_refused(tmp_path: Path) -> None:
    plain, path = tmp_path / "plain.pt", tmp_path / "it.pt"
    torch.save({"weight": torch.zeros(1_000_000)}, plain)
    with zipfile.ZipFile(plain) as before, zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as after:
        for part in before.infolist():
            after.writestr(part.filename, before.read(part.filename))
    assert path.stat().st_size < 100_000
    with pytest.raises(ModelError, match="its parts are compressed"):
        read_weights(str(path))


@pytest.mark.parametrize("share", [0.0, 0.1, 0.5, 0.9, 0.999])
@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_a_state_dict_that_is_cut_off_is_refused(tmp_path: Path, share: float, zipped: bool) -> None:
    path = tmp_path / "it.pth"
    torch.save({"weight": torch.zeros(1000)}, path, _use_new_zipfile_serialization=zipped)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(ModelError, match=r"no file that torch saved, or a damaged one|something else than tensors"):
        read_weights(str(path))


def test_a_file_that_is_missing_or_too_large_is_said_so(tmp_path: Path) -> None:
    path = tmp_path / "it.safetensors"
    with pytest.raises(ModelError, match=r"there is no file .* on the coordinator's machine"):
        read_weights(str(path))
    with path.open("wb") as file:
        file.truncate(LARGEST + 1)  # a hole: it takes no room
    with pytest.raises(ModelError, match="bytes, and 2,147,483,648 are read at most"):
        read_weights(str(path))


def test_an_onnx_file_from_elsewhere_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "it.onnx"
    path.write_bytes(b"something else")
    with pytest.raises(ModelError, match="no ONNX file, or a damaged one"):
        read_weights(str(path))
    path.write_bytes(b"")
    with pytest.raises(ModelError, match="does not say how torch calls its tensors"):
        read_weights(str(path))

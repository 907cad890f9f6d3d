"""Tests of weight files: valid ones are read, and malicious ones are refused before they do harm."""

from __future__ import annotations

import json
import os
import zipfile
from collections import OrderedDict
from pathlib import Path
from typing import Any

import pytest
import torch

from coordinator.models.weights_file import MAX_BYTES, MAX_HEADER, read_weights
from sojourn.errors import ModelError

WEIGHT, BIAS = torch.arange(6.0).reshape(2, 3), torch.tensor([0.5, -0.5])


def packed(header: Any, data: bytes, length: int | None = None) -> bytes:
    """Write a safetensors file of these parts, which may be false."""
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
        (b"", "header too small"),
        (packed(HEADER, DATA)[:5], "header too small"),
        (packed(HEADER, DATA)[:60], "invalid header length"),
        (packed(HEADER, DATA)[:-1], "file not fully covered"),
        (packed(HEADER, DATA + b"x"), "file not fully covered"),
        (packed(HEADER, DATA, length=1 << 63), "its header would have 9,223,372,036,854,775,808 bytes"),
        (packed(HEADER, DATA, length=MAX_HEADER + 1), "its header would have 16,777,217 bytes"),
        (packed(HEADER, DATA, length=0), "invalid JSON in header"),
        (packed(b"{" * 100, b""), "invalid JSON in header"),
        (packed(b'{"a": ' + 100_000 * b"[" + 100_000 * b"]" + b"}", b""), "recursion limit exceeded"),
        (packed(b"\xff\xfe{}", b""), "invalid UTF-8 in header"),
        (packed([1, 2], b""), "invalid JSON in header"),
        (packed({}, b""), "it has 0 tensors"),
        (packed({str(at): entry([0], 0, 0) for at in range(65_537)}, b""), "it has 65537 tensors, and 1 to 65536"),
        (packed({"a": {"dtype": "F32"}}, b""), "missing field `shape`"),
        (packed({"a": entry([1], 0, 4, "Q4")}, b"1234"), "unknown variant `Q4`"),
        (packed({"a": entry([4], 0, 4, "F8_E4M3")}, b"1234"), "'a' is of type F8_E4M3; accepted types are F64, F32"),
        (packed({"\x1b[1m": entry([1], 0, 8, "U64")}, DATA[:8]), r"'\\x1b\[1m' is of type U64"),
        (packed({"a": entry([-1, -1], 0, 4)}, b"1234"), "integer `-1`"),
        (packed({"a": entry([2], 0, 4)}, b"1234"), "invalid shape, data type, or offset"),
        (packed({"a": entry([HUGE, HUGE], 0, 4)}, b"1234"), "overflow"),
        (packed({"a": entry([1], -4, 0)}, b"1234"), "integer `-4`"),
        (packed({"a": entry([HUGE // 4], 0, HUGE)}, b"1234"), "file not fully covered"),
        (packed({"a": entry([1], 4, 8)}, b"12345678"), "invalid offset for tensor `a`"),
        (packed({"a": entry([1], 0, 4), "b": entry([1], 0, 4)}, b"1234"), "invalid offset for tensor"),
        (packed({"a": entry([1], 8, 4)}, b"1234"), "invalid offset for tensor `a`"),
        (packed({"a": entry([1] * 17, 0, 4)}, b"1234"), "'a' has 17 axes, and the maximum is 16"),
    ],
)
def test_invalid_safetensors_file_is_rejected(tmp_path: Path, content: bytes, words: str) -> None:
    path = tmp_path / "it.safetensors"
    path.write_bytes(content)
    with pytest.raises(ModelError, match=words):
        read_weights(str(path))


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_state_dict_is_read(tmp_path: Path, zipped: bool) -> None:
    path = tmp_path / "it.pth"
    torch.save(OrderedDict(weight=WEIGHT, bias=BIAS), path, _use_new_zipfile_serialization=zipped)
    found = read_weights(str(path)).tensors
    assert torch.equal(found["weight"], WEIGHT)
    assert torch.equal(found["bias"], BIAS)


class Bomb:
    """If pickle loads it, it makes a folder."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self._path),)


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_code_in_a_state_dict_never_runs(tmp_path: Path, zipped: bool) -> None:
    path, mark = tmp_path / "it.pth", tmp_path / "mark"
    torch.save({"weight": WEIGHT, "bias": Bomb(mark)}, path, _use_new_zipfile_serialization=zipped)
    with pytest.raises(ModelError, match=r"it contains posix\.mkdir, which is code or an object, and only weights are"):
        read_weights(str(path))
    assert not mark.exists()
    torch.load(path, weights_only=False)
    assert mark.exists()  # pickle itself would have run it


@pytest.mark.parametrize(
    ("value", "words"),
    [
        ({"epoch": 3, "state_dict": {"weight": WEIGHT}}, "'epoch' is a int"),
        ([WEIGHT], "it contains a list instead of a state dict"),
        ({}, "it contains a dict instead of a state dict"),
        ({"weight": WEIGHT.to_sparse()}, "'weight' is sparse"),
        ({1: WEIGHT}, "not a state dict"),
    ],
)
def test_non_state_dict_reports_reason(tmp_path: Path, value: Any, words: str) -> None:
    path = tmp_path / "it.pt"
    torch.save(value, path)
    with pytest.raises(ModelError, match=words):
        read_weights(str(path))


def test_whole_module_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "it.pt"
    torch.save(torch.nn.Linear(2, 3), path)
    with pytest.raises(ModelError, match=r"torch\.nn\.modules\.linear\.Linear, which is code or an object"):
        read_weights(str(path))


def test_compressed_file_is_rejected(tmp_path: Path) -> None:
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
def test_truncated_state_dict_is_rejected(tmp_path: Path, share: float, zipped: bool) -> None:
    path = tmp_path / "it.pth"
    torch.save({"weight": torch.zeros(1000)}, path, _use_new_zipfile_serialization=zipped)
    path.write_bytes(path.read_bytes()[: int(share * path.stat().st_size)])
    with pytest.raises(ModelError, match=r"not a file that torch saved, or a damaged one|something other than tensors"):
        read_weights(str(path))


def test_missing_or_oversized_file_reports_reason(tmp_path: Path) -> None:
    path = tmp_path / "it.safetensors"
    with pytest.raises(ModelError, match=r"the coordinator's machine has no file"):
        read_weights(str(path))
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)  # a sparse file that takes no space
    with pytest.raises(ModelError, match="bytes, and the maximum is 2,147,483,648"):
        read_weights(str(path))


def test_foreign_onnx_file_is_rejected(tmp_path: Path) -> None:
    path = tmp_path / "it.onnx"
    path.write_bytes(b"something else")
    with pytest.raises(ModelError, match="not an ONNX file, or a damaged one"):
        read_weights(str(path))
    path.write_bytes(b"")
    with pytest.raises(ModelError, match="does not contain torch's tensor names"):
        read_weights(str(path))

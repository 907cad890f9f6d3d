"""The simulation's page: its example for notebooks runs as shown."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import onnxruntime
import pytest

PAGE = Path("docs/simulation.md")


def test_notebook_example_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(example, names)
    result, printed = names["result"], capsys.readouterr()
    assert printed.out.splitlines()[0] == "simulations/simulation"
    assert [line.split()[0] for line in printed.out.splitlines()[2:]] == ["1", "2"]
    assert printed.err == ""
    assert result.rounds[-1]["accuracy"] == result.accuracy
    assert all(isinstance(each["bytes"], int) for each in result.rounds)
    assert len(names["plot"].axes) == 3
    assert names["model"] == Path("fleet.onnx")
    assert names["model"].read_bytes() == result.model.read_bytes()
    assert onnxruntime.InferenceSession(result.model).get_inputs()[0].shape[1:] == [1, 8, 8]
    assert "accuracy at the end" in result._repr_html_()
    assert result.rounds._repr_html_().count("<tr>") == 3

"""Arranging devices loads no heavy library until a part needs one."""

from __future__ import annotations

import subprocess
import sys


def test_arranging_imports_no_heavy_library() -> None:
    code = (
        "import sys, hierarchy.arranging.arrangement, hierarchy.arranging.rows;"
        "print({'torch', 'onnx', 'sklearn', 'scipy', 'ortools'} & set(sys.modules))"
    )
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "set()\n"

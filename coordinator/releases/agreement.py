"""Whether a graph answers as it should: as torch does, or else as it did before; and how far int8 is from float32."""

from __future__ import annotations

from importlib.metadata import version
from typing import TYPE_CHECKING

import numpy as np
import onnxruntime

from sojourn.errors import ModelError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.model.answers import Answer
    from sojourn.model.predictor import Predictor
    from sojourn.protocol.task import TaskSpec

TOLERANCE = 1e-3
"""Of the largest answer. Two float32 engines that sum in different orders come to 1e-6 in a layer and 1e-5 in a deep
model; a weight that is not the trained one shows by its own size."""


def agreement(here: Answer, by_torch: Answer, what: str = "logits") -> str:
    """What was compared, in words; ModelError where that is not the same model."""
    import torch  # noqa: PLC0415  # only where there is a model in torch to compare with

    words = [_compared(what, here.outputs, by_torch.outputs)]
    if here.scores is not None and by_torch.scores is not None:
        words.append(_compared("scores", here.scores, by_torch.scores))
    return (
        f"onnx {version('onnx')} checker; onnxruntime {onnxruntime.__version__} against torch {torch.__version__} on "
        f"{len(here.outputs)} rows: {'; '.join(words)}"
    )


def steadiness(predictor: Predictor, rows: NDArray[np.generic], here: Answer) -> str:
    """The same in words where there is no torch to compare with."""
    if not np.isfinite(here.outputs).all() or not np.array_equal(predictor.answer(rows).outputs, here.outputs):
        raise ModelError(f"the graph does not give the same finite logits for {len(rows)} rows when it is loaded again")
    return (
        f"onnx {version('onnx')} checker; onnxruntime {onnxruntime.__version__} gives the same logits for {len(rows)} "
        "rows when it is loaded again; there was nothing else to compare with"
    )


def distance(task: TaskSpec, plain: Answer, int8: Answer) -> str:
    """How far int8 is from float32, in words."""
    apart = float(np.abs(plain.outputs - int8.outputs).max())
    if task.kind != "classification":
        return f"int8 against float32 on them: answers differ by at most {apart:.2g}"
    same = int((plain.outputs.argmax(axis=1) == int8.outputs.argmax(axis=1)).sum())
    return (
        f"int8 against float32 on them: logits differ by at most {apart:.2g}, "
        f"the class is the same for {same} of {len(plain.outputs)}"
    )


def _compared(what: str, here: NDArray[np.float32], by_torch: NDArray[np.float32]) -> str:
    if here.shape != by_torch.shape:
        raise ModelError(f"the graph gives {what} of shape {here.shape}, torch {by_torch.shape}")
    scale, apart = float(np.abs(by_torch).max()), float(np.abs(here - by_torch).max())
    if not apart <= TOLERANCE * scale:  # a NaN is no agreement either
        raise ModelError(
            f"the graph and torch disagree on {len(here)} rows: {what} are off by {apart:.3g}, where the largest is "
            f"{scale:.3g} (allowed: {TOLERANCE:g} of it). If the model's code has changed since the job was compiled, "
            "bring the old code back"
        )
    return f"{what} differ by at most {apart:.2g}, the largest is {scale:.3g}"

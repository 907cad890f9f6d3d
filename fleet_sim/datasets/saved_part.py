"""The test part of a data set as an NPZ file has it, so that a coordinator reads the same samples from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from sojourn.data.column_names import FEATURE_NAMES

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fleet_sim.datasets.data_set import DataSet


def as_arrays(data: DataSet) -> dict[str, NDArray[np.generic]]:
    """The arrays of the file, by name.

    Samples that are cut out of series become series that are just long enough for one of them.
    """
    if data.kind == "tokens":
        return {"x": np.concatenate([data.x_test, data.y_test[:, -1:]], axis=1)}
    if data.kind == "forecast":
        named = {"channels": np.array(data.channels)} if data.channels else {}
        return {"x": _series(data), **named}
    classes = {"classes": np.array(data.classes)} if data.classes else {}
    names = {"target_names": np.array(data.names)} if data.names else {}
    columns = {FEATURE_NAMES: np.array(data.columns)} if data.columns and data.x_test.ndim == 2 else {}
    return {"x": data.x_test, "y": data.y_test, **classes, **names, **columns}


def _series(data: DataSet) -> NDArray[np.generic]:
    """What is seen and what is to come; channels that are seen and not predicted are 0 there, where nobody looks."""
    seen = data.x_test.reshape(len(data.x_test), -1, data.x_test.shape[-1])
    to_come = np.zeros((len(seen), data.y_test.shape[1], seen.shape[2]), np.float32)
    predicted = [data.channels.index(name) for name in data.names if name in data.channels]
    to_come[:, :, predicted or slice(None)] = data.y_test
    return np.concatenate([seen, to_come], axis=1)

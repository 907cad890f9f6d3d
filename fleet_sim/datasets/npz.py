"""NPZ files: samples and labels, perhaps a test part, class names, users and domains."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from fleet_sim.datasets.data_set import Found
from sojourn.data.npz import TEST, content_in, holds_pair, open_npz, pair_for

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from sojourn.data.npz import Arrays
    from sojourn.data.samples import Content

_USERS = ("users", "users_train", "w_train")
_DOMAINS = ("domains", "domains_train", "d_train")


def read_npz(path: Path, classes: tuple[str, ...] = ()) -> Found:
    """What an NPZ file holds; `classes` name its labels unless it does so itself. Pickled objects are never loaded."""
    with open_npz(path) as file:
        pair = pair_for(file, "train")
        labelled = holds_pair(file, pair)
        parted = pair != TEST and (holds_pair(file, TEST) if labelled else TEST[0] in file and pair[0] != TEST[0])
        train = content_in(file, str(path), pair)
        test = content_in(file, f"{path} (test part)", TEST) if parted else None
        users, domains = _first(file, _USERS), _first(file, _DOMAINS)
    return Found(_named(train, classes), test and _named(test, classes), users, domains)


def _named(content: Content, classes: tuple[str, ...]) -> Content:
    return replace(content, names=content.names or classes)


def _first(file: Arrays, keys: tuple[str, ...]) -> NDArray[np.generic] | None:
    return next((file[key] for key in keys if key in file), None)

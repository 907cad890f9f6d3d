"""Folders of images by domain: a folder for each domain, and in each of them one for every class."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from fleet_sim.datasets.data_set import Found
from sojourn.data.images import common_input
from sojourn.data.source import read_content

if TYPE_CHECKING:
    from pathlib import Path

    from sojourn.data.source import DataSettings
    from sojourn.protocol.spec import InputSpec


def read_domains(root: Path, names: list[str], settings: DataSettings, wanted: InputSpec | None) -> Found:
    """All images of these domains, each with its domain's number: a split by domain gives every device one domain."""
    each = [msgspec.structs.replace(settings, path=str(root / name), scale=None) for name in names]
    size = wanted or common_input(settings)
    contents = [read_content(domain, "train", size) for domain in each]
    which = [content.which for content in contents]  # all domains have the same classes, in the same order
    whole = replace(
        contents[0],
        source=str(root),
        x=np.concatenate([content.x for content in contents]),
        which=np.concatenate(which),
        skipped=tuple(text for content in contents for text in content.skipped),
    )
    return Found(whole, domains=np.repeat(np.arange(len(names)), [len(part) for part in which]))

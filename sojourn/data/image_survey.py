"""Looking at a folder of images without a job: how many there are of which classes, and what looks odd about them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from PIL import Image

from sojourn.data.image_lists import FOLDERS, class_folders, images_in, list_images
from sojourn.data.images import BROKEN, GREY, eight_bits
from sojourn.data.labels import shorten
from sojourn.data.samples import Doubt

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from sojourn.data.samples import Content
    from sojourn.data.source import DataSettings
    from sojourn.protocol.task import TaskSpec

_OPENED = 64
"""Images that are opened, from everywhere among them: enough to see their sizes and values."""
_LOOKED_AT = (256, 256)
"""A JPEG is decoded at about this size: its range of values is nearly the same."""
_MOST_PIXELS = 16_000_000
"""Decoded in all of images in other formats; of further ones only the header is read."""


def survey_images(
    settings: DataSettings, task: TaskSpec | None = None
) -> tuple[Content, tuple[int, ...], tuple[float, float] | None]:
    """The images of a folder without their pixels; the shape of one, if all have one; and the range of values."""
    found, root = list_images(settings, task=task), Path(settings.path)
    opened = found.paths[:: max(1, len(found.paths) // _OPENED)]
    shapes, values, broken = _opened(opened)
    doubts = [*found.content.doubts]
    content = found.content
    if content.labelled_by == FOLDERS:
        counts = np.bincount(content.which, minlength=len(content.labels))
        doubts += _of_folders(
            root, [str(name) for name, count in zip(content.labels, counts, strict=True) if not count]
        )
        content = _without_empty(content)
    content = replace(content, doubts=(*doubts, *_of_broken(broken, len(opened))))
    return content, shapes.pop() if len(shapes) == 1 else (), values


def _without_empty(content: Content) -> Content:
    """The same without labels that no image has."""
    there, which = np.unique(content.which, return_inverse=True)
    return replace(content, labels=tuple(content.labels[at] for at in there), which=which)


def domains_of(root: Path) -> dict[str, list[str]]:
    """The classes in each folder, where folders are not classes but domains.

    They are if all hold the same folders, at least two, and no image beside them; else there are none.
    """
    within = {folder.name: _within(folder) for folder in class_folders(root, needed=True)}
    names = next(iter(within.values()))
    return within if len(names) > 1 and all(each == names for each in within.values()) else {}


def _within(folder: Path) -> list[str]:
    """The names of the folders in a folder; none if there are images beside them."""
    if any(path.parent == folder for path in images_in(folder)):
        return []
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and images_in(path))


def _opened(paths: Sequence[Path]) -> tuple[set[tuple[int, ...]], tuple[float, float] | None, list[Path]]:
    shapes, broken, low, high = set[tuple[int, ...]](), [], np.inf, -np.inf
    left = _MOST_PIXELS
    for path in paths:
        try:
            with Image.open(path) as image:
                colours = 1 if image.mode in GREY else 3
                shape = colours, image.height, image.width
                mode = "L" if colours == 1 else "RGB"
                image.draft(mode, _LOOKED_AT)
                left -= image.width * image.height
                pixels = np.asarray(eight_bits(image).convert(mode)) if left >= 0 or not shapes else None
        except BROKEN:
            broken.append(path)
            continue
        shapes.add(shape)
        if pixels is None:
            continue
        low, high = min(low, float(pixels.min(initial=255))), max(high, float(pixels.max(initial=0)))
    return shapes, (low, high) if low <= high else None, broken


def _of_folders(root: Path, empty: list[str]) -> Iterator[Doubt]:
    if domains := domains_of(root):
        inside = shorten(next(iter(domains.values())))
        yield Doubt(
            "folders look like domains or parts, not like classes",
            f"{shorten(domains)} hold the same folders {inside}",
            "name one of them as data.path",
        )
    if empty:
        yield Doubt("some folders hold no image", shorten(empty), "put images there, or remove the folders")


def _of_broken(broken: list[Path], opened: int) -> Iterator[Doubt]:
    if broken:
        detail = f"{len(broken)} of {opened} that were opened, such as {broken[0].name}"
        yield Doubt("some images are broken", detail, "replace them; they are left out")

"""The pixels of images, in the size and colours that a job asks for."""

from __future__ import annotations

import struct
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Literal

import numpy as np
from PIL import Image

from sojourn.data.image_lists import list_images
from sojourn.errors import DataError
from sojourn.protocol.spec import InputSpec

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sojourn.data.samples import Content
    from sojourn.data.source import DataSettings, Form
    from sojourn.protocol.task import TaskSpec

GREY = frozenset({"1", "L", "LA", "La", "I;16", "I;16L", "I;16B", "I;16N"})
BROKEN = (
    OSError,
    SyntaxError,
    ValueError,
    TypeError,
    IndexError,
    EOFError,
    struct.error,
    Image.DecompressionBombError,
)
"""What Pillow's decoders raise on a file that is not the image it claims to be."""


def read_images(
    settings: DataSettings, wanted: InputSpec, classes: tuple[str, ...] | None = None, task: TaskSpec | None = None
) -> Content:
    """The images of these classes (or of all), in the wanted size and colours; broken ones are left out and said."""
    root = Path(settings.path)
    colours, height, width = _size(wanted, settings.path)
    found = list_images(settings, classes, task)
    x = np.empty((len(found.paths), colours, height, width), np.uint8)
    read, broken = list[int](), list[str]()
    for at, path in enumerate(found.paths):
        try:
            x[len(read)] = _pixels(path, "RGB" if colours == 3 else "L", width, height)
        except BROKEN as error:
            broken.append(f"broken image {path.relative_to(root)}: {error}")
            continue
        read.append(at)
    return found.with_pixels(x[: len(read)], read, broken)


def common_input(settings: DataSettings, task: TaskSpec | None = None) -> InputSpec:
    """The size and colours of all images of a folder, where nobody says them; they must be the same."""
    sizes: dict[tuple[int, int, int], Path] = {}
    for path in list_images(settings, task=task).paths:
        with suppress(*BROKEN), Image.open(path) as image:
            sizes.setdefault((1 if image.mode in GREY else 3, image.height, image.width), path)
    if len(sizes) != 1:
        found = " and ".join(f"{shape} in {path.name}" for shape, path in list(sizes.items())[:2]) or "no whole image"
        raise DataError(f"{settings.path}: images must have one size where none is asked for ({found})")
    return InputSpec(next(iter(sizes)))


def read_image(source: Path | BinaryIO, form: Form, name: str, most: int | None = None) -> NDArray[np.uint8]:
    """One image in the model's size and colours, as a batch of one; `most` bounds the pixels that are decoded."""
    colours, height, width = _size(form.input, name)
    try:
        pixels = _pixels(source, "RGB" if colours == 3 else "L", width, height, most)
    except FileNotFoundError:
        raise DataError(f"{name} does not exist") from None
    except BROKEN as error:
        raise DataError(f"{name} cannot be read as an image: {error}") from error
    return pixels.reshape(1, *form.input.shape)


def _size(wanted: InputSpec, source: str) -> tuple[int, int, int]:
    shape = wanted.shape
    if len(shape) == 2:
        return 1, *shape
    if len(shape) == 3 and shape[0] in (1, 3):
        return shape[0], shape[1], shape[2]
    raise DataError(f"{source} holds images, and the model's samples have shape {shape}: images do not fit")


def _pixels(
    source: Path | BinaryIO, mode: Literal["L", "RGB"], width: int, height: int, most: int | None = None
) -> NDArray[np.uint8]:
    with Image.open(source) as image:
        # A camera's JPEG is decoded at a fraction of its size, and so in a fraction of the memory.
        image.draft(mode, (width, height))
        if most is not None and image.width * image.height > most:
            raise ValueError(f"{image.width} x {image.height} pixels are too many")
        whole = eight_bits(image).convert(mode)
    if whole.size != (width, height):
        whole = whole.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(whole, dtype=np.uint8)
    return pixels[np.newaxis] if mode == "L" else np.moveaxis(pixels, 2, 0)


def eight_bits(image: Image.Image) -> Image.Image:
    """The image with values from 0 to 255."""
    # Pillow's own conversion from 16 bits cuts off all that is brighter than 255.
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {image.mode} have no known range")
    return image

"""Reader of image folders: the file list, the labels, and the pixels in a job's size and colours."""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO, Literal

import msgspec
import numpy as np
from numpy.typing import NDArray
from PIL import Image

from sojourn.data.csv import read_table
from sojourn.data.csv_columns import ReadRequest
from sojourn.data.labels import MAX_LISTED, shorten
from sojourn.data.samples import Content, DataWarning, no_labels
from sojourn.data.source import DataSettings, Form
from sojourn.errors import DataError
from sojourn.protocol.spec import InputSpec
from sojourn.protocol.task import TaskSpec

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"})
UNREAD_SUFFIXES = frozenset({
    ".heic", ".heif", ".avif", ".jxl", ".jp2", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf",
    ".svg", ".psd",
})  # fmt: skip
"""File name endings of image formats that Sojourn does not read."""
FOLDERS = "the names of the folders"
"""The label source if each class has a folder."""
LIST_FILE = "targets.csv"
"""The CSV file in the images' folder that lists each image and its targets."""
_ADVICE = "put the images of each class into a folder named after the class"
NO_FOLDERS = f"images without class folders: {_ADVICE}"


@dataclass(frozen=True)
class ImageList:
    """The image files, and a content with an empty row for each file instead of pixels."""

    paths: tuple[Path, ...]
    content: Content

    def with_pixels(self, x: NDArray[np.uint8], read: list[int], broken: list[str]) -> Content:
        """Return the content with the pixels of the readable images; list the broken ones in `skipped`."""
        more = [f"{len(broken) - MAX_LISTED} more broken images"] if len(broken) > MAX_LISTED else []
        whole, targets = self.content, self.content.targets
        skipped = (*whole.skipped, *broken[:MAX_LISTED], *more)
        kept = None if targets is None else targets[read]
        return replace(whole, x=x, label_index=whole.label_index[read], skipped=skipped, targets=kept)


def list_images(
    settings: DataSettings, classes: tuple[str, ...] | None = None, task: TaskSpec | None = None
) -> ImageList:
    """List a job's images; without a task, from the list file if there is one, or else from the class folders."""
    found = _listed(settings, classes, task)
    by_folder = found.content.label_source == FOLDERS
    warnings = (*found.content.warnings, *_skip_warnings(Path(settings.path), loose=by_folder))
    return replace(found, content=replace(found.content, warnings=warnings))


def _listed(settings: DataSettings, classes: tuple[str, ...] | None, task: TaskSpec | None) -> ImageList:
    root, kind = Path(settings.path), task.kind if task else None
    listed = (root / LIST_FILE).is_file()
    if kind in ("forecast", "tokens"):
        raise DataError(f"{root} is a folder of images, but the job needs {'text' if kind == 'tokens' else 'series'}")
    if kind in ("regression", "multilabel") or (kind is None and listed and classes is None):
        return _by_list(settings, ReadRequest(task, classes, images=True))
    if kind == "reconstruction" or (kind is None and classes is None):
        folders = class_folders(root)
        found = _by_folder(settings, folders, ())
        return found if found.paths else _flat(settings, needed=not folders)
    folders = class_folders(root, needed=True)
    chosen = [folder for folder in folders if classes is None or folder.name in classes]
    absent = [folder.name for folder in folders if folder not in chosen]
    skipped = (f"folders of classes that the job does not list: {shorten(absent)}",) if absent else ()
    return _by_folder(settings, chosen, skipped)


def class_folders(root: Path, *, needed: bool = False) -> list[Path]:
    """Return the sorted class folders; raise DataError if there are none and `needed` is set."""
    try:
        folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"{root} cannot be read: {error.strerror}") from error
    if not folders and needed:
        raise _no_folders(root)
    return folders


def images_in(folder: Path) -> list[Path]:
    """Return all images of a class, including those in subfolders."""
    # Sorted, because the seed of a visit selects samples by position.
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


def _skip_warnings(root: Path, *, loose: bool) -> Iterator[DataWarning]:
    """Warn about images in other formats, and about images outside the class folders."""
    other = Counter(path.suffix.lower() for path in root.rglob("*") if path.suffix.lower() in UNREAD_SUFFIXES)
    if other:
        detail = (
            f"{other.total():,} files ({', '.join(f'{count:,} {suffix}' for suffix, count in sorted(other.items()))})"
        )
        yield DataWarning(
            "images of formats that Sojourn does not read are skipped", detail, "convert them to JPEG or PNG"
        )
    loose_images = (
        [path for path in root.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file()] if loose else []
    )
    if loose_images:
        names = sorted(path.name for path in loose_images)
        detail = f"{len(names):,} images directly in {root.name}: {shorten(names)}"
        yield DataWarning("images outside the class folders are skipped", detail, "move each to its class folder")


def _no_folders(root: Path) -> DataError:
    return DataError(f"{root} has no folders: {_ADVICE}")


def _by_folder(settings: DataSettings, folders: list[Path], skipped: tuple[str, ...]) -> ImageList:
    files = [(path, label_index) for label_index, folder in enumerate(folders) for path in images_in(folder)]
    names = tuple(folder.name for folder in folders)
    label_index = np.array([label_index for _, label_index in files], dtype=np.int64)
    content = Content(settings.path, _no_pixels(len(files)), names, label_index, (), skipped, label_source=FOLDERS)
    return ImageList(tuple(path for path, _ in files), content)


def _flat(settings: DataSettings, *, needed: bool) -> ImageList:
    paths = images_in(Path(settings.path))
    if not paths and needed:
        raise _no_folders(Path(settings.path))
    content = Content(settings.path, _no_pixels(len(paths)), (), no_labels(len(paths)), label_source=NO_FOLDERS)
    return ImageList(tuple(paths), content)


def _by_list(settings: DataSettings, request: ReadRequest) -> ImageList:
    root = Path(settings.path)
    if not (root / LIST_FILE).is_file():
        raise DataError(
            f"{root} has no {LIST_FILE}: add a CSV file with a column `file` and a column for each target of the job"
        )
    content, files = read_table(msgspec.structs.replace(settings, path=str(root / LIST_FILE)), request)
    found, absent = list[int](), list[str]()
    for row, name in enumerate(files):
        # The list is untrusted: accept only images in this folder.
        inside = (root / name).resolve().is_relative_to(root.resolve()) and "\x00" not in name
        if inside and Path(name).suffix.lower() in SUFFIXES and (root / name).is_file():
            found.append(row)
        else:
            absent.append(name)
    skipped = [f"{len(absent)} rows of {LIST_FILE} without an image: {shorten(absent)}"] if absent else []
    kept = ImageList(tuple(root / files[row] for row in found), content)
    chosen = kept.with_pixels(np.empty((len(found), 0), np.uint8), found, [])
    return replace(kept, content=replace(chosen, source=str(root), skipped=(*content.skipped, *skipped)))


def _no_pixels(images: int) -> NDArray[np.uint8]:
    return np.empty((images, 0), np.uint8)


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
    """Read the images of these (or all) classes in the wanted size and colours; skip and report broken ones."""
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
    """Return the size and colours that all images of a folder share; raise DataError if they differ."""
    sizes: dict[tuple[int, int, int], Path] = {}
    for path in list_images(settings, task=task).paths:
        with suppress(*BROKEN), Image.open(path) as image:
            sizes.setdefault((1 if image.mode in GREY else 3, image.height, image.width), path)
    if len(sizes) != 1:
        found = (
            " and ".join(f"{shape} in {path.name}" for shape, path in list(sizes.items())[:2]) or "no readable image"
        )
        raise DataError(f"{settings.path}: all images must have the same size unless the job sets one ({found})")
    return InputSpec(next(iter(sizes)))


def read_image(source: Path | BinaryIO, form: Form, name: str, max_pixels: int | None = None) -> NDArray[np.uint8]:
    """Read an image in the model's size and colours, as a batch of one; refuse one with more than `max_pixels`."""
    colours, height, width = _size(form.input, name)
    try:
        pixels = _pixels(source, "RGB" if colours == 3 else "L", width, height, max_pixels)
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
    raise DataError(f"{source} holds images, but the model's samples have shape {shape}, which is not an image")


def _pixels(
    source: Path | BinaryIO, mode: Literal["L", "RGB"], width: int, height: int, max_pixels: int | None = None
) -> NDArray[np.uint8]:
    with Image.open(source) as image:
        # A camera's JPEG is decoded at a fraction of its size, and so in a fraction of the memory.
        image.draft(mode, (width, height))
        if max_pixels is not None and image.width * image.height > max_pixels:
            raise ValueError(f"{image.width} x {image.height} pixels are too many")
        whole = eight_bits(image).convert(mode)
    if whole.size != (width, height):
        whole = whole.resize((width, height), Image.Resampling.BILINEAR)
    pixels = np.asarray(whole, dtype=np.uint8)
    return pixels[np.newaxis] if mode == "L" else np.moveaxis(pixels, 2, 0)


def eight_bits(image: Image.Image) -> Image.Image:
    """Return the image with 8-bit values."""
    # Pillow's own conversion from 16 bits clips values above 255.
    if image.mode.startswith("I;16"):
        return Image.fromarray((np.asarray(image) >> 8).astype(np.uint8))
    if image.mode in ("I", "F"):
        raise ValueError(f"pixels of mode {image.mode} have no known range")
    return image


_MAX_OPENED = 64
"""At most about this many images, evenly spaced, are opened to find sizes and values."""
_DRAFT_SIZE = (256, 256)
"""JPEGs are decoded at about this size, which hardly changes the range of values."""
_MAX_PIXELS = 16_000_000
"""Decode at most this many pixels in total; then read only the headers."""


def survey_images(
    settings: DataSettings, task: TaskSpec | None = None
) -> tuple[Content, tuple[int, ...], tuple[float, float] | None]:
    """Return the images without pixels, their common shape (or an empty tuple), and the range of values."""
    found, root = list_images(settings, task=task), Path(settings.path)
    opened = found.paths[:: max(1, len(found.paths) // _MAX_OPENED)]
    shapes, values, broken = _inspect(opened)
    warnings = [*found.content.warnings]
    content = found.content
    if content.label_source == FOLDERS:
        counts = np.bincount(content.label_index, minlength=len(content.labels))
        warnings += _folder_warnings(
            root, [str(name) for name, count in zip(content.labels, counts, strict=True) if not count]
        )
        content = _without_empty(content)
    content = replace(content, warnings=(*warnings, *_broken_warnings(broken, len(opened))))
    return content, shapes.pop() if len(shapes) == 1 else (), values


def _without_empty(content: Content) -> Content:
    """Return the content without labels that no image has."""
    used, label_index = np.unique(content.label_index, return_inverse=True)
    return replace(content, labels=tuple(content.labels[at] for at in used), label_index=label_index)


def domains_of(root: Path) -> dict[str, list[str]]:
    """Return the classes in each folder if the folders are domains instead of classes, or an empty dict.

    Folders are domains if all contain the same two or more folders and no images next to them.
    """
    within = {folder.name: _folders_in(folder) for folder in class_folders(root, needed=True)}
    names = next(iter(within.values()))
    return within if len(names) > 1 and all(each == names for each in within.values()) else {}


def _folders_in(folder: Path) -> list[str]:
    """Return the names of the subfolders with images, or an empty list if there are images next to them."""
    if any(path.parent == folder for path in images_in(folder)):
        return []
    return sorted(path.name for path in folder.iterdir() if path.is_dir() and images_in(path))


def _inspect(paths: Sequence[Path]) -> tuple[set[tuple[int, ...]], tuple[float, float] | None, list[Path]]:
    shapes, broken, low, high = set[tuple[int, ...]](), [], np.inf, -np.inf
    pixels_left = _MAX_PIXELS
    for path in paths:
        try:
            with Image.open(path) as image:
                colours = 1 if image.mode in GREY else 3
                shape = colours, image.height, image.width
                mode = "L" if colours == 1 else "RGB"
                image.draft(mode, _DRAFT_SIZE)
                pixels_left -= image.width * image.height
                pixels = np.asarray(eight_bits(image).convert(mode)) if pixels_left >= 0 or not shapes else None
        except BROKEN:
            broken.append(path)
            continue
        shapes.add(shape)
        if pixels is None:
            continue
        low, high = min(low, float(pixels.min(initial=255))), max(high, float(pixels.max(initial=0)))
    return shapes, (low, high) if low <= high else None, broken


def _folder_warnings(root: Path, empty: list[str]) -> Iterator[DataWarning]:
    if domains := domains_of(root):
        inside = shorten(next(iter(domains.values())))
        yield DataWarning(
            "folders look like domains or splits, not like classes",
            f"{shorten(domains)} contain the same folders {inside}",
            "set data.path to one of them",
        )
    if empty:
        yield DataWarning("some folders contain no image", shorten(empty), "add images, or remove the folders")


def _broken_warnings(broken: list[Path], opened: int) -> Iterator[DataWarning]:
    if broken:
        detail = f"{len(broken)} of {opened} opened images, such as {broken[0].name}"
        yield DataWarning("some images are broken", detail, "replace them; they are skipped")

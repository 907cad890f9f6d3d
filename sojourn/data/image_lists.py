"""Images and what each is compared with: its folder's name, a row of a list beside the images, or nothing."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from sojourn.data.csv import read_table
from sojourn.data.csv_columns import Asked
from sojourn.data.labels import NAMED, shorten
from sojourn.data.samples import Content, Doubt, no_labels
from sojourn.errors import DataError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from sojourn.data.source import DataSettings
    from sojourn.protocol.task import TaskSpec

SUFFIXES = frozenset({".png", ".jpg", ".jpeg", ".bmp", ".gif", ".webp", ".tif", ".tiff", ".pgm", ".ppm"})
OTHERS = frozenset({
    ".heic", ".heif", ".avif", ".jxl", ".jp2", ".dng", ".cr2", ".cr3", ".nef", ".arw", ".orf", ".rw2", ".raf",
    ".svg", ".psd",
})  # fmt: skip
"""Endings of images that are not read."""
FOLDERS = "the names of the folders"
"""Where the labels of images come from."""
LIST = "targets.csv"
"""The list beside the images: the file of each, and what it is compared with."""
NO_FOLDERS = "images in no folder: put those of each class into a folder named like the class"


@dataclass(frozen=True)
class ImageList:
    """The files of images, and a content that has no pixels yet: a row of nothing for each file."""

    paths: tuple[Path, ...]
    content: Content

    def with_pixels(self, x: NDArray[np.uint8], read: list[int], broken: list[str]) -> Content:
        """The content with the pixels of those images that could be read; of the others it is said."""
        more = [f"{len(broken) - NAMED} more broken images"] if len(broken) > NAMED else []
        whole, targets = self.content, self.content.targets
        skipped = (*whole.skipped, *broken[:NAMED], *more)
        kept = None if targets is None else targets[read]
        return replace(whole, x=x, which=whole.which[read], skipped=skipped, targets=kept)


def list_images(
    settings: DataSettings, classes: tuple[str, ...] | None = None, task: TaskSpec | None = None
) -> ImageList:
    """The images of a folder that a job needs; without a task by their folders, or by the list if there is one."""
    root = Path(settings.path)
    listed = (root / LIST).is_file()
    found = _listed(settings, classes, task, listed=listed)
    by_folder = found.content.labelled_by == FOLDERS
    doubts = (*found.content.doubts, *_left_out(root, loose=by_folder))
    return replace(found, content=replace(found.content, doubts=doubts))


def _listed(
    settings: DataSettings, classes: tuple[str, ...] | None, task: TaskSpec | None, *, listed: bool
) -> ImageList:
    root, kind = Path(settings.path), task.kind if task else None
    if kind in ("forecast", "tokens"):
        raise DataError(f"{root} is a folder of images, and the job needs {'text' if kind == 'tokens' else 'series'}")
    if kind in ("regression", "multilabel") or (kind is None and listed and classes is None):
        return _by_list(settings, Asked(task, classes, images=True))
    if kind == "reconstruction" or (kind is None and classes is None):
        folders = class_folders(root)
        found = _by_folder(settings, folders, ())
        return found if found.paths else _flat(settings, needed=not folders)
    folders = class_folders(root, needed=True)
    chosen = [folder for folder in folders if classes is None or folder.name in classes]
    absent = [folder.name for folder in folders if folder not in chosen]
    told = (f"folders of classes that the job does not list: {shorten(absent)}",) if absent else ()
    return _by_folder(settings, chosen, told)


def class_folders(root: Path, *, needed: bool = False) -> list[Path]:
    """The folders of the classes, in order; an error where there are none and some are needed."""
    try:
        folders = sorted(path for path in root.iterdir() if path.is_dir() and not path.name.startswith("."))
    except OSError as error:
        raise DataError(f"{root} cannot be read: {error.strerror}") from error
    if not folders and needed:
        raise _no_folders(root)
    return folders


def images_in(folder: Path) -> list[Path]:
    """All images of a class, also in folders below its own."""
    # Sorted, because the seed of a visit picks samples by their place.
    return sorted(path for path in folder.rglob("*") if path.suffix.lower() in SUFFIXES and path.is_file())


def _left_out(root: Path, *, loose: bool) -> Iterator[Doubt]:
    """Images that are not read: those of other formats, and with classes in folders those that are in no folder."""
    other = Counter(path.suffix.lower() for path in root.rglob("*") if path.suffix.lower() in OTHERS)
    if other:
        detail = (
            f"{other.total():,} files ({', '.join(f'{count:,} {suffix}' for suffix, count in sorted(other.items()))})"
        )
        yield Doubt("images of formats that Sojourn does not read are skipped", detail, "convert them to JPEG or PNG")
    alone = [path for path in root.iterdir() if path.suffix.lower() in SUFFIXES and path.is_file()] if loose else []
    if alone:
        detail = f"{len(alone):,} images directly in {root.name}: {shorten(sorted(path.name for path in alone))}"
        yield Doubt("images outside of the folders of classes are skipped", detail, "move each to its class's folder")


def _no_folders(root: Path) -> DataError:
    return DataError(f"{root} holds no folders: put the images of each class into a folder named like the class")


def _by_folder(settings: DataSettings, folders: list[Path], skipped: tuple[str, ...]) -> ImageList:
    files = [(path, which) for which, folder in enumerate(folders) for path in images_in(folder)]
    names = tuple(folder.name for folder in folders)
    which = np.array([which for _, which in files], dtype=np.int64)
    content = Content(settings.path, _nothing(len(files)), names, which, (), skipped, labelled_by=FOLDERS)
    return ImageList(tuple(path for path, _ in files), content)


def _flat(settings: DataSettings, *, needed: bool) -> ImageList:
    paths = images_in(Path(settings.path))
    if not paths and needed:
        raise _no_folders(Path(settings.path))
    content = Content(settings.path, _nothing(len(paths)), (), no_labels(len(paths)), labelled_by=NO_FOLDERS)
    return ImageList(tuple(paths), content)


def _by_list(settings: DataSettings, asked: Asked) -> ImageList:
    root = Path(settings.path)
    if not (root / LIST).is_file():
        raise DataError(
            f"{root} has no {LIST} beside its images: a CSV file with a column `file` and a column for each of what "
            "the job predicts"
        )
    content, files = read_table(msgspec.structs.replace(settings, path=str(root / LIST)), asked)
    found, absent = list[int](), list[str]()
    for row, name in enumerate(files):
        # A list may come from elsewhere: it names images of this folder and no other.
        inside = (root / name).resolve().is_relative_to(root.resolve()) and "\x00" not in name
        if inside and Path(name).suffix.lower() in SUFFIXES and (root / name).is_file():
            found.append(row)
        else:
            absent.append(name)
    told = [f"{len(absent)} rows of {LIST} without an image: {shorten(absent)}"] if absent else []
    kept = ImageList(tuple(root / files[row] for row in found), content)
    chosen = kept.with_pixels(np.empty((len(found), 0), np.uint8), found, [])
    return replace(kept, content=replace(chosen, source=str(root), skipped=(*content.skipped, *told)))


def _nothing(images: int) -> NDArray[np.uint8]:
    return np.empty((images, 0), np.uint8)

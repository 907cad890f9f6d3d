"""A CSV file that may still grow: read once, and then only what is new."""

from __future__ import annotations

import csv
import io
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

LARGEST = 64 << 20
"""Bytes that are read of one file: of a larger one the newest part."""
CELL = 4000
"""Characters of a cell; what is longer is cut."""


class TableTail:
    """Reads the rows of a table that were not read before.

    cut: whether an older part was left out. A file that became smaller, as one does that a simulation takes up again,
    is read from its beginning.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._columns: list[str] = []
        self.cut = False

    @property
    def there(self) -> bool:
        """Whether the file is there."""
        return self._path.exists()

    def state(self) -> tuple[int, int]:
        """What changes when the file does."""
        try:
            found = self._path.stat()
        except OSError:
            return 0, 0
        return found.st_mtime_ns, found.st_size

    def news(self) -> tuple[list[dict[str, str]], bool]:
        """The new rows, and whether they take the place of all that were read before."""
        anew = self.state()[1] < self._offset
        if anew:
            self._offset, self._columns, self.cut = 0, [], False
        if not self.there:
            return [], anew
        with self._path.open("rb") as file:
            if not self._columns:
                self._head(file.readline())
                self._offset = file.tell()
            size = file.seek(0, io.SEEK_END)
            if size - self._offset > LARGEST:
                self._offset, self.cut = size - LARGEST, True
            file.seek(self._offset)
            if self.cut and self._offset == size - LARGEST:
                self._offset += len(file.readline())  # the rest of a line
            data = _whole_lines(file.read())
        self._offset += len(data)
        return self._rows(data), anew

    def _head(self, line: bytes) -> None:
        self._columns = next(csv.reader([line.decode("utf-8", "replace")]), [])

    def _rows(self, data: bytes) -> list[dict[str, str]]:
        text = io.StringIO(data.decode("utf-8", "replace"), newline="")
        rows = csv.reader(text)
        return [
            dict(zip(self._columns, (cell[:CELL] for cell in row), strict=False))
            for row in rows
            if len(row) >= len(self._columns)
        ]


def _whole_lines(data: bytes) -> bytes:
    """Up to the last line that is whole; a quoted cell may hold ends of lines itself."""
    end = data.rfind(b"\n") + 1
    while end and data.count(b'"', 0, end) % 2:
        end = data.rfind(b"\n", 0, end - 1) + 1
    return data[:end]

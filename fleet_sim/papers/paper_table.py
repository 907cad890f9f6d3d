"""A table of a paper as a folder: one job file for each method, and `table.toml`, which says how they are compared."""

from __future__ import annotations

from itertools import chain
from pathlib import Path
from typing import Annotated

import msgspec

from sojourn.errors import ConfigError
from sojourn.settings import nearest, read_file

FILE = "table.toml"
HOME = "benchmarks/papers"
"""Where a clone of the repository has the tables that come with it."""


class PaperTable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What `table.toml` says."""

    title: str
    seeds: Annotated[tuple[int, ...], msgspec.Meta(min_length=1)] = (1,)
    methods: tuple[str, ...] = ()
    """The job files in the order of the table, without `.toml`; none: all of them, by name."""
    reach: float | str | None = None
    """Also tell in which round this was reached: 0.5, or "rmse <= 0.5"."""
    in_a_row: Annotated[int, msgspec.Meta(ge=1)] = 1
    """It is reached with the first of so many rounds in a row that are as good: one may be luck."""
    pairs: tuple[tuple[str, str], ...] = ()
    """Also tell how far two methods are apart, seed by seed: the first less the second."""
    about: str = ""
    """What is compared, and what was cut, in Markdown."""
    findings: str = ""
    """What came out, and what is thought of it, in Markdown."""
    paper: dict[str, str] = msgspec.field(default_factory=dict[str, str])
    """What the paper tells of each method."""


def tables_in(home: Path) -> list[Path]:
    """All folders with a table."""
    return sorted(path.parent for path in home.glob(f"*/{FILE}"))


def folder_of(name: str, home: Path) -> Path:
    """The folder of a table, by its name or its path; ConfigError says which tables there are."""
    for folder in (home / name, Path(name)):
        if name and (folder / FILE).is_file():
            return folder
    known = [path.name for path in tables_in(home)]
    if not known:
        raise ConfigError(
            f"{home}: there are no tables here. They are in the repository, in {HOME}: call this in a clone of it, or "
            f"name the folder with --tables. A table is a folder with {FILE} and one job file for each method"
        )
    raise ConfigError(f"there is no table {name!r} in {home}; {nearest(name, known)}")


def read_table(folder: Path) -> tuple[PaperTable, list[Path]]:
    """What a table's folder says, and the job files of its methods in order."""
    table = read_file(folder / FILE, PaperTable)
    there = {path.stem: path for path in sorted(folder.glob("*.toml")) if path.name != FILE}
    if not there:
        raise ConfigError(f"{folder}: there is no job file in it, one for each method")
    for name in (*table.methods, *table.paper, *chain.from_iterable(table.pairs)):
        if name not in there:
            raise ConfigError(f"{folder / FILE}: there is no method {name!r} in this folder; {nearest(name, there)}")
    return table, [there[name] for name in (table.methods or tuple(there))]

"""The operators of a coordinator in their file, which is read again when it changes."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from sojourn.errors import ConfigError
from sojourn.protocol.operators import OperatorsFile
from sojourn.protocol.signing import check_public
from sojourn.settings import read_file

if TYPE_CHECKING:
    from collections.abc import Mapping

    from sojourn.protocol.operators import OperatorEntry

log = logging.getLogger("sojourn")


def read_operators(path: Path | str) -> dict[str, OperatorEntry]:
    """The operators in a file; ConfigError says what is wrong with it."""
    found = read_file(Path(path).expanduser(), OperatorsFile).operators
    for name, each in found.items():
        check_public(each.key, f"{path}: the key of {name}")
    return found


class OperatorRoles:
    """Who may ask what, now. A file that cannot be read any more leaves things as they were, and is said."""

    def __init__(self, path: Path | str) -> None:
        self._path = Path(path).expanduser()
        self._mark = self._found()
        self._known = read_operators(self._path)

    def __call__(self) -> Mapping[str, OperatorEntry]:
        """The operators of this moment."""
        mark = self._found()
        if mark != self._mark:
            self._mark = mark
            try:
                self._known = read_operators(self._path)
            except ConfigError as error:
                log.error("%s: the operators stay as they were", error)  # noqa: TRY400  # the file is wrong, not the code
            else:
                log.info("operators: %s", ", ".join(f"{name} ({it.role})" for name, it in self._known.items()))
        return self._known

    def _found(self) -> tuple[int, int, int] | None:
        try:
            it = self._path.stat()
        except OSError:
            return None
        return it.st_mtime_ns, it.st_size, it.st_ino


def guarded_by(roles: OperatorRoles | None, mandate_keys: Mapping[str, str]) -> list[str]:
    """What a coordinator demands of operators, in words for its log."""
    if roles is None:
        asks = "operators: whoever the broker lets speak under an operator's name may ask for everything"
        asks += " (operators_file in its settings changes that)"
    else:
        asks = (
            f"operators: {', '.join(f'{name} ({it.role})' for name, it in roles().items())}; each signs what they ask"
        )
    if not mandate_keys:
        return [asks, "mandates: none demanded, jobs go to devices unsigned (mandate_keys_file changes that)"]
    return [asks, f"mandates: jobs wait until one of these has signed them: {', '.join(sorted(mandate_keys.values()))}"]

"""What the agent asks its installer to do with a release, and what comes back."""

from __future__ import annotations

import msgspec

from sojourn.protocol.limits import Name
from sojourn.protocol.release import Goods, Health


class Install(msgspec.Struct, frozen=True, tag="install"):
    """Serve this version of a line from now on: its goods are in the blob folder, or in the line's own folder.

    One that is `known` was served here before: it is not tried again, so that going back takes no time.
    """

    line: Name
    version: int
    goods: Goods
    known: bool = False


class Withdraw(msgspec.Struct, frozen=True, tag="withdraw"):
    """Serve no release of a line any more."""

    line: Name


class Installed(msgspec.Struct, frozen=True, tag="installed"):
    """The version is the current one, on disk; how it did when it was tried."""

    health: Health


class Withdrawn(msgspec.Struct, frozen=True, tag="withdrawn"):
    """The line has no current version."""


class Usage(msgspec.Struct, frozen=True):
    """What programs on this machine did with a release, since it is served or since the last word."""

    line: str
    version: int
    health: Health
    failure: str = ""
    """Why a program could not load it and went on with the one before."""

"""What came of a look at the door, between the process that looks and the agent that has it look."""

from __future__ import annotations

import msgspec

DAY, HOUR, MINUTE = 86_400.0, 3_600.0, 60.0


class Looked(msgspec.Struct, frozen=True):
    """What came of a look at the door, and after how many seconds to look again; `warn` if people should know."""

    again: float
    text: str = ""
    warn: bool = False

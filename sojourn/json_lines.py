"""Lines of a log for programs: one JSON object each, whatever is said in it."""

from __future__ import annotations

import logging
import time
from typing import Any

import msgspec

from sojourn.about import NOTHING
from sojourn.text import LINE, clean, clean_lines

SHORT = 200
"""Characters of a field besides the message."""
EXCEPTION = 20_000
"""Characters of an exception with its traceback."""
_ENCODER = msgspec.json.Encoder()
_OWN_FIELD = {"agent": "device", "edge": "site"}
"""What each line of a role is about at least: the device or the site that it is of."""


class JsonLines(logging.Formatter):
    """Time, level, role, node and message; what the line is about; the traceback of an error."""

    def __init__(self, role: str, node: str) -> None:
        super().__init__()
        self._speaker = {name: value for name, value in (("role", role), ("node", node)) if value}
        own = _OWN_FIELD.get(role)
        self._own = {own: node} if own and node else {}

    def format(self, record: logging.LogRecord) -> str:
        """The whole of what is printed: nothing that was logged makes it another thing than one object on one line."""
        line: dict[str, Any] = {
            "time": _utc(record.created),
            "level": record.levelname.lower() if record.levelname != "STEP" else "info",
            **self._speaker,
            "message": clean(_message(record), LINE),
        }
        about = getattr(record, "about", NOTHING).fields
        line |= {name: clean(it, SHORT) if isinstance(it, str) else it for name, it in {**self._own, **about}.items()}
        if record.exc_info and record.exc_info[0] is not None:
            line["exception"] = clean_lines(self.formatException(record.exc_info), EXCEPTION)
        return _ENCODER.encode(line).decode()


def _utc(moment: float) -> str:
    """A moment as RFC 3339 has it, in UTC, to the millisecond."""
    seconds, thousandths = divmod(int(moment * 1000), 1000)
    return f"{time.strftime('%Y-%m-%dT%H:%M:%S', time.gmtime(seconds))}.{thousandths:03d}Z"


def _message(record: logging.LogRecord) -> str:
    try:
        return record.getMessage()
    except (TypeError, ValueError, KeyError):  # the text and its values do not fit: both are worth more than neither
        return f"{record.msg} {record.args!r}"

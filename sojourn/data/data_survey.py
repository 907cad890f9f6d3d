"""What was found when data was looked at: the summary, and what looks odd in full, for the owner alone."""

from __future__ import annotations

import msgspec

from sojourn.protocol.data_summary import DataSummary


class DataSurvey(msgspec.Struct, frozen=True, tag="surveyed"):
    """A summary, all class names, and each odd thing with its details and what to do; the latter two stay here."""

    summary: DataSummary
    warnings: tuple[str, ...] = ()
    classes: tuple[str, ...] = ()

    @property
    def facts(self) -> list[str]:
        """What the data was taken for, a line each."""
        return msgspec.structs.replace(self.summary, warnings=()).lines()

"""A strategy is its parts: what a paper proposes, with the paper's defaults."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from sojourn.config import settle
from sojourn.parts import (
    Aggregator,
    Arranger,
    Estimator,
    EveryRound,
    NoEstimator,
    Objective,
    Schedule,
    Sgd,
    WeightedMean,
)

if TYPE_CHECKING:
    from collections.abc import Mapping


class Strategy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Four parts, and the estimator that tells the arranger about devices."""

    arranger: Arranger
    estimator: Estimator = NoEstimator()
    schedule: Schedule = EveryRound()
    objective: Objective = Sgd()
    aggregator: Aggregator = WeightedMean()

    def changed(self, changes: Mapping[str, Mapping[str, Any]], where: str) -> Strategy:
        """The same strategy with fields overridden or, where a `name` is given, whole parts swapped."""
        parts: dict[str, Any] = msgspec.to_builtins(self)
        for part, fields in changes.items():
            kept = {} if fields.get("name", parts[part]["name"]) != parts[part]["name"] else parts[part]
            parts[part] = {**kept, **fields}
        return settle(parts, Strategy, where)

"""A strategy is its parts: what a paper proposes, with the paper's defaults."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING, Any, get_args

import msgspec

from sojourn.errors import ConfigError
from sojourn.parts import (
    Aggregator,
    Arranger,
    Estimator,
    EveryRound,
    Finisher,
    NoEstimator,
    NoFinisher,
    Objective,
    Schedule,
    Sgd,
    Training,
    WeightedMean,
)
from sojourn.settings import nearest, validated

if TYPE_CHECKING:
    from collections.abc import Mapping

FORMS: dict[str, dict[str, type[msgspec.Struct]]] = {
    kind: {str(form.__struct_config__.tag): form for form in get_args(forms)}
    for kind, forms in {
        "estimator": Estimator,
        "arranger": Arranger,
        "schedule": Schedule,
        "objective": Objective,
        "aggregator": Aggregator,
        "finisher": Finisher,
    }.items()
}
"""The parts that there are: by kind, by name."""
OWN_FIELDS = {
    "estimator": ("epochs", "by_class"),
    "arranger": ("once",),
    "objective": ("keeps",),
    "finisher": ("apart", "alone"),
}
"""What a job file says beside the settings of a user's own part, by kind of part."""


class Strategy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Five parts, the estimator that tells the arranger about devices, and how a device trains."""

    arranger: Arranger
    estimator: Estimator = NoEstimator()
    schedule: Schedule = EveryRound()
    objective: Objective = Sgd()
    aggregator: Aggregator = WeightedMean()
    finisher: Finisher = NoFinisher()
    training: Training = Training()

    def changed(self, changes: Mapping[str, Mapping[str, Any]], where: str) -> Strategy:
        """The same strategy with fields overridden or, where a `name` is given, whole parts swapped."""
        parts: dict[str, Any] = msgspec.to_builtins(self)
        for part, fields in changes.items():
            given = _own(part, fields) if ":" in str(fields.get("name", "")) else dict(fields)
            swapped = given.get("name", parts[part].get("name")) != parts[part].get("name")
            parts[part] = given if swapped else {**parts[part], **given}
            if part in FORMS:
                _check(part, parts[part], where)
        return validated(parts, Strategy, where)


def _own(part: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """A user's own part, as the settings name it: `package.module:Class` with its fields beside it."""
    beside = OWN_FIELDS.get(part, ())
    known = {key: value for key, value in fields.items() if key in beside}
    settings = {key: value for key, value in fields.items() if key not in (*beside, "name")}
    return {"name": "own", "part": fields["name"], "settings": settings, **known}


@cache
def _known(part: str) -> dict[str, list[str]]:
    """The settings of every part of a kind."""
    return {name: [field.encode_name for field in msgspec.structs.fields(form)] for name, form in FORMS[part].items()}


def _check(part: str, given: Mapping[str, Any], where: str) -> None:
    """Names that exist and settings that they have; what the settings say is checked by their types."""
    name, forms = given.get("name"), FORMS[part]
    if not isinstance(name, str) or name not in forms:
        raise ConfigError(f"{where}: there is no {part} {name!r}; {nearest(str(name), forms)}")
    known = _known(part)
    for key in [key for key in given if key not in ("name", *known[name])]:
        others = " or ".join(other for other, fields in known.items() if key in fields)
        hint = f"{name} has none, {others} has: set {part}.name" if others else nearest(key, ["name", *known[name]])
        raise ConfigError(f"{where}: unknown key {key!r} in [{part}]; {hint}")

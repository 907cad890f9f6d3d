"""The structure of a strategy: its parts, with the paper's defaults."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple, get_args

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
"""The settings classes of all parts, by kind and name."""
CUSTOM_PART_KEYS = {
    "estimator": ("epochs", "by_class"),
    "arranger": ("once",),
    "objective": ("keeps",),
    "finisher": ("apart", "alone"),
}
"""The keys that a job file may set next to the settings of a custom part, by kind of part."""


class Strategy(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The parts of a training method, and the settings of a device's training."""

    arranger: Arranger
    estimator: Estimator = NoEstimator()
    schedule: Schedule = EveryRound()
    objective: Objective = Sgd()
    aggregator: Aggregator = WeightedMean()
    finisher: Finisher = NoFinisher()
    training: Training = Training()

    def changed(self, changes: Mapping[str, Mapping[str, Any]], where: str) -> Strategy:
        """Return the strategy with fields overridden or, where a `name` is given, whole parts swapped."""
        parts: dict[str, Any] = msgspec.to_builtins(self)
        for part, fields in changes.items():
            given = _custom_part(part, fields) if ":" in str(fields.get("name", "")) else dict(fields)
            swapped = given.get("name", parts[part].get("name")) != parts[part].get("name")
            parts[part] = given if swapped else {**parts[part], **given}
            if part in FORMS:
                _check(part, parts[part], where)
        return validated(parts, Strategy, where)


class Named(NamedTuple):
    """A strategy of the catalogue: its title, its paper, what it does, and how it handles failures."""

    name: str
    title: str
    summary: str
    paper: str
    text: str
    strategy: Strategy


def _custom_part(part: str, fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings of a custom part, which a job file names as `package.module:Class`."""
    extra = CUSTOM_PART_KEYS.get(part, ())
    known = {key: value for key, value in fields.items() if key in extra}
    settings = {key: value for key, value in fields.items() if key not in (*extra, "name")}
    return {"name": "own", "part": fields["name"], "settings": settings, **known}


@cache
def _keys_of(part: str) -> dict[str, list[str]]:
    """Return the setting names of every part of a kind."""
    return {name: [field.encode_name for field in msgspec.structs.fields(form)] for name, form in FORMS[part].items()}


def _check(part: str, given: Mapping[str, Any], where: str) -> None:
    """Check that the part exists and has these settings; their types check the values."""
    name, forms = given.get("name"), FORMS[part]
    if not isinstance(name, str) or name not in forms:
        raise ConfigError(f"{where}: there is no {part} {name!r}; {nearest(str(name), forms)}")
    known = _keys_of(part)
    for key in [key for key in given if key not in ("name", *known[name])]:
        others = " or ".join(other for other, fields in known.items() if key in fields)
        elsewhere = f"{name} does not have it, {others} does: set {part}.name"
        hint = elsewhere if others else nearest(key, ["name", *known[name]])
        raise ConfigError(f"{where}: unknown key {key!r} in [{part}]; {hint}")

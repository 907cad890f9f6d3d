"""Splits samples over devices: Dirichlet, shards, quantity, range, user or domain, by classes or strata."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from coordinator.jobs.task_data import strata_in
from fleet_sim.datasets.data_set import DataSet
from sojourn.errors import ConfigError, DataError
from sojourn.model.strata import numbers, strata_of
from sojourn.parts import Count, Natural, NotNegative
from sojourn.protocol.task import Strata, Target, TaskSpec
from sojourn.randomness import generator

STRATA = 10
"""The number of strata of training samples without classes."""
RANGED = ("regression", "forecast")
"""Kinds of tasks whose targets are quantities with ranges."""


@dataclass(frozen=True, eq=False)
class Groups:
    """The group of each training sample, and the names of the groups."""

    of_sample: NDArray[np.int64]
    names: tuple[str, ...]


def groups_of(data: DataSet) -> Groups:
    """Return the groups of a set: its classes, its distinct sets of labels, or its strata."""
    if data.kind == "classification":
        return Groups(data.y_train.astype(np.int64), data.classes)
    if data.kind == "multilabel":
        kinds, which = np.unique(data.y_train > 0.5, axis=0, return_inverse=True)
        names = ["+".join(name for name, there in zip(data.classes, row, strict=True) if there) for row in kinds]
        return Groups(which.reshape(-1).astype(np.int64), tuple(name or "none" for name in names))
    task = task_of(data)
    strata = strata_in(task, data.x_train, data.y_train, STRATA, 0)
    found = strata_of(msgspec.structs.replace(task, strata=strata), data.x_train, data.y_train)
    return Groups(found, _names(strata))


def quantity_of(data: DataSet) -> NDArray[np.float64]:
    """Return the quantity for a split by range: the target, the first of several, or the mean of a window."""
    if data.kind not in RANGED:
        raise DataError(
            f"the targets of {data.name} ({data.kind}) are not quantities, but a split by range needs them; "
            "use dirichlet or shards, or user or domain if these are known"
        )
    return np.asarray(numbers(task_of(data), data.x_train, data.y_train)[:, 0])


def task_of(data: DataSet) -> TaskSpec:
    """Return the set's task, with the fields that strata need."""
    if data.kind == "reconstruction":
        return TaskSpec(data.kind, data.x_train.shape[1:], None, Strata(STRATA))
    shape = data.y_train.shape[1:]
    output = (*shape, len(data.classes)) if data.kind == "tokens" else shape
    return TaskSpec(
        data.kind, output, Target(shape, "int64" if data.kind == "tokens" else "float32"), Strata(STRATA), data.names
    )


def brief(value: float) -> str:
    """Format a value with few digits: 0.00123, 12.3, 1,234."""
    return f"{value:,.0f}" if 1e3 <= abs(value) < 1e7 else f"{value:.3g}"


def _names(strata: Strata) -> tuple[str, ...]:
    """Return the display name of each stratum."""
    if not strata.edges:
        return tuple(f"cluster {at}" for at in range(strata.count))
    ends = [brief(edge) for edge in strata.edges]
    between = [f"{low} to {high}" for low, high in pairwise(ends)]
    return (f"up to {ends[0]}", *between, f"above {ends[-1]}")


AT_ONCE = 8_000_000
"""Maximum devices x samples x classes drawn at once, so that a million devices need little memory."""


def draw_shared(
    labels: NDArray[np.int64], devices: int, samples: int, alpha: float | None, draw: np.random.Generator
) -> list[NDArray[np.int64]]:
    """Return this many samples per device, drawn from the whole set with replacement, sorted by number.

    alpha: each device draws with its own class mix from Dir(alpha); 0 gives it one class, None the mix of the whole
    set.
    """
    drawn = np.empty((devices, samples), np.int64)
    order = np.argsort(labels, kind="stable")
    counts = np.unique(labels, return_counts=True)[1]
    step = max(1, AT_ONCE // (samples * len(counts)))
    for first in range(0, devices, step):
        part = drawn[first : first + step]
        part[...] = order[_places(counts, part.shape, alpha, draw)]
    drawn.sort(axis=1)
    return list(drawn)


def _places(
    counts: NDArray[np.int64], shape: tuple[int, int], alpha: float | None, draw: np.random.Generator
) -> NDArray[np.int64]:
    """Return positions in the samples sorted by class, a row per device, drawn by its class mix."""
    if alpha is None:
        return draw.integers(0, int(counts.sum()), shape)
    devices = shape[0]
    if alpha == 0:
        classes = np.broadcast_to(draw.integers(0, len(counts), (devices, 1)), shape)
    else:
        mixes = np.cumsum(draw.dirichlet(np.full(len(counts), alpha), devices), axis=1)
        asked = draw.random(shape)
        classes = (asked[:, :, None] >= mixes[:, None, :-1]).sum(axis=2)
    begins = np.cumsum(counts) - counts
    within = (draw.random(shape) * counts[classes]).astype(np.int64)
    return begins[classes] + within


By = Literal["iid", "dirichlet", "shards", "quantity", "range", "user", "domain"]
_NAMED = 5


class Split(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How to distribute samples over devices.

    by: `iid`, the same mix and number for every device; `dirichlet`, each label by shares from Dir(alpha), or one class
    per device at alpha = 0; `shards`, samples sorted by label and cut, and some pieces per device; `quantity`, the same
    mix and numbers by shares from Dir(alpha); `range`, samples sorted by target and cut into one range per device;
    `user` and `domain`, by the author or the origin of a sample. Samples without classes have strata instead: quantiles
    of their targets, or clusters.
    alpha: for `dirichlet` and `quantity`: small is uneven.
    overlap: for `range`: overlap of ranges, in widths of a range; 0 is none, 100 is nearly `iid`.
    shards: for `shards`: the number of pieces per device.
    samples: the number of samples that every device is limited to; 0 sets no limit.
    shared: devices may have common samples: each draws `samples` of them from the whole set, `iid` or by its own
    class mix (`dirichlet`). For fleets with more devices than samples.
    """

    by: By = "dirichlet"
    alpha: NotNegative = 0.1
    overlap: NotNegative = 0.0
    shards: Count = 2
    samples: Natural = 0
    shared: bool = False


def split(settings: Split, data: DataSet, devices: int, seed: int) -> list[NDArray[np.int64]]:
    """Return each device's training sample numbers, sorted; a device may have none.

    Each sample is used once, unless devices share samples.
    """
    if devices < 1:
        raise ConfigError(f"a split needs at least one device, not {devices}")
    if not (isfinite(settings.alpha) and settings.alpha >= 0):
        raise ConfigError(f"alpha is {settings.alpha:g}; it must be 0 or more")
    if not isfinite(settings.overlap):
        raise ConfigError(f"overlap is {settings.overlap:g}; it must be a number, such as 0.5")
    if settings.shared:
        return _drawn(settings, groups_of(data).of_sample, devices, seed)
    parts = _parts(settings, data, devices, seed)
    return _equal(parts, settings.samples, seed) if settings.samples else parts


def _parts(settings: Split, data: DataSet, devices: int, seed: int) -> list[NDArray[np.int64]]:
    """Return all samples, each on one device."""
    samples = len(data.y_train)
    match settings.by:
        case "iid":
            return iid(samples, devices, seed)
        case "dirichlet" if settings.alpha == 0:
            return one_class(groups_of(data).of_sample, devices, seed)
        case "dirichlet":
            return dirichlet(groups_of(data).of_sample, devices, settings.alpha, seed)
        case "shards":
            return by_shards(groups_of(data).of_sample, devices, settings.shards, seed)
        case "quantity":
            return quantity(samples, devices, settings.alpha, seed)
        case "range":
            return by_range(quantity_of(data), devices, settings.overlap, seed)
        case "user":
            return by_user(_known(data.users, "users", data), devices, seed)
        case "domain":
            return by_domain(_known(data.domains, "domains", data), devices, seed)


def _drawn(settings: Split, labels: NDArray[np.int64], devices: int, seed: int) -> list[NDArray[np.int64]]:
    """Return samples that devices share, `settings.samples` per device."""
    if not settings.samples:
        raise ConfigError("split.shared needs split.samples, the number of samples per device (--samples 20)")
    if settings.by not in ("iid", "dirichlet"):
        raise ConfigError(f'split.shared works with by = "iid" or "dirichlet", not {settings.by!r}')
    alpha = settings.alpha if settings.by == "dirichlet" else None
    return draw_shared(labels, devices, settings.samples, alpha, generator(seed, "shared", settings.by, devices))


def iid(samples: int, devices: int, seed: int) -> list[NDArray[np.int64]]:
    """Give every device the same number of random samples, or one more."""
    if devices > samples:
        raise DataError(
            f"{samples} samples are too few for {devices} devices: use at most {samples} devices, or let them "
            "share samples (--samples 20 --set split.shared=true)"
        )
    return _dealt(generator(seed, "iid", devices).permutation(samples), devices)


def dirichlet(labels: NDArray[np.int64], devices: int, alpha: float, seed: int) -> list[NDArray[np.int64]]:
    """Return each device's sample numbers: the samples of each label are distributed by shares from Dir(alpha).

    A small alpha gives each device few labels, a large one gives all devices the same mix. Each sample is used once;
    a device may have none.
    """
    draw = generator(seed, "dirichlet", devices)
    whose = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        mine = draw.permutation(np.flatnonzero(labels == label))
        ends = np.round(np.cumsum(draw.dirichlet(np.full(devices, alpha))) * len(mine)).astype(np.int64)
        # The sums end at 1 except for rounding: the last device gets the rest.
        whose[mine] = np.searchsorted(ends[:-1], np.arange(len(mine)), side="right")
    return _of_each(whose, devices)


def one_class(labels: NDArray[np.int64], devices: int, seed: int) -> list[NDArray[np.int64]]:
    """Give each device one class, as in FedSeq; every class goes to the same number of devices, or one more.

    The devices of a class share its samples evenly. The assignment of classes to devices is random.
    """
    classes = np.unique(labels)
    if devices < len(classes):
        raise DataError(
            f"alpha = 0 gives each device one class, and {devices} devices cannot cover {len(classes)} classes: use at "
            f"least {len(classes)} devices, or an alpha above 0"
        )
    draw = generator(seed, "one class", devices)
    # Repeat complete permutations of the classes, so that none is missing; the last one may be cut.
    permutations = [draw.permutation(len(classes)) for _ in range(0, devices, len(classes))]
    return _shared(labels, classes[np.concatenate(permutations)[:devices]], draw)


def by_shards(labels: NDArray[np.int64], devices: int, each: int, seed: int) -> list[NDArray[np.int64]]:
    """Cut samples sorted by label into equal shards, and give each device some (McMahan et al., 2017)."""
    count = devices * each
    if count > len(labels):
        raise DataError(
            f"{devices} devices with {each} shards each are {count} shards, but there are {len(labels)} samples: "
            "lower shards or the number of devices"
        )
    draw = generator(seed, "shards", devices, each)
    mixed = draw.permutation(len(labels))
    shards = np.array_split(mixed[np.argsort(labels[mixed], kind="stable")], count)
    order = draw.permutation(count).reshape(devices, each)
    return [np.sort(np.concatenate([shards[at] for at in mine])) for mine in order]


def quantity(samples: int, devices: int, alpha: float, seed: int) -> list[NDArray[np.int64]]:
    """Distribute random samples, in numbers by shares from Dir(alpha); a device may have none."""
    if alpha == 0:
        raise ConfigError("alpha is 0; a split by quantity needs an alpha above 0")
    draw = generator(seed, "quantity", devices)
    ends = np.round(np.cumsum(draw.dirichlet(np.full(devices, alpha))) * samples).astype(np.int64)
    return [np.sort(part) for part in np.split(draw.permutation(samples), ends[:-1])]


def by_range(values: NDArray[np.float64], devices: int, overlap: float, seed: int) -> list[NDArray[np.int64]]:
    """Cut samples sorted by value into equal parts, the lowest for the first device.

    overlap: a sample's position is drawn from a normal distribution around its own, with a width of this many parts.
    Samples with the same value are in random order.
    """
    if devices > len(values):
        raise DataError(f"{len(values)} samples are too few for {devices} ranges: use at most {len(values)} devices")
    draw = generator(seed, "range", devices)
    mixed = draw.permutation(len(values))
    order = mixed[np.argsort(values[mixed], kind="stable")]
    if overlap:
        moved = np.arange(len(order)) + draw.normal(0.0, overlap * len(order) / devices, len(order))
        order = order[np.argsort(moved, kind="stable")]
    return _dealt(order, devices)


def by_user(users: NDArray[np.int64], devices: int, seed: int) -> list[NDArray[np.int64]]:
    """Put all samples of a user on one device. With fewer devices than users, users are grouped randomly and evenly."""
    known = np.unique(users)
    if devices > len(known):
        raise DataError(f"there are {len(known)} users, too few for {devices} devices: use at most {len(known)}")
    return _together(users, generator(seed, "user", devices).permutation(known), devices)


def by_domain(domains: NDArray[np.int64], devices: int, seed: int) -> list[NDArray[np.int64]]:
    """Assign domains to devices in order.

    With as many devices as domains, each device has one domain. With more devices, neighbours share a domain's samples
    evenly; with fewer, each device has several whole, neighbouring domains.
    """
    known = np.unique(domains)
    if devices <= len(known):
        return _together(domains, known, devices)
    whose = np.arange(devices) * len(known) // devices
    return _shared(domains, known[whose], generator(seed, "domain", devices))


def _known(groups: NDArray[np.int64] | None, what: str, data: DataSet) -> NDArray[np.int64]:
    if groups is None:
        raise DataError(
            f"the {what} of {data.name} are unknown: a split by {what[:-1]} needs {what}, "
            f"in an NPZ file an array `{what}`"
        )
    return groups


def _together(kinds: NDArray[np.int64], known: NDArray[np.int64], devices: int) -> list[NDArray[np.int64]]:
    """Put all samples of a kind (user, domain) on one device; neighbours in `known` share one, evenly."""
    device_of = np.repeat(np.arange(devices), [len(group) for group in np.array_split(known, devices)])
    order = np.argsort(known)
    whose = device_of[order][np.searchsorted(known[order], kinds)]
    return _of_each(whose, devices)


def _of_each(whose: NDArray[np.int64], devices: int) -> list[NDArray[np.int64]]:
    """Return each device's sample numbers, sorted, from each sample's device."""
    return np.split(np.argsort(whose, kind="stable"), np.cumsum(np.bincount(whose, minlength=devices))[:-1])


def _shared(kinds: NDArray[np.int64], whose: NDArray[np.int64], draw: np.random.Generator) -> list[NDArray[np.int64]]:
    """Give each device samples of one kind (class, domain); the devices of a kind share its samples evenly."""
    parts = [np.empty(0, np.int64)] * len(whose)
    for kind in np.unique(whose):
        mine = np.flatnonzero(whose == kind)
        for device, part in zip(mine, _dealt(draw.permutation(np.flatnonzero(kinds == kind)), len(mine)), strict=True):
            parts[device] = part
    return parts


def _dealt(samples: NDArray[np.int64], devices: int) -> list[NDArray[np.int64]]:
    return [np.sort(part) for part in np.array_split(samples, devices)]


def _equal(parts: list[NDArray[np.int64]], samples: int, seed: int) -> list[NDArray[np.int64]]:
    """Return the same number of random samples for every device."""
    poor = [device for device, part in enumerate(parts, 1) if len(part) < samples]
    if poor:
        least = min(len(part) for part in parts)
        named = ", ".join(map(str, poor[:_NAMED])) + (" ..." if len(poor) > _NAMED else "")
        advice = f"this split allows at most {least}" if least else "choose a more even split"
        raise DataError(
            f"samples = {samples}, but {len(poor)} of {len(parts)} devices have fewer (device {named}; the minimum is "
            f"{least}): {advice}"
        )
    return [
        np.sort(generator(seed, "samples", device).choice(part, samples, replace=False))
        for device, part in enumerate(parts)
    ]

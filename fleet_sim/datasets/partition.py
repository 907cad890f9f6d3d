"""Splitting samples over devices, so that each sees its own part of the world."""

from __future__ import annotations

from math import isfinite
from typing import TYPE_CHECKING, Literal

import msgspec
import numpy as np

from fleet_sim.datasets.shared_samples import draw_shared
from fleet_sim.datasets.strata import groups_of, quantity_of
from sojourn.errors import ConfigError, DataError
from sojourn.parts import Count, Natural, NotNegative
from sojourn.randomness import generator

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from fleet_sim.datasets.data_set import DataSet

By = Literal["iid", "dirichlet", "shards", "quantity", "range", "user", "domain"]
_NAMED = 5


class Split(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How samples are dealt out to devices.

    by: `iid`, everybody the same mix and number; `dirichlet`, every label by shares from Dir(alpha), or one class for
        each device at alpha = 0; `shards`, samples sorted by label, cut, and some pieces dealt to each device;
        `quantity`, everybody the same mix and numbers by shares from Dir(alpha); `range`, samples sorted by their
        target and cut into as many ranges as there are devices; `user` and `domain`, by who wrote a sample or where it
        comes from. Samples without classes have strata instead: quantiles of their targets, or clusters.
    alpha: for `dirichlet` and `quantity`: small is uneven.
    overlap: for `range`: how far ranges reach into each other, in widths of a range; 0 not at all, 100 is nearly `iid`.
    shards: for `shards`: how many pieces each device gets.
    samples: every device is cut to this many samples; 0 leaves whatever the split gives.
    shared: devices may have the same samples: each draws `samples` of them from the whole set, `iid` or by a mix of
        classes of its own (`dirichlet`). For fleets with more devices than there are samples.
    """

    by: By = "dirichlet"
    alpha: NotNegative = 0.1
    overlap: NotNegative = 0.0
    shards: Count = 2
    samples: Natural = 0
    shared: bool = False


def split(settings: Split, data: DataSet, devices: int, seed: int) -> list[NDArray[np.int64]]:
    """The numbers of each device's training samples, rising; a device may have none.

    No sample is given twice, unless devices share them.
    """
    if devices < 1:
        raise ConfigError(f"samples are split over one device or more, not {devices}")
    if not (isfinite(settings.alpha) and settings.alpha >= 0):
        raise ConfigError(f"alpha is {settings.alpha:g}; it must be 0 or more")
    if not isfinite(settings.overlap):
        raise ConfigError(f"overlap is {settings.overlap:g}; it must be a number, such as 0.5")
    if settings.shared:
        return _drawn(settings, groups_of(data).of_sample, devices, seed)
    parts = _parts(settings, data, devices, seed)
    return _equal(parts, settings.samples, seed) if settings.samples else parts


def _parts(settings: Split, data: DataSet, devices: int, seed: int) -> list[NDArray[np.int64]]:
    """All samples, each on one device."""
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
    """Samples that devices share, each `settings.samples` of them."""
    if not settings.samples:
        raise ConfigError("split.shared needs split.samples: how many samples each device draws (--samples 20)")
    if settings.by not in ("iid", "dirichlet"):
        raise ConfigError(f'split.shared draws samples by = "iid" or "dirichlet", not {settings.by!r}')
    alpha = settings.alpha if settings.by == "dirichlet" else None
    return draw_shared(labels, devices, settings.samples, alpha, generator(seed, "shared", settings.by, devices))


def iid(samples: int, devices: int, seed: int) -> list[NDArray[np.int64]]:
    """Everybody gets the same number of samples, or one more, whatever they are."""
    if devices > samples:
        raise DataError(
            f"{samples} samples are too few for {devices} devices: at most {samples} devices get one each, or let them "
            "share samples (--samples 20 --set split.shared=true)"
        )
    return _dealt(generator(seed, "iid", devices).permutation(samples), devices)


def dirichlet(labels: NDArray[np.int64], devices: int, alpha: float, seed: int) -> list[NDArray[np.int64]]:
    """The sample numbers of each device: every label is dealt out by shares drawn from Dir(alpha).

    A small alpha gives each device few labels, a large one gives all devices the same mix. Every sample is given once;
    a device may be left with none.
    """
    draw = generator(seed, "dirichlet", devices)
    whose = np.empty(len(labels), np.int64)
    for label in np.unique(labels):
        mine = draw.permutation(np.flatnonzero(labels == label))
        ends = np.round(np.cumsum(draw.dirichlet(np.full(devices, alpha))) * len(mine)).astype(np.int64)
        # The sums end at 1 but for rounding: the last device has what is left.
        whose[mine] = np.searchsorted(ends[:-1], np.arange(len(mine)), side="right")
    return _of_each(whose, devices)


def one_class(labels: NDArray[np.int64], devices: int, seed: int) -> list[NDArray[np.int64]]:
    """One class for each device, as in FedSeq: every class goes to as many devices as any other, or one more.

    The devices of a class share its samples evenly. Which device has which class is drawn.
    """
    classes = np.unique(labels)
    if devices < len(classes):
        raise DataError(
            f"alpha = 0 gives each device one class, and {devices} devices cannot hold {len(classes)} classes: take at "
            f"least {len(classes)} devices, or an alpha above 0"
        )
    draw = generator(seed, "one class", devices)
    # Whole decks of classes, so that none is left out; the last one may be cut.
    decks = [draw.permutation(len(classes)) for _ in range(0, devices, len(classes))]
    return _shared(labels, classes[np.concatenate(decks)[:devices]], draw)


def by_shards(labels: NDArray[np.int64], devices: int, each: int, seed: int) -> list[NDArray[np.int64]]:
    """Samples sorted by label are cut into equal shards, and every device is dealt some (McMahan et al., 2017)."""
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
    """Everybody gets any samples, in numbers by shares drawn from Dir(alpha); a device may be left with none."""
    if alpha == 0:
        raise ConfigError("alpha is 0; a split by quantity needs one above 0")
    draw = generator(seed, "quantity", devices)
    ends = np.round(np.cumsum(draw.dirichlet(np.full(devices, alpha))) * samples).astype(np.int64)
    return [np.sort(part) for part in np.split(draw.permutation(samples), ends[:-1])]


def by_range(values: NDArray[np.float64], devices: int, overlap: float, seed: int) -> list[NDArray[np.int64]]:
    """Samples sorted by value and cut into equal parts, the lowest for the first device.

    overlap: a sample's place is drawn from a normal distribution around its own, as wide as so many parts. Samples of
    the same value come in an order that is drawn.
    """
    if devices > len(values):
        raise DataError(f"{len(values)} samples are too few for {devices} ranges: take at most {len(values)} devices")
    draw = generator(seed, "range", devices)
    mixed = draw.permutation(len(values))
    order = mixed[np.argsort(values[mixed], kind="stable")]
    if overlap:
        moved = np.arange(len(order)) + draw.normal(0.0, overlap * len(order) / devices, len(order))
        order = order[np.argsort(moved, kind="stable")]
    return _dealt(order, devices)


def by_user(users: NDArray[np.int64], devices: int, seed: int) -> list[NDArray[np.int64]]:
    """All samples of a user are on one device. With fewer devices than users, users are grouped by lot, evenly."""
    known = np.unique(users)
    if devices > len(known):
        raise DataError(f"there are {len(known)} users, too few for {devices} devices: take at most {len(known)}")
    return _together(users, generator(seed, "user", devices).permutation(known), devices)


def by_domain(domains: NDArray[np.int64], devices: int, seed: int) -> list[NDArray[np.int64]]:
    """Devices and domains side by side, in the order of the domains.

    With as many devices as domains each device is one domain. More devices share the domains' samples evenly, and
    neighbours have the same domain; fewer devices have neighbouring domains in whole.
    """
    known = np.unique(domains)
    if devices <= len(known):
        return _together(domains, known, devices)
    whose = np.arange(devices) * len(known) // devices
    return _shared(domains, known[whose], generator(seed, "domain", devices))


def _known(groups: NDArray[np.int64] | None, what: str, data: DataSet) -> NDArray[np.int64]:
    if groups is None:
        raise DataError(
            f"{data.name} does not say whose its samples are: a split by {what[:-1]} needs {what}, "
            f"in an NPZ file an array `{what}`"
        )
    return groups


def _together(kinds: NDArray[np.int64], known: NDArray[np.int64], devices: int) -> list[NDArray[np.int64]]:
    """All samples of a kind (user, domain) on one device; neighbours in `known` share one, as evenly as can be."""
    device_of = np.repeat(np.arange(devices), [len(group) for group in np.array_split(known, devices)])
    order = np.argsort(known)
    whose = device_of[order][np.searchsorted(known[order], kinds)]
    return _of_each(whose, devices)


def _of_each(whose: NDArray[np.int64], devices: int) -> list[NDArray[np.int64]]:
    """The numbers of each device's samples, rising, by whose each sample is."""
    return np.split(np.argsort(whose, kind="stable"), np.cumsum(np.bincount(whose, minlength=devices))[:-1])


def _shared(kinds: NDArray[np.int64], whose: NDArray[np.int64], draw: np.random.Generator) -> list[NDArray[np.int64]]:
    """Each device has samples of one kind (class, domain); the devices of a kind share its samples evenly."""
    parts = [np.empty(0, np.int64)] * len(whose)
    for kind in np.unique(whose):
        mine = np.flatnonzero(whose == kind)
        for device, part in zip(mine, _dealt(draw.permutation(np.flatnonzero(kinds == kind)), len(mine)), strict=True):
            parts[device] = part
    return parts


def _dealt(samples: NDArray[np.int64], devices: int) -> list[NDArray[np.int64]]:
    return [np.sort(part) for part in np.array_split(samples, devices)]


def _equal(parts: list[NDArray[np.int64]], samples: int, seed: int) -> list[NDArray[np.int64]]:
    """The same number for every device, drawn from what it has."""
    poor = [device for device, part in enumerate(parts, 1) if len(part) < samples]
    if poor:
        least = min(len(part) for part in parts)
        named = ", ".join(map(str, poor[:_NAMED])) + (" ..." if len(poor) > _NAMED else "")
        advice = f"at most {least} work with this split" if least else "choose a more even split"
        raise DataError(
            f"samples = {samples}, but {len(poor)} of {len(parts)} devices have fewer (device {named}; the least is "
            f"{least}): {advice}"
        )
    return [
        np.sort(generator(seed, "samples", device).choice(part, samples, replace=False))
        for device, part in enumerate(parts)
    ]

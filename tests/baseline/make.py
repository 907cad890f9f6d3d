"""Replace the baseline with one of the present code: `make baseline`. It needs Mosquitto and takes about a minute.

Real processes of the archived source write everything: a coordinator, an edge server and two agents with 60 digits
each, which train with one thread. The archive holds:

- `source/`: pyproject.toml and the packages that run on nodes;
- `fleet/`: the four stores, settings files, data, release key, two releases, a backup, exported models;
- `messages.json`: docs/vectors.json, with packets of every kind of message;
- `records.json`: an example of every kind of record and of each role's state, with every field filled.

The jobs `shorter` (3 rounds) and `undisturbed` (4 rounds) ended; the devices serve a release of `shorter`. Then all
nodes restarted, and `midway`, the same job as `undisturbed`, was killed in its third round. The first visit of the tour
was accepted; the second was trained, but not reported.
"""

from __future__ import annotations

import json
import re
import shutil
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from msgspec import inspect
from sklearn.datasets import load_digits
from typer import echo

from sojourn import WIRE, __version__
from tests.baseline.archive import ARCHIVE, FORMS, unpack_baseline
from tests.baseline.fleet import CLOUD, DEVICES, FLEET, NODES, SITE, CommandFleet, sojourn

ROOT = Path(__file__).parents[2]
PACKAGES = ("sojourn", "edge_agent", "hierarchy", "coordinator")
KINDS = ("messages.json", "records.json")
SAMPLES = 60
"""Samples of each device."""
JOB = """
name = "{name}"
rounds = {rounds}
strategy = "fedseq-dyn"
threads = 1
arranger = {{ sets = 1, size = 2 }}
estimator = {{ epochs = 2 }}
training = {{ epochs = 600 }}
model = {{ options = {{ hidden = [8] }} }}
data = {{ test = "digits", exemplars_per_class = 2 }}
fleet = {{ devices = 2 }}
"""
"""A tour of both devices, which each keep a state; a visit takes long enough to kill the fleet in the middle of it."""
ROUNDS = {"shorter": 3, "undisturbed": 4, "midway": 4}
SETTINGS = {
    CLOUD: f'fleet = "{FLEET}"\nstore = "stores/{CLOUD}"\n',
    SITE: f'name = "{SITE}"\nfleet = "{FLEET}"\nstore = "stores/{SITE}"\n',
    **{
        device: f'name = "{device}"\nfleet = "{FLEET}"\nstore = "stores/{device}"\nthreads = 1\n'
        f'[data]\npath = "{device}.npz"\n[release]\nkey_file = "release.pub"\nreport_seconds = 1\n'
        for device in DEVICES
    },
}


def main() -> None:
    """Make the archive, replace the one before, and print which messages and records differ."""
    with tempfile.TemporaryDirectory() as name:
        new, old = Path(name) / "new", Path(name) / "old"
        copy_source(new / "source")
        make_fleet(new / "fleet", new / "source")
        shutil.copy(ROOT / "docs" / "vectors.json", new / "messages.json")
        (new / "records.json").write_text(json.dumps(examples(), indent=1))
        before = unpack_baseline(old) if ARCHIVE.exists() else None
        pack(new)
        echo(f"{ARCHIVE.relative_to(ROOT)}: version {__version__}, wire {WIRE}, {ARCHIVE.stat().st_size:,} bytes")
        for kinds in KINDS:
            echo(f"{kinds}: {changes(new / kinds, before / kinds) if before else 'new'}")


def copy_source(folder: Path) -> None:
    """Copy the packages, with the metadata by which Python finds the commands of code that is not installed."""
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "pyproject.toml", folder)
    commands = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["entry-points"]["sojourn.commands"]
    info = folder / "sojourn-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: sojourn\nVersion: 0\n")
    lines = [f"{name} = {place}" for name, place in commands.items()]
    (info / "entry_points.txt").write_text("\n".join(["[sojourn.commands]", *lines]))


def make_fleet(folder: Path, source: Path) -> None:
    """Run a fleet that ends two jobs, serves a release, and is killed in the middle of a third job."""
    folder.mkdir()
    for node, text in SETTINGS.items():
        (folder / f"{node}.toml").write_text(text)
    for job, rounds in ROUNDS.items():
        (folder / f"job-{job}.toml").write_text(JOB.format(name=job, rounds=rounds))
    split_digits(folder)
    sojourn("release", "key", "release.key", folder=folder, source=source)
    fleet = CommandFleet(folder, source, NODES)
    try:
        fleet.start()
        for version, job in enumerate(("shorter", "undisturbed"), 1):
            fleet.ask("job", "submit", f"job-{job}.toml", "--watch")
            fleet.export(job)
            fleet.ask("release", "create", job, "--line", "digits", "--version", str(version))
        fleet.roll_out("digits-1.release")
        sojourn("coordinator", "backup", "backup.tar", "--settings", "cloud.toml", folder=folder, source=source)
        fleet.end(*NODES)
        fleet.start()
        fleet.ask("job", "submit", "job-midway.toml")
        kill_midway(fleet)
    finally:
        fleet.stop()
    for made in ("logs", "broker"):
        shutil.rmtree(folder / made)


def kill_midway(fleet: CommandFleet) -> None:
    """Kill the edge server during the second visit of round 3, and the other nodes when that visit is trained."""
    fleet.wait(lambda: len(third_round(fleet, "visit")) == 2, "the second visit of the third round")
    fleet.kill(SITE)
    fleet.wait(lambda: len(third_round(fleet, "trained")) == 2, "the end of that visit")
    fleet.kill(CLOUD, *DEVICES)
    assert "job midway round 3: accuracy" not in fleet.log(CLOUD), "the edge server was too fast: run it again"


def third_round(fleet: CommandFleet, what: str) -> list[str]:
    """The lines of the devices' logs about the third round."""
    return [line for device in DEVICES for line in re.findall(rf"{what} midway round 3 .*", fleet.log(device))]


def split_digits(folder: Path) -> None:
    """Give the first device mostly low digits, the second one mostly high digits."""
    x, y = load_digits(return_X_y=True)
    draw = np.random.default_rng(7)
    chosen = draw.permutation(np.flatnonzero(np.arange(len(y)) % 5))[: 4 * SAMPLES]
    low_first = chosen[np.argsort(y[chosen] + draw.integers(0, 4, len(chosen)), kind="stable")]
    for device, mine in zip(DEVICES, (low_first[:SAMPLES], low_first[-SAMPLES:]), strict=True):
        np.savez_compressed(folder / f"{device}.npz", x=(x[mine] / 16).reshape(-1, 1, 8, 8).astype("f4"), y=y[mine])


def examples() -> dict[str, dict[str, str]]:
    """An example of every record and state, in hex; the fleet has no cause to write some of them."""
    found = {}
    for role, (record, state) in FORMS.items():
        kinds = inspect.type_info(record).types  # type: ignore[attr-defined]
        found[role] = {kind.tag: example(kind.cls) for kind in kinds} | {"state": example(state)}
    return found


def example(form: Any) -> str:
    """One encoded value of a type."""
    value = msgspec.convert(value_of(inspect.type_info(form)), form, strict=False)
    return msgspec.msgpack.encode(value).hex()


def value_of(form: inspect.Type) -> Any:  # noqa: C901  # one short case for each type
    """A value that fits a type, and differs from the default where possible."""
    match form:
        case inspect.StructType():
            values = [(field.encode_name, value_of(field.type)) for field in form.fields]
            if form.array_like:
                return [*([form.tag] if form.tag else ()), *(value for _, value in values)]
            return {**({form.tag_field: form.tag} if form.tag_field else {}), **dict(values)}
        case inspect.UnionType():
            return value_of(next(each for each in form.types if not isinstance(each, inspect.NoneType)))
        case inspect.LiteralType():
            words: tuple[Any, ...] = form.values
            return max(words)
        case inspect.TupleType():
            return [value_of(each) for each in form.item_types]
        case inspect.CollectionType():
            return [value_of(form.item_type)]
        case inspect.DictType():
            return {value_of(form.key_type): value_of(form.value_type)}
        case inspect.StrType():
            return "a-name"
        case inspect.BytesType():
            return bytes(range(form.min_length or 3))
        case inspect.BoolType():
            return True
        case inspect.IntType():
            return min(max(form.ge or 0, 7), form.le or 7)
        case inspect.FloatType():
            return min(max(form.ge or 0.0, (form.gt or 0.0) + 0.75), form.le or 10.0, (form.lt or 10.0) / 2)
        case inspect.NoneType():
            return None
        case inspect.Metadata():
            return value_of(form.type)
    raise TypeError(f"there is no example of {form}")


def pack(folder: Path) -> None:
    """Write the archive, without owners and dates."""

    def plain(entry: tarfile.TarInfo) -> tarfile.TarInfo | None:
        entry.uid = entry.gid = entry.mtime = 0
        entry.uname = entry.gname = ""
        return None if entry.name.endswith("__pycache__") else entry

    with tarfile.open(ARCHIVE, "w:xz") as tar:
        for path in sorted(folder.iterdir()):
            tar.add(path, path.name, filter=plain)


def changes(new: Path, old: Path) -> str:
    """Count the messages or records of two files that are new, different or gone."""
    after, before = (flat(json.loads(path.read_text())) for path in (new, old))
    added, gone = len(after.keys() - before.keys()), len(before.keys() - after.keys())
    changed = sum(after[name] != before[name] for name in after.keys() & before.keys())
    return f"{len(after)} examples: {added} added, {changed} changed, {gone} removed"


def flat(found: dict[str, Any]) -> dict[tuple[str, str], str]:
    """The examples of one file by their names."""
    if "packets" in found:
        return {("packet", packet["name"]): packet["hex"] for packet in found["packets"]}
    return {(role, kind): example for role, kinds in found.items() for kind, example in kinds.items()}


if __name__ == "__main__":
    main()

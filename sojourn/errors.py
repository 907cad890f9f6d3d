"""The tree of errors by whose fault they are, and hints for missing optional dependencies."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

# SojournError
# ├── UserError          the user's input: config, job file, data, model
# │   ├── ConfigError      an invalid config or job file
# │   ├── DataError        data that cannot be read or does not fit the job
# │   ├── ModelError       a model that cannot be compiled, or is compiled incorrectly
# │   │   └── GraphRefused   a graph that breaks a safety rule
# │   ├── JobError         a job that cannot run, or is unknown
# │   └── NoRelease        a model line without a release on this machine
# ├── PeerError          input from another node
# │   ├── InvalidMessage   malformed, too large, of the wrong type, or from the wrong role
# │   └── InvalidBlob      bytes that do not match their digest or their encoding
# ├── MachineError       a problem of this machine or its network
# │   ├── LinkError        the broker cannot be reached, or refuses the connection
# │   ├── BrokerError      a broker could not be started here
# │   └── StoreError       the store cannot be read or written
# │       ├── DiskFull       no space is left
# │       ├── DamagedJournal  the journal is corrupt
# │       └── MissingBlob    a blob that the journal refers to is missing
# └── Fault              a bug in Sojourn: please report it
#     └── UnexpectedEvent  an event without a transition in the current state


class SojournError(Exception):
    """The base of all errors that Sojourn raises deliberately."""


class UserError(SojournError):
    """An error in the user's input."""


class ConfigError(UserError):
    """An invalid config or job file."""


class DataError(UserError):
    """Data that cannot be read, or does not fit the job."""


class ModelError(UserError):
    """A model that cannot be compiled, or is compiled incorrectly."""


class GraphRefused(ModelError):
    """A graph or its kit that breaks a rule of `sojourn.model.inspection`."""


class JobError(UserError):
    """A job that cannot run, or is unknown."""


class NoRelease(UserError):
    """A model line without a release on this machine."""


class PeerError(SojournError):
    """An error in the input from another node."""


class InvalidMessage(PeerError):
    """A message that is malformed, too large, of the wrong type, or from the wrong role."""


class InvalidBlob(PeerError):
    """Bytes that do not match their digest or their encoding."""


class MachineError(SojournError):
    """A problem of this machine or its network."""


class LinkError(MachineError):
    """The broker cannot be reached, or refuses the connection."""


class BrokerError(MachineError):
    """A broker could not be started here."""


class StoreError(MachineError):
    """The store cannot be read or written."""


class DiskFull(StoreError):
    """No space is left on the disk."""


class DamagedJournal(StoreError):
    """The journal is corrupt."""


class MissingBlob(StoreError, KeyError):
    """A blob that the journal refers to is missing."""

    __str__ = Exception.__str__


class Fault(SojournError):
    """A bug in Sojourn: please report it."""


class UnexpectedEvent(Fault):
    """An event without a transition in the current state."""


Extra = Literal["cloud", "sim", "broker", "ray", "web", "metrics", "mlflow", "tensorboard"]
MODULES: dict[Extra, tuple[str, ...]] = {
    "cloud": ("torch", "torchvision", "onnx", "onnxscript", "safetensors", "sklearn", "ortools"),
    "sim": ("matplotlib",),
    "broker": ("amqtt",),
    "ray": ("ray",),
    "web": ("nicegui",),
    "metrics": ("prometheus_client",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "tensorboard": ("tensorboard",),
}


def require_extra(extra: Extra, what: str) -> None:
    """Raise MachineError unless an extra is installed, without importing it."""
    for module in MODULES[extra]:
        if find_spec(module) is None:
            raise MachineError(f"{what} needs {module}, which is not installed: {install(extra)}")


def extra_of(module: str) -> Extra | None:
    """Return the extra that includes a module, or None."""
    return next((extra for extra, modules in MODULES.items() if module.partition(".")[0] in modules), None)


def install(extra: Extra) -> str:
    """Return how to install an extra, from a clone because Sojourn is not on a package index."""
    return f"install the extra {extra!r} from a clone of Sojourn: pip install '.[{extra}]'"

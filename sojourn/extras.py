"""Which optional dependencies bring which modules, so that a missing one is named by what to install."""

from __future__ import annotations

from importlib.util import find_spec
from typing import Literal

from sojourn.errors import MachineError

Extra = Literal["cloud", "sim", "broker", "ray", "web", "metrics", "mlflow", "tensorboard"]
MODULES: dict[Extra, tuple[str, ...]] = {
    "cloud": ("torch", "torchvision", "onnx", "onnxscript", "sklearn", "ortools"),
    "sim": ("matplotlib",),
    "broker": ("amqtt",),
    "ray": ("ray",),
    "web": ("nicegui",),
    "metrics": ("prometheus_client",),
    "mlflow": ("mlflow", "sqlalchemy", "alembic"),
    "tensorboard": ("tensorboard",),
}


def need(extra: Extra, what: str) -> None:
    """Make sure, without importing anything, that an extra is installed."""
    for module in MODULES[extra]:
        if find_spec(module) is None:
            raise MachineError(f"{what} needs {module}, which is not installed: {install(extra)}")


def bringing(module: str) -> Extra | None:
    """The extra that brings a module."""
    return next((extra for extra, modules in MODULES.items() if module.partition(".")[0] in modules), None)


def install(extra: Extra) -> str:
    """What to type to have an extra."""
    return f"pip install 'sojourn[{extra}]'"

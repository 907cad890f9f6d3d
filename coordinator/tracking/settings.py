"""Where rounds are tracked besides the coordinator's own journal: `[tracking]` of its file, or of a simulation's."""

from __future__ import annotations

from pathlib import Path

import msgspec

from sojourn import extras
from sojourn.errors import ConfigError

SQLITE = "sqlite:///"


class TrackingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, omit_defaults=True):
    """Experiment tracking: off unless one of these is set."""

    mlflow: str | None = None
    """MLflow's SQLite store: `sqlite:///FILE`, or the file's path; it is made when it is not there. Needs
    `sojourn[mlflow]`. Example: `"sqlite:////var/lib/sojourn-coordinator/mlflow.db"`."""
    tensorboard: str | None = None
    """The folder for TensorBoard's event files, one folder in it for each job. Needs `sojourn[tensorboard]`. Example:
    `"/var/lib/sojourn-coordinator/tensorboard"`."""
    experiment: str = "sojourn"
    """MLflow's experiment that jobs are runs of."""

    @property
    def on(self) -> bool:
        """Whether anything is tracked."""
        return self.mlflow is not None or self.tensorboard is not None

    def need(self) -> None:
        """Make sure that what writes is installed, without importing it here."""
        if self.mlflow is not None:
            extras.need("mlflow", "tracking.mlflow")
        if self.tensorboard is not None:
            extras.need("tensorboard", "tracking.tensorboard")

    def resolved(self, where: str) -> TrackingSettings:
        """The same with whole paths; a ConfigError if they cannot be meant so."""
        database = None if self.mlflow is None else f"{SQLITE}{_database(self.mlflow, where)}"
        folder = None if self.tensorboard is None else str(Path(self.tensorboard).expanduser().absolute())
        return msgspec.structs.replace(self, mlflow=database, tensorboard=folder)


def _database(text: str, where: str) -> Path:
    """The file of MLflow's store."""
    path = text.removeprefix(SQLITE)
    if "://" in path or not path.strip():
        raise ConfigError(
            f"{where}: tracking.mlflow = {text!r} is no SQLite store: write {SQLITE}FILE or a file's path. A server is "
            "not written to over the network; let MLflow's own read the file"
        )
    return Path(path).expanduser().absolute()

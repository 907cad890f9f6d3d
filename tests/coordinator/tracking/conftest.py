"""An MLflow store for each test that needs one."""

from __future__ import annotations

import pytest

from tests.coordinator.tracking.stores import empty_store


@pytest.fixture
def database(tmp_path):
    path = tmp_path / "mlflow.db"
    path.write_bytes(empty_store())
    return path

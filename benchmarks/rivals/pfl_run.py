"""pfl-research's simulation, in its own venv: FederatedAveraging in two processes that reduce over gloo.

Users' tensors are created beforehand, as float32; there is no evaluation and no metric.

python -m benchmarks.rivals.pfl_run cnn 5
"""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from importlib.metadata import version
from typing import Any

from benchmarks.rivals.workloads import BATCH, RATE, WARM, WORKLOADS, Workload, data, print_rounds

RANK, ADDRESSES = "PFL_WORKER_RANK", "PFL_WORKER_ADDRESSES"


def run(name: str, rounds: int) -> list[float]:
    """Return the end times of rounds. Importing pfl connects to the other process at once."""
    import numpy as np  # noqa: PLC0415
    import torch  # noqa: PLC0415
    from pfl.aggregate.simulate import SimulatedBackend  # noqa: PLC0415
    from pfl.aggregate.weighting import WeightByDatapoints  # noqa: PLC0415
    from pfl.algorithm.base import NNAlgorithmParams  # noqa: PLC0415
    from pfl.algorithm.federated_averaging import FederatedAveraging  # noqa: PLC0415
    from pfl.callback.base import TrainingProcessCallback  # noqa: PLC0415
    from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams  # noqa: PLC0415
    from pfl.metrics import Metrics  # noqa: PLC0415
    from pfl.model.pytorch import PyTorchModel  # noqa: PLC0415

    torch.set_num_threads(1)
    torch.manual_seed(1)
    np.random.seed(1)  # noqa: NPY002  # pfl draws its users from it, and both must draw the same
    workload, marks = WORKLOADS[name], []

    class Clock(TrainingProcessCallback):
        def after_central_iteration(self, aggregate_metrics: Any, model: Any, *, central_iteration: int) -> Any:
            del aggregate_metrics, model, central_iteration
            marks.append(time.perf_counter())
            return False, Metrics()

    module = judged(workload)
    model = PyTorchModel(
        module, local_optimizer_create=torch.optim.SGD, central_optimizer=torch.optim.SGD(module.parameters(), 1.0)
    )
    users = dataset(workload)
    params = NNAlgorithmParams(
        central_num_iterations=rounds,
        evaluation_frequency=rounds * 2,
        train_cohort_size=workload.cohort,
        val_cohort_size=0,
    )
    FederatedAveraging().run(
        algorithm_params=params,
        backend=SimulatedBackend(users, users, [WeightByDatapoints()]),
        model=model,
        model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=RATE, local_batch_size=BATCH),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[Clock()],
        send_metrics_to_platform=False,
    )
    return marks


def judged(workload: Workload) -> Any:
    """The module with the methods that pfl calls."""
    from torch.nn import functional  # noqa: PLC0415

    class Judged(workload.build):  # type: ignore[name-defined, misc]
        def loss(self, x: Any, y: Any) -> Any:
            return functional.cross_entropy(self(x), y)

        def metrics(self, x: Any, y: Any) -> dict[str, Any]:
            del x, y
            return {}

    return Judged()


def dataset(workload: Workload) -> Any:
    """Return all users, drawn at random."""
    import torch  # noqa: PLC0415
    from pfl.data import FederatedDataset  # noqa: PLC0415
    from pfl.data.pytorch import PyTorchTensorDataset  # noqa: PLC0415
    from pfl.data.sampling import get_user_sampler  # noqa: PLC0415

    images, labels = data(workload)
    x, y = torch.from_numpy(images).float(), torch.from_numpy(labels)
    pieces = list(zip(x.split(workload.samples), y.split(workload.samples), strict=True))
    sampler = get_user_sampler("random", range(workload.users))
    return FederatedDataset(lambda user: PyTorchTensorDataset(pieces[user], user_id=user), sampler)


def free_port() -> int:
    with contextlib.closing(socket.socket()) as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main(name: str, rounds: str) -> None:
    if RANK in os.environ:
        marks = run(name, WARM + int(rounds))
        if os.environ[RANK] == "0":
            print_rounds(marks, f"pfl {version('pfl')}")
        return
    both = ",".join(f"127.0.0.1:{free_port()}" for _ in range(2))
    started = [
        subprocess.Popen([sys.executable, *sys.orig_argv[1:]], env={**os.environ, RANK: str(rank), ADDRESSES: both})
        for rank in range(2)
    ]
    raise SystemExit(max(abs(each.wait()) for each in started))


if __name__ == "__main__":
    main(*sys.argv[1:])

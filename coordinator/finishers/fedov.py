"""FedOV's server half: the members' models vote, and a student learns from their vote on the exemplars.

Yiqun Diao, Qinbin Li and Bingsheng He: "Towards Addressing Label Skews in One-Shot Federated Learning", ICLR 2023. A
vote is the sum over models of the probabilities of classes c < C, from the softmax over C + 1. The student follows it,
normalised to 1, by KL (mean over elements). The authors distil on half of the test set; here it is the exemplars.
"""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional

from coordinator.finishers.task import Finished, FinishTask
from coordinator.finishers.torch_models import TorchModels, repeatable
from sojourn.errors import JobError
from sojourn.model.graphs import Graphs
from sojourn.model.scoring import probabilities, votes_of
from sojourn.parts import Vote
from sojourn.randomness import derive

MIN_SUM = 1e-12


def vote(settings: Vote, task: FinishTask) -> Finished:
    """Return the student of the members' vote; the members' models are the round's result."""
    if task.exemplars is None:
        raise JobError("the finisher vote trains a student on exemplars, and this job has none")
    task.check_room(settings.memory, "finisher.memory")
    x, _ = task.exemplars.arrays()
    x = np.asarray(x, task.kit.input.dtype)
    graphs = Graphs(task.kit)
    votes = votes_of([probabilities(graphs, each.load(), x) for each in task.members], settings.most)
    wanted = torch.from_numpy((votes / np.maximum(votes.sum(1, keepdims=True), MIN_SUM)).astype(np.float32))
    with repeatable(derive(task.seed, "vote")) as place:
        models = TorchModels(task, place)
        student = models.fresh(derive(task.seed, "student"))
        by = torch.Generator().manual_seed(derive(task.seed, "vote draws"))
        _learn(settings, task, student, torch.from_numpy(x), wanted, by, place)
        return Finished(models.vector(student), voters=True)


def _learn(
    settings: Vote,
    task: FinishTask,
    student: torch.nn.Module,
    x: torch.Tensor,
    wanted: torch.Tensor,
    by: torch.Generator,
    place: torch.device,
) -> None:
    known = wanted.shape[1]
    adam = torch.optim.Adam([weight for weight in student.parameters() if weight.requires_grad], settings.lr)
    student.train()
    for epoch in range(settings.epochs):
        task.notify(f"vote: epoch {epoch + 1} of {settings.epochs}")
        for rows in torch.randperm(len(x), generator=by).split(settings.batch):
            if len(rows) < min(2, len(x)):
                continue  # BatchNorm has no variance for one sample
            student_logs = student(x[rows].to(place))[:, :known].log_softmax(1)
            # Mean over all elements, as in the authors' code.
            loss = functional.kl_div(student_logs, wanted[rows].to(place), reduction="none").mean()
            adam.zero_grad()
            loss.backward()
            adam.step()

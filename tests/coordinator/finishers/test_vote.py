"""Tests of FedOV's server half: limiting cases of votes, the student's pseudo-code, a whole job, and a release."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from coordinator.finishers.fedov import _learn, vote
from coordinator.finishers.torch_models import TorchModels
from coordinator.jobs.settings import read_job
from coordinator.releases.making import model_remark
from sojourn.errors import ConfigError, JobError
from sojourn.model.metrics import softmax
from sojourn.model.scoring import votes_of
from sojourn.parts import Vote
from tests.coordinator.finishers.finisher_tasks import task_of, text_of
from tests.fleet_sim.small_fleet import job, run
from tests.fleet_sim.test_strategies import SITES, small

RANDOM = np.random.default_rng(0)


def output(models: int, samples: int = 5, classes: int = 3) -> list[np.ndarray[Any, Any]]:
    logits = RANDOM.normal(0, 2, (models, samples, classes + 1)).astype(np.float32)
    return [softmax(each) for each in logits]


def test_single_device_votes_like_its_prediction() -> None:
    (alone,) = output(1)
    assert np.array_equal(votes_of([alone]).argmax(1), alone[:, :-1].argmax(1))


def test_uncertain_model_changes_no_vote() -> None:
    some = output(3)
    nothing = np.zeros_like(some[0])
    nothing[:, -1] = 1.0
    assert np.array_equal(votes_of([*some, nothing]), votes_of(some))


def test_vote_limit_matters_only_below_model_count() -> None:
    some = output(4)
    assert np.array_equal(votes_of(some, 4), votes_of(some))
    assert np.array_equal(votes_of(some, 9), votes_of(some))
    best = np.stack(some)[:, :, -1].argmin(0)
    expected = np.stack([some[model][row, :-1] for row, model in enumerate(best)])
    assert np.array_equal(votes_of(some, 1), expected)
    assert not np.array_equal(votes_of(some, 2), votes_of(some))


def test_vote_without_unknown_class_sums_probabilities() -> None:
    logits = [RANDOM.normal(size=(5, 3)).astype(np.float32) for _ in range(3)]
    plain = sum(np.exp(each) / np.exp(each).sum(1, keepdims=True) for each in logits)
    np.testing.assert_allclose(votes_of([softmax(each) for each in logits], unknown=False), plain, atol=1e-6)


def test_student_training_matches_pseudo_code() -> None:
    task = task_of(text_of("fedov"))
    made = TorchModels(task, torch.device("cpu"))
    student, again = made.fresh(1), made.fresh(1)
    assert task.exemplars
    x = torch.from_numpy(np.asarray(task.exemplars.arrays()[0], np.float32))
    wanted = torch.from_numpy(RANDOM.dirichlet([1, 1, 1], len(x)).astype(np.float32))
    settings = Vote(epochs=2, batch=4, lr=0.01)
    _learn(settings, task, student, x, wanted, torch.Generator().manual_seed(7), torch.device("cpu"))
    by = torch.Generator().manual_seed(7)
    adam = torch.optim.Adam(again.parameters(), 0.01)
    for _ in range(2):
        for rows in torch.randperm(9, generator=by).split(4):
            if len(rows) < 2:
                continue
            log_q, p = again(x[rows])[:, :3].log_softmax(1), wanted[rows]
            loss = (p * (p.log() - log_q)).mean()
            adam.zero_grad()
            loss.backward()
            adam.step()
    for ours, theirs in zip(student.parameters(), again.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_vote_distillation_needs_exemplars() -> None:
    with pytest.raises(JobError, match="on exemplars, and this job has none"):
        vote(Vote(), task_of(text_of("fedov"), exemplars=None))


def test_vote_needs_one_round_and_both_halves() -> None:
    for text in ('schedule = "every-round"', 'objective = "sgd"', 'finisher = "none"', 'task = "regression"'):
        with pytest.raises(ConfigError, match=r"vote|outliers"):
            read_job(text_of("fedov", more=text), "job")


def test_job_reports_vote_and_single_model_metrics() -> None:
    found = run(small("fedov"), SITES)
    state = found.state
    metrics = state.history[0].metrics
    assert metrics["voters"] == 6
    assert 0 <= metrics["vote_accuracy"] <= 1
    assert metrics["vote_accuracy"] != state.history[0].accuracy
    assert sum(name.startswith("voter-") for name in state.vectors) == 6
    assert "learned from the vote" in model_remark(state.strategy)
    fewer = run(small("fedov", finisher__most=1), SITES).state.history[0].metrics
    assert fewer["vote_loss"] != metrics["vote_loss"]
    students = [run(small("fedov", **{f"finisher__{knob}": 3}), SITES).model for knob in ("epochs", "batch")]
    students.append(run(small("fedov", finisher__lr=0.1), SITES).model)
    assert all(not np.array_equal(each, found.model) for each in students)


def test_zero_terms_give_plain_training() -> None:
    """With start = received and no term, a device trains on the plain loss over C + 1 outputs."""
    off = {f"objective__{term}": 0.0 for term in ("outlier", "masked", "mix", "adversarial")}
    job_text = small("fedov", objective__start="received", **off)
    found = run(job_text, SITES)
    assert found.state.status == "done", found.state.detail
    assert job("any") != job_text

"""From a torch module to a checked kit."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import torch

from coordinator.compiling.attention import plain_attention
from coordinator.compiling.batchnorm import with_plain_batchnorm
from coordinator.compiling.checking import Exam, check_kit
from coordinator.compiling.dropout import with_fed_dropout
from coordinator.compiling.exporting import exported, trace_fused, trace_predict, trace_score, trace_train
from coordinator.compiling.layer_taps import tap_graph
from coordinator.compiling.layers import Whereabouts
from coordinator.compiling.learning import classifying
from coordinator.compiling.outliers import check_images, with_outliers
from coordinator.compiling.own_losses import check_loss
from coordinator.compiling.preprocessing import normalised
from coordinator.compiling.probing import probes
from coordinator.compiling.recurrence import with_recurrence
from coordinator.compiling.samples import ProbeSamples, like
from coordinator.compiling.soft_answers import with_soft_answers
from coordinator.compiling.survey import Survey, check_layers, instead_of, linear_weights, take_survey
from coordinator.compiling.tracing import TRACED_BATCH, Trainee
from coordinator.compiling.trunks import cut, mixes_samples, shared
from coordinator.compiling.two_streams import TwoStreamGraphs, TwoStreamTrainee, at_the_probe
from sojourn.errors import ModelError
from sojourn.model.graphs import Graphs, check_probe
from sojourn.protocol.spec import InputSpec, Kit, ModelSpec, MoreGraphs, Probe, TensorSpec, Trunk
from sojourn.randomness import derive

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    import numpy as np
    from numpy.typing import NDArray
    from torch import nn

    from coordinator.compiling.batchnorm import Statistics
    from coordinator.compiling.learning import Learning
    from sojourn.parts import Outliers, TwoStreamPart

    Report = Callable[[str], None]

USUAL_BATCH = 16
NO_TRANSLATION = "No ONNX function found"
"""How the exporter begins to say that it does not know an operator."""


@dataclass(frozen=True)
class Compiled:
    """A kit, and the vector with which its training starts."""

    kit: Kit
    initial: NDArray[np.float32]


def compile_kit(
    module: nn.Module,
    input: InputSpec,  # noqa: A002 (the Kit's own word)
    classes: tuple[str, ...],
    *,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    seed: int,
    batch: int = USUAL_BATCH,
    batchnorm: Statistics = "merge",
    whole: bool = False,
    learning: Learning | None = None,
    objective: TwoStreamPart | None = None,
    taps: bool = False,
    outliers: Outliers | None = None,
    soft: bool = False,
    report: Report = lambda _step: None,
) -> Compiled:
    """Compile `module` with its loss and normalisation; ModelError where the result is not what torch computes.

    batch: the size of the job's batches; the graphs are for all sizes, but are compared with torch on this one too.
    batchnorm: whether the running statistics of BatchNorm layers are trained and merged, or stay as they are.
    whole: keeps the model in one piece also where a frozen first part of it could be run once (`trunks`).
    learning: what is learnt, where it is not simply one of the classes.
    objective: what devices minimise, where it compares the model with frozen ones: the kit then has a graph for it.
    outliers: what devices minimise, where models have one more answer, for what is unknown: with graphs for that.
    taps: whether devices look at what the layers of weights are given: the kit then has a graph of it.
    soft: whether devices also learn from given answers: the kit then has a graph for it.
    report: is told each step as it begins, in words.
    """
    with plain_attention():
        learnt = learning or classifying(len(classes), unknown=outliers is not None)
        return _compile(
            module,
            input,
            classes,
            learnt,
            mean,
            std,
            seed,
            batch,
            batchnorm,
            whole,
            objective,
            taps,
            outliers,
            soft,
            report,
        )


def _compile(
    module: nn.Module,
    spec: InputSpec,
    classes: tuple[str, ...],
    learning: Learning,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    seed: int,
    batch: int,
    batchnorm: Statistics,
    in_one_piece: bool,
    objective: TwoStreamPart | None,
    with_taps: bool,
    outliers: Outliers | None,
    with_soft: bool,
    report: Report,
) -> Compiled:
    report("looking at the layers")
    check_layers(module)
    if outliers:
        check_images(spec)
    seed = derive(seed, "compile")
    fed, feed = with_fed_dropout(module)
    fed = with_plain_batchnorm(fed, batchnorm)
    with_recurrence(fed, feed)
    whole = normalised(fed, spec, mean, std)
    drawn = classifying(len(classes)) if outliers else learning  # no made-up sample is of the unknown class
    samples = like(spec, module, drawn, (), mean, std)
    made_up = torch.from_numpy(samples.batch(2, seed).x)
    survey = take_survey(fed, feed, made_up, learning.task, unknown=outliers is not None)
    samples = like(spec, module, drawn, survey.noise, mean, std)
    trainee = Trainee(whole, feed, learning)
    if learning.own:
        check_loss(trainee, samples, seed)
    second = TwoStreamTrainee(trainee, objective, torch.from_numpy(samples.batch(2, seed).x)) if objective else None
    graphs = _export(trainee, second, samples, survey, seed, report, whole=in_one_piece)
    tensors = tuple(
        TensorSpec(name.removeprefix("module."), shape)
        for name, shape in zip(trainee.names, trainee.shapes, strict=True)
    )
    report("taking the probe")
    candidates = probes(trainee, samples, seed)
    kit = Kit(
        model=ModelSpec(tensors, len(tensors) - trainee.trained),
        input=spec,
        classes=classes,
        noise=survey.noise,
        train=graphs.train,
        predict=graphs.predict,
        probe=next(candidates),
        linear=linear_weights(fed, {tensor.name for tensor in tensors}),
        trunk=graphs.trunk or msgspec.UNSET,
        task=msgspec.UNSET if learning.plain else learning.task,
        score=graphs.score or msgspec.UNSET,
    )
    if with_taps:
        report("writing the graph of the layers' inputs")
        taps = tap_graph(trainee, torch.from_numpy(samples.batch(TRACED_BATCH, seed).x))
        kit = msgspec.structs.replace(kit, more=MoreGraphs(taps))
    if outliers:
        report("writing the graphs with outliers")
        kit = with_outliers(kit, trainee, outliers, samples, seed)
    if with_soft:
        report("writing the graph with given answers")
        kit = with_soft_answers(kit, trainee, samples, seed)
    exam = Exam(trainee, samples, seed, batch)
    check_kit(kit, exam, lambda at, of: report(f"checking the gradient ({at + 1} of {of})"))
    if second:
        kit = msgspec.structs.replace(kit, two_stream=at_the_probe(graphs.two_stream, graphs.fused, kit, second))
        exam = Exam(second, samples, seed, batch)
        check_kit(kit, exam, lambda at, of: report(f"checking the second stream ({at + 1} of {of})"), TwoStreamGraphs)
    kit = _probed(kit, candidates, second)
    return Compiled(kit, trainee.initial.numpy().copy())


def _probed(kit: Kit, others: Iterator[Probe], second: TwoStreamTrainee | None) -> Kit:
    """The kit with a probe that this runtime meets: one that fails here, though the graph is right, fails devices."""
    reason = check_probe(kit, Graphs(kit))
    while reason and (probe := next(others, None)):
        kit = msgspec.structs.replace(kit, probe=probe)
        if second and kit.two_stream:
            graphs = kit.two_stream.graph, kit.two_stream.fused
            kit = msgspec.structs.replace(kit, two_stream=at_the_probe(*graphs, kit, second))
        reason = check_probe(kit, Graphs(kit))
    if reason:
        raise ModelError(
            f"compiled and torch disagree at the probe: {reason}. This model multiplies rounding errors; "
            "normalise between its layers, e.g. with GroupNorm"
        )
    return kit


@dataclass(frozen=True)
class _Graphs:
    """The graphs of a kit."""

    trunk: Trunk | None
    train: bytes
    predict: bytes
    score: bytes = b""
    two_stream: bytes = b""
    fused: bytes = b""


def _export(
    trainee: Trainee,
    second: TwoStreamTrainee | None,
    samples: ProbeSamples,
    survey: Survey,
    seed: int,
    report: Report,
    *,
    whole: bool,
) -> _Graphs:
    batch = samples.batch(TRACED_BATCH, seed)
    x, y = torch.from_numpy(batch.x), torch.from_numpy(batch.y)
    noise = [torch.from_numpy(values) for values in batch.noise]
    with Whereabouts(trainee.module.get_submodule("module")) as whereabouts:
        try:
            report("writing the training graph")
            train = trace_train(trainee, x, y, noise)
            report("writing the prediction graph")
            predict = trace_predict(trainee, x)
            score = None if trainee.learning.plain else trace_score(trainee, x, y)
            both = shared(trace_train(second, x, y, noise)) if second else None
            fused = shared(trace_fused(second, x)) if second and second.fuses else None
            others = (predict, score, both, fused)
            if not whole and (parts := cut(train, *others)):
                trunk = Trunk(exported(parts.trunk), parts.shape)
                if not mixes_samples(trunk, batch.x):
                    behind = (parts.train, parts.predict, parts.score, parts.two_stream, parts.fused)
                    return _Graphs(trunk, *(exported(each) if each else b"" for each in behind))
            return _Graphs(None, *(exported(each) if each else b"" for each in (train, *others)))
        except ModelError:
            raise
        except Exception as error:
            raise ModelError(_why(error, whereabouts, survey)) from error


def _why(error: Exception, whereabouts: Whereabouts, survey: Survey) -> str:
    """Name the layer: the one that was running, or the one whose operator the exporter refused."""
    text = _root(error)
    operator = re.search(r"(?:aten|prims)[.:]+(\w+)", text)
    layer = whereabouts.layer
    if layer == "the loss" and operator:
        layer = survey.layer_of(operator[1])
    if operator and text.startswith(NO_TRANSLATION):
        reason = f"there is no translation of its operator {operator[1]} into a graph{instead_of(layer)}"
    else:
        reason = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    return f"{layer} cannot be compiled: {reason}; docs/models.md lists the layers that can"


def _root(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)

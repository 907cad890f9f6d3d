"""Compile a torch module into a checked kit."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel

from coordinator.compiling.checking import Exam, check_kit
from coordinator.compiling.custom_losses import check_loss
from coordinator.compiling.exporting import (
    exported,
    trace_fused,
    trace_outputs,
    trace_predict,
    trace_score,
    trace_train,
)
from coordinator.compiling.extra_layers import Tap, last_linear
from coordinator.compiling.frozen_parts import cut, mixes_samples, shared
from coordinator.compiling.layer_errors import RunningLayer
from coordinator.compiling.losses import Learning, classifying
from coordinator.compiling.normalisation import Statistics, normalised, with_plain_batchnorm
from coordinator.compiling.outliers import check_images, with_outliers
from coordinator.compiling.probes import ProbeSamples, like, probes
from coordinator.compiling.randomness import with_fed_dropout
from coordinator.compiling.recurrent_layers import with_recurrence
from coordinator.compiling.survey import Survey, check_layers, linear_weights, suggestion_for, take_survey
from coordinator.compiling.tracing import TRACED_BATCH, Trainee
from coordinator.compiling.two_streams import TwoStreamGraphs, TwoStreamTrainee, with_soft_targets, with_stream_probe
from sojourn.errors import ModelError
from sojourn.model.graphs import Graphs, check_probe
from sojourn.parts import Outliers, TwoStreamPart
from sojourn.protocol.spec import InputSpec, Kit, ModelSpec, MoreGraphs, Probe, TapGraph, TapLayer, TensorSpec, Trunk
from sojourn.randomness import derive

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Report = Callable[[str], None]


@contextlib.contextmanager
def plain_attention() -> Iterator[None]:
    """Make torch compute attention with plain products: its fused kernels have no gradient that can be traced.

    The same holds for the one operator that a whole transformer layer is in prediction.
    """
    fused = torch.backends.mha.get_fastpath_enabled()
    torch.backends.mha.set_fastpath_enabled(False)
    try:
        with sdpa_kernel(SDPBackend.MATH):
            yield
    finally:
        torch.backends.mha.set_fastpath_enabled(fused)


def tap_graph(trainee: Trainee, x: Tensor) -> TapGraph:
    """Return the graph of the inputs of fully connected layers and convolutions; the output layer is last."""
    inner = trainee.module.get_submodule("module")
    names = [name for name, layer in inner.named_modules() if _has_plain_weights(layer)]
    last = last_linear(inner, x, "the objective echo")
    ordered = [*(name for name in names if name != last), last]
    taps = [Tap(name, given=True) for name in ordered]

    def given(tensors: Sequence[Tensor], batch: Tensor) -> tuple[Tensor, ...]:
        with ExitStack() as stack:
            seen = [stack.enter_context(tap.watched(inner)) for tap in taps]
            trainee.outputs(tensors, batch)
        for name, each in zip(ordered, seen, strict=True):
            if len(each) != 1:
                raise ModelError(f"the layer {name} runs {len(each)} times for a sample; echo needs it to run once")
        return tuple(each[0] for each in seen)

    with torch.no_grad():
        shapes = [tuple(each.shape[1:]) for each in given(trainee.split(trainee.initial), x)]
    layers = tuple(_layer(inner, name, shape) for name, shape in zip(ordered, shapes, strict=True))
    traced = trace_outputs(given, trainee, x, [f"tap_{at}" for at in range(len(layers))])
    return TapGraph(exported(traced), layers)


def _has_plain_weights(layer: nn.Module) -> bool:
    """Whether a layer's output is its weights times its inputs, or times each patch of them."""
    if not isinstance(layer, nn.Linear | nn.Conv2d) or not layer.weight.requires_grad:
        return False
    return isinstance(layer, nn.Linear) or (layer.groups == 1 and layer.dilation == (1, 1))


def _layer(inner: nn.Module, name: str, shape: tuple[int, ...]) -> TapLayer:
    layer = inner.get_submodule(name)
    prefix = f"{name}." if name else ""
    bias = f"{prefix}bias" if getattr(layer, "bias", None) is not None else ""
    kernel = (int(layer.kernel_size[0]), int(layer.kernel_size[1])) if isinstance(layer, nn.Conv2d) else ()
    return TapLayer(f"{prefix}weight", bias, shape, kernel)


DEFAULT_BATCH = 16
NO_TRANSLATION = "No ONNX function found"
"""The beginning of the exporter's message about an unknown operator."""


@dataclass(frozen=True)
class Compiled:
    """A kit, and the parameter vector at the start of training."""

    kit: Kit
    initial: NDArray[np.float32]


@plain_attention()
def compile_kit(
    module: nn.Module,
    input: InputSpec,  # noqa: A002 (the name in Kit)
    classes: tuple[str, ...],
    *,
    mean: Sequence[float] | None,
    std: Sequence[float] | None,
    seed: int,
    batch: int = DEFAULT_BATCH,
    batchnorm: Statistics = "merge",
    whole: bool = False,
    learning: Learning | None = None,
    objective: TwoStreamPart | None = None,
    taps: bool = False,
    outliers: Outliers | None = None,
    soft: bool = False,
    report: Report = lambda _step: None,
) -> Compiled:
    """Compile `module` with its loss and normalisation; ModelError if the result differs from torch's.

    batch: the size of the job's batches; graphs accept all sizes, and are compared with torch at this one too.
    batchnorm: whether the running statistics of BatchNorm layers are trained and merged, or frozen.
    whole: do not split off a frozen first part that could be run once (a trunk).
    learning: the task and its loss, unless it is a plain classification.
    objective: an objective that compares the model with frozen ones; it adds a graph to the kit.
    outliers: an objective with one more output for unknown samples; it adds graphs to the kit.
    taps: whether devices read the inputs of layers with weights; adds a graph to the kit.
    soft: whether devices also train on given probabilities; adds a graph to the kit.
    report: receives a description of each step as it begins.
    """
    learning = learning or classifying(len(classes), unknown=outliers is not None)
    report("checking the layers")
    check_layers(module)
    if outliers:
        check_images(input)
    seed = derive(seed, "compile")
    fed, feed = with_fed_dropout(module)
    fed = with_plain_batchnorm(fed, batchnorm)
    with_recurrence(fed, feed)
    fitted = normalised(fed, input, mean, std)
    drawn = classifying(len(classes)) if outliers else learning  # no generated sample is of the unknown class
    samples = like(input, module, drawn, (), mean, std)
    generated = torch.from_numpy(samples.batch(2, seed).x)
    survey = take_survey(fed, feed, generated, learning.task, unknown=outliers is not None)
    samples = like(input, module, drawn, survey.noise, mean, std)
    trainee = Trainee(fitted, feed, learning)
    if learning.loss_name:
        check_loss(trainee, samples, seed)
    second = TwoStreamTrainee(trainee, objective, torch.from_numpy(samples.batch(2, seed).x)) if objective else None
    graphs = _export(trainee, second, samples, survey, seed, report, whole=whole)
    tensors = tuple(
        TensorSpec(name.removeprefix("module."), shape)
        for name, shape in zip(trainee.names, trainee.shapes, strict=True)
    )
    report("computing the probe")
    candidates = probes(trainee, samples, seed)
    kit = Kit(
        model=ModelSpec(tensors, len(tensors) - trainee.trained),
        input=input,
        classes=classes,
        noise=survey.noise,
        train=graphs.train,
        predict=graphs.predict,
        probe=next(candidates),
        linear=linear_weights(fed, {tensor.name for tensor in tensors}),
        trunk=graphs.trunk,
        task=None if learning.plain else learning.task,
        score=graphs.score or None,
    )
    if taps:
        report("writing the graph of the layers' inputs")
        inputs = tap_graph(trainee, torch.from_numpy(samples.batch(TRACED_BATCH, seed).x))
        kit = msgspec.structs.replace(kit, more=MoreGraphs(inputs))
    if outliers:
        report("writing the graphs with outliers")
        kit = with_outliers(kit, trainee, outliers, samples, seed)
    if soft:
        report("writing the graph with soft targets")
        kit = with_soft_targets(kit, trainee, samples, seed)
    exam = Exam(trainee, samples, seed, batch)
    check_kit(kit, exam, lambda at, of: report(f"checking the gradient ({at + 1} of {of})"))
    if second:
        kit = msgspec.structs.replace(kit, two_stream=with_stream_probe(graphs.two_stream, graphs.fused, kit, second))
        exam = Exam(second, samples, seed, batch)
        check_kit(kit, exam, lambda at, of: report(f"checking the second stream ({at + 1} of {of})"), TwoStreamGraphs)
    kit = _probed(kit, candidates, second)
    return Compiled(kit, trainee.initial.numpy().copy())


def _probed(kit: Kit, others: Iterator[Probe], second: TwoStreamTrainee | None) -> Kit:
    """Return the kit with a probe that this runtime passes; one that fails here would fail on devices."""
    reason = check_probe(kit, Graphs(kit))
    while reason and (probe := next(others, None)):
        kit = msgspec.structs.replace(kit, probe=probe)
        if second and kit.two_stream:
            graphs = kit.two_stream.graph, kit.two_stream.fused
            kit = msgspec.structs.replace(kit, two_stream=with_stream_probe(*graphs, kit, second))
        reason = check_probe(kit, Graphs(kit))
    if reason:
        raise ModelError(
            f"compiled and torch disagree at the probe: {reason}. This model amplifies rounding errors; "
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
    with RunningLayer(trainee.module.get_submodule("module")) as running:
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
            raise ModelError(_reason(error, running, survey)) from error


def _reason(error: Exception, running: RunningLayer, survey: Survey) -> str:
    """Describe an error with its layer: the one that was running, or the one whose operator the exporter refused."""
    text = _root(error)
    operator = re.search(r"(?:aten|prims)[.:]+(\w+)", text)
    layer = running.layer
    if layer == "the loss" and operator:
        layer = survey.layer_of(operator[1])
    if operator and text.startswith(NO_TRANSLATION):
        reason = f"its operator {operator[1]} cannot be translated into a graph{suggestion_for(layer)}"
    else:
        reason = text.strip().splitlines()[0] if text.strip() else type(error).__name__
    return f"{layer} cannot be compiled: {reason}; docs/models.md lists the supported layers"


def _root(error: BaseException) -> str:
    while error.__cause__ is not None:
        error = error.__cause__
    return str(error)

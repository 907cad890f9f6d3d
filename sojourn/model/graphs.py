"""Runs a kit's training and prediction graphs with onnxruntime and numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import msgspec
import numpy as np
import onnxruntime
from numpy.typing import NDArray

from sojourn.errors import DataError, GraphRefused, ModelError
from sojourn.model.kit_rules import MAX_PROBE_STATE, check_graph, check_kit
from sojourn.model.metrics import cross_entropies
from sojourn.model.session import (
    GRAPH_NAMES,
    RUNTIME_ERRORS,
    Use,
    frozen_tensors,
    graph_bytes,
    open_session,
    session_options,
)
from sojourn.protocol.spec import FrozenTensor, Kit, Probe
from sojourn.protocol.task import TaskSpec
from sojourn.randomness import noise as draw_noise

Array = NDArray[np.generic]
Losses = NDArray[np.float64]
Vector = NDArray[np.float32]

LOSS_TOLERANCE = 1e-4
GRADIENT_TOLERANCE = 1e-3
ANCHOR_STEP = 0.2
"""The frozen models of a probe are its vector, each shrunk by this fraction more than the previous one."""


@dataclass(frozen=True)
class Streams:
    """Additional inputs of a kit's two-stream graph: frozen models as vectors, and scalars."""

    anchors: Sequence[Vector]
    scalars: Sequence[float] = ()


class Graphs:
    """A kit's graphs on this machine; each is loaded on first use.

    Training and prediction take the `features` of samples; without a trunk, these are the samples themselves.
    """

    def __init__(self, kit: Kit, threads: int = 1, sharing: Graphs | None = None) -> None:
        """Run `kit` on `threads` threads; with one thread, results repeat bit for bit.

        sharing: graphs of the same kit and threads with which to share sessions.
        """
        check_kit(kit)
        self._kit = kit
        self._threads = threads
        self.sessions: dict[Use, onnxruntime.InferenceSession] = sharing.sessions if sharing else {}

    @property
    def threads(self) -> int:
        """The number of threads."""
        return self._threads

    @cached_property
    def learns(self) -> TaskSpec:
        """The kit's task."""
        return self._kit.learns

    @property
    def task(self) -> TaskSpec | None:
        """The kit's task, or None for a plain classification."""
        return self._kit.task or None

    @property
    def has_trunk(self) -> bool:
        """Whether a frozen trunk computes features, which are worth caching."""
        return bool(self._kit.trunk)

    def features(self, x: Array) -> Array:
        """Compute the inputs of the other graphs for these samples.

        The trunk runs on one sample at a time, so that its features have the same bits in any batch, new or cached.
        """
        if not self.has_trunk or not len(x):
            return x
        shape = (1, *self._kit.taken.shape)
        return np.concatenate([self._run("trunk", "features", {"x": x[at : at + 1]}, shape) for at in range(len(x))])

    def loss_and_gradient(
        self,
        vector: Vector,
        x: Array,
        y: Array,
        noise: Sequence[Vector] = (),
        reference_models: Sequence[Vector] = (),
        streams: Streams | None = None,
    ) -> tuple[float, Vector]:
        """Return the mean loss of a batch, and its gradient by the trained numbers of the vector."""
        loss, gradient, _ = self.loss_gradient_and_state(vector, x, y, noise, reference_models, streams)
        return loss, gradient

    def loss_gradient_and_state(
        self,
        vector: Vector,
        x: Array,
        y: Array,
        noise: Sequence[Vector] = (),
        reference_models: Sequence[Vector] = (),
        streams: Streams | None = None,
    ) -> tuple[float, Vector, Vector]:
        """Return loss, gradient and the state after a step with this batch; the state is empty for a stateless model.

        reference_models: further models for the task's loss, by default this one. streams: inputs of the two-stream
        graph, which is then run instead of the training graph.
        """
        feeds = self._feeds(vector, x, y, reference_models) | _noise_feeds(noise)
        if streams:
            feeds |= {f"anchor_{at}": each for at, each in enumerate(streams.anchors)}
            feeds |= {f"scalar_{at}": np.array(each, np.float32) for at, each in enumerate(streams.scalars)}
        return self._run_training("two_stream" if streams else "train", feeds)

    def loss(self, vector: Vector, x: Array, y: Array) -> float:
        """Return the mean loss of a batch in evaluation mode."""
        return float(self.losses(vector, x, y).mean())

    def losses(self, vector: Vector, x: Array, y: Array, reference_models: Sequence[Vector] = ()) -> Losses:
        """Return the loss of each sample in evaluation mode."""
        if self.task:
            feeds = self._feeds(vector, x, y, reference_models)
            return self._run("score", "losses", feeds, (len(x),)).astype(np.float64)
        return cross_entropies(self.outputs(vector, x), y.astype(np.int64))

    def outputs(self, vector: Vector, x: Array) -> Vector:
        """Return the model's outputs for a batch: values or logits, depending on the task."""
        learns = self.learns
        return self._run("predict", learns.answers, {"vector": vector, "x": x}, (len(x), *learns.output))

    def taps(self, vector: Vector, x: Array) -> list[Vector]:
        """Return the inputs of each tapped layer for a batch in evaluation mode (`sojourn.protocol.spec.TapGraph`)."""
        layers = self._kit.more.taps.layers if self._kit.more and self._kit.more.taps else ()
        names = [f"tap_{at}" for at in range(len(layers))]
        found: list[Vector] = self._session("taps").run(names, {"vector": vector, "x": x})
        for layer, given in zip(layers, found, strict=True):
            _check_shape(layer.weight, given, (len(x), *layer.shape))
        return found

    def logits(self, vector: Vector, x: Array) -> Vector:
        """Return a classifier's logits for a batch, one row per sample."""
        return self.outputs(vector, x)

    @property
    def has_unknown(self) -> bool:
        """Whether the model has an output for unknown samples (`votes`)."""
        return self._kit.outliers is not None

    def votes(self, vector: Vector, x: Array) -> Vector:
        """Return the logits of a batch, with the unknown class last."""
        return self._run("votes", "votes", {"vector": vector, "x": x}, (len(x), len(self._kit.classes) + 1))

    def slope(self, vector: Vector, x: Array) -> Vector:
        """Return the gradient, by the sample's values, of its cross-entropy with the unknown class."""
        return self._run("slope", "slope", {"vector": vector, "x": x}, x.shape)

    def open_loss_and_gradient(self, vector: Vector, feeds: Mapping[str, Array]) -> tuple[float, Vector]:
        """Return the plain loss of a batch, and the gradient of all terms of an objective with outliers."""
        loss, gradient, _ = self._run_training("open_train", {"vector": vector, **feeds})
        return loss, gradient

    def soft_loss_and_gradient(
        self, vector: Vector, x: Array, y: Array, soft: Vector, noise: Sequence[Vector] = ()
    ) -> tuple[float, Vector]:
        """Return the plain loss of a batch, and the gradient that also includes soft targets."""
        feeds = self._feeds(vector, x, y) | {"soft": soft} | _noise_feeds(noise)
        loss, gradient, _ = self._run_training("soft", feeds)
        return loss, gradient

    def loss_with_unknown(
        self, vector: Vector, x: Array, y: NDArray[np.int64], noise: Sequence[Vector]
    ) -> tuple[float, Vector, Vector]:
        """Return the mean loss of a batch, its gradient and the new state; labels may be the unknown class."""
        return self._run_training("train", {"vector": vector, "x": x, "y": y, **_noise_feeds(noise)})

    def _feeds(self, vector: Vector, x: Array, y: Array, reference_models: Sequence[Vector] = ()) -> dict[str, Array]:
        """Return the feeds of a graph that computes a loss."""
        feeds: dict[str, Array] = {"vector": vector, "x": x}
        if self.learns.target is not None:
            self._check_targets(y)
            feeds["y"] = y
        models = reference_models or (vector,) * len(self.learns.reference_models)
        return feeds | {f"reference_{at}": each for at, each in enumerate(models[: len(self.learns.reference_models)])}

    def _check_targets(self, y: Array) -> None:
        learns = self.learns
        # The graph compares labels with class numbers: a label out of range would have zero loss.
        most = learns.output[-1] if learns.kind in ("classification", "tokens") else None
        if y.size == 0 or (most is not None and (y.min() < 0 or y.max() >= most)):
            raise DataError(f"labels must be 0 to {(most or 1) - 1} and a batch must not be empty")
        if learns.target and (y.shape[1:] != learns.target.shape or y.dtype != learns.target.dtype):
            raise DataError(f"targets must be {learns.target.dtype} of {learns.target.shape}, not {y.dtype}{y.shape}")

    def _run(self, use: Use, output: str, feeds: Mapping[str, Array], shape: tuple[int, ...]) -> Vector:
        """Run a graph with one output, which must have this shape."""
        found: Vector = self._session(use).run([output], feeds)[0]
        _check_shape(output, found, shape)
        return found

    def _run_training(self, use: Use, feeds: Mapping[str, Array]) -> tuple[float, Vector, Vector]:
        """Run a training graph; return its loss, its gradient, and the new state."""
        model = self._kit.model
        outputs = ["loss", "gradient", *(["state"] if model.state else [])]
        loss, gradient, *rest = self._session(use).run(outputs, feeds)
        state = rest[0] if rest else np.zeros(0, np.float32)
        _check_shape("loss", loss, ())
        _check_shape("gradient", gradient, (model.trainable_size,))
        _check_shape("state", state, (model.size - model.trainable_size,))
        return float(loss), gradient, state

    def _session(self, use: Use) -> onnxruntime.InferenceSession:
        """Return the session of a graph, which is checked and opened on first use."""
        if use not in self.sessions:
            check_graph(self._kit, use)
            graph, frozen = graph_bytes(self._kit, use), frozen_tensors(self._kit, use)
            self.sessions[use] = graph_session(graph, self._threads, GRAPH_NAMES[use], frozen)
        return self.sessions[use]


def _noise_feeds(noise: Sequence[Vector]) -> dict[str, Array]:
    return {f"noise_{at}": values for at, values in enumerate(noise)}


def check_probe(kit: Kit, graphs: Graphs) -> str | None:
    """Return why this runtime must not train with the kit, or None if it reproduces the probe."""
    probe = kit.probe
    x, y = probe_samples(kit), probe_targets(kit)
    noise = draw_noise(probe.noise_seed, 0, len(probe.y), kit.noise)
    try:
        vector = probe_vector(kit.model.sizes, probe.spread, kit.model.state)
        features = graphs.features(x)
        loss, gradient, state = graphs.loss_gradient_and_state(vector, features, y, noise)
        wrong = _disagreement(probe, loss, gradient) or _disagreement_on_state(probe.state, state)
        if wrong or not kit.two_stream:
            return wrong
        streams = Streams(probe_anchors(vector, kit.two_stream.anchors), (1.0,) * kit.two_stream.scalars)
        loss, gradient, state = graphs.loss_gradient_and_state(vector, features, y, noise, streams=streams)
    except GraphRefused:  # rejected by Sojourn, not by onnxruntime
        raise
    except (*RUNTIME_ERRORS, ModelError) as error:
        return f"onnxruntime {onnxruntime.__version__} cannot run the kit's graphs: {error}"
    second = msgspec.structs.replace(
        probe, loss=kit.two_stream.loss, norm=kit.two_stream.norm, values=kit.two_stream.values
    )
    wrong = _disagreement(second, loss, gradient) or _disagreement_on_state(kit.two_stream.state, state)
    return wrong and f"in the two-stream graph, {wrong}"


def probe_anchors(vector: Vector, count: int) -> list[Vector]:
    """Return the probe's frozen models for a two-stream graph: its vector, each time shrunk further."""
    return [vector * np.float32(1 - ANCHOR_STEP * (at + 1)) for at in range(count)]


def probe_samples(kit: Kit) -> Array:
    """Return the probe's samples."""
    return np.frombuffer(kit.probe.x, kit.input.dtype).reshape(len(kit.probe.y), *kit.input.shape)


def probe_targets(kit: Kit) -> Array:
    """Return the targets of the probe's samples."""
    target = kit.learns.target
    if target is None or not kit.probe.targets:
        return np.array(kit.probe.y, dtype=np.int64)
    return np.frombuffer(kit.probe.targets, dtype=target.dtype).reshape(len(kit.probe.y), *target.shape)


def probe_vector(sizes: Sequence[int], spread: Sequence[float] = (), state: int = 0) -> Vector:
    """Return the vector at which a probe is taken, by a formula that any language can repeat.

    0.1 sin(i + 1); with `spread`, pseudo-random numbers of at most the tensor's spread. In the plain vector, all
    filters of a layer are sums of two waves, whose small differences a deep model with norms multiplies. The last
    `state` tensors are always 1 + 0.1 sin(i + 1), because a variance must be above 0.
    """
    if state:
        trainable, size = sizes[: len(sizes) - state], sum(sizes)
        at = np.arange(sum(trainable) + 1, size + 1, dtype=np.float64)
        return np.concatenate([probe_vector(trainable, spread), (1.0 + 0.1 * np.sin(at)).astype(np.float32)])
    size = sum(sizes)
    vector = np.empty(size, dtype=np.float32)
    block = 1 << 16
    for start in range(0, size, block):
        at = np.arange(start + 1, min(start + block, size) + 1, dtype=np.float64)
        vector[start : start + len(at)] = _scattered(at) if spread else 0.1 * np.sin(at)
    return vector * np.repeat(np.array(spread, np.float32), sizes) if spread else vector


def state_indices(size: int) -> NDArray[np.int64]:
    """Return the indices at which a probe contains a state of N numbers: evenly spaced from first to last."""
    return np.linspace(0, max(0, size - 1), min(MAX_PROBE_STATE, size)).astype(np.int64)


def _scattered(at: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return pseudo-random numbers between -1 and 1, without jumps that would amplify rounding."""
    turns = 43758.5453 * np.sin(12.9898 * at)
    return 1.0 - 4.0 * np.abs(turns - np.floor(turns) - 0.5)


def _disagreement(probe: Probe, loss: float, gradient: Vector) -> str | None:
    norm = float(np.linalg.norm(gradient.astype(np.float64)))
    here = gradient[list(probe.places)].astype(np.float64)
    there = np.array(probe.values)
    # Written as "not within", so that a NaN disagrees too.
    if not abs(loss - probe.loss) <= LOSS_TOLERANCE * max(1.0, abs(probe.loss)):
        return f"the probe's loss is {loss:.7g} here and {probe.loss:.7g} in the kit"
    if not abs(norm - probe.norm) <= GRADIENT_TOLERANCE * probe.norm:
        return f"the probe's gradient has norm {norm:.7g} here and {probe.norm:.7g} in the kit"
    apart = float(np.abs(here - there).max())
    if not apart <= GRADIENT_TOLERANCE * float(np.abs(there).max()):
        return f"the probe's gradient differs from the kit's by {apart:.3g}"
    return None


def _disagreement_on_state(expected: Sequence[float], state: Vector) -> str | None:
    if not state.size:
        return None
    there = np.array(expected)
    apart = float(np.abs(state[state_indices(state.size)].astype(np.float64) - there).max())
    if not apart <= GRADIENT_TOLERANCE * float(np.abs(there).max()):
        return f"the state after the probe differs from the kit's by {apart:.3g}"
    return None


def _check_shape(name: str, found: Array, shape: tuple[int, ...]) -> None:
    """Reject outputs of another shape or type: they would leave the device."""
    if found.shape != shape or found.dtype != np.float32:
        raise GraphRefused(f"the graph returns a {name} of {found.dtype}{found.shape} instead of float32{shape}")


def graph_session(
    graph: bytes, threads: int, name: str, frozen: Sequence[FrozenTensor] = ()
) -> onnxruntime.InferenceSession:
    """Open a session of a kit's graph, with the options for training and prediction."""
    # Spinning threads are a fifth faster on an otherwise idle device, but slower next to other work; the owner then
    # allows one thread less.
    options = session_options(threads, spin=True)
    options.execution_mode = onnxruntime.ExecutionMode.ORT_SEQUENTIAL
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_ALL
    # The memory pattern would reserve a whole step for every batch size; the arena alone is fast and small.
    options.enable_mem_pattern = False
    return open_session(graph, options, name, frozen)

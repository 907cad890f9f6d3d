"""Runs a kit's training and prediction graphs with onnxruntime and numpy."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import onnxruntime

from sojourn.errors import DataError, GraphRefused, ModelError
from sojourn.model.kit_rules import (
    MAX_PROBE_STATE,
    check_kit,
    check_open_train,
    check_predict,
    check_score,
    check_soft,
    check_taps,
    check_train,
    check_trunk,
    check_two_stream,
    check_votes,
)
from sojourn.model.metrics import cross_entropies
from sojourn.model.session import RUNTIME_ERRORS, frozen_tensors, graph_bytes, open_session, session_options
from sojourn.randomness import noise as draw_noise

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from sojourn.model.session import Use
    from sojourn.protocol.spec import FrozenTensor, Kit, Probe
    from sojourn.protocol.task import TaskSpec

    Losses = NDArray[np.float64]

LOSS_TOLERANCE = 1e-4
GRADIENT_TOLERANCE = 1e-3
ANCHOR_STEP = 0.2
"""The frozen models of a probe are its vector, each shrunk by this fraction more than the previous one."""


@dataclass(frozen=True)
class Streams:
    """Additional inputs of a kit's two-stream graph: frozen models as vectors, and scalars."""

    anchors: Sequence[NDArray[np.float32]]
    scalars: Sequence[float] = ()


class Graphs:
    """A kit's graphs on this machine; each is loaded on first use.

    Training and prediction take the `features` of samples; without a trunk, these are the samples themselves.
    """

    def __init__(self, kit: Kit, threads: int = 1, reference_models: Graphs | None = None) -> None:
        """Run `kit` on `threads` threads; with one thread, results repeat bit for bit.

        reference_models: graphs of the same kit and threads with which to share sessions.
        """
        check_kit(kit)
        self._kit = kit
        self._threads = threads
        self.sessions: dict[Use, onnxruntime.InferenceSession] = reference_models.sessions if reference_models else {}

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

    def features(self, x: NDArray[np.generic]) -> NDArray[np.generic]:
        """Compute the inputs of the other graphs for these samples.

        The trunk runs on one sample at a time, so that its features have the same bits in any batch, new or cached.
        """
        if not self.has_trunk or not len(x):
            return x
        return np.concatenate([self._features(x[at : at + 1]) for at in range(len(x))])

    def _features(self, row: NDArray[np.generic]) -> NDArray[np.float32]:
        found: NDArray[np.float32] = self._trunk.run(["features"], {"x": row})[0]
        _check_shape("features", found, (1, *self._kit.taken.shape))
        return found

    def loss_and_gradient(
        self,
        vector: NDArray[np.float32],
        x: NDArray[np.generic],
        y: NDArray[np.generic],
        noise: Sequence[NDArray[np.float32]] = (),
        reference_models: Sequence[NDArray[np.float32]] = (),
        streams: Streams | None = None,
    ) -> tuple[float, NDArray[np.float32]]:
        """Return the mean loss of a batch, and its gradient by the trained numbers of the vector."""
        loss, gradient, _ = self.loss_gradient_and_state(vector, x, y, noise, reference_models, streams)
        return loss, gradient

    def loss_gradient_and_state(
        self,
        vector: NDArray[np.float32],
        x: NDArray[np.generic],
        y: NDArray[np.generic],
        noise: Sequence[NDArray[np.float32]] = (),
        reference_models: Sequence[NDArray[np.float32]] = (),
        streams: Streams | None = None,
    ) -> tuple[float, NDArray[np.float32], NDArray[np.float32]]:
        """Return loss, gradient and the state after a step with this batch; the state is empty for a stateless model.

        reference_models: further models for the task's loss, by default this one. streams: inputs of the two-stream
        graph, which is then run instead of the training graph.
        """
        feeds = self._feeds(vector, x, y, reference_models)
        feeds |= {f"noise_{at}": values for at, values in enumerate(noise)}
        if streams:
            feeds |= {f"anchor_{at}": each for at, each in enumerate(streams.anchors)}
            feeds |= {f"scalar_{at}": np.array(each, np.float32) for at, each in enumerate(streams.scalars)}
        model, session = self._kit.model, self._two_stream if streams else self._train
        loss, gradient, *rest = session.run(["loss", "gradient", *(["state"] if model.state else [])], feeds)
        state = rest[0] if rest else np.zeros(0, np.float32)
        _check_shape("loss", loss, ())
        _check_shape("gradient", gradient, (model.learned,))
        _check_shape("state", state, (model.size - model.learned,))
        return float(loss), gradient, state

    def loss(self, vector: NDArray[np.float32], x: NDArray[np.generic], y: NDArray[np.generic]) -> float:
        """Return the mean loss of a batch in evaluation mode."""
        return float(self.losses(vector, x, y).mean())

    def losses(
        self,
        vector: NDArray[np.float32],
        x: NDArray[np.generic],
        y: NDArray[np.generic],
        reference_models: Sequence[NDArray[np.float32]] = (),
    ) -> Losses:
        """Return the loss of each sample in evaluation mode."""
        if self.task:
            found: NDArray[np.float32] = self._score.run(["losses"], self._feeds(vector, x, y, reference_models))[0]
            _check_shape("losses", found, (len(x),))
            return found.astype(np.float64)
        return cross_entropies(self.outputs(vector, x), y.astype(np.int64))

    def outputs(self, vector: NDArray[np.float32], x: NDArray[np.generic]) -> NDArray[np.float32]:
        """Return the model's outputs for a batch: values or logits, depending on the task."""
        name = self.learns.answers
        answers: NDArray[np.float32] = self._predict.run([name], {"vector": vector, "x": x})[0]
        _check_shape(name, answers, (len(x), *self.learns.output))
        return answers

    def taps(self, vector: NDArray[np.float32], x: NDArray[np.generic]) -> list[NDArray[np.float32]]:
        """Return the inputs of each tapped layer for a batch in evaluation mode (`sojourn.protocol.spec.TapGraph`)."""
        layers = self._kit.more.taps.layers if self._kit.more and self._kit.more.taps else ()
        found: list[NDArray[np.float32]] = self._taps.run(
            [f"tap_{at}" for at in range(len(layers))], {"vector": vector, "x": x}
        )
        for layer, given in zip(layers, found, strict=True):
            _check_shape(layer.weight, given, (len(x), *layer.shape))
        return found

    def logits(self, vector: NDArray[np.float32], x: NDArray[np.generic]) -> NDArray[np.float32]:
        """Return a classifier's logits for a batch, one row per sample."""
        return self.outputs(vector, x)

    def _feeds(
        self,
        vector: NDArray[np.float32],
        x: NDArray[np.generic],
        y: NDArray[np.generic],
        reference_models: Sequence[NDArray[np.float32]] = (),
    ) -> dict[str, NDArray[np.generic]]:
        """Return the feeds of a graph that computes a loss."""
        feeds: dict[str, NDArray[np.generic]] = {"vector": vector, "x": x}
        if self.learns.target is not None:
            self._check_targets(y)
            feeds["y"] = y
        models = reference_models or (vector,) * len(self.learns.reference_models)
        return feeds | {f"reference_{at}": each for at, each in enumerate(models[: len(self.learns.reference_models)])}

    def _check_targets(self, y: NDArray[np.generic]) -> None:
        learns = self.learns
        # The graph compares labels with class numbers: a label out of range would have zero loss.
        most = learns.output[-1] if learns.kind in ("classification", "tokens") else None
        if y.size == 0 or (most is not None and (y.min() < 0 or y.max() >= most)):
            raise DataError(f"labels must be 0 to {(most or 1) - 1} and a batch must not be empty")
        if learns.target and (y.shape[1:] != learns.target.shape or y.dtype != learns.target.dtype):
            raise DataError(f"targets must be {learns.target.dtype} of {learns.target.shape}, not {y.dtype}{y.shape}")

    @cached_property
    def _trunk(self) -> onnxruntime.InferenceSession:
        check_trunk(self._kit)
        return self._session("trunk", "the trunk")

    @cached_property
    def _train(self) -> onnxruntime.InferenceSession:
        check_train(self._kit)
        return self._session("train", "the training graph")

    @cached_property
    def _two_stream(self) -> onnxruntime.InferenceSession:
        check_two_stream(self._kit)
        return self._session("two_stream", "the two-stream graph")

    @cached_property
    def _taps(self) -> onnxruntime.InferenceSession:
        check_taps(self._kit)
        return self._session("taps", "the graph of layers' inputs")

    def votes(self, vector: NDArray[np.float32], x: NDArray[np.generic]) -> NDArray[np.float32]:
        """Return the logits of a batch, with the unknown class last."""
        answers: NDArray[np.float32] = self._votes.run(["votes"], {"vector": vector, "x": x})[0]
        _check_shape("votes", answers, (len(x), len(self._kit.classes) + 1))
        return answers

    def slope(self, vector: NDArray[np.float32], x: NDArray[np.generic]) -> NDArray[np.float32]:
        """Return the gradient, by the sample's values, of its cross-entropy with the unknown class."""
        slope: NDArray[np.float32] = self._slope.run(["slope"], {"vector": vector, "x": x})[0]
        _check_shape("slope", slope, x.shape)
        return slope

    def open_loss_and_gradient(
        self, vector: NDArray[np.float32], feeds: Mapping[str, NDArray[np.generic]]
    ) -> tuple[float, NDArray[np.float32]]:
        """Return the plain loss of a batch, and the gradient of all terms of an objective with outliers."""
        loss, gradient = self._open_train.run(["loss", "gradient"], {"vector": vector, **feeds})
        _check_shape("loss", loss, ())
        _check_shape("gradient", gradient, (self._kit.model.learned,))
        return float(loss), gradient

    def soft_loss_and_gradient(
        self,
        vector: NDArray[np.float32],
        x: NDArray[np.generic],
        y: NDArray[np.generic],
        soft: NDArray[np.float32],
        noise: Sequence[NDArray[np.float32]] = (),
    ) -> tuple[float, NDArray[np.float32]]:
        """Return the plain loss of a batch, and the gradient that also includes soft targets."""
        feeds = self._feeds(vector, x, y) | {"soft": soft}
        feeds |= {f"noise_{at}": values for at, values in enumerate(noise)}
        loss, gradient = self._soft.run(["loss", "gradient"], feeds)
        _check_shape("loss", loss, ())
        _check_shape("gradient", gradient, (self._kit.model.learned,))
        return float(loss), gradient

    def loss_with_unknown(
        self,
        vector: NDArray[np.float32],
        x: NDArray[np.generic],
        y: NDArray[np.int64],
        noise: Sequence[NDArray[np.float32]],
    ) -> tuple[float, NDArray[np.float32], NDArray[np.float32]]:
        """Return the mean loss of a batch, its gradient and the new state; labels may be the unknown class."""
        feeds: dict[str, NDArray[np.generic]] = {"vector": vector, "x": x, "y": y}
        feeds |= {f"noise_{at}": values for at, values in enumerate(noise)}
        model = self._kit.model
        loss, gradient, *rest = self._train.run(["loss", "gradient", *(["state"] if model.state else [])], feeds)
        return float(loss), gradient, rest[0] if rest else np.zeros(0, np.float32)

    @property
    def has_unknown(self) -> bool:
        """Whether the model has an output for unknown samples (`votes`)."""
        return self._kit.outliers is not None

    @cached_property
    def _votes(self) -> onnxruntime.InferenceSession:
        check_votes(self._kit)
        return self._session("votes", "the graph of votes")

    @cached_property
    def _slope(self) -> onnxruntime.InferenceSession:
        check_votes(self._kit)
        return self._session("slope", "the graph of input gradients")

    @cached_property
    def _open_train(self) -> onnxruntime.InferenceSession:
        check_open_train(self._kit)
        return self._session("open_train", "the training graph with outliers")

    @cached_property
    def _soft(self) -> onnxruntime.InferenceSession:
        check_soft(self._kit)
        return self._session("soft", "the training graph with soft targets")

    @cached_property
    def _score(self) -> onnxruntime.InferenceSession:
        check_score(self._kit)
        return self._session("score", "the scoring graph")

    @cached_property
    def _predict(self) -> onnxruntime.InferenceSession:
        check_predict(self._kit)
        return self._session("predict", "the prediction graph")

    def _session(self, use: Use, name: str) -> onnxruntime.InferenceSession:
        if use not in self.sessions:
            self.sessions[use] = graph_session(
                graph_bytes(self._kit, use), self._threads, name, frozen_tensors(self._kit, use)
            )
        return self.sessions[use]


def check_probe(kit: Kit, graphs: Graphs) -> str | None:
    """Return why this runtime must not train with the kit, or None if it reproduces the probe."""
    probe = kit.probe
    x = np.frombuffer(probe.x, dtype=kit.input.dtype).reshape(len(probe.y), *kit.input.shape)
    y = probe_targets(kit)
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


def probe_anchors(vector: NDArray[np.float32], count: int) -> list[NDArray[np.float32]]:
    """Return the probe's frozen models for a two-stream graph: its vector, each time shrunk further."""
    return [vector * np.float32(1 - ANCHOR_STEP * (at + 1)) for at in range(count)]


def probe_targets(kit: Kit) -> NDArray[np.generic]:
    """Return the targets of the probe's samples."""
    target = kit.learns.target
    if target is None or not kit.probe.targets:
        return np.array(kit.probe.y, dtype=np.int64)
    return np.frombuffer(kit.probe.targets, dtype=target.dtype).reshape(len(kit.probe.y), *target.shape)


def probe_vector(sizes: Sequence[int], spread: Sequence[float] = (), state: int = 0) -> NDArray[np.float32]:
    """Return the vector at which a probe is taken, by a formula that any language can repeat.

    0.1 sin(i + 1); with `spread`, pseudo-random numbers of at most the tensor's spread. In the plain vector, all
    filters of a layer are sums of two waves, whose small differences a deep model with norms multiplies. The last
    `state` tensors are always 1 + 0.1 sin(i + 1), because a variance must be above 0.
    """
    if state:
        learned, size = sizes[: len(sizes) - state], sum(sizes)
        at = np.arange(sum(learned) + 1, size + 1, dtype=np.float64)
        return np.concatenate([probe_vector(learned, spread), (1.0 + 0.1 * np.sin(at)).astype(np.float32)])
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


def _disagreement(probe: Probe, loss: float, gradient: NDArray[np.float32]) -> str | None:
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


def _disagreement_on_state(reported: Sequence[float], state: NDArray[np.float32]) -> str | None:
    if not state.size:
        return None
    there = np.array(reported)
    apart = float(np.abs(state[state_indices(state.size)].astype(np.float64) - there).max())
    if not apart <= GRADIENT_TOLERANCE * float(np.abs(there).max()):
        return f"the state after the probe differs from the kit's by {apart:.3g}"
    return None


def _check_shape(name: str, found: NDArray[np.generic], shape: tuple[int, ...]) -> None:
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

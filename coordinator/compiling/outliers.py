"""The graphs for training with an output for unknown samples (FedOV): all loss terms, the votes, and input gradients.

All passes of a step use the same dropout. A model whose layers have state gets no separate training graph: a device
puts samples and outliers into one batch of the plain graph.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from coordinator.compiling.exporting import exported, trace_outputs, trace_with
from coordinator.compiling.extra_layers import last_linear
from coordinator.compiling.normalisation import Normalised
from coordinator.compiling.probes import ProbeSamples
from coordinator.compiling.tracing import Trainee
from sojourn.errors import ModelError
from sojourn.model.graphs import Graphs
from sojourn.parts import Outliers
from sojourn.protocol.spec import InputSpec, Kit, MoreGraphs, OutlierGraphs

MASK = 1e4
"""Subtracted from the logit of a sample's own class to mask it."""
TOLERANCE = 1e-3
"""The maximum difference from torch, relative to the gradient's norm."""
ROWS = 3
IMAGE_AXES = 3


class OutlierTrainee(Trainee):
    """A module with C + 1 outputs, trained on samples, outliers and mixtures."""

    def __init__(self, plain: Trainee, objective: Outliers, x: Tensor) -> None:
        """Train like `plain`; `x` are some samples."""
        super().__init__(plain.module, plain.feed, plain.learning)
        self._objective = objective
        inner = plain.module.get_submodule("module")
        self._layer, self._given = _mixing_layer(inner, objective.layer, x) if objective.mix else ("", False)
        weights = {name: getattr(objective, name) for name in ("outlier", "masked", "mix", "adversarial")}
        self.terms = () if self._with_state else tuple(name for name, weight in weights.items() if weight)

    def graphs(self, kit: Kit, samples: ProbeSamples, seed: int) -> OutlierGraphs:
        """Return all further graphs, after a comparison with torch."""
        batch = samples.batch(5, seed)
        x, y = torch.from_numpy(batch.x), torch.from_numpy(batch.y)
        whole: Normalised = self.module  # type: ignore[assignment]
        channels = x.shape[1]
        made = OutlierGraphs(
            exported(trace_outputs(lambda tensors, x: (self._outputs(tensors, x),), self, x, ["votes"])),
            exported(trace_outputs(lambda tensors, x: (self._input_gradient(tensors, x),), self, x, ["slope"])),
            self._train_graph(x, y, batch.noise) if self.terms else b"",
            self.terms,
            _each_channel(whole.mean, channels, 0.0),
            _each_channel(whole.std, channels, 1.0),
        )
        _check(made, kit, self, samples, seed)
        return made

    def _train_graph(self, x: Tensor, y: Tensor, noise: Sequence[NDArray[np.float32]]) -> bytes:
        names = OutlierGraphs(b"", b"", b"", self.terms).further
        further = [torch.ones(len(x)) if name in ("unlike", "share") else x for name in names]

        def function(vector: Tensor, batched: list[Tensor]) -> tuple[Tensor, ...]:
            more = dict(zip(names, batched[2 : 2 + len(names)], strict=True))
            drawn = batched[2 + len(names) :]
            loss, gradients = self.loss_and_gradients(self.split(vector), batched[0], batched[1], drawn, more)
            return loss, torch.cat([each.reshape(-1) for each in gradients])

        drawn = [torch.from_numpy(values) for values in noise]
        inputs = ["vector", "x", "y", *names, *(f"noise_{at}" for at in range(len(noise)))]
        return exported(trace_with(function, self, [x, y, *further, *drawn], inputs, ["loss", "gradient"]))

    def loss_and_gradients(
        self, tensors: Sequence[Tensor], x: Tensor, y: Tensor, noise: Sequence[Tensor], more: Mapping[str, Tensor]
    ) -> tuple[Tensor, list[Tensor]]:
        """Return the plain loss, and the gradient of all terms for each tensor."""
        self.module.train()
        leaves = [tensor.detach().requires_grad_() for tensor in tensors]
        with torch.enable_grad():
            loss, whole = self._terms(leaves, x, y, noise, more)
            gradients = torch.autograd.grad(whole, leaves, allow_unused=True)
        filled = [torch.zeros_like(t) if g is None else g for t, g in zip(leaves, gradients, strict=True)]
        return loss.detach(), filled

    def _terms(
        self, w: Sequence[Tensor], x: Tensor, y: Tensor, noise: Sequence[Tensor], more: Mapping[str, Tensor]
    ) -> tuple[Tensor, Tensor]:
        settings, unknown = self._objective, self.learning.task.output[0] - 1
        hot = (y.unsqueeze(1) == torch.arange(unknown + 1)).to(x.dtype)
        outputs = self._drawn(w, x, noise)
        loss = -(outputs.log_softmax(1) * hot).sum(1).mean()
        whole = loss
        if "outlier" in self.terms:
            whole = whole + settings.outlier * _unknown(self._drawn(w, more["outlier"], noise)).mean()
        if "masked" in self.terms:
            whole = whole + settings.masked * _unknown(outputs - MASK * hot).mean()
        if "mix" in self.terms:
            each = _unknown(self._mixed(w, x, more, noise)) * more["unlike"]
            whole = whole + settings.mix * each.sum() / more["unlike"].sum().clamp(min=1.0)
        if "adversarial" in self.terms:
            whole = whole + settings.adversarial * _unknown(self._drawn(w, more["adversarial"], noise)).mean()
        return loss, whole

    def _drawn(self, w: Sequence[Tensor], x: Tensor, noise: Sequence[Tensor]) -> Tensor:
        self.feed.give(noise)
        return self._call(w, x)

    def _mixed(self, w: Sequence[Tensor], x: Tensor, more: Mapping[str, Tensor], noise: Sequence[Tensor]) -> Tensor:
        """Return h(share phi(x) + (1 - share) phi(other))."""
        inner, seen = self.module.get_submodule("module"), list["Tensor"]()
        with _changed(inner, self._layer, self._given, lambda it: seen.append(it) or it):  # type: ignore[func-returns-value]
            self._drawn(w, more["other"], noise)
        share = more["share"].reshape(-1, *([1] * (seen[0].dim() - 1)))
        with _changed(inner, self._layer, self._given, lambda it: share * it + (1 - share) * seen[0]):
            return self._drawn(w, x, noise)

    def _outputs(self, tensors: Sequence[Tensor], x: Tensor) -> Tensor:
        self.module.eval()
        return self._call(tensors, x)

    def _input_gradient(self, tensors: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return the gradient of the sum of cross-entropies with the unknown class, by the samples."""
        leaf = x.detach().requires_grad_()
        with torch.enable_grad():
            return torch.autograd.grad(_unknown(self._outputs(tensors, leaf)).sum(), leaf)[0]


def with_outliers(kit: Kit, trainee: Trainee, objective: Outliers, samples: ProbeSamples, seed: int) -> Kit:
    """Add the graphs of an objective with outliers to the kit."""
    x = torch.from_numpy(samples.batch(2, seed).x)
    made = OutlierTrainee(trainee, objective, x).graphs(kit, samples, seed)
    return msgspec.structs.replace(kit, more=MoreGraphs(outliers=made))


def check_images(spec: InputSpec) -> None:
    """Refuse inputs from which no outliers can be made, before anything is compiled."""
    if len(spec.shape) != IMAGE_AXES or spec.dtype != "float32":
        raise ModelError(
            f"outliers are made of images (channels, height, width), and this job's input is {spec.dtype} of shape "
            f"{list(spec.shape)}: choose another strategy"
        )


def _unknown(outputs: Tensor) -> Tensor:
    """Return the cross-entropy of each sample with the last class."""
    return -outputs.log_softmax(1)[:, -1]


def _mixing_layer(inner: nn.Module, name: str, x: Tensor) -> tuple[str, bool]:
    """Return the layer at which samples are mixed, and whether to mix its input (if it is the only linear layer)."""
    dense = [each for each, layer in inner.named_modules() if isinstance(layer, nn.Linear)]
    if name and name not in dict(inner.named_modules()):
        raise ModelError(f"objective.layer: the model has no layer {name!r}")
    if name:
        return name, False
    last = last_linear(inner, x, "objective.layer")
    return (dense[0], False) if dense[0] != last else (last, True)


@contextmanager
def _changed(inner: nn.Module, layer: str, given: bool, change: object) -> Iterator[None]:
    """Replace the input of a layer, or its output, while the context is open."""
    place = inner.get_submodule(layer)
    hook = (
        place.register_forward_pre_hook(lambda _layer, inputs: (change(inputs[0]),))  # type: ignore[operator]
        if given
        else place.register_forward_hook(lambda _layer, _inputs, output: change(output))  # type: ignore[operator]
    )
    try:
        yield
    finally:
        hook.remove()


def _each_channel(values: Tensor | None, channels: int, otherwise: float) -> tuple[float, ...]:
    if values is None:
        return (otherwise,) * channels
    return tuple(float(value) for value in values.reshape(-1).expand(channels))


def _check(made: OutlierGraphs, kit: Kit, trainee: OutlierTrainee, samples: ProbeSamples, seed: int) -> None:
    """Compare the graphs with torch on another batch than the traced one; ModelError if they differ."""
    graphs = Graphs(msgspec.structs.replace(kit, more=MoreGraphs(outliers=made)))
    batch, other = samples.batch(ROWS, seed + 1), samples.batch(ROWS, seed + 2)
    vector = trainee.initial.numpy()
    x, y, w = torch.from_numpy(batch.x), torch.from_numpy(batch.y), trainee.split(trainee.initial)
    with torch.no_grad():
        pairs = [(graphs.votes(vector, batch.x), trainee._outputs(w, x).numpy())]
    pairs.append((graphs.slope(vector, batch.x), trainee._input_gradient(w, x).numpy()))
    if made.terms:
        rows = np.linspace(0.2, 0.9, ROWS).astype(np.float32)
        further = {name: rows if name in ("unlike", "share") else other.x for name in made.further}
        feeds = {f"noise_{at}": values for at, values in enumerate(batch.noise)}
        found = graphs.open_loss_and_gradient(vector, {"x": batch.x, "y": batch.y, **further, **feeds})
        drawn = [torch.from_numpy(values) for values in batch.noise]
        more = {name: torch.from_numpy(values) for name, values in further.items()}
        loss, gradients = trainee.loss_and_gradients(w, x, y, drawn, more)
        pairs += [(np.array(found[0]), loss.numpy())]
        pairs += [(found[1], torch.cat([each.reshape(-1) for each in gradients]).numpy())]
    for here, there in pairs:
        apart = float(np.linalg.norm(np.float64(here) - there))
        if not apart <= TOLERANCE * max(1e-6, float(np.linalg.norm(np.float64(there)))):
            raise ModelError(f"a graph with outliers differs from torch by {apart:.3g}: choose another model")

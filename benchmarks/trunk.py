"""Head only: the time of an epoch on cached features, compared with training the head on a file of those features.

Both run visits of a device (`edge_agent.training.trainer.Trainer`) with one thread and one epoch, in turns, measured by
CPU time. The model is torchvision's mobilenet_v3_small with a trained classifier, or a smaller one with --small.

python -m benchmarks.trunk [--side 64] [--samples 600] [--batch 16] [--turns 9] [--small]
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import nn

from coordinator.compiling import Compiled, compile_kit
from coordinator.models.torchvision_models import make_torchvision_importable
from edge_agent.training.data_watch import FeatureFolder
from edge_agent.training.features import FeatureFiles
from edge_agent.training.messages import Train, Warm
from edge_agent.training.trainer import Trainer
from sojourn.data.source import DataSettings
from sojourn.model.graphs import Graphs
from sojourn.model.vectors import save
from sojourn.parts import Sgd, Training
from sojourn.protocol.envelope import pack_blob
from sojourn.protocol.messages import Visit
from sojourn.protocol.spec import InputSpec
from sojourn.protocol.wire import Task, VisitId
from sojourn.store.blobs import FolderBlobs, ref_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

CLASSES = tuple(str(n) for n in range(10))


class Case(NamedTuple):
    """A trainer with its data, and its repeated visit."""

    trainer: Trainer
    work: Train

    def epoch(self) -> float:
        """Return CPU seconds of a visit of one epoch, with loaded graphs and data."""
        began = time.process_time()
        self.trainer.perform(self.work)
        return time.process_time() - began


def main() -> None:
    """Print the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in {"side": 64, "samples": 600, "batch": 16, "turns": 9}.items():
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--small", action="store_true")
    arguments = parser.parse_args()
    torch.manual_seed(1)
    module, head = small() if arguments.small else mobilenet()
    image = InputSpec((3, arguments.side, arguments.side))
    in_two, whole = (
        compile_kit(module, image, CLASSES, mean=[127.5], std=[64.0], seed=1, whole=each) for each in (False, True)
    )
    assert in_two.kit.trunk
    alone = compile_kit(head, in_two.kit.taken, CLASSES, mean=None, std=None, seed=1)
    draw = np.random.default_rng(1)
    x = draw.integers(0, 256, (arguments.samples, *image.shape), dtype=np.uint8)
    y = draw.integers(0, len(CLASSES), arguments.samples)
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        cut = case(root / "cut", in_two, x, y, arguments.batch)
        first = cut.epoch()
        features = Graphs(in_two.kit).features(x.astype(np.float32)).astype(np.float32)
        others = [
            case(root / "head", alone, features, y, arguments.batch),
            case(root / "whole", whole, x, y, arguments.batch),
        ]
        seconds: list[list[float]] = [[], [], []]
        for _ in range(arguments.turns):
            for taken, each in zip(seconds, (cut, *others), strict=True):
                taken.append(each.epoch())
    later, on_npz, in_one = map(statistics.median, seconds)
    ratio = statistics.median(one / other for one, other in zip(seconds[0], seconds[1], strict=True))
    print(f"kit: {len(pack_blob(in_two.kit)):,} bytes cut, {len(pack_blob(whole.kit)):,} in one piece")
    print(f"features: {in_two.kit.taken.shape} of {image.shape}, {features.nbytes:,} bytes of {x.nbytes:,}")
    print(f"first epoch {first:.3f} s, later ones {later:.4f} s, in one piece {in_one:.3f} s")
    print(f"head alone on an NPZ of its features {on_npz:.4f} s: ratio {ratio:.3f} (to reach: 1.2 at most)")


def mobilenet() -> tuple[nn.Module, nn.Module]:
    """Return the model with only its classifier trained, and a classifier alone."""
    make_torchvision_importable()
    from torchvision.models import mobilenet_v3_small  # noqa: PLC0415  # importable from here on

    module, other = (mobilenet_v3_small(num_classes=len(CLASSES)) for _ in range(2))
    module.requires_grad_(requires_grad=False).classifier.requires_grad_(requires_grad=True)
    return module, other.classifier


def small() -> tuple[nn.Module, nn.Module]:
    """A model of a few layers, for a quick test."""
    trunk = nn.Sequential(nn.Conv2d(3, 16, 3, 2), nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten())
    return nn.Sequential(trunk.requires_grad_(requires_grad=False), nn.Linear(256, 10)), nn.Linear(256, 10)


def case(folder: Path, made: Compiled, x: NDArray[np.generic], y: NDArray[np.int64], batch: int) -> Case:
    """Prepare a device's store and data in a folder."""
    blobs, path = FolderBlobs(folder / "blobs"), folder / "data.npz"
    np.savez(path, x=x, y=y)
    features = FeatureFolder(folder / "blobs", str(path), 4096)
    features.made()
    kit = pack_blob(made.kit)
    ref = ref_of(kit)
    blobs.put(kit, ref.digest)
    task = Task("train", Training(epochs=1, batch=batch, lr=0.01), Sgd(), "float32", 1, None)
    vectors = {"model": save(blobs, made.initial, "float32", made.kit.model)}
    work = Train(Visit(VisitId("job", 0, 0, 0, (0, 0)), ref, vectors, task, 1, 60.0, 0), {})
    trainer = Trainer(blobs, DataSettings(path=str(path)), features=FeatureFiles(features))
    trainer.perform(Warm(ref, task))
    return Case(trainer, work)


if __name__ == "__main__":
    main()

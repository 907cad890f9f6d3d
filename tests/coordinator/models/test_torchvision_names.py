"""Tests of torchvision's models by name: outputs for the job, any kind of images, and checked options."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from coordinator.models import build
from sojourn.errors import ModelError
from sojourn.protocol.spec import InputSpec

COLOUR, GREY = InputSpec((3, 64, 64)), InputSpec((1, 64, 64))


@pytest.mark.parametrize(
    "name", ["resnet18", "mobilenet_v2", "mobilenet_v3_small", "efficientnet_b0", "shufflenet_v2_x0_5", "squeezenet1_1"]
)
def test_outputs_match_job_classes(name: str) -> None:
    model = build(f"torchvision:{name}", COLOUR, 7, {}, seed=1).eval()
    with torch.no_grad():
        assert model(torch.zeros(2, 3, 64, 64)).shape == (2, 7)


def test_grey_image_equals_colour_image_with_equal_channels() -> None:
    grey = build("torchvision:squeezenet1_1", GREY, 5, {}, seed=1).eval()
    colour = build("torchvision:squeezenet1_1", COLOUR, 5, {}, seed=1).eval()
    x = torch.rand(2, 1, 64, 64)
    assert grey.state_dict().keys() == colour.state_dict().keys()
    with torch.no_grad():
        assert torch.equal(grey(x), colour(x.repeat(1, 3, 1, 1)))


def test_options_pass_through() -> None:
    plain: Any = build("torchvision:mobilenet_v3_small", COLOUR, 5, {}, seed=1)
    other: Any = build("torchvision:mobilenet_v3_small", COLOUR, 5, {"dropout": 0.5}, seed=1)
    assert (plain.classifier[2].p, other.classifier[2].p) == (0.2, 0.5)


def test_vision_transformer_fits_job_image_size() -> None:
    with torch.device("meta"):  # without its 350 MB
        made: Any = build("torchvision:vit_b_16", COLOUR, 5, {}, seed=1)
    assert (made.image_size, made.encoder.pos_embedding.shape[1]) == (64, 17)


@pytest.mark.parametrize(
    ("name", "spec", "options", "words"),
    [
        ("resnet_18", COLOUR, {}, "torchvision has no classifier 'resnet_18'; did you mean 'resnet18'?"),
        ("fcn_resnet50", COLOUR, {}, "torchvision has no classifier 'fcn_resnet50'"),
        ("zzz", COLOUR, {}, r"known names are: alexnet, .* and \d+ more"),
        ("resnet18", COLOUR, {"weights": "DEFAULT"}, "weights are not downloaded: set their file in model.start"),
        ("resnet18", COLOUR, {"num_classes": 3}, "it is the job's number of classes"),
        ("resnet18", COLOUR, {"widht": 3}, "cannot be built with .*unexpected keyword argument 'widht'"),
        (
            "resnet18",
            InputSpec((2, 64, 64)),
            {},
            r"takes images with 1 or 3 channels, .* float32 of shape \[2, 64, 64\]",
        ),
        ("resnet18", InputSpec((64,)), {}, r"set data.input, such as \[3, 64, 64\]"),
        ("resnet18", InputSpec((3, 64, 64), "int64"), {}, "a sample here is int64"),
        ("vit_b_16", InputSpec((3, 64, 48)), {}, "takes square images, not 64 x 48"),
        ("vit_b_16", InputSpec((3, 40, 40)), {}, "cannot be built with"),
    ],
)
def test_unsuitable_model_reports_reason(name: str, spec: InputSpec, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ModelError, match=words):
        build(f"torchvision:{name}", spec, 5, options, seed=1)

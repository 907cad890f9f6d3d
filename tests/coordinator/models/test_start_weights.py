"""Tests of loading weights by tensor name: all match, or an error lists the others."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coordinator.models.start_weights import StartWeights, head_of, load_weights
from sojourn.errors import ModelError


def net(classes: int = 2) -> Any:
    layers = [nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(16, classes)]
    return nn.Sequential(*layers)


def weights(module: nn.Module, **changes: Tensor | None) -> StartWeights:
    given = {**module.state_dict(), **changes}
    return StartWeights({name: each for name, each in given.items() if each is not None}, "it.pth")


def same(module: nn.Module, other: nn.Module, but: tuple[str, ...] = ()) -> bool:
    theirs = other.state_dict()
    return all(torch.equal(each, theirs[name]) for name, each in module.state_dict().items() if name not in but)


def test_all_weights_and_statistics_are_loaded() -> None:
    there, here = net(), net()
    there[1].running_mean.fill_(3.0)
    assert not same(here, there)
    load_weights(here, weights(there))
    assert same(here, there)
    assert here[1].running_mean[0] == 3.0


def test_mismatches_are_listed_with_counts() -> None:
    there = net()
    wrong = weights(
        there, **{"0.weight": None, "1.running_var": None, "extra.a": torch.zeros(1), "0.bias": torch.zeros(5)}
    )
    with pytest.raises(ModelError) as error:
        load_weights(net(), wrong)
    assert str(error.value) == (
        "model.start: it.pth does not fit the model: 2 missing in the file (0.weight, 1.running_var); 1 not in this "
        "model (extra.a); 1 of another shape or type (0.bias is [5] in the file and [4] in the model). Use a file of "
        'the same model, or list the parts that start with random weights: model.new_head = ["fc.*"]'
    )


def test_long_mismatch_list_is_shortened() -> None:
    many = {f"extra.{at}": torch.zeros(1) for at in range(900)}
    with pytest.raises(ModelError, match=r"900 not in this model \(extra.0, .*, extra.4 and 895 more\)"):
        load_weights(net(), weights(net(), **many))


def test_batch_counters_may_be_missing() -> None:
    there, here = net(), net()
    load_weights(here, weights(there, **{"1.num_batches_tracked": None}))
    assert same(here, there)


def test_different_head_is_replaced_only_on_request() -> None:
    there, here = net(1000), net()
    drawn = here[3].weight.clone()
    with pytest.raises(
        ModelError, match=r"Only the last layer differs: with model.new_head = true .*\(3.weight, 3.bias"
    ):
        load_weights(here, weights(there))
    assert torch.equal(here[3].weight, drawn)
    load_weights(here, weights(there), new_head=True)
    assert torch.equal(here[3].weight, drawn)
    assert same(here, there, head_of(here))
    load_weights(net(), weights(there, **{"3.weight": None, "3.bias": None}), new_head=True)


def test_new_head_is_used_even_if_old_one_fits() -> None:
    there, here = net(), net()
    drawn = here[3].weight.clone()
    load_weights(here, weights(there), new_head=True)
    assert torch.equal(here[3].weight, drawn)


def test_new_head_excuses_no_other_mismatch() -> None:
    with pytest.raises(ModelError, match=r"1 missing in the file \(0.weight\)"):
        load_weights(net(), weights(net(1000), **{"0.weight": None}), new_head=True)


def test_parts_to_reinitialise_can_be_named_by_pattern() -> None:
    there, here = net(), net()
    old = weights(there, **{"0.bias": None, "aux.weight": torch.zeros(2)})
    load_weights(here, old, new_head=["0.*", "aux.*"])
    assert same(here, there, ("0.weight", "0.bias"))
    with pytest.raises(ModelError, match=r"model.new_head: no tensor of the model matches 'fc.\*'"):
        load_weights(here, old, new_head=["fc.*"])


def test_other_precisions_convert_and_other_kinds_are_rejected() -> None:
    there, here = net(), net()
    load_weights(here, weights(there, **{"0.weight": there[0].weight.detach().double()}))
    assert torch.equal(here[0].weight, there[0].weight)
    with pytest.raises(ModelError, match=r"0\.weight is torch\.int64 in the file and torch\.float32 in the model"):
        load_weights(here, weights(there, **{"0.weight": there[0].weight.detach().long()}))


def test_non_finite_weights_are_rejected() -> None:
    there = net()
    with pytest.raises(ModelError, match=r"0\.weight of it\.pth has values that are not finite"):
        load_weights(net(), weights(there, **{"0.weight": there[0].weight.detach() * torch.nan}))


def test_one_name_of_a_tied_tensor_is_enough() -> None:
    def tied() -> Any:
        module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        module[1].weight = module[0].weight
        return module

    there, here = tied(), tied()
    load_weights(here, weights(there, **{"1.weight": None}))
    assert same(here, there)

"""Weights are put into a model by name: all fit, or what does not is listed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from coordinator.models.start_weights import StartWeights, head_of, put_in
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


def test_all_weights_are_taken_and_statistics_too() -> None:
    there, here = net(), net()
    there[1].running_mean.fill_(3.0)
    assert not same(here, there)
    put_in(here, weights(there))
    assert same(here, there)
    assert here[1].running_mean[0] == 3.0


def test_what_does_not_fit_is_listed_with_counts() -> None:
    there = net()
    wrong = weights(
        there, **{"0.weight": None, "1.running_var": None, "extra.a": torch.zeros(1), "0.bias": torch.zeros(5)}
    )
    with pytest.raises(ModelError) as error:
        put_in(net(), wrong)
    assert str(error.value) == (
        "model.start: it.pth does not fit the model: 2 missing there (0.weight, 1.running_var); 1 not in this model "
        "(extra.a); 1 of another shape or type (0.bias is [5] there and [4] here). Give a file of this very model; "
        'parts that are to start anew can be named: model.new_head = ["fc.*"]'
    )


def test_a_long_list_is_short() -> None:
    many = {f"extra.{at}": torch.zeros(1) for at in range(900)}
    with pytest.raises(ModelError, match=r"900 not in this model \(extra.0, .*, extra.4 and 895 more\)"):
        put_in(net(), weights(net(), **many))


def test_counters_of_batches_may_be_missing() -> None:
    there, here = net(), net()
    put_in(here, weights(there, **{"1.num_batches_tracked": None}))
    assert same(here, there)


def test_a_new_head_is_taken_only_where_it_is_asked_for() -> None:
    there, here = net(1000), net()
    drawn = here[3].weight.clone()
    with pytest.raises(
        ModelError, match=r"Only the last layer differs: with model.new_head = true .*\(3.weight, 3.bias"
    ):
        put_in(here, weights(there))
    assert torch.equal(here[3].weight, drawn)
    put_in(here, weights(there), new_head=True)
    assert torch.equal(here[3].weight, drawn)
    assert same(here, there, head_of(here))
    put_in(net(), weights(there, **{"3.weight": None, "3.bias": None}), new_head=True)


def test_a_new_head_is_new_even_where_the_old_one_would_fit() -> None:
    there, here = net(), net()
    drawn = here[3].weight.clone()
    put_in(here, weights(there), new_head=True)
    assert torch.equal(here[3].weight, drawn)


def test_a_new_head_excuses_nothing_else() -> None:
    with pytest.raises(ModelError, match=r"1 missing there \(0.weight\)"):
        put_in(net(), weights(net(1000), **{"0.weight": None}), new_head=True)


def test_parts_that_start_anew_can_be_named_here_and_there() -> None:
    there, here = net(), net()
    old = weights(there, **{"0.bias": None, "aux.weight": torch.zeros(2)})
    put_in(here, old, new_head=["0.*", "aux.*"])
    assert same(here, there, ("0.weight", "0.bias"))
    with pytest.raises(ModelError, match=r"model.new_head: no tensor of the model fits 'fc.\*'"):
        put_in(here, old, new_head=["fc.*"])


def test_other_precisions_are_converted_and_other_kinds_refused() -> None:
    there, here = net(), net()
    put_in(here, weights(there, **{"0.weight": there[0].weight.detach().double()}))
    assert torch.equal(here[0].weight, there[0].weight)
    with pytest.raises(ModelError, match=r"0\.weight is torch\.int64 there and torch\.float32 here"):
        put_in(here, weights(there, **{"0.weight": there[0].weight.detach().long()}))


def test_numbers_that_are_none_are_refused() -> None:
    there = net()
    with pytest.raises(ModelError, match=r"0\.weight of it\.pth has numbers that are infinite"):
        put_in(net(), weights(there, **{"0.weight": there[0].weight.detach() * torch.nan}))


def test_one_name_of_a_tied_tensor_is_enough() -> None:
    def tied() -> Any:
        module = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
        module[1].weight = module[0].weight
        return module

    there, here = tied(), tied()
    put_in(here, weights(there, **{"1.weight": None}))
    assert same(here, there)

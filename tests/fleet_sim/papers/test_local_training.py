"""Where a table compares more than strategies, its page says so."""

from fleet_sim.papers.local_training import differences_told, training_by_method


def test_what_a_strategy_brings_of_its_own_is_told(tmp_path):
    for name in ("fedavg", "visit", "fedcat", "feddyn"):
        (tmp_path / f"{name}.toml").write_text(f'strategy = "{name}"\n[training]\nepochs = 1\nbatch = 8\nlr = 0.05\n')
    training = training_by_method(sorted(tmp_path.glob("*.toml")))
    assert differences_told(training) == (
        "**Not all train alike:** `momentum` is 0.9 in fedcat, and 0.0 elsewhere; "
        "`weight_decay` is 0.001 in feddyn, and 0.0 elsewhere."
    )


def test_who_trains_alike_is_not_spoken_of():
    assert not differences_told({"a": {"lr": 0.1}, "b": {"lr": 0.1}})
    assert not differences_told({"a": {"lr": 0.1}})
    assert not differences_told({})


def test_several_values_of_one_setting():
    told = differences_told({name: {"lr": lr} for name, lr in zip("abcde", (0.1, 0.2, 0.1, 0.3, 0.2), strict=True)})
    assert told == "**Not all train alike:** `lr` is 0.2 in b, e, 0.3 in d, and 0.1 elsewhere."

"""A table's page reports different training settings."""

from fleet_sim.papers.table_page import describe_training_differences, training_by_method


def test_differing_strategy_defaults_are_listed(tmp_path):
    for name in ("fedavg", "visit", "fedcat", "feddyn"):
        (tmp_path / f"{name}.toml").write_text(f'strategy = "{name}"\n[training]\nepochs = 1\nbatch = 8\nlr = 0.05\n')
    training = training_by_method(sorted(tmp_path.glob("*.toml")))
    assert describe_training_differences(training) == (
        "**Training settings differ:** `momentum` is 0.9 in fedcat, and 0.0 for the others; "
        "`weight_decay` is 0.001 in feddyn, and 0.0 for the others."
    )


def test_equal_training_settings_are_not_listed():
    assert not describe_training_differences({"a": {"lr": 0.1}, "b": {"lr": 0.1}})
    assert not describe_training_differences({"a": {"lr": 0.1}})
    assert not describe_training_differences({})


def test_several_values_of_one_setting_are_listed():
    described = describe_training_differences(
        {name: {"lr": lr} for name, lr in zip("abcde", (0.1, 0.2, 0.1, 0.3, 0.2), strict=True)}
    )
    assert described == "**Training settings differ:** `lr` is 0.2 in b, e, 0.3 in d, and 0.1 for the others."

"""Command-line options for settings of a job file, shared by `simulate`, `compare` and `plan`."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Iterable, Mapping
from inspect import Parameter, Signature, signature
from typing import Annotated, Any, NamedTuple

import typer

from sojourn.errors import ConfigError

Command = Callable[..., None]


class SettingOption(NamedTuple):
    """A command-line option for a setting: the setting's path in the job file, its type, and the option."""

    path: str
    kind: Any
    option: Any


SETTINGS = {
    "strategy": SettingOption(
        "strategy",
        str,
        typer.Option(help="Strategy; see `sojourn strategies`.", show_default="the file's, otherwise keel"),
    ),
    "model": SettingOption(
        "model.name", str, typer.Option(help="Model: mlp, cnn, resnet8 ..., or a custom one as package.module:Class.")
    ),
    "data": SettingOption(
        "simulation.data",
        str,
        typer.Option(metavar="NAME|PATH", help="Data set: a name, an NPZ or CSV file, or a folder of images."),
    ),
    "devices": SettingOption("simulation.devices", int, typer.Option(help="Number of devices.", min=1)),
    "sites": SettingOption("simulation.sites", int, typer.Option(help="Number of edge servers.", min=1)),
    "by": SettingOption(
        "split.by", str, typer.Option("--split", help="Split: iid, dirichlet, shards, quantity, range, user or domain.")
    ),
    "alpha": SettingOption("split.alpha", float, typer.Option(help="Dirichlet's alpha. 0 gives one class per device.")),
    "shards": SettingOption("split.shards", int, typer.Option(help="Shards per device of the split shards.", min=1)),
    "samples": SettingOption(
        "split.samples", int, typer.Option(help="Limit every device to this many samples. 0 sets no limit.")
    ),
    "epochs": SettingOption("training.epochs", int, typer.Option(help="Epochs of one visit.", min=1)),
    "batch": SettingOption("training.batch", int, typer.Option(help="Batch size.", min=1)),
    "lr": SettingOption("training.lr", float, typer.Option(help="Learning rate of the devices.")),
    "rounds": SettingOption("rounds", int, typer.Option(help="Number of rounds.", min=1)),
    "seed": SettingOption("seed", int, typer.Option(help="Seed of all random numbers.", min=0)),
    "dropout": SettingOption(
        "availability.dropout", float, typer.Option(help="Probability that a visit fails, 0 to 1.")
    ),
    "board": SettingOption(
        "simulation.board",
        list[str],
        typer.Option(
            metavar="BOARD|FILE",
            help="Board of the devices: a name, or the file of a measured profile. May be repeated for a mix.",
        ),
    ),
    "link": SettingOption(
        "simulation.link",
        list[str],
        typer.Option("--link", help="Link of the devices, instead of the board's default. May be repeated."),
    ),
    "engine": SettingOption("simulation.engine", str, typer.Option(help="Engine: auto, serial, pool, ray or batched.")),
    "trainer": SettingOption(
        "simulation.trainer", str, typer.Option(help="Training runtime: onnx (as on devices) or torch.")
    ),
    "device": SettingOption(
        "simulation.device", str, typer.Option(help="Device for --trainer torch: auto, cpu, cuda, cuda:1 or mps.")
    ),
    "workers": SettingOption(
        "simulation.workers", int, typer.Option(help="Processes of the pool. 0 uses one per core.", min=0)
    ),
    "mlflow": SettingOption(
        "tracking.mlflow",
        str,
        typer.Option(metavar="sqlite:///FILE", help="Log rounds to this MLflow store (extra mlflow)."),
    ),
    "tensorboard": SettingOption(
        "tracking.tensorboard",
        str,
        typer.Option(
            metavar="FOLDER", help="Log rounds to TensorBoard event files in this folder (extra tensorboard)."
        ),
    ),
}
"""The options by name."""
FLEET = (
    "model", "data", "devices", "sites", "by", "alpha", "shards", "samples", "rounds", "epochs", "batch", "lr",
    "dropout", "board", "link",
)  # fmt: skip
"""Options of the simulated fleet."""
ENGINE = ("engine", "trainer", "device", "workers")
"""Options of the training engine."""
TRACKING = ("mlflow", "tensorboard")
"""Options of experiment tracking."""
_ANY_SETTING = typer.Option(
    "--set", metavar="KEY=VALUE", help="Any other setting, as in the job file: training.lr=0.1. May be repeated."
)


def takes_settings(*names: str) -> Callable[[Command], Command]:
    """Add these options and --set to a command; their values, by path in the job file, become its `changes`."""

    def wrap(command: Command) -> Command:
        def run(**values: Any) -> None:
            given = {SETTINGS[name].path: values.pop(name) for name in names}
            command(changes=changes(given, values.pop("settings") or ()), **values)

        shared = [_keyword(name, SETTINGS[name].kind, SETTINGS[name].option) for name in names]
        shared.append(_keyword("settings", list[str], _ANY_SETTING))
        parameters = signature(command, eval_str=True).parameters.values()
        # typer reads the signature, so the options replace the parameter `changes`.
        run.__signature__ = Signature(  # type: ignore[attr-defined]
            [each for own in parameters for each in (shared if own.name == "changes" else [own])]
        )
        run.__name__, run.__doc__, run.__annotations__ = command.__name__, command.__doc__, {}
        return run

    return wrap


def changes(given: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """Return the settings from options and KEY=VALUE texts, by path in the job file; options not given set nothing."""
    found = {path: value for path, value in given.items() if value not in (None, [])}
    for each in settings:
        path, equals, value = each.partition("=")
        if not equals:
            raise ConfigError(f"--set {each}: write KEY=VALUE, such as training.lr=0.1")
        try:
            found[path.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[path.strip()] = value.strip()
    return found


def option_of(path: str) -> str:
    """Return the command-line option of a setting."""
    for name, (known, _, option) in SETTINGS.items():
        if known == path:
            # In an annotated option, typer keeps the first spelling in place of the default.
            spellings = [each for each in (option.default, *(option.param_decls or ())) if isinstance(each, str)]
            return next(iter(spellings), f"--{name.replace('_', '-')}")
    return f"--set {path}"


def _keyword(name: str, kind: Any, option: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=Annotated[kind | None, option])

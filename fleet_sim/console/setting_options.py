"""Options of the command line that stand for settings in a job file; `simulate`, `compare` and `plan` share them."""

from __future__ import annotations

import tomllib
from inspect import Parameter, Signature, signature
from typing import TYPE_CHECKING, Annotated, Any, get_args

import typer

from sojourn.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    Command = Callable[..., None]

SETTINGS: dict[str, tuple[str, Any]] = {
    "strategy": (
        "strategy",
        Annotated[
            str | None, typer.Option(help="Any of `sojourn strategies`.", show_default="as the file says, or keel")
        ],
    ),
    "model": (
        "model.name",
        Annotated[str | None, typer.Option(help="mlp, cnn, resnet8 ..., or your own: package.module:Class.")],
    ),
    "data": (
        "simulation.data",
        Annotated[
            str | None,
            typer.Option(metavar="NAME|PATH", help="A data set's name, an NPZ or CSV file, or a folder of images."),
        ],
    ),
    "devices": ("simulation.devices", Annotated[int | None, typer.Option(help="How many devices.", min=1)]),
    "sites": ("simulation.sites", Annotated[int | None, typer.Option(help="How many edge servers.", min=1)]),
    "by": (
        "split.by",
        Annotated[str | None, typer.Option("--split", help="iid, dirichlet, shards, quantity, range, user or domain.")],
    ),
    "alpha": (
        "split.alpha",
        Annotated[float | None, typer.Option(help="Dirichlet's alpha; 0: one class for each device.")],
    ),
    "shards": (
        "split.shards",
        Annotated[int | None, typer.Option(help="For --split shards: how many each device gets.", min=1)],
    ),
    "samples": (
        "split.samples",
        Annotated[int | None, typer.Option(help="Cut every device to this many samples; 0: as the split gives.")],
    ),
    "epochs": ("training.epochs", Annotated[int | None, typer.Option(help="Of one visit.", min=1)]),
    "batch": ("training.batch", Annotated[int | None, typer.Option(help="Samples of one step.", min=1)]),
    "lr": ("training.lr", Annotated[float | None, typer.Option(help="The devices' learning rate.")]),
    "rounds": ("rounds", Annotated[int | None, typer.Option(help="How many rounds.", min=1)]),
    "seed": ("seed", Annotated[int | None, typer.Option(help="All randomness comes from it.", min=0)]),
    "dropout": (
        "availability.dropout",
        Annotated[float | None, typer.Option(help="The chance that a visit fails, 0 to 1.")],
    ),
    "board": (
        "simulation.board",
        Annotated[
            list[str] | None,
            typer.Option(
                metavar="BOARD|FILE",
                help="What the devices are: a board's name, or a measured profile's file. Repeat it for a mix.",
            ),
        ],
    ),
    "link": (
        "simulation.link",
        Annotated[
            list[str] | None,
            typer.Option("--link", help="How they are connected, if not as the board's profile says. Repeatable."),
        ],
    ),
    "engine": (
        "simulation.engine",
        Annotated[str | None, typer.Option(help="Who trains: auto, serial, pool, ray or batched.")],
    ),
    "trainer": ("simulation.trainer", Annotated[str | None, typer.Option(help="onnx (a device's own) or torch.")]),
    "device": (
        "simulation.device",
        Annotated[str | None, typer.Option(help="auto, cpu, cuda, cuda:1 or mps, for --trainer torch.")],
    ),
    "workers": (
        "simulation.workers",
        Annotated[int | None, typer.Option(help="Processes of the pool; 0: one for each core.", min=0)],
    ),
    "mlflow": (
        "tracking.mlflow",
        Annotated[
            str | None,
            typer.Option(metavar="sqlite:///FILE", help="Track rounds in this store of MLflow (sojourn[mlflow])."),
        ],
    ),
    "tensorboard": (
        "tracking.tensorboard",
        Annotated[
            str | None,
            typer.Option(metavar="FOLDER", help="Track rounds in TensorBoard's event files (sojourn[tensorboard])."),
        ],
    ),
}
"""By the option's name: the path of the setting in the file, and the option itself."""
FLEET = (
    "model", "data", "devices", "sites", "by", "alpha", "shards", "samples", "rounds", "epochs", "batch", "lr",
    "dropout", "board", "link",
)  # fmt: skip
"""What is simulated, whichever command does it."""
ENGINE = ("engine", "trainer", "device", "workers")
"""How it is trained."""
TRACKING = ("mlflow", "tensorboard")
"""Where else its rounds are written."""
ANY_SETTING = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Any other setting, as in the file: training.lr=0.1. Repeatable."),
]


def takes_settings(*names: str) -> Callable[[Command], Command]:
    """Give a command of keywords these options and --set; what they set, by path in the file, is its `changes`."""

    def wrap(command: Command) -> Command:
        def run(**values: Any) -> None:
            given = {SETTINGS[name][0]: values.pop(name) for name in names}
            command(changes=changes(given, values.pop("settings") or ()), **values)

        options = {name: SETTINGS[name][1] for name in names} | {"settings": ANY_SETTING}
        shared = [_keyword(name, option) for name, option in options.items()]
        parameters = signature(command, eval_str=True).parameters.values()
        # typer reads the signature: the options stand where the command has `changes`.
        run.__signature__ = Signature(  # type: ignore[attr-defined]
            [each for own in parameters for each in (shared if own.name == "changes" else [own])]
        )
        run.__name__, run.__doc__, run.__annotations__ = command.__name__, command.__doc__, {}
        return run

    return wrap


def changes(given: Mapping[str, Any], settings: Iterable[str]) -> dict[str, Any]:
    """What options and KEY=VALUE texts set, by path in the file; an option that was not given sets nothing."""
    found = {path: value for path, value in given.items() if value not in (None, [])}
    for each in settings:
        path, equals, value = each.partition("=")
        if not equals:
            raise ConfigError(f"--set {each}: write KEY=VALUE, as training.lr=0.1")
        try:
            found[path.strip()] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            found[path.strip()] = value.strip()
    return found


def option_of(path: str) -> str:
    """How a setting is given on the command line."""
    for name, (known, annotation) in SETTINGS.items():
        if known == path:
            (option,) = (it for it in get_args(annotation) if isinstance(it, typer.models.OptionInfo))
            # Where an option is an annotation, typer has its first spelling in the place of a default.
            spellings = [each for each in (option.default, *(option.param_decls or ())) if isinstance(each, str)]
            return next(iter(spellings), f"--{name.replace('_', '-')}")
    return f"--set {path}"


def _keyword(name: str, option: Any) -> Parameter:
    return Parameter(name, Parameter.KEYWORD_ONLY, default=None, annotation=option)

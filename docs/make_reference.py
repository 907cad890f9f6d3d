"""Generate docs/reference.md, every key of every settings file, from the structs of the settings.

python -m docs.make_reference            write the page
python -m docs.make_reference --check    report whether it is current

The docstring below a field documents its key. If the default does not show the form of a value, the docstring ends with
an example: `Example: ...`.
"""
# ruff: noqa: INP001  # a script in the folder of its page

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from msgspec import inspect as kinds

from coordinator.admin.settings import CoordinatorSettings
from coordinator.jobs.settings import JobSettings
from coordinator.strategies.strategy import CUSTOM_PART_KEYS, FORMS
from docs.made_pages import write_or_check
from edge_agent.settings import AgentSettings
from hierarchy.settings import EdgeSettings
from sojourn.parts import Training
from sojourn.settings import dumps

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parent / "reference.md"
HEAD = """# Every key of every settings file

`python -m docs.make_reference` generates this page from the code of this version. Files are TOML. An unknown key is an
error that names the nearest valid key. A value of another type or out of its range is an error, too. Keys with a
default are optional; `-` means unset by default. Paths are relative to the folder of the file that contains them. A
flag of the command line overrides the file. If the flags are complete, no file is needed.

A broker is a table (`[broker]`) or only an address: `"host"`, `"host:1883"`, `"mqtt://host"`, or with TLS
`"mqtts://host:8883"`. A device's data, a model and the parts of a strategy can be text, too: `data = "photos"`,
`model = "cnn"`, `objective = "prox"`.
"""
PARTS = """
The job file or the strategy selects each part by its `name`. These are the keys of each part. The defaults are those of
the part; a strategy may set others, and `sojourn strategies show NAME` prints them.
[strategies.md](strategies.md#the-parts) describes the parts. A custom part defines all of its other keys.
"""
FILES = (
    ("A job", JobSettings, "`sojourn job submit job.toml`; with [more tables](simulation.md) also `sojourn simulate`."),
    ("A device", AgentSettings, "`sojourn agent run agent.toml`; `sojourn agent init` asks questions and writes one."),
    ("A site", EdgeSettings, "`sojourn edge run edge.toml`; `sojourn edge init` writes one."),
    (
        "The coordinator",
        CoordinatorSettings,
        "`sojourn coordinator run coordinator.toml`; `sojourn fleet init` writes one.",
    ),
)
REQUIRED = "must be given"
_EXAMPLE = re.compile(r"\s*Example: `([^`]+)`\.$")
_WORDS: dict[type, str] = {
    kinds.BoolType: "true or false",
    kinds.StrType: "text",
    kinds.IntType: "whole number",
    kinds.FloatType: "number",
    kinds.StructType: "table",
    kinds.DictType: "table",
}


class Key(NamedTuple):
    """One key of a table, its form and its meaning. `example` is a line of TOML, or a table's heading."""

    name: str
    kind: str
    default: str
    example: str
    what: str


def main(arguments: list[str]) -> int:
    """Write the page, or check it."""
    return write_or_check({PAGE: page()}, "docs.make_reference", arguments)


def page() -> str:
    """Return the whole page."""
    sections = [HEAD]
    described: dict[Any, str] = {}
    for title, form, made_by in FILES:
        sections.append(f"## {title}\n\n{made_by}\n\n{_table(keys_of(form))}")
        for path, inner in tables_of(form):
            if inner in described:
                sections.append(f"`[{path}]` has the keys of `{described[inner]}`.\n")
                continue
            described[inner] = f"[{path}] of {title.lower()}"
            sections.append(f"### `[{path}]` of {title.lower()}\n\n{_about(inner)}\n\n{_table(keys_of(inner))}")
        if form is JobSettings:
            sections.append(f"### `[training]` of a job\n\n{_about(Training)}\n\n{_table(keys_of(Training))}")
            sections += _parts()
    return "\n".join(sections)


def tables_of(form: type[msgspec.Struct], path: str = "") -> Iterator[tuple[str, type[msgspec.Struct]]]:
    """Yield the tables below a form, each with its path and its form."""
    for field in msgspec.structs.fields(form):
        for option in _options(field.type):
            if isinstance(option, kinds.StructType):
                yield f"{path}{field.encode_name}", option.cls
                yield from tables_of(option.cls, f"{path}{field.encode_name}.")


def keys_of(form: type[msgspec.Struct]) -> list[Key]:
    """Return the keys of a table, required ones first."""
    sentences = sentences_of(form)
    keys = [_key(field, sentences.get(field.name, ""), form) for field in msgspec.structs.fields(form)]
    return sorted(keys, key=lambda key: key.default != REQUIRED)


def sentences_of(form: type[msgspec.Struct]) -> dict[str, str]:
    """Return the docstring below each field of the form and of its base classes."""
    found: dict[str, str] = {}
    for each in reversed([one for one in form.__mro__ if one.__module__.partition(".")[0] != "msgspec"][:-1]):
        tree = ast.parse(textwrap.dedent(inspect.getsource(each))).body[0]
        body = tree.body if isinstance(tree, ast.ClassDef) else []
        for field, below in pairwise(body):
            match field, below:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = " ".join(text.split())
                case _:
                    continue
    return found


def _key(field: msgspec.structs.FieldInfo, sentence: str, form: type[msgspec.Struct]) -> Key:
    name, default = field.encode_name, _default(field)
    given = _EXAMPLE.search(sentence)
    is_table = any(isinstance(option, kinds.StructType | kinds.DictType) for option in _options(field.type))
    if given:
        example = f"{name} = {given[1]}"
    elif default in (None, ()) or isinstance(default, msgspec.Struct | dict):
        example = f"[{name}]" if is_table else ""
    else:
        example = _assigned(name, default)
    if not sentence or not example:
        raise SystemExit(f"{form.__name__}.{name}: add a docstring with its meaning, and an `Example: ...` of its form")
    kind = _kind(field.type) + (", text" if name in getattr(form, "texts", {}) else "")
    return Key(name, kind, _shown(name, default), example, _EXAMPLE.sub("", sentence))


def _default(field: msgspec.structs.FieldInfo) -> Any:
    if field.default_factory is not msgspec.NODEFAULT:
        return field.default_factory()
    return field.default


def _shown(name: str, default: Any) -> str:
    if default is msgspec.NODEFAULT:
        return REQUIRED
    if default is None or isinstance(default, msgspec.Struct | dict):
        return "-"
    return f"`{_assigned(name, default).partition(' = ')[2]}`"


def _assigned(name: str, value: Any) -> str:
    return dumps({name: value}).strip()


def _options(form: Any) -> list[Any]:
    """Return the kinds of value that a key may have, without None."""
    known = kinds.type_info(form)
    options = known.types if isinstance(known, kinds.UnionType) else (known,)
    return [option for option in options if not isinstance(option, kinds.NoneType)]


def _kind(form: Any) -> str:
    return ", ".join(dict.fromkeys(_one_kind(option) for option in _options(form)))


def _one_kind(option: Any) -> str:
    if isinstance(option, kinds.Metadata):
        return _one_kind(option.type)
    if isinstance(option, kinds.LiteralType):
        return ", ".join(f'`"{value}"`' for value in option.values)
    if isinstance(option, kinds.TupleType):
        return f"list: {_one_kind(option.item_types[0])}"
    if isinstance(option, kinds.UnionType):
        return " or ".join(_one_kind(each) for each in option.types)
    if isinstance(option, kinds.VarTupleType | kinds.ListType):
        return f"list: {_one_kind(option.item_type)}"
    return _WORDS[type(option)] + _bounds(option)


def _bounds(option: Any) -> str:
    least, most = (getattr(option, name, None) for name in ("ge", "le"))
    above, below = (getattr(option, name, None) for name in ("gt", "lt"))
    words = [
        f"from {least:,}" if least is not None else f"over {above:,}" if above is not None else "",
        f"to {most:,}" if most is not None and most < 1e9 else f"under {below:,}" if below is not None else "",
    ]
    return f" ({' '.join(word for word in words if word)})" if any(words) else ""


def _about(form: type[msgspec.Struct]) -> str:
    return " ".join(inspect.cleandoc(form.__doc__ or "").split())


def _table(keys: list[Key]) -> str:
    return "\n".join(["| key | type | default | example | what |", "|---|---|---|---|---|", *map(_row, keys), ""])


def _row(key: Key) -> str:
    what = key.what.replace("|", "\\|")
    return f"| `{key.name}` | {key.kind} | {key.default} | `{key.example}` | {what} |"


def _parts() -> Iterator[str]:
    """Yield a table for each kind of part: every part with its keys."""
    yield f"### The parts of a strategy\n{PARTS}"
    for kind, forms in FORMS.items():
        rows = ["| name | key | type | default | example | what |", "|---|---|---|---|---|---|"]
        for name, form in forms.items():
            own = CUSTOM_PART_KEYS.get(kind, ()) if name == "own" else None
            shown = "package.module:Class" if name == "own" else name
            keys = [key for key in keys_of(form) if own is None or key.name in own]
            rows += [f"| `{shown}` {_row(key)}" for key in keys]
            rows += [] if keys else [f"| `{shown}` | - | | | | |"]
        yield "\n".join([f"#### `[{kind}]` of a job\n", *rows, ""])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

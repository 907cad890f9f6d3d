"""The worked examples in docs/protocol.md."""

from __future__ import annotations

import json
import re
from typing import Any

import numpy as np

from docs.vectors.cast import LARGE

EXAMPLE = re.compile(r"<!-- example ([a-z0-9-]+) -->\n.*?<!-- end -->", re.DOTALL)
SHOWN = 96
"""The number of bytes at the start of a long packet that the page shows; the end is on a separate line."""


def with_examples(page: str, made: dict[str, Any]) -> str:
    """Return the page with current examples."""
    packets = {packet["name"]: packet for packet in made["packets"]}
    encoded = next(each for each in made["encodings"] if each["name"] == "a difference, int8")
    blob = next(each for each in made["digests"] if each["size"] == len(LARGE))

    def render(match: re.Match[str]) -> str:
        name = match[1]
        if name == "int8-vector":
            body = _int8_example(encoded)
        elif name == "large-blob":
            body = _fenced("text", f"digest  {blob['digest']}\n" + _leaves(blob["leaves"]))
        else:
            body = _packet_example(packets[name])
        return f"<!-- example {name} -->\n{body}\n<!-- end -->"

    return EXAMPLE.sub(render, page)


def _leaves(hashes: list[str]) -> str:
    return "\n".join(f"leaf {at}  {leaf}" for at, leaf in enumerate(hashes))


def _packet_example(packet: dict[str, Any]) -> str:
    data = bytes.fromhex(packet["hex"])
    head = f"`{packet['name']}`, {len(data)} bytes on `{packet['topic']}`:"
    fields = json.dumps(short(packet["fields"]), ensure_ascii=False)
    return "\n\n".join([head, _fenced("hex", _hex_lines(data)), _fenced("json", _wrapped(fields))])


def short(value: Any) -> Any:
    """Replace long bytes by their first bytes and their length."""
    match value:
        case {"bytes": str(digits)} if len(digits) > 128:
            return {"bytes": f"{digits[:16]}...", "length": len(digits) // 2}
        case dict():
            return {key: short(each) for key, each in value.items()}
        case list():
            return [short(each) for each in value]
        case _:
            return value


def _hex_lines(data: bytes) -> str:
    if len(data) <= 1024:
        return "\n".join(data[at : at + 32].hex() for at in range(0, len(data), 32))
    return f"{_hex_lines(data[:SHOWN])}\n...\n{data[-32:].hex()}"


def _wrapped(text: str, width: int = 110) -> str:
    """Break lines at spaces, never within a string."""
    lines, line = [], ""
    for word in text.split(" "):
        if len(line) + len(word) >= width and line.count('"') % 2 == 0:
            lines.append(line)
            line = word
        else:
            line += f" {word}" if line else word
    return "\n".join([*lines, line])


def _int8_example(encoded: dict[str, Any]) -> str:
    values = np.frombuffer(bytes.fromhex(encoded["vector"]), "<f4")
    decoded = np.frombuffer(bytes.fromhex(encoded["decoded"]), "<f4")
    data, tensors = encoded["hex"], len(encoded["tensors"])
    scales = [data[8 * at : 8 * at + 8] for at in range(tensors)]
    lines = [
        f"tensors  {encoded['tensors']}",
        f"vector   {[float(value) for value in values]}",
        f"encoded  {data}",
        f"scales   {' '.join(scales)} = {[float(np.frombuffer(bytes.fromhex(each), '<f4')[0]) for each in scales]}",
        f"bytes    {data[8 * tensors :]} = {np.frombuffer(bytes.fromhex(data[8 * tensors :]), np.int8).tolist()}",
        f"decoded  {[float(value) for value in decoded]}",
    ]
    return _fenced("text", "\n".join(lines))


def _fenced(language: str, text: str) -> str:
    return f"```{language}\n{text}\n```"

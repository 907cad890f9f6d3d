"""Settings to build the pages as a website that works without the internet: `make docs`.

The pages link to each other as files, so they work in any clone and on a code-hosting site. Sphinx reads them from the
root of the repository; this file only adds the navigation.
"""
# ruff: noqa: INP001  # settings in the folder of the pages

from __future__ import annotations

import re
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import mermaidx
from docutils import nodes
from pygments.lexers.special import TextLexer
from sphinx.errors import ExtensionError
from sphinx.util import logging

if TYPE_CHECKING:
    from sphinx.application import Sphinx

sys.path.insert(0, str(Path(__file__).parents[1]))

from sojourn import __version__

log = logging.getLogger(__name__)
project = "Sojourn"
copyright = "the authors of Sojourn"  # noqa: A001  # Sphinx reads it under this name
release = __version__
html_title = f"Sojourn {__version__}"
html_theme = "furo"
html_static_path = ["style"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
highlight_language = "none"
extensions = ["myst_parser"]
myst_heading_anchors = 5
root_doc = "README"
include_patterns = ["*.md", "docs/**.md", "deploy/*.md", "firmware_notes/*.md", "benchmarks/**.md", "examples/**.md"]
exclude_patterns = ["docs/vectors/**", "**/.*", "**/node_modules"]
suppress_warnings = ["myst.header"]  # the protocol's messages skip a level on purpose

CONTENTS = {
    "README": {
        "Use it": (
            "Data <docs/data>", "docs/strategies", "KEEL <docs/strategies/keel>", "docs/models", "docs/tasks",
            "Settings <docs/reference>",
            "docs/simulation", "Examples <examples/README>", "Strata <docs/strata-study>",
            "Profiles <docs/profiles>", "Systems <docs/systems>", "docs/upgrading",
        ),
        "A real fleet": (
            "Installing <deploy/README>", "docs/coordinator", "docs/joining", "docs/jobs", "docs/fleet", "docs/web",
            "Operating it <docs/operations>",
            "On a device <docs/devices>",
            "Boards <firmware_notes/README>", "docs/releases", "Rollouts <docs/rollouts>",
            "Inference <docs/inference>", "docs/home-assistant", "Privacy <docs/privacy>", "SECURITY",
        ),
        "How it is built": (
            "docs/architecture", "docs/a-round", "docs/protocol", "Decisions <docs/decisions/README>",
            "Benchmarks <benchmarks/README>", "CONTRIBUTING", "CHANGELOG",
        ),
    },
    "docs/decisions/README": {"": ("/docs/decisions/[0-9]*",)},
    "firmware_notes/README": {"": ("raspberry*", "jetson*", "generic*", "provisioning")},
    "examples/README": {
        "": (
            "Photographs by domain <office/README>", "Forecast <forecast/README>", "Regression <regression/README>",
            "Anomalies <anomaly/README>",
        ),
    },
    "benchmarks/papers/README": {"": ("*/README",)},
    "benchmarks/README": {"": ("RESULTS", "On a GPU <gpu>", "Papers <papers/README>")},
}  # fmt: skip
"""The navigation: for each page, the headings and pages below it. A page without a parent is an error."""

LOADED = re.compile(
    r"""<(?:link|script|img|iframe|source|use)\b[^>]*?(?:src|href)\s*=\s*["']?((?:https?:)?//[^"'\s>]+)"""
)
"""Content that a page loads from another machine; links are allowed."""

WIDTH = re.compile(r"max-width: ([\d.]+)px;")
"""The width of a drawing. One that is too wide for the page is scaled down to 80 % at most, then scrolled."""


def add_contents(_app: Sphinx, page: str, source: list[str]) -> None:
    """Append the navigation to a page."""
    for heading, pages in CONTENTS.get(page, {}).items():
        caption = f":caption: {heading}\n" if heading else ""
        source[0] += "\n\n```{toctree}\n:hidden:\n:glob:\n" + caption + "\n" + "\n".join(pages) + "\n```\n"


def draw(_app: Sphinx, document: nodes.document) -> None:
    """Replace each Mermaid text by its drawing, as code-hosting sites do, but without a script in the page."""
    for number, block in enumerate(list(document.findall(nodes.literal_block))):
        if block.get("language") != "mermaid":
            continue
        try:
            svg = mermaidx.render(block.astext()).svg()
        except RuntimeError as error:
            log.warning("%s", error, location=block)
            continue
        svg = svg.replace("my-svg", f"drawing-{number}").replace('width="100%"', "", 1)
        svg = WIDTH.sub(r"width: \1px; max-width: max(100%, 0.8 * \1px);", svg, count=1)
        block.replace_self(nodes.raw("", f'<div class="drawing">{svg}</div>', format="html"))


def finish(app: Sphinx, error: Exception | None) -> None:
    """Write the first page of the site, and fail if a page loads content from another machine."""
    if error:
        return
    shutil.copy(app.outdir / "README.html", app.outdir / "index.html")
    for page in sorted(app.outdir.rglob("*.html")):
        strange = LOADED.findall(page.read_text(encoding="utf-8"))
        if strange:
            raise ExtensionError(f"{page} loads from another machine: {', '.join(strange)}")


def setup(app: Sphinx) -> None:
    """Register the steps above with Sphinx."""
    app.add_lexer("hex", TextLexer)
    app.connect("source-read", add_contents)
    app.connect("doctree-read", draw)
    app.connect("build-finished", finish)

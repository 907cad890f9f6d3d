"""The table of layers on the page of models agrees with the tests of compiled and refused layers."""

from __future__ import annotations

from docs.make_layers import PAGE, with_layers


def test_layer_table_is_generated_from_the_test_cases() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_layers(page) == page, "run python -m docs.make_layers"
    assert "| TransformerEncoder, TransformerEncoderLayer" in page
    assert "| EmbeddingBag | refused; use Embedding and a mean over its second axis |" in page

"""The table of layers on the page of models says what the tests compile and what they see refused."""

from __future__ import annotations

from docs.make_layers import PAGE, with_layers


def test_the_table_of_layers_is_made_of_the_cases() -> None:
    page = PAGE.read_text(encoding="utf-8")
    assert with_layers(page) == page, "run python -m docs.make_layers"
    assert "| TransformerEncoder, TransformerEncoderLayer" in page
    assert "| EmbeddingBag | refused; use Embedding and a mean over its second axis |" in page

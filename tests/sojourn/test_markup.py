"""Elements of HTML and SVG: escaping, and the start of a page."""

from __future__ import annotations

from sojourn.markup import Markup, joined, page, tag


def test_attributes_and_text_are_escaped_and_markup_is_not():
    made = tag("p", '<b>"', tag("i", "&"), title='"><script>', hidden=None, disabled=True, tabindex=0)
    assert made == '<p title="&quot;&gt;&lt;script&gt;" disabled tabindex="0">&lt;b&gt;&quot;<i>&amp;</i></p>'


def test_empty_elements_have_no_end_tag():
    assert tag("img", src="a.png", alt="<a>") == '<img src="a.png" alt="&lt;a&gt;"/>'
    assert tag("meta", name="viewport", content="width=1") == '<meta name="viewport" content="width=1"/>'
    assert tag("p") == "<p></p>"


def test_numbers_and_dashes_of_attributes():
    assert tag("text", x=1 / 3, text_anchor="end", class_="a") == '<text x="0.3333" text-anchor="end" class="a"></text>'
    assert tag("svg", viewBox="0 0 1 1") == '<svg viewBox="0 0 1 1"></svg>'


def test_joined_text_is_escaped_and_stays_markup():
    found = joined(["<", Markup("<br/>")])
    assert isinstance(found, Markup)
    assert found == "&lt;<br/>"


def test_page_escapes_its_title_and_keeps_its_style():
    made = page("<a>", "p > b { color: red }", "&", tag("p"))
    assert made.startswith('<!doctype html><html lang="en"><head><meta charset="utf-8"/>')
    assert "<title>&lt;a&gt;</title><style>p > b { color: red }</style></head>" in made
    assert made.endswith("<body>&amp;<p></p></body></html>")

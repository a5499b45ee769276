"""HTML by plain functions: every text and every attribute is escaped here, so no name of a site can break the page."""

from __future__ import annotations

import html
import re

VOID = ("br", "col", "img", "input", "link", "meta")
_NO_CHARACTERS = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")  # HTML and UTF-8 have no place for them


class Markup(str):
    """Text that is HTML already; every other text is escaped when it meets a tag."""


def escaped(value: object) -> Markup:
    """A value as HTML text, for a place between tags or in a quoted attribute; Markup stays as it is."""
    return value if isinstance(value, Markup) else Markup(html.escape(_NO_CHARACTERS.sub("\ufffd", str(value))))


def tag(name: str, /, *children: object, **attributes: object) -> Markup:
    """An element. None children and attributes are left out; `class_` is class, `stroke_width` is stroke-width.

    Args:
        attributes: True writes the name alone, None and False write nothing.
    """
    written = "".join(
        f" {key.rstrip('_').replace('_', '-')}" + ("" if value is True else f'="{escaped(value)}"')
        for key, value in attributes.items()
        if value is not None and value is not False
    )
    if name in VOID:
        return Markup(f"<{name}{written}>")
    return Markup(f"<{name}{written}>{join(*children)}</{name}>")


def join(*children: object) -> Markup:
    """Children one after the other, each escaped."""
    return Markup("".join(escaped(child) for child in children if child is not None))


def lines(*children: object) -> Markup:
    """Children on a line each, for blocks: equal pages differ by lines."""
    return Markup("\n".join(escaped(child) for child in children if child is not None))


def in_script_or_style(text: str, element: str) -> Markup:
    """The text of our own script or style sheet, which must not hold what would close its element.

    Raises:
        ValueError: if it does.
    """
    if f"</{element}" in text.lower() or "<!--" in text:
        raise ValueError(f"the {element} holds the end of its own element")
    return Markup(text)

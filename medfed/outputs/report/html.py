"""Rendering of HTML pages with Jinja2. Every text is escaped, so no name of a site can break a page."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Sequence
from functools import cache
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

TEMPLATES = Path(__file__).with_name("templates")
STYLE, SCRIPT = (Path(__file__).with_name(name) for name in ("page.css", "page.js"))
_NOT_HTML = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff]")  # characters that HTML and UTF-8 cannot hold


def render_page(template: str, style: str, script: str = "", folders: Sequence[Path] = (), **content: object) -> str:
    """Render a template, which must extend `frame.html.jinja`, as an HTML page that needs no other file and no network.

    The page's content security policy forbids the browser to load other files. Text from `content` is escaped; a
    missing variable is a `jinja2.UndefinedError`. ValueError if `style` or `script` contains its end tag or `<!--`.
    """
    policy = f"default-src 'none'; img-src data:; style-src {_hash_source(style)}"
    policy += f"; script-src {_hash_source(script)}" if script else ""
    return (
        _environment(*folders)
        .get_template(template)
        .render(
            style=trusted_text(style, "style"),
            script=trusted_text(script, "script"),
            policy=f"{policy}; base-uri 'none'; form-action 'none'",
            **content,
        )
    )


@cache
def _environment(*folders: Path) -> Environment:
    """The environment of the templates; it keeps each compiled template until the file changes."""
    return Environment(
        loader=FileSystemLoader([TEMPLATES, *folders]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        finalize=_replace_invalid_characters,
    )


def trusted_text(text: str, element: str) -> Markup:
    """Mark a style sheet or script as text that Jinja must not escape; ValueError if it has its end tag or `<!--`."""
    if f"</{element}" in text.lower() or "<!--" in text:
        raise ValueError(
            f"the {element} contains '</{element}' or '<!--', which can change how a browser reads the "
            "rest of the page; remove these characters"
        )
    return Markup(text)


def _replace_invalid_characters(value: object) -> object:
    """Replace characters that HTML does not allow in a text; other values stay as they are."""
    return _NOT_HTML.sub("\ufffd", value) if isinstance(value, str) and not isinstance(value, Markup) else value


def _hash_source(text: str) -> str:
    """How a content security policy names the one style sheet or script that it allows."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"

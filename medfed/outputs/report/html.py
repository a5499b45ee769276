"""Rendering of HTML pages with Jinja2. Every text is escaped, so no name of a site can break a page."""

from __future__ import annotations

import base64
import hashlib
import io
from functools import cache
from pathlib import Path
from typing import NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

FOLDER = Path(__file__).parent
MAX_WIDTH, QUALITY = 1200, 75  # of a figure in pixels, enough for a screen with small pixels; of WebP, 0 to 100


class EmbeddedFigure(NamedTuple):
    """A figure inside the page; the caption also describes it to readers who cannot see it."""

    caption: str
    source: str  # a `data:` address


def render_page(template: str, more_style: str = "", folder: Path = FOLDER / "templates", **content: object) -> str:
    """Render a template as a page whose content security policy forbids the browser to load other files."""
    style = (FOLDER / "page.css").read_text(encoding="utf-8") + more_style
    script = (FOLDER / "page.js").read_text(encoding="utf-8")
    allowed = f"style-src {_hash_source(style)}; script-src {_hash_source(script)}"
    policy = f"default-src 'none'; img-src data:; {allowed}; base-uri 'none'; form-action 'none'"
    own = _environment(folder).get_template(template)
    return own.render(style=Markup(style), script=Markup(script), policy=policy, **content)


@cache
def _environment(folder: Path) -> Environment:
    return Environment(
        loader=FileSystemLoader([folder, FOLDER / "templates"]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


def _hash_source(text: str) -> str:
    """How a content security policy names the one style sheet or script that it allows."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def embed(caption: str, data: bytes, media_type: str) -> EmbeddedFigure:
    return EmbeddedFigure(caption, f"data:{media_type};base64,{base64.b64encode(data).decode()}")


def embed_png(caption: str, data: bytes, max_width: int = MAX_WIDTH) -> EmbeddedFigure:
    """A PNG figure as WebP, reduced to at most `max_width` pixels."""
    with Image.open(io.BytesIO(data)) as image:
        figure = image.convert("RGB")
    figure.thumbnail((max_width, figure.height), Image.Resampling.LANCZOS)  # keeps the ratio of the sides
    webp = io.BytesIO()
    figure.save(webp, "WEBP", quality=QUALITY)
    return embed(caption, webp.getvalue(), "image/webp")

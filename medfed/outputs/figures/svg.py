"""Write a matplotlib figure as SVG for an HTML page: small, safe, and in the page's colours in light and dark mode."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING
from xml.etree import ElementTree
from xml.etree.ElementTree import Element

from medfed.outputs.figures.figure import (
    BLACK,
    BLUE,
    GREEN,
    GREY,
    ORANGE,
    PALE,
    PURPLE,
    SKY,
    VERMILION,
    texts_are_plain,
)

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = {  # a colour of the figures: the variable of the page's style sheet, which differs in light and dark mode
    BLACK: "var(--ink)",
    GREY: "var(--quiet)",
    PALE: "var(--rule)",
    ORANGE: "var(--c0)",
    SKY: "var(--c1)",
    GREEN: "var(--c2)",
    PURPLE: "var(--c3)",
    VERMILION: "var(--c4)",
    BLUE: "var(--c5)",
}
CSS_COLOURS = {colour.lower(): variable for colour, variable in COLOURS.items()}
KEPT_STYLES = (
    "fill",
    "fill-opacity",
    "stroke",
    "stroke-opacity",
    "stroke-width",
    "stroke-dasharray",
    "opacity",
    "text-anchor",
    "font-size",
    "font-weight",
)
KEPT_ATTRIBUTES = ("d", "x", "y", "width", "height", "transform")
N_DECIMALS, N_MARKER_DECIMALS = 1, 2  # of coordinates
_NOT_XML = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\ud800-\udfff\ufffe\uffff]")
_DECIMALS = re.compile(r"-?\d+\.\d+(?:e-?\d+)?")
_FONT = re.compile(r"(?:(\d+|bold) )?([\d.]+)px")


def to_svg(figure: Figure, prefix: str, label: str) -> str:
    """The figure as an SVG element for an HTML page; its white background becomes invisible, in place.

    The element has no `style` attribute, no script and no reference to other files, so the page's content security
    policy allows it. Every text is escaped. Colours in `COLOURS` become variables of the page's style sheet.

    Args:
        prefix: beginning of every id in the element; each figure of a page needs another one.
        label: description for readers who cannot see the figure.
    """
    label = _NOT_XML.sub("\ufffd", label)
    root = ElementTree.fromstring(_NOT_XML.sub("\ufffd", _matplotlib_svg(figure)))
    ids = {node.get("id"): f"{prefix}-{place}" for place, node in enumerate(_referenced(root))}
    width, height = (_rounded(value) for value in root.get("viewBox", "").split()[2:])
    svg = Element(
        "svg",
        {
            "viewBox": f"0 0 {width} {height}",
            "role": "img",
            "aria-label": label,
            "fill": "var(--ink)",
            "stroke-linejoin": "round",
        },
    )
    title = ElementTree.SubElement(svg, "title")
    title.text = label
    for node in root:
        svg.extend(_cleaned(node, ids))
    return ElementTree.tostring(svg, encoding="unicode").replace(" />", "/>")


def _matplotlib_svg(figure: Figure) -> str:
    """What matplotlib writes, without backgrounds and clip paths; texts as text in the page's font."""
    import matplotlib
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    figure.patch.set_visible(False)
    for axes in figure.axes:
        axes.patch.set_visible(False)
    for artist in figure.findobj():
        artist.set_clip_on(False)
    text = io.StringIO()
    settings = matplotlib.rc_context({"svg.fonttype": "none", "svg.hashsalt": "medfed"})
    with settings, texts_are_plain(figure), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing")  # the browser has a font for it
        FigureCanvasSVG(figure).print_svg(text, metadata={"Date": None})  # `savefig` would draw twice
    return text.getvalue()


def _referenced(root: Element) -> Iterator[Element]:
    """The elements that a `use` element points to, such as the shape of a marker."""
    names = {value[1:] for node in root.iter() for key, value in node.items() if key.endswith("href")}
    return (node for node in root.iter() if node.get("id") in names)


def _cleaned(node: Element, ids: dict[str | None, str]) -> list[Element]:
    """The elements to write for a node of matplotlib's SVG: none, one, or the children of a group."""
    name = node.tag.rpartition("}")[2]
    if name in ("metadata", "style", "clipPath"):
        return []
    is_marker = node.get("id") in ids
    n_decimals = N_MARKER_DECIMALS if is_marker else N_DECIMALS
    attributes = {key: _rounded(node.get(key, ""), n_decimals) for key in KEPT_ATTRIBUTES if node.get(key)}
    if attributes.get("transform", "").startswith("rotate(-0 "):
        del attributes["transform"]
    if is_marker:
        attributes["id"] = ids[node.get("id")]
    for key, value in node.items():
        if key.endswith("href"):
            attributes["href"] = f"#{ids[value[1:]]}"
    attributes |= _style_attributes(node.get("style", ""))
    children = [cleaned for child in node for cleaned in _cleaned(child, ids)]
    if name == "g":
        if node.get("id", "").startswith("matplotlib.axis"):
            others = [child for child in children if child.tag not in ("path", "text")]
            groups = [[child for child in children if child.tag == tag] for tag in ("path", "text")]
            children = [*(_group(group) for group in groups if group), *others]
        attributes |= _take_common(children)
        if not attributes or not children:
            return children
    if name == "defs" and not children:
        return []
    cleaned = Element(name, attributes)
    cleaned.text = (node.text or "").strip() or None if name == "text" else None
    cleaned.extend(children)
    return [cleaned]


def _style_attributes(style: str) -> dict[str, str]:
    """A CSS declaration as SVG attributes: "fill: #000000; font: 10px Arial" gives fill and font-size."""
    declared = dict(part.strip().partition(": ")[::2] for part in style.split(";"))
    if font := _FONT.search(declared.get("font", "")):
        declared |= {"font-size": font[2]} | ({"font-weight": font[1]} if font[1] else {})
    values = {key: CSS_COLOURS.get(declared[key], declared[key]) for key in KEPT_STYLES if key in declared}
    return {key: value if "#" in value or "(" in value else _rounded(value) for key, value in values.items()}


def _group(children: list[Element]) -> Element:
    """Put the grid lines, or the labels, of an axis into a group with their common style."""
    group = Element("g", _take_common(children))
    group.extend(children)
    return group


def _take_common(children: list[Element]) -> dict[str, str]:
    """Remove the style attributes that all children share, and return them for the parent."""
    if len(children) < 2 or any(child.tag == "defs" for child in children):
        return {}
    first = children[0]
    keys = [key for key in KEPT_STYLES if key != "opacity" and key in first.attrib]
    common = {key: first.attrib[key] for key in keys if all(child.get(key) == first.get(key) for child in children)}
    for child in children:
        for key in common:
            del child.attrib[key]
    return common


def _rounded(text: str, n_decimals: int = N_MARKER_DECIMALS) -> str:
    """Round every number of an attribute and remove needless spaces."""
    rounded = _DECIMALS.sub(lambda number: f"{round(float(number[0]), n_decimals) + 0.0:g}", text)
    return re.sub(r"\s*([A-Za-z])\s+(?=[-\d])", r"\1", " ".join(rounded.split()))

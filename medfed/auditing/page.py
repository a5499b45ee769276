"""The audit as one HTML page that needs no network, and allows itself none."""

from __future__ import annotations

import base64
import hashlib
import io
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image
from torch import Tensor

from medfed.auditing.reconstruction import Reconstruction
from medfed.auditing.report_text import CAUTION, KIND_LABELS, METHOD_NOTES, NOT_TRIED, describe_sent, table_rows
from medfed.outputs.figures.figure import as_array, to_display_orientation
from medfed.outputs.report.blocks import figure_block, table_block
from medfed.outputs.report.markup import Markup, in_script_or_style, lines, tag
from medfed.outputs.report.page import STYLE
from medfed.outputs.tables.comparison import PHANTOM

OWN_STYLE = Path(__file__).with_name("audit.css")
REAL = "REAL data: the pictures below show images of patients; keep this page as you keep those."


def build_page(result: Mapping[str, Any], found: Sequence[Reconstruction], axes: str | None) -> str:
    """The whole page as text: the same for the same audit.

    Args:
        result: what `audit.json` holds.
        found: the images that were tried.
        axes: where their axes point ("RA" for slices of scanners), as `canvas.turn` takes it; None for pictures.
    """
    label = PHANTOM if result["data"] == "phantom" else "Real data"
    sections = [
        ("what", "What would leave", _leaving(result, label)),
        ("numbers", "What it reveals", _numbers(result, label)),
        ("pictures", "What could be drawn from it", _pictures(found, label, axes)),
        ("how", "How the numbers were found", tag("ul", *(tag("li", text) for text in METHOD_NOTES), class_="notes")),
        ("not", "What was not tried", tag("ul", *(tag("li", text) for text in NOT_TRIED), class_="notes")),
    ]
    title = f"{result['method']} at {result['site']}, {result['dataset']}"
    phantom = result["data"] == "phantom"
    banner = tag("p", PHANTOM if phantom else REAL, class_="banner phantom" if phantom else "banner")
    return _document(title, banner, sections)


def _leaving(result: Mapping[str, Any], label: str) -> Markup:
    facts = [
        ("Site", result["site"]),
        ("Images and patients in training", f"{result['n_images']} images of {result['n_patients']} patients"),
        ("Method", result["method"]),
        ("Before training", describe_sent(result).removeprefix("before training ")),
        ("In every round", "the weights of the network, which are not measured here"),
        ("Seed", result["seed"]),
        ("Versions", ", ".join(f"{name} {number}" for name, number in result["versions"].items())),
    ]
    rows = [(entry["name"], " x ".join(map(str, entry["shape"])), entry["type"], entry["bytes"],
             "each image" if entry["row_for_each_image"] else "the site") for entry in result["sent"]["entries"]]
    head = ("Tensor", "Shape", "Type", "Bytes", "A row for")
    table = table_block("What would leave before training", label, head, rows, texts=(0, 1, 2, 4))
    return lines(tag("dl", *(tag("div", tag("dt", k), tag("dd", v)) for k, v in facts), class_="facts"), table)


def _numbers(result: Mapping[str, Any], label: str) -> Markup:
    table = table_block("What the statistics reveal", label, ("Measure", "Number", "Hold it against"),
                        table_rows(result), texts=(0, 2))  # fmt: skip
    return lines(tag("div", table, class_="wide"), tag("p", CAUTION, class_="warning"))


def _pictures(found: Sequence[Reconstruction], label: str, axes: str | None) -> Markup:
    if not found:
        return tag("p", "None of the images that were to be tried gives a statistic.", class_="note")
    figures = []
    for place, one in enumerate(found, start=1):
        cells = [_cell(one.original, "original", None, axes)]
        cells += [_cell(one.images[kind], words, one.scores[kind], axes)
                  for kind, words in KIND_LABELS.items() if kind in one.images]  # fmt: skip
        caption = f"Image {place} of {len(found)}, and what was made of what an attacker would have"
        figures.append(figure_block(caption, label, tag("div", *cells, class_="tried"), class_="attempts"))
    return lines(*figures)


def _cell(image: Tensor, words: str, scores: Mapping[str, float] | None, axes: str | None) -> Markup:
    pixels = to_display_orientation(as_array(image)[None], axes)[0]
    held = io.BytesIO()
    Image.fromarray(np.round(pixels.clip(0, 1) * 255).astype(np.uint8)).save(held, "PNG")
    source = "data:image/png;base64," + base64.b64encode(held.getvalue()).decode()
    height, width = pixels.shape
    measured = scores and f": detail {scores['detail_correlation']:.3f}, whole {scores['correlation']:.3f}"
    text = tag("p", words[0].upper() + words[1:], measured or None)
    return tag("div", tag("img", src=source, alt=words, width=width, height=height), text)


def _document(title: str, banner: Markup, sections: Sequence[tuple[str, str, Markup]]) -> str:
    style = in_script_or_style(STYLE.read_text(encoding="utf-8") + OWN_STYLE.read_text(encoding="utf-8"), "style")
    allowed = base64.b64encode(hashlib.sha256(style.encode()).digest()).decode()
    policy = f"default-src 'none'; img-src data:; style-src 'sha256-{allowed}'; base-uri 'none'; form-action 'none'"
    head = lines(
        tag("meta", charset="utf-8"),
        tag("meta", http_equiv="Content-Security-Policy", content=policy),
        tag("meta", name="viewport", content="width=device-width, initial-scale=1"),
        tag("meta", name="color-scheme", content="light dark"),
        tag("title", f"medfed audit: {title}"),
        tag("link", rel="icon", href="data:,"),
        tag("style", style),
    )
    body = lines(
        tag("a", "To the content", href="#what", class_="skip"),
        tag("header", tag("p", "medfed audit", class_="kind"), tag("h1", title), banner),
        tag("main", lines(*(
            tag("section", tag("h2", name, id=f"{anchor}-name"), content, id=anchor, aria_labelledby=f"{anchor}-name")
            for anchor, name, content in sections
        ))),
    )  # fmt: skip
    page = tag("html", "\n", tag("head", "\n", head, "\n"), "\n", tag("body", "\n", body, "\n"), "\n", lang="en")
    return f"<!DOCTYPE html>\n{page}\n"

"""Pictures of a run: curves, scores by site and telling patients.

Each function writes one PNG, the same bytes for the same input; `data_label` says in every title what the data are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import nibabel as nib
import numpy as np

from medfed.outputs.figures.figure import (
    BLACK,
    LINES,
    SEEN,
    SKY,
    UNSEEN,
    YELLOW,
    as_array,
    legend,
    save,
    sheet,
    show,
    tidy,
    turn,
)  # fmt: skip

REFERENCE, PREDICTION = SKY, YELLOW
MOST_NAMED = 12  # curves that a legend can name; of more clients all are grey


def training_curves(
    history: Sequence[Mapping], path: str | Path, data_label: str, ends: Mapping[str, tuple[int, float]] | None = None
) -> None:
    """Training loss and validation score by round, mean over sites, with a thin line a site where there is one.

    Where it was measured also how far the features of outlines are from those of the background beside them.

    That of a validation site is dashed and in the colour of what took no part.

    Args:
        history: rows {round, train_loss, validation_score (None where not validated)}, and `train_loss/SITE` and
            `validation_score/SITE` where known; `validation_site_score` where there is a validation site; likewise
            `boundary_distance`.
        ends: (round, boundary distance) of each site that took no part: a point, as it is measured once.
    """
    shown = [("train_loss", "training loss"), ("validation_score", "validation score")]
    if any(row.get("boundary_distance") is not None for row in history):
        shown.append(("boundary_distance", "feature distance, boundary to background"))
    figure = sheet(4.75 * len(shown), 3.8)
    for axes, (key, name) in zip(figure.subplots(1, len(shown)), shown):
        sites = sorted({column for row in history for column in row if column.startswith(f"{key}/")})
        if len(sites) > MOST_NAMED:
            for column in sites:
                _curve(axes, history, column, color="#999999", linewidth=0.5, alpha=0.5)
        else:
            for column, (colour, dash) in zip(sites, LINES * (len(sites) // len(LINES) + 1)):
                _curve(axes, history, column, color=colour, linestyle=dash, linewidth=1, label=column.partition("/")[2])
        over = f"clients (grey: {len(sites)})" if len(sites) > MOST_NAMED else "sites"
        _curve(axes, history, key, color=BLACK, linewidth=2, label=f"mean over {over}")
        if key == "validation_score":
            alone = {"color": UNSEEN, "linestyle": "--", "linewidth": 2, "label": "validation site"}
            _curve(axes, history, "validation_site_score", **alone)
        for (site, end), marker in zip((ends or {}).items() if key == "boundary_distance" else (), "D*"):
            axes.plot(*end, marker, color=UNSEEN, markersize=8, label=f"{site}, took no part")
        axes.set(xlabel="round", ylabel=name)
        axes.xaxis.get_major_locator().set_params(integer=True, min_n_ticks=1)
        tidy(axes)
        if axes.lines:
            axes.legend(fontsize=8, frameon=False)
        else:
            axes.text(0.5, 0.5, "none recorded", ha="center", va="center", transform=axes.transAxes)
    save(figure, path, f"Training ({data_label})")


def site_boxes(rows: Sequence[Mapping], path: str | Path, data_label: str) -> None:
    """Dice and HD95 of every case by site, seen sites first; crosses are missed organs and false alarms.

    Their distance is the diagonal of the image: where there are any, distances above 1 are on a logarithmic scale.
    """
    structures = list(dict.fromkeys(row["structure"] for row in rows)) or ["no case"]
    sites = sorted({(row["role"], row["site"]) for row in rows})
    metric, unit = _distance_metric(rows)
    figure = sheet(max(7.5, 3.2 + 1.5 * len(sites)), 0.7 + 3.1 * len(structures))
    panels = figure.subplots(len(structures), 2, squeeze=False)
    for (left, right), structure in zip(panels, structures):
        of_structure = [row for row in rows if row["structure"] == structure]
        for axes, key, name in ((left, "dice", "Dice"), (right, metric, f"HD95 ({unit})")):
            for place, (role, site) in enumerate(sites):
                _box(axes, place, [row for row in of_structure if row["site"] == site], key, role)
            counts = [sum(row["site"] == site and row[key] is not None for row in of_structure) for _, site in sites]
            names = [f"{site}\n{role}, n={count}" for (role, site), count in zip(sites, counts)]
            axes.set_xticks(range(len(sites)), names, fontsize=8)
            axes.set(ylabel=name, xlim=(-0.6, max(len(sites), 1) - 0.4))
            axes.set_title(structure, fontsize=10)
            tidy(axes)
        left.set_ylim(-0.04, 1.04)
        _distance_scale(right, of_structure, metric)
    legend(figure, [("s", SEEN, "seen"), ("s", UNSEEN, "unseen"), ("x", BLACK, "missed or false alarm")])
    save(figure, path, f"Scores of each case by site ({data_label})")


def overlays(cases: Sequence[Mapping], path: str | Path, data_label: str, same: bool = False) -> None:
    """Reference and prediction as contours on the image: three slices of a volume, or the whole of a picture.

    Args:
        same: of each case one slice, that with most of the reference, in a frame that no prediction moves: of the same
            cases two methods have the same pixels, but for the second contour.
        cases: {title (which case, its Dice), image (C, H, W, D) in [0, 1], reference and prediction (S, H, W, D),
            spacing (mm along H, W, D, or None)} and, for volumes, `affine` (4, 4) where known, to show them as
            radiologists do: front up, the patient's right on the left. Without spacing H is rows (a picture); else H
            runs to the patient's left and W to the back, unless `affine` tells otherwise.
    """
    shown = [_upright(case) for case in cases]
    slices = [[_fullest_slice(case)] if same else _slices(case) for case in shown]
    n_slices = max(map(len, slices))
    shape = (len(shown), n_slices) if n_slices > 1 else (1, len(shown))  # pictures stand side by side
    figure = sheet(max(6.0, 3.5 * shape[1]), 3.8 * shape[0] + 0.9)
    panels = figure.subplots(*shape, squeeze=False).reshape(len(shown), n_slices)
    for line, case, places in zip(panels, shown, slices):
        region = _region(*(case[key].astype(bool) for key in ("reference", "prediction")[: 1 if same else 2]))
        for axes, index in zip(line, places):
            _draw_slice(axes, case, index, region)
        for axes in line[len(places) :]:
            axes.set_visible(False)
        line[len(places) // 2].set_title(case["title"], fontsize=10)
    legend(figure, [("-", REFERENCE, "reference"), ("--", PREDICTION, "prediction")], dark=True)
    said = ", the same cases for every method" if same else ""
    save(figure, path, f"Prediction against reference{said} ({data_label})")


def _curve(axes, history: Sequence[Mapping], key: str, **style) -> None:
    points = [(row["round"], row[key]) for row in history if row.get(key) is not None]
    if points:
        axes.plot(*zip(*points), marker="o" if len(points) <= 30 else "", markersize=3, **style)


def _distance_metric(rows: Sequence[Mapping]) -> tuple[str, str]:
    """In the unit that all cases have; where they differ, in voxels, which all have."""
    present = [row for row in rows if row["status"] != "absent"]
    for metric, unit in (("hd95_mm", "mm"), ("hd95_px", "px")):
        if present and all(row[metric] is not None for row in present):
            return metric, unit
    return "hd95_pooled_vx", "voxels, pooled"


def _distance_scale(axes, rows: Sequence[Mapping], metric: str) -> None:
    from matplotlib.ticker import ScalarFormatter

    failures = [row[metric] for row in rows if row["status"] in ("missed", "false_alarm")]
    if failures:
        axes.set_yscale("symlog", linthresh=1)
        axes.yaxis.set_major_formatter(ScalarFormatter())
    axes.set_ylim(0, 2 * max(failures) if failures else None)


def _box(axes, place: int, rows: Sequence[Mapping], metric: str, role: str) -> None:
    """A box at x = place, and its cases spread from left to right in the order of the rows."""
    known = [row for row in rows if row[metric] is not None]
    if not known:
        return
    colour = UNSEEN if role == "unseen" else SEEN
    values = np.array([row[metric] for row in known])
    axes.boxplot(
        values, positions=[place], widths=0.6, showfliers=False, patch_artist=True, manage_ticks=False,
        boxprops={"facecolor": colour + "33", "edgecolor": colour}, medianprops={"color": colour, "linewidth": 2},
        whiskerprops={"color": colour}, capprops={"color": colour},
    )  # fmt: skip
    across = place + np.linspace(-0.22, 0.22, len(values) + 2)[1:-1]
    good = np.array([row["status"] == "ok" for row in known])
    axes.plot(across[good], values[good], "o", color=colour, markersize=3, alpha=0.7)
    axes.plot(across[~good], values[~good], "x", color=BLACK, markersize=5)


def _upright(case: Mapping) -> dict:
    """The case as numpy arrays (C, rows, columns, D), with the shape of a pixel on the screen."""
    spacing, affine = case["spacing"], case.get("affine")
    axes = None if spacing is None else "LP" if affine is None else nib.aff2axcodes(np.asarray(affine))[:2]
    arrays = {key: turn(as_array(case[key]), axes) for key in ("image", "reference", "prediction")}
    return {"title": case["title"], "aspect": 1.0 if spacing is None else spacing[1] / spacing[0], **arrays}


def _slices(case: Mapping) -> list[int]:
    """Near both ends and in the middle of the reference (if it is empty, of the prediction; else of the image)."""
    for mask in (case["reference"], case["prediction"], np.ones_like(case["reference"])):
        found = np.flatnonzero(mask.any(axis=(0, 1, 2)))
        if len(found):
            break
    return sorted({int(found[round(share * (len(found) - 1))]) for share in (0.1, 0.5, 0.9)})


def _fullest_slice(case: Mapping) -> int:
    """The first of those with most of the reference; the middle one where there is none."""
    sizes = case["reference"].astype(bool).any(axis=0).sum(axis=(0, 1))
    return int(sizes.argmax()) if sizes.any() else len(sizes) // 2


def _region(*masks: np.ndarray) -> list[tuple[float, float]]:
    """The (first, last) row and column to show: all that is marked in any slice, and half as much around it."""
    marked = np.logical_or.reduce(masks).any(axis=(0, 3))
    if not marked.any():
        return [(-0.5, size - 0.5) for size in marked.shape]
    found = [np.flatnonzero(marked.any(axis=axis)) for axis in (1, 0)]
    margin = 8 + max(where[-1] - where[0] for where in found) // 2
    return [
        (max(where[0] - margin, 0) - 0.5, min(where[-1] + margin, size - 1) + 0.5)
        for where, size in zip(found, marked.shape)
    ]


def _draw_slice(axes, case: Mapping, index: int, region: Sequence[tuple[float, float]]) -> None:
    from matplotlib.patheffects import withStroke

    show(axes, case["image"][..., index], case["aspect"])
    for key, colour, dash in (("reference", REFERENCE, "-"), ("prediction", PREDICTION, (0, (4, 2)))):
        for mask in case[key][..., index]:
            if mask.any():
                closed = np.pad(mask.astype(float), 1)
                rows, columns = (np.arange(-1, size + 1) for size in mask.shape)
                drawn = axes.contour(columns, rows, closed, [0.5], colors=colour, linestyles=[dash], linewidths=1.6)
                drawn.set_path_effects([withStroke(linewidth=2.8, foreground=BLACK, alpha=0.5)])
    (top, bottom), (left, right) = region
    axes.set(xlim=(left, right), ylim=(bottom, top), anchor="N")  # titles stand on one line
    n_slices = case["image"].shape[3]
    said = [f"slice {index + 1} of {n_slices}"] if n_slices > 1 else []
    said += [f"no {key}" for key in ("reference", "prediction") if not case[key][..., index].any()]
    rows, columns = np.nonzero(case["prediction"][..., index].any(axis=0))
    if len(rows) and (rows.min() < top or rows.max() > bottom or columns.min() < left or columns.max() > right):
        said.append("prediction goes on outside")
    axes.set_xlabel(", ".join(said) or " ", fontsize=9)  # a line in any case: no panel is larger than another method's

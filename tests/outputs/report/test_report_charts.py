"""The charts of the page: what they show, and that their SVG is safe."""

import math
import re
from xml.etree import ElementTree

import pytest
from made_runs import class_rows, made_comparison, made_run, mask_rows, with_plan

from medfed.outputs.figures.boxes import BoxGroup, BoxPanel, box_figure, cut_limits
from medfed.outputs.figures.curves import Curve, CurvePanel, curve_figure
from medfed.outputs.figures.figure import BLACK, ORANGE
from medfed.outputs.figures.svg import to_svg
from medfed.outputs.report import charts
from medfed.outputs.report.run_data import read_runs

EVIL = "<b>\"x'&</script>$\\foo$\x01"


def group(values, failed=(), name="a", role="seen"):
    return BoxGroup(name, tuple(values), role, tuple(failed) or (False,) * len(values))


def box_axes(*groups, limits=None, max_points=None):
    (axes,) = box_figure([[BoxPanel("Dice", groups, limits)]], max_points).axes
    return axes


def markers(axes, marker):
    return sorted(x for line in axes.lines if line.get_marker() == marker for x in line.get_xdata())


def rounds(figure):
    """The labels of the x axis that are drawn."""
    figure.savefig("/dev/null", format="svg")
    low, high = figure.axes[0].get_xlim()
    return [
        tick.get_text()
        for x, tick in zip(figure.axes[0].get_xticks(), figure.axes[0].get_xticklabels())
        if low <= x <= high
    ]


def test_a_box_shows_the_quartiles_the_median_and_every_value_and_a_failure_is_a_cross():
    """0, 1, ..., 4: quartiles 1 and 3, median 2, whiskers to 0 and 4. A group without values is only a name."""
    axes = box_axes(group([0, 1, 2, 3, 4]), limits=(0, 4))
    (box,) = axes.patches
    assert sorted({float(x) for x in box.get_path().vertices[:4, 0]}) == [1, 3]
    assert {tuple(sorted(line.get_xdata())) for line in axes.lines[:3]} == {(0, 1), (3, 4), (2, 2)}
    assert markers(axes, "o") == [0, 1, 2, 3, 4]
    axes = box_axes(group([0.0, 0.5, 1.0], [True, False, False]), group([], name="b"), limits=(0, 1))
    assert markers(axes, "x") == [0.0] and markers(axes, "o") == [0.5, 1.0]
    assert [text.get_text() for text in axes.texts] == ["a, n=3", "b, n=0"] and len(axes.patches) == 1


def test_one_or_two_values_are_points_without_a_box_and_of_many_only_those_outside_the_whiskers():
    for values in ([0.5], [0.5, 0.7]):
        axes = box_axes(group(values), limits=(0, 1), max_points=1)
        assert markers(axes, "o") == values
        assert not axes.patches and all(line.get_marker() == "o" for line in axes.lines)
    axes = box_axes(group([0.5 + k / 1e4 for k in range(1000)] + [0.0]), limits=(0, 1), max_points=60)
    assert markers(axes, "o") == [0.0] and axes.texts[0].get_text() == "a, n=1001"


def test_a_wide_range_of_distances_has_a_logarithmic_axis():
    wide, narrow = box_axes(group([2, 3, 4, 400])), box_axes(group([2, 3, 4]))
    assert "(logarithmic)" in wide.get_xlabel() and wide.get_xscale() == "symlog"
    assert "(logarithmic)" not in narrow.get_xlabel() and narrow.get_xlim()[0] == 0


@pytest.mark.parametrize(("values", "low"), [([0.73, 0.92], 0.6), ([0.0], 0.0), ([1.0], 0.8), ([0.4], 0.4), ([], 0.0)])
def test_an_axis_with_limits_begins_at_the_last_fifth_below_all_values(values, low):
    assert cut_limits((0.0, 1.0), [group(values)]) == pytest.approx((low, 1.0))
    assert cut_limits(None, [group(values)]) is None


def test_a_curve_with_one_point_is_a_large_marker_and_no_round_before_the_first_is_on_the_axis():
    figure = curve_figure([CurvePanel("loss", (Curve("a", [(3, 0.5)], BLACK),))], with_legend=False)
    (line,) = figure.axes[0].lines
    assert line.get_xydata().tolist() == [[3, 0.5]] and line.get_markersize() > 5
    assert rounds(figure) == ["3"]
    for n in (5, 40, 400):
        curve = Curve("a", [(k, 1 / k) for k in range(1, n + 1)], BLACK)
        assert rounds(curve_figure([CurvePanel("loss", (curve,))], with_legend=False))[0] != "0"


def test_many_clients_are_one_band_from_the_lowest_to_the_highest():
    clients = tuple([(1, k), (2, 2 * k)] for k in range(1, 21))
    (axes,) = curve_figure([CurvePanel("loss", (), clients)], with_legend=False).axes
    (band,) = axes.collections
    corners = {tuple(map(float, point)) for point in band.get_paths()[0].vertices}
    assert corners == {(1, 1), (1, 20), (2, 2), (2, 40)} and not axes.lines


def svg(name=EVIL, prefix="p"):
    curves = (Curve(name, [(1, 0.5), (2, 0.4)], ORANGE), Curve("mean", [(1, 0.5), (2, 0.3)], BLACK))
    return to_svg(curve_figure([CurvePanel(name, curves)], with_legend=True), prefix, name)


def test_svg_has_no_style_no_script_no_reference_outside_itself_and_texts_as_they_are_given():
    """A name is no HTML, no formula, and has no character that XML cannot hold."""
    root = ElementTree.fromstring(svg())
    assert {node.tag for node in root.iter()} <= {"svg", "title", "g", "path", "text", "defs", "use"}
    attributes = [(key, value) for node in root.iter() for key, value in node.attrib.items()]
    assert not any(key == "style" or key.startswith("on") or "url(" in value for key, value in attributes)
    ids = {value for key, value in attributes if key == "id"}
    assert {value for key, value in attributes if key == "href"} == {f"#{name}" for name in ids} and ids
    shown = EVIL.replace("\x01", "\ufffd")
    assert root.attrib["aria-label"] == shown == root.find("title").text
    assert [node.text for node in root.iter("text")].count(shown) == 2  # the axis and the legend
    curves = (Curve("a", [(1, 0.5)], BLACK),)
    drawn = to_svg(curve_figure([CurvePanel("distance, inner to outer", curves)], with_legend=False), "p", "t")
    assert ">distance,<" in drawn and ">inner to outer<" in drawn


def test_svg_has_the_colours_of_the_page_is_the_same_each_time_and_its_ids_begin_with_the_prefix():
    drawn = svg("a")
    assert not re.search("#[0-9a-f]{6}", drawn) and "var(--c0)" in drawn and 'fill="var(--ink)"' in drawn
    assert svg() == svg()
    assert re.findall(' id="([^"]*)"', svg(prefix="q")) == [f"q-{k}" for k in range(len(re.findall(" id=", svg())))]


def test_ids_of_all_charts_of_a_page_differ(tmp_path):
    runs, comparisons = read_runs([made_run(tmp_path / "a"), made_run(tmp_path / "b"), made_comparison(tmp_path / "c")])
    drawn = [
        chart
        for place, run in enumerate(runs)
        for chart in (*charts.run_boxes(run, f"run-{place}"), *charts.run_curves(run, f"run-{place}"))
    ]
    for draw in (charts.comparison_boxes, charts.comparison_curves):
        drawn += draw(comparisons[0], "comparison")
    ids = [name for chart in drawn for name in re.findall(' id="([^"]*)"', chart.svg)]
    assert len(drawn) > 10 and len(ids) == len(set(ids))


def test_charts_of_a_comparison_share_their_axis(tmp_path):
    """The worst unseen case is missed, Dice 0 %; without it the lowest Dice is 80 %."""
    for n, low in ((7, "0"), (6, "80")):
        path = tmp_path / str(n)
        for unseen in "AB":
            rows = [row for row in mask_rows(["C"], unseen) if n == 7 or row["status"] == "ok"]
            made_run(path / "fedavg" / f"unseen_{unseen}" / "seed_0", "fedavg", unseen, 0, ("C",), rows)
        first, second = charts.comparison_boxes(read_runs([with_plan(path)])[1][0], "c")
        labels = [re.findall(r">(\d+\.?\d*)<", chart.svg) for chart in (first, second)]
        assert labels[0] == labels[1] and labels[0][0] == low


def test_a_run_of_a_classification_has_one_box_chart_and_a_legend_names_each_curve(tmp_path):
    (run,), _ = read_runs([made_run(tmp_path / "run", rows=class_rows(["A", "B"], "C"))])
    assert len(charts.run_boxes(run, "run")) == 1
    loss, score = charts.run_curves(run, "run")
    assert [entry.name for entry in loss.legend] == ["A", "B", "mean over sites"]
    assert [entry.name for entry in score.legend] == ["mean over sites"]
    assert math.isclose(loss.legend[-1].width, 2.4)

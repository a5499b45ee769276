"""The charts of the page: where a value lies, by hand."""

import re

import pytest

from medfed.outputs.report.box_chart import Group, box_chart
from medfed.outputs.report.curve_chart import Curve, curve_chart
from medfed.outputs.report.heat_chart import heat_chart
from medfed.outputs.report.scales import Scale, px
from medfed.outputs.tables.comparison import Block, Cell, Line, Table


def table(higher=True, cells=((50.0, 60.0), (70.0, None))):
    known = [tuple(None if value is None else Cell(value, None, 1) for value in row) for row in cells]
    lines = tuple(Line(f"m{k}", row, None, None, None, None, 0, 4) for k, row in enumerate(known))
    block = Block("disc", "dice", "Dice", "%", higher, lines)
    return Table("phantom", "last", (0,), ("A", "B"), "fedavg", (), (block,), ()), block


def test_a_scale_is_linear_between_its_ends():
    scale = Scale(0, 10, 100, 200)
    assert [scale(value) for value in (0, 5, 10)] == [100, 150, 200]
    assert scale.ticks() == [0, 2, 4, 6, 8, 10]


def test_a_logarithmic_scale_has_place_for_nought():
    scale = Scale(0, 99, 0, 2, logarithmic=True)
    assert (scale(0), scale(9), scale(99)) == pytest.approx((0, 1, 2))
    assert scale.ticks() == [0, 1, 3, 10, 30]


@pytest.mark.parametrize(("value", "told"), [(0, "0"), (-0.01, "0"), (1.25, "1.2"), (10, "10"), (123.456, "123.5")])
def test_coordinates_are_short(value, told):
    assert px(value) == told


def test_a_box_has_the_quartiles_of_its_values():
    """0, 1, ..., 4 on an axis from 0 to 4 that is 346 - 8 = 338 px long: quartiles 1 and 3, median 2 in the middle."""
    drawn = box_chart([Group("a", [0, 1, 2, 3, 4], "seen")], "t", "axis", (0, 4))
    box = re.search(r'<rect x="([\d.]+)" y="[\d.]+" width="([\d.]+)"', drawn)
    assert [float(value) for value in box.groups()] == pytest.approx([8 + 338 / 4, 338 / 2], abs=0.06)
    median = re.search(r'x1="([\d.]+)"[^>]*class="median"', drawn)
    assert float(median.group(1)) == pytest.approx(8 + 338 / 2, abs=0.06)
    assert drawn.count("<circle") == 5


def test_a_failure_is_a_cross_and_a_group_without_values_is_its_name_alone():
    drawn = box_chart([Group("a", [0.0, 1.0], "seen", [True, False]), Group("b", [], "unseen")], "t", "axis", (0, 1))
    assert drawn.count('class="failed"') == 1 and drawn.count("<circle") == 1 and "b, n=0" in drawn


def test_of_many_cases_only_those_outside_the_whiskers_are_drawn():
    drawn = box_chart([Group("a", [0.5 + k / 1e4 for k in range(1000)] + [0.0], "seen")], "t", "axis", (0, 1))
    assert drawn.count("<circle") == 1 and "n=1001" in drawn


def test_a_wide_range_of_distances_is_shown_on_a_logarithmic_axis():
    assert "(logarithmic)" in box_chart([Group("a", [2, 3, 4, 400], "seen")], "t", "mm")
    assert "(logarithmic)" not in box_chart([Group("a", [2, 3, 4], "seen")], "t", "mm")


def test_curves_without_points_are_no_chart_and_one_point_is_one():
    assert curve_chart([Curve("a", [], "c0")], "t", "loss") is None
    assert curve_chart([Curve("a", [(3, 0.5)], "c0")], "t", "loss").count("<circle") == 1


def test_only_rounds_that_were_run_stand_on_the_axis():
    drawn = curve_chart([Curve("a", [(3, 0.5)], "c0")], "t", "loss")
    assert re.findall(r'text-anchor="middle">(\d+)<', drawn) == ["3"]


def test_the_better_the_stronger_in_either_direction():
    for higher, strongest in ((True, "70.00"), (False, "50.00")):
        drawn = heat_chart(*table(higher), "t")
        values = re.findall(r'class="value"[^>]*>([\d.-]+)<', drawn)
        shades = dict(zip(values, re.findall(r'fill-opacity="([\d.]+)"', drawn)))
        assert max(shades, key=lambda value: float(shades[value])) == strongest and shades["-"] == "0.00"


def test_a_heat_map_of_nothing_is_none():
    assert heat_chart(*table(cells=((None, None),)), "t") is None

"""Tables and figures of classified images."""

import re

import numpy as np
import pandas as pd
import pytest
from made_runs import CLASSES, scores_of

from medfed.outputs.figures import classes, styles
from medfed.outputs.figures.case_selection import select_confident
from medfed.outputs.figures.figure import png_bytes
from medfed.outputs.tables.run_table import closing_table
from medfed.results.scores import predictions, table_of
from medfed.scoring.page import with_known_roles

PHANTOM = "SYNTHETIC PHANTOM DATA: says nothing about hospitals"


def rows_of(site, right, role="unseen"):
    """Images of alternating class, one a person; `right` says which are told right, the later the less surely."""
    result = []
    for k, ok in enumerate(right):
        sure = 0.9 - 0.01 * k
        predicted = k % 2 if ok else 1 - k % 2
        probabilities = (1 - sure, sure) if predicted else (sure, 1 - sure)
        names = {"site": site, "role": role, "patient": f"s{k:02}", "image": f"i{k:02}"}
        names["label"] = ("normal", "tumour")[k % 2]
        result.append(names | dict(zip(("p_normal", "p_tumour"), probabilities, strict=True)))
    return result


def table(rows):
    return table_of(rows, CLASSES.metrics)


def test_the_closing_table_has_a_line_a_site_the_means_and_the_gap():
    """Seen A 100 %, B 50 %: mean 75; unseen C 25 %: gap +50. Four patients of a site are too few for an interval."""
    rows = [*rows_of("A", [1, 1, 1, 1], "seen"), *rows_of("B", [1, 1, 0, 0], "seen"), *rows_of("C", [1, 0, 0, 0])]
    extra = {"data": "phantom", "selection": "last", "method": "ccst", "selected_round": 3, "rounds": 5}
    text = closing_table(scores_of(rows) | extra)
    lines = [re.split(r"\s{2,}", result.strip()) for result in text.splitlines()]
    assert lines[0] == [PHANTOM]
    assert lines[1] == ["ccst; round 3 of 5 by the rule 'last'"]
    assert "--explain" in text and "is the expected calibration error" not in text and "±" not in text
    explained = closing_table(scores_of(rows) | extra, explain=True)
    assert "[] is the 95 % interval over patients" in explained and "±" not in explained
    assert "a site with fewer than 5 patients has none, and neither has a mean over such sites.\n" in explained
    assert "ECE is the expected calibration error over 15" in explained
    assert lines[3] == ["site", "accuracy %", "AUROC %", "balanced %", "ECE %", "patients", "images"]
    assert [[line[0], *line[-2:]] for line in lines[4:7]] == [
        ["A", "4", "4"],
        ["B", "4", "4"],
        ["C (UNSEEN)", "4", "4"],
    ]
    assert lines[4][1] == "100.00"
    assert [*lines[7][:2], *lines[7][-2:]] == ["mean seen", "75.00", "8", "8"]
    assert [*lines[8][:2], *lines[8][-2:]] == ["mean UNSEEN", "25.00", "4", "4"]
    assert lines[9] == ["gap: seen - unseen", "+50.00", "+37.50", "+50.00", "-38.50"]


SCORES = table([*rows_of("Z", [1, 1, 0, 1], "seen"), *rows_of("A", [1, 0, 1, 1, 0, 1])])


def titles_of(figure):
    return [axes.get_title().split(",")[0] for axes in figure.axes if axes.get_title()]


def legend_of(axes):
    return [text.get_text() for text in axes.get_legend().get_texts()]


def test_every_title_says_what_the_data_are_and_reliability_has_a_panel_a_site_seen_first_with_its_error():
    for draw in (classes.reliability, classes.roc, classes.confusion):
        figure = draw(SCORES, "synthetic phantom data")
        assert "(synthetic phantom data)" in figure.get_suptitle()
        assert png_bytes(figure) == png_bytes(draw(SCORES, "synthetic phantom data"))
    figure = classes.reliability(SCORES, "real data")
    assert titles_of(figure) == ["Z (seen)", "A (unseen)"]
    assert all("ECE" in axes.get_title() for axes in figure.axes[:2])


def test_the_roc_legend_names_every_site_also_one_of_one_class():
    one = [row for row in rows_of("B", [1, 1, 1]) if row["label"] == "normal"]
    output = legend_of(classes.roc(pd.concat([SCORES, table(one)]), "real data").axes[0])
    assert output[0].startswith("Z (seen): ")
    assert output[-1] == "B (unseen): one class only"


def test_figures_of_a_scored_bundle_show_no_role_but_that_the_model_was_trained_at_a_site():
    rows = with_known_roles(SCORES.assign(role="unseen"), ["Z"])
    for draw in (classes.reliability, classes.confusion):
        assert sorted(titles_of(draw(rows, "real data"))) == ["A", "Z (trained here)"]
    names = [text.split(":")[0] for text in legend_of(classes.roc(rows, "real data").axes[0])]
    assert sorted(names) == ["A", "Z (trained here)"]


def test_confusion_counts_true_by_predicted():
    """Classes 0, 1, 0, 1; the second told wrong: normal 2 right, tumour 1 taken for normal and 1 right."""
    axes = classes.confusion(table(rows_of("A", [1, 0, 1, 1])), "real data").axes[0]
    assert np.asarray(axes.images[0].get_array()).tolist() == [[1, 0], [0.5, 0.5]]
    assert [text.get_text() for text in axes.texts] == ["2", "", "1", "1"]


def test_the_telling_images_are_the_surest_unseen_right_ones_then_the_surest_wrong_ones():
    """Of A the rights are 0, 2, 3, 5 and the wrongs 1, 4, the sureness falling."""
    assert [row.image for row in select_confident(SCORES, 2)] == ["i00", "i02", "i01", "i04"]
    assert {row.site for row in select_confident(SCORES)} == {"A"}
    cases = [(row, np.zeros((1, 4, 4))) for row in select_confident(table(rows_of("A", [1, 1])))]
    figure = classes.confident_examples(cases, "real data")
    assert "none wrong" in [text.get_text() for axes in figure.axes for text in axes.texts]
    classes.confident_examples([], "real data")


def test_the_same_images_keep_their_places_and_frames_tell_right_from_wrong():
    rows = predictions(table(rows_of("A", [1, 0, 1]))).itertuples()
    figure = classes.common_examples([(row, np.zeros((3, 4, 4))) for row in rows], "real data")
    panels = [axes for axes in figure.axes if axes.get_visible()]
    assert [axes.get_title().splitlines()[1] for axes in panels] == ["i00", "i01", "i02"]
    colours = [axes.spines["left"].get_edgecolor() for axes in panels]
    assert colours[0] == colours[2] != colours[1]


def test_an_attention_map_covers_its_image_and_is_relative_to_equal_attention():
    scores = np.array([[0.5, 0.0], [0.25, 0.25]])
    figure = classes.attention_maps([("a", np.zeros((3, 8, 6)), scores)], "real data")
    heat_map = figure.axes[1].images[1]
    assert np.asarray(heat_map.get_array()).tolist() == [[2, 0], [1, 1]]
    assert tuple(heat_map.get_extent()) == (-0.5, 5.5, 7.5, -0.5)


def test_histograms_share_their_bins_and_add_up_to_all_pixels():
    images = np.linspace(0, 1, 2 * 3 * 16).reshape(2, 3, 4, 4)
    panels = styles.histograms({"A": (images, images * 0.5), "B": (images**2, images)}, "real data").axes
    assert [axes.get_title() for axes in panels] == ["before the exchange of styles", "after the exchange of styles"]
    for axes in panels:
        for patch in axes.patches:
            assert patch.get_data().values.sum() == pytest.approx(100)

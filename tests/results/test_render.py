"""The outputs of a comparison show its numbers, and always what a reader must know first."""

import csv
import io
import json
import re
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest
from made_comparisons import (
    BASE,
    MIXED,
    UP,
    class_row,
    dice_rows,
    dice_run,
    difference,
    gaining,
    line,
    scored,
    with_rows,
)
from made_runs import MASKS, NOT_LEARNED, mask_row, scores_of

from medfed.results.comparison import ScoredRun, compare_runs
from medfed.results.conclusions import conclusions_of
from medfed.results.render import first_screen, to_csv_file, to_json_file, to_latex_file, to_markdown_file, verdict_text
from medfed.results.text_tables import escape_latex, text_table, to_latex, to_markdown, to_terminal, with_marks

PHANTOM = "SYNTHETIC PHANTOM DATA: says nothing about hospitals"
ZERO = [0.0] * 8
DICE, HD95 = MASKS.by_name["dice"], MASKS.by_name["hd95"]
FORMATS = {"screen": first_screen, "md": to_markdown_file, "tex": to_latex_file}


@pytest.fixture(scope="module")
def large():
    """Six rows at six phantom sites with pooled and local; one row did not learn, and one has runs that are missing."""
    gains = {"fedavg": ZERO, "up": UP, "mixed": MIXED, "bad": [-0.3] * 8}
    runs = gaining(gains | {"pooled": UP}, "ABCDEF", data="phantom")
    runs += [run for site in "ABCDEF" for run in gaining({"local": ZERO}, site, at="G", data="phantom")]
    for run in runs:
        run.summary.update({"learning": NOT_LEARNED} if run.row.label == "bad" else {})
    return compare_runs([run for run in runs if run.key != ("mixed", "F", 0)])


def test_the_first_screen_has_at_most_40_lines_and_says_what_a_reader_must_know(large):
    text = first_screen(large)
    assert len(text.splitlines()) <= 40
    assert text.startswith(PHANTOM)
    for words in ("not run: mixed, unseen F, seed 0", "DID NOT LEARN", "better in 1 seed", "gain from joining"):
        assert words in text
    assert re.search(r"\n  up .* fedavg +\+4\.50 \[", text) and "(not federated)" in text


@pytest.mark.parametrize("write", [*FORMATS.values(), to_json_file])
def test_every_output_says_what_is_synthetic_missing_and_not_learned(large, write):
    text = " ".join(write(large).split())
    for words in ("phantom", "mixed, unseen F, seed 0", "DID NOT LEARN"):
        assert words.lower() in text.lower()


def test_conclusions_have_at_most_120_words_for_six_rows_and_two_structures():
    gains = {"fedavg": ZERO} | {f"method_{k}": [g * k for g in (UP if k % 2 else MIXED)] for k in range(1, 6)}
    runs = gaining(gains, "AB", data="phantom")
    tables = [run.scores.assign(structure="optic cup") for run in runs]
    tables = [pd.concat([run.scores, cup], ignore_index=True) for run, cup in zip(runs, tables)]
    runs = [ScoredRun.of(run.row, run.summary, table) for run, table in zip(runs, tables)]
    assert len(" ".join(conclusions_of(compare_runs(runs))).split()) <= 120


def test_conclusions_name_the_verdict_of_each_method_with_its_interval():
    comparison = compare_runs(gaining({"fedavg": ZERO, "up": UP, "mixed": MIXED}))
    first, scope = conclusions_of(comparison)
    own = difference(comparison, "up")
    assert f"better in 1 seed: up (+4.50 [{own.low:.2f}, {own.high:.2f}] from fedavg)" in first
    assert "not decided: mixed" in first
    assert f"below about {difference(comparison, 'mixed').detectable:.2f} may well be missed" in first
    assert "not about other hospitals" in scope and "1 seed" in scope
    assert "no method is better" in conclusions_of(compare_runs(gaining({"fedavg": ZERO, "mixed": MIXED})))[0]


def test_a_verdict_of_fewer_than_three_seeds_says_their_number():
    for n, text in ((1, "better in 1 seed"), (2, "better in 2 seeds"), (3, "better")):
        assert verdict_text(SimpleNamespace(verdict="better", of_seeds=(4.5,) * n)) == text


@pytest.mark.parametrize(
    ("p_holm", "high", "of_seeds", "text"),
    [
        (0.2, -1.0, (-2.0,), "not decided (p)"),
        (float("nan"), -1.0, (-3.0, 1.0), "not decided (p, seeds)"),
        (0.01, -1.0, (-3.0, 1.0), "not decided (seeds)"),
        (0.01, -1.0, (-2.0, -1.0), "not decided (less effort)"),
        (0.2, 1.0, (-2.0,), "not decided"),
    ],
)
def test_a_difference_that_is_not_decided_although_its_interval_excludes_0_says_why(p_holm, high, of_seeds, text):
    line = SimpleNamespace(verdict="not decided", difference=-2, p_holm=p_holm, low=-4, high=high, of_seeds=of_seeds)
    assert verdict_text(SimpleNamespace(**vars(line), rank_sign=-1)) == text
    against = "not decided (ranks, seeds)" if "(seeds" in text else "not decided (ranks)"
    assert verdict_text(SimpleNamespace(**vars(line), rank_sign=1)) == (text if p_holm != 0.01 else against)


def test_a_conclusion_keeps_methods_of_other_numbers_of_seeds_apart():
    runs = [*gaining({"fedavg": ZERO, "all": UP}, "A", (0, 1, 2)), *gaining({"one": UP}, "A")]
    text = conclusions_of(compare_runs(runs))[0]
    assert "better: all (+4.50" in text and "better in 1 seed: one (+4.50" in text


def test_all_outputs_show_the_same_numbers():
    comparison = compare_runs(gaining({"fedavg": ZERO, "up": UP, "mixed": MIXED}))
    score, own = line(comparison.scores, "up"), difference(comparison, "up")
    for write in FORMATS.values():
        text = write(comparison)
        assert f"{score['mean']:.2f} [{score.low:.1f}, {score.high:.1f}]" in text
        assert f"{own.difference:+.2f} [{own.low:.2f}, {own.high:.2f}]" in text
    keys = {"row": "up", "site": "average", "metric": "dice", "role": "unseen"}
    stored = json.loads(to_json_file(comparison))
    tables = {"scores": score, "differences": own}
    for name, numbers in tables.items():
        of_csv = csv.DictReader(io.StringIO(to_csv_file(getattr(comparison, name), comparison.data)))
        for rows in (stored[name], of_csv):
            (row,) = (row for row in rows if all(row[key] == value for key, value in keys.items()))
            known = [key for key, value in numbers.items() if isinstance(value, float) and value == value]
            assert {key: float(row[key]) for key in known} == pytest.approx(dict(numbers[known]))
    assert stored["conclusions"] == conclusions_of(comparison)


def test_the_csv_files_say_in_each_line_that_the_data_are_synthetic_and_the_number_of_seeds_in_the_verdict():
    comparison = compare_runs(gaining({"fedavg": ZERO, "up": UP}, seeds=(0, 1), data="phantom"))
    for table in (comparison.scores, comparison.differences):
        rows = list(csv.DictReader(io.StringIO(to_csv_file(table, comparison.data))))
        assert len(rows) == len(table) and {row["data"] for row in rows} == {"phantom"}
    dice = {(row["of_seeds"], row["verdict"]) for row in rows if row["metric"] == "dice"}
    assert dice == {("+4.5 +4.5", "better in 2 seeds")}


def runs_of_two_sites():
    scores = {"fedavg": {"A": [0.80, 0.90], "B": [0.70]}, "m": {"A": [0.90, 0.96], "B": [0.60]}}
    return [dice_run(label, site, dice) for label, of in scores.items() for site, dice in of.items()]


def test_markdown_has_the_best_in_bold_and_the_second_underlined():
    text = to_markdown_file(compare_runs(runs_of_two_sites()))
    assert "| fedavg | <u>85.00</u> | **70.00** | **77.50** |" in text
    assert "| m | **93.00** | <u>60.00</u> | <u>76.50</u> |" in text


def test_equal_printed_values_share_a_mark_and_rows_that_do_not_compete_have_none():
    values = [50.0, 80.0, 80.0, 70.0, 90.0]
    cells = with_marks([f"{value:.2f}" for value in values], values, [True] * 4 + [False], DICE)
    assert [cell.mark for cell in cells] == ["", "best", "best", "second", ""]
    assert [cell.mark for cell in with_marks(["1", "2"], [1, 2], [True, True], HD95)] == ["best", "second"]
    assert with_marks(["80.00"], [80.0], [True], DICE)[0].mark == "", "a single row is not the best"


def test_a_missing_fold_and_its_average_are_a_dash():
    comparison = compare_runs(runs_of_two_sites()[:3])
    assert "| m | **93.00** | - | - |" in to_markdown_file(comparison)
    assert "- not run: m, unseen B, seed 0" in first_screen(comparison)


def test_units_have_tables_of_their_own_and_mixed_units_a_dash():
    rows = [mask_row("A", f"p{k}", d, hd95_mm=3.0) for k, d in enumerate(BASE)]
    other = [mask_row("B", "p0", 0.8, hd95_percent_of_diagonal=7.0)]
    text = to_markdown_file(compare_runs([scored("fedavg", "A", rows), scored("fedavg", "B", other)]))
    assert "HD95 (mm), lower is better" in text and "HD95 (% of diagonal), lower is better" in text
    assert "| fedavg | 3.00 | - |" in text and "| fedavg | - | 7.00 |" in text


def test_failures_have_a_table_with_exact_intervals():
    text = to_markdown_file(compare_runs([dice_run("fedavg", "A", [0.9] * 5 + [0.1] * 2)]))
    assert "disc: Dice < 0.7, % of patients" in text and "29 [4, 71]" in text and "disc: missed" not in text


def test_a_structure_that_no_unseen_image_has_does_not_stop_the_first_screen():
    absent = [mask_row("A", f"p{k}", None, "absent", structure="cup") for k in range(8)]
    assert "disc: Dice" in first_screen(compare_runs([with_rows(dice_run("fedavg", "A", BASE), absent)]))


def test_latex_escapes_special_characters_and_its_captions_say_phantom():
    runs = [dice_run(label, "A_1", [dice] * 6, data="phantom") for label, dice in (("a", 0.5), ("b&", 0.75))]
    text = to_latex_file(compare_runs(runs, "a"))
    assert r"A\_1" in text and r"b\& & \textbf{75.00}" in text and r"a & \underline{50.00}" in text
    captions = re.findall(r"\\caption\{(.*)\}", text)
    assert captions and all(PHANTOM in caption for caption in captions)
    assert text.count(r"\begin{tabular}") == text.count(r"\end{tabular}") == len(captions)
    assert escape_latex("50 % of a_b & {c} #1 $2 ~ ^ \\") == (
        r"50 \% of a\_b \& \{c\} \#1 \$2 \textasciitilde{} \textasciicircum{} \textbackslash{}"
    )


def test_a_terminal_table_is_aligned_and_has_escape_codes_only_for_colours():
    marked = with_marks(["85.00", "7.00"], [85.0, 7.0], [True, True], DICE)
    table = text_table("title", ["", "A"], [["fedavg", marked[0]], ["m", marked[1]]])
    assert to_terminal(table).splitlines() == ["title", "              A", "  fedavg  85.00", "  m        7.00"]
    styled = to_terminal(table, colours=True)
    assert "\033[1m85.00\033[0m" in styled and re.sub(r"\033\[\d+m", "", styled) == to_terminal(table)


def test_classification_has_no_structure_in_its_title():
    rng = np.random.default_rng(0)
    runs = [
        scored(m, "A", [class_row("A", f"s{k}", f"i{k}", "ab"[k % 2], float(rng.uniform())) for k in range(12)])
        for m in ("fedavg", "m")
    ]
    text = first_screen(compare_runs(runs))
    assert re.search(r"\nACC[^:]*\(%\), higher is better", text, re.IGNORECASE) and "AUROC" in text


def test_a_terminal_shows_15_rows_and_five_missing_runs_and_says_how_many_more_there_are():
    runs = gaining({f"m{k}": ZERO for k in range(20)}, "A") + gaining({"fedavg": ZERO}, "A")
    text = first_screen(
        compare_runs(runs, planned={*(run.key for run in runs), *((f"n{k}", "A", 0) for k in range(8))})
    )
    assert len(re.findall(r"\n  (?:m\d+|fedavg) ", text)) == 15 and "; 6 more rows: table.md" in text
    assert text.count("not run: n") == 5 and "not run: 3 more, listed in table.json" in text


def test_a_gain_over_models_that_did_not_learn_says_so():
    runs = gaining({"fedavg": ZERO, "up": UP}, "A") + gaining({"local": ZERO}, "A", at="B", learning=NOT_LEARNED)
    assert "gain from joining, up - local (did not learn)" in first_screen(compare_runs(runs))


def test_without_the_run_of_equal_effort_the_screen_shows_the_difference_from_less_effort():
    runs = gaining({"fedavg": ZERO}) + gaining({"up": UP}, equal="fedavg@steps=up")
    assert re.search(r"\n  up .* fedavg +\+4\.50 \[.*not tested", first_screen(compare_runs(runs)))


def test_rows_that_are_not_better_than_a_prediction_without_the_image_are_named():
    scores = scores_of(dice_rows({"A": [0.83]}, "A"))["scores"]
    trivial = {"prediction": "every pixel is foreground", "scores": scores}
    text = " ".join(first_screen(compare_runs(gaining({"fedavg": ZERO, "up": UP}, "A", trivial=trivial))).split())
    assert "not better than a prediction that ignores the image, at the unseen sites: fedavg -" in text
    rows = [row for name, dice in (("disc", 0.9), ("cup", 0.1)) for row in dice_rows({"A": [dice] * 5}, "A", name)]
    half = [row for name in ("disc", "cup") for row in dice_rows({"A": [0.5] * 5}, "A", name)]
    trivial |= {"scores": scores_of(half)["scores"]}
    runs = [scored(label, "A", rows, trivial=trivial) for label in ("fedavg", "up")]
    assert "at the unseen sites: fedavg (cup), up (cup)" in " ".join(first_screen(compare_runs(runs)).split())


def test_names_stay_on_one_line_and_are_no_markup():
    table = text_table("a\nb", ["x", "y"], [["c\n|d", "<e`*"]])
    lines = to_markdown(table).splitlines()
    assert lines[0] == "### a b" and lines[-1] == r"| c \|d | \<e\`\* |"
    assert to_latex(table).count("\n") == to_latex(text_table("a b", ["x", "y"], [["c d", "e"]])).count("\n")

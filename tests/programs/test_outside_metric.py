"""A metric is one file and one word in a config, and then it is in every table, figure and page."""

import json
import sys

import numpy as np
import pytest
from conftest import read_csv, small_yaml, tiny_yaml
from made_runs import class_rows, made_run, scores_of
from PIL import Image
from run_figures import drawn_figures

from medfed import evaluate, export, report, train
from medfed.config.schema import load
from medfed.core.errors import UserError
from medfed.core.registry import code_allowed
from medfed.metrics.class_metric import ClassMetric, compute_class_metric
from medfed.metrics.mask_metric import MaskMetric, compute_mask_metrics
from medfed.outputs.bundle.model_card import scores, scores_table
from medfed.outputs.figures import boxes
from medfed.outputs.report.read import read_runs
from medfed.outputs.tables.run_table import closing_table
from medfed.tasks.classification import Classification
from medfed.tasks.evaluation import Evaluation
from medfed.tasks.factory import task_of_dataset
from medfed.tasks.scoring import COMPARISON

VOLUME_ERROR = '''
"""Relative volume error: |predicted volume - reference volume| / (their sum), in [0, 1]."""

from medfed.metrics.mask_metric import MaskMetric


class RelativeVolumeError(MaskMetric):
    name = "volume_error"
    label = "RVE"
    unit = "%"
    higher_is_better = False
    note = "RVE is the relative volume error"
    worst = 1.0

    def value(self, masks):
        predicted, reference = float(masks.prediction.sum()), float(masks.reference.sum())
        return abs(predicted - reference) / (predicted + reference)
'''
TOP_TWO = '''
"""Top-2 accuracy: the fraction of images whose true class is among the two most probable."""

import numpy as np

from medfed.metrics.class_metric import ClassMetric


class TopTwo(ClassMetric):
    name = "top_two"
    label = "top-2"
    unit = "%"
    limits = (0.0, 1.0)

    def value(self, probabilities, labels):
        ranks = np.argsort(-probabilities, axis=1)[:, :2]
        return np.mean((ranks == labels[:, None]).any(axis=1))
'''


@pytest.fixture
def lab(tmp_path, monkeypatch):
    """A package of another laboratory."""
    folder = tmp_path / "elsewhere" / "lab"
    folder.mkdir(parents=True)
    (folder / "__init__.py").write_text("")
    (folder / "volume_error.py").write_text(VOLUME_ERROR)
    (folder / "top_two.py").write_text(TOP_TWO)
    for name, old, new in (
        ("nameless", '    name = "volume_error"\n', ""),
        ("no_worst", "    worst = 1.0\n", ""),
        ("nan_worst", "worst = 1.0", 'worst = float("nan")'),
        ("another_dice", '"volume_error"', '"dice"'),
        ("a_failure", '"volume_error"', '"missed"'),
        ("a_probability", '"volume_error"', '"p_volume"'),
        ("one_limit", "worst = 1.0", "worst, limits = 1.0, 5"),
    ):
        (folder / f"{name}.py").write_text(VOLUME_ERROR.replace(old, new))
    (folder / "broken.py").write_text("raise RuntimeError('no licence')")
    monkeypatch.syspath_prepend(str(folder.parent))
    for name in [name for name in sys.modules if name.partition(".")[0] == "lab"]:  # of another test
        monkeypatch.delitem(sys.modules, name)
    with code_allowed():
        yield folder


def average(summary, role, metric):
    keys = {"role": role, "site": "average", "metric": metric}
    (line,) = (line for line in summary["scores"] if keys.items() <= line.items())
    return line


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_an_outside_metric_is_in_every_table_figure_and_page(
    tmp_path, small_phantom, lab, capsys, monkeypatch, unpainted_figures
):
    labels, site_boxes = [], boxes.site_boxes

    def draw_and_note_labels(*arguments):
        figure = site_boxes(*arguments)
        labels.append([axes.get_xlabel() for axes in figure.axes])
        return figure

    monkeypatch.setattr(boxes, "site_boxes", draw_and_note_labels)
    config = tmp_path / "c.yaml"
    text = tiny_yaml(small_phantom).replace("elcfs, alpha: 0.1, min_patients: 1", "fedavg")
    metric = "evaluation: {metrics: [lab.volume_error.RelativeVolumeError]}\n"
    config.write_text(text.replace("rounds: 2", "rounds: 1") + metric)
    out = tmp_path / "out"
    flags = ["--leave-one-site-out", "--sites", "UCL", "--quiet", "--out", str(out)]
    with drawn_figures():
        assert evaluate.main([str(config), *flags, "--methods", "fedavg"]) == 0
    capsys.readouterr()
    assert evaluate.main([str(config), *flags, "--methods", "fedavg", "fedprox", "--resume"]) == 0
    assert "RVE (%)" in capsys.readouterr().out
    assert "### prostate: RVE (%), lower is better" in (out / "table.md").read_text()
    assert r"\caption{prostate: RVE (\%), lower is better" in (out / "table.tex").read_text()
    assert {row["metric"] for row in read_csv(out / "table.csv")} >= {"dice", "volume_error"}

    run = out / "fedavg" / "unseen_UCL" / "seed_3"
    cases = [row for row in read_csv(run / "cases.csv") if row["metric"] == "volume_error"]
    assert {row["unit"] for row in cases} == {"%"}
    values = [float(row["value"]) for row in cases if row["role"] == "unseen"]
    assert values and all(value >= 0 for value in values)
    summary = json.loads((run / "summary.json").read_text())
    mean, mean_seen = (average(summary, role, "volume_error")["mean"] for role in ("unseen", "seen"))
    assert mean == pytest.approx(sum(values) / len(values))

    assert labels[0] == ["Dice (%)", "HD95 (mm)", "RVE (%)"]
    with Image.open(run / "figures" / "site_boxes.png") as png:
        assert png.width > 1.4 * 975  # three panels, where two take 7.7 in at 130 dots per inch

    assert train.main([str(run / "config.yaml"), "--out", str(run), "--resume"]) == 0
    printed = capsys.readouterr().out
    assert "RVE %" in printed and f"{mean:.2f}" in printed
    (gaps,) = (line for line in printed.splitlines() if "gap: seen - unseen" in line)
    assert f"{mean_seen - mean:+.2f}" in gaps.split()

    assert export.main([str(run), "--out", str(tmp_path / "x_segmentation"), "--quiet", "--force"]) == 0
    card = (tmp_path / "x_segmentation" / "docs" / "README.md").read_text()
    assert "| RVE % |" in card and "RVE is the relative volume error" in card
    metadata = json.loads((tmp_path / "x_segmentation" / "configs" / "metadata.json").read_text())
    assert metadata["eval_metrics"]["unseen_prostate_volume_error"] == pytest.approx(mean / 100, abs=1e-6)

    # a reader of the folders needs no code of the metric
    for path in lab.glob("*.py"):
        path.unlink()
    assert report.main([str(run), "--out", str(tmp_path / "run.html"), "--quiet"]) == 0
    page = (tmp_path / "run.html").read_text()
    assert ">RVE %<" in page
    assert report.main([str(out), "--out", str(tmp_path / "all.html"), "--quiet"]) == 0
    page = (tmp_path / "all.html").read_text()
    assert "prostate: RVE (%), lower is better" in page


def test_an_outside_class_metric_is_in_every_table(tmp_path, lab):
    """Of two classes, the true one is always among the two most probable."""
    scoring = Classification(("a", "b"), 1, 8, Evaluation(metrics=("lab.top_two.TopTwo",))).scoring
    for seed in (0, 1):
        rows = class_rows(["A", "B"], "C")
        made_run(tmp_path / f"run_{seed}", seed=seed, rows=rows, **scores_of(rows, scoring))
    summary = json.loads((tmp_path / "run_0" / "summary.json").read_text())
    result = average(summary, "unseen", "top_two")
    assert (result["unit"], result["mean"], result["low"], result["high"]) == ("%", 100.0, None, None)
    assert "top-2 %" in closing_table(summary)
    (gaps,) = (line for line in closing_table(summary).splitlines() if "gap: seen - unseen" in line)
    assert gaps.split()[-1] == "+0.00"
    _, (comparison,) = read_runs([tmp_path / "run_0", tmp_path / "run_1"])  # by its declaration, without its code
    scored = comparison.table.scores
    (mean,) = scored[(scored.metric == "top_two") & (scored.role == "unseen") & (scored.site == "average")]["mean"]
    assert (comparison.table.metrics["top_two"].label, mean) == ("top-2", 100.0)
    assert scores(summary)["unseen_top_two"] == 1.0 and "top-2 %" in scores_table(summary)


@pytest.mark.parametrize(
    ("metric", "words"),
    [
        ("volume_eror", "no metric 'volume_eror'. "),
        ("hd59", "no metric 'hd59'. Did you mean 'hd95'? Known: accuracy, assd, auroc"),
        ("auroc", "no metric 'auroc'. Known: assd, dice, hd, hd95, hd95_pooled"),
        ("lab.missing.RelativeVolumeError", "'lab.missing.RelativeVolumeError' cannot be imported"),
        ("lab.nameless.RelativeVolumeError", "lab.nameless.RelativeVolumeError: does not define its name"),
        ("lab.no_worst.RelativeVolumeError", "lab.no_worst.RelativeVolumeError: does not define its finite worst"),
        ("lab.nan_worst.RelativeVolumeError", "lab.nan_worst.RelativeVolumeError: does not define its finite worst"),
        ("lab.another_dice.RelativeVolumeError", "its column 'dice' exists already"),
        ("lab.a_failure.RelativeVolumeError", "its column 'missed' exists already"),
        ("lab.a_probability.RelativeVolumeError", "name 'p_volume' begins with p_, as probabilities do"),
        ("lab.one_limit.RelativeVolumeError", "lab.one_limit.RelativeVolumeError: "),
        ("lab.broken.RelativeVolumeError", "'lab.broken.RelativeVolumeError' cannot be imported: RuntimeError: no"),
        ("dice, dice", "'dice' comes twice"),
    ],
)
def test_a_wrong_metric_is_refused_before_training(tmp_path, small_phantom, lab, capsys, metric, words):
    config = tmp_path / "c.yaml"
    config.write_text(small_yaml(small_phantom) + f"evaluation: {{metrics: [{metric}]}}\n")
    assert train.main([str(config), "--out", str(tmp_path / "run"), "--quiet"]) == 2
    output = capsys.readouterr().err
    assert words in output and "c.yaml" in output and len(output.strip().splitlines()) == 1
    assert not (tmp_path / "run" / "states").exists()


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (lambda self, masks: 2.5, "found 2.5, and 1.0 for a missed structure, which must be finite and the worst"),
        (lambda self, masks: 1 / 0, "metric 'broken': ZeroDivisionError: division by zero"),
        (lambda self, masks: "much", "metric 'broken': TypeError"),
    ],
)
def test_a_metric_that_fails_or_that_a_missed_organ_improves_is_refused_by_name(value, words):
    fields = {"name": "broken", "label": "broken", "higher_is_better": False, "worst": 1.0, "value": value}
    metric = type("Broken", (MaskMetric,), fields)()
    mask = np.ones((2, 2, 1), bool)
    with pytest.raises(UserError, match=words):
        compute_mask_metrics([metric], mask, mask, None)
    assert compute_mask_metrics([metric], np.zeros_like(mask), mask, None)["broken"] == 1.0


def compute_two_images(value):
    metric = type("Own", (ClassMetric,), {"name": "own", "label": "own", "value": value})()
    return compute_class_metric(metric, np.full((2, 2), 0.5), np.array([0, 1]))


def test_a_class_metric_that_returns_no_number_is_refused_by_name_and_an_infinite_value_is_unknown():
    with pytest.raises(UserError, match="'own'.* TypeError"):
        compute_two_images(lambda *_: np.ones(3))
    with pytest.raises(UserError, match="'own'.* TypeError"):
        compute_two_images(lambda *_: None / 2)
    assert compute_two_images(lambda *_: np.inf) is None


def test_a_chosen_metric_of_medfed_is_shown_in_comparisons(tmp_path, small_phantom):
    """ASSD is in every file of cases, but in no comparison unless the config asks for it."""
    config = tmp_path / "c.yaml"
    config.write_text(small_yaml(small_phantom) + "evaluation: {metrics: [assd]}\n")
    result = load(config)
    scoring = task_of_dataset(result.data, result.evaluation).scoring
    assert [metric.name for metric in scoring.metrics_in(COMPARISON)] == ["dice", "hd95", "hd", "ece", "assd"]
    assert [metric.name for metric in scoring.metrics].count("assd") == 1

"""One value of each patient, from the scores of the images."""

import numpy as np
import pandas as pd
import pytest
from made_comparisons import class_row
from made_runs import mask_row
from sklearn.metrics import roc_auc_score

from medfed.results.scores import COLUMNS, failures, patient_values, table_of
from medfed.tasks.scoring import CLASS_METRICS, MASK_METRICS


def values_of(rows, metrics=MASK_METRICS):
    return patient_values(table_of(rows, metrics), {metric.name: metric for metric in metrics})


def of(values, metric, **keys):
    """The values of a metric by patient."""
    own = values[(values[["metric", *keys]] == pd.Series({"metric": metric, **keys})).all(axis=1)]
    return dict(zip(own.patient, own.value))


def test_the_table_has_one_row_for_each_value_with_fractions_in_percent():
    table = table_of([mask_row("A", "p", 0.8, hd95_mm=3.0)], MASK_METRICS)
    assert tuple(table.columns) == COLUMNS
    known = table[table.value.notna()].set_index("metric")
    assert known.value.to_dict() == {"dice": 80.0, "hd95": 3.0} and known.unit.to_dict() == {"dice": "%", "hd95": "mm"}


def test_a_patient_has_the_mean_of_the_images_and_an_image_without_the_structure_does_not_count():
    rows = [mask_row("A", "p", dice, image=f"i{k}") for k, dice in enumerate([0.8, 0.5])]
    rows.append(mask_row("A", "p", None, "absent", image="i2"))
    rows.append(mask_row("A", "q", None, "absent"))
    assert of(values_of(rows), "dice") == {"p": 65.0}


def test_a_missed_organ_never_improves_a_mean():
    """With the organ found with Dice 0.5, the mean is 65; missed, 40; left out, it would be 80."""
    found = [mask_row("A", "p", 0.8, image="i0", hd95_mm=3.0), mask_row("A", "p", 0.5, image="i1", hd95_mm=5.0)]
    missed = [found[0], found[1] | {"status": "missed", "dice": 0.0, "hd95_mm": 200.0}]
    assert of(values_of(found), "dice") == {"p": 65.0} and of(values_of(missed), "dice") == {"p": 40.0}
    assert of(values_of(missed), "hd95")["p"] > of(values_of(found), "hd95")["p"]


def test_distances_in_mm_and_in_percent_of_the_diagonal_are_never_averaged():
    rows = [mask_row("A", "p", 0.8, hd95_mm=3.0), mask_row("A", "q", 0.8, hd95_percent_of_diagonal=7.0)]
    rows.append(mask_row("B", "r", 0.8, hd95_mm=4.0))
    values = values_of(rows)
    assert np.isnan([*of(values, "hd95", site="A").values()]).all(), "the images of A have two units"
    assert of(values, "hd95", site="B", unit="mm") == {"r": 4.0}
    assert of(values, "dice", site="A") == {"p": 80.0, "q": 80.0}


def test_a_value_is_unknown_if_that_of_an_image_is():
    rows = [mask_row("A", "p", 0.8, image="i0", ece=0.1), mask_row("A", "p", 0.8, image="i1")]
    assert np.isnan(of(values_of(rows), "ece")["p"])


def test_failures_are_fractions_of_the_images_in_which_they_can_happen():
    """p: one image of three is missed, and one more is below 0.7; q: one of two images without the organ is wrong."""
    rows = [
        mask_row("A", "p", d, s, image=f"i{k}") for k, (d, s) in enumerate([(0.9, "ok"), (0.6, "ok"), (0, "missed")])
    ]
    rows += [mask_row("A", "q", d, s, image=s) for d, s in ((0.0, "false_alarm"), (None, "absent"))]
    shares = failures(table_of(rows, MASK_METRICS), 0.7)
    assert of(shares, "missed") == pytest.approx({"p": 100 / 3}) and of(shares, "false_alarm") == {"q": 50.0}
    assert of(shares, "low_dice") == pytest.approx({"p": 200 / 3, "q": 100.0})


def class_rows(n_patients=8, n_images=24, seed=3):
    rng = np.random.default_rng(seed)
    return [
        class_row("A", f"s{k % n_patients}", f"i{k}", "ab"[k % 3 == 0], float(rng.uniform(0.05, 0.95)))
        for k in range(n_images)
    ]


def test_the_patients_of_auroc_are_the_jackknife_values_of_scikit_learn():
    """n patients with the score s, and s_i without patient i: s + (n - 1) (mean(s_i) - s_i), whose mean is s."""
    rows = class_rows()
    frame = pd.DataFrame(rows)

    def auroc(own):
        return 100 * roc_auc_score(own.label == "b", own.p_b)

    without = pd.Series({name: auroc(frame[frame.patient != name]) for name in sorted(set(frame.patient))})
    values = of(values_of(rows, CLASS_METRICS), "auroc")
    assert values == pytest.approx(dict(auroc(frame) + 7 * (without.mean() - without)))
    assert np.mean([*values.values()]) == pytest.approx(auroc(frame))


def test_accuracy_has_a_score_of_each_patient_for_the_test_and_a_metric_without_an_interval_has_one_of_the_site():
    rows = class_rows()
    values = values_of(rows, CLASS_METRICS)
    frame = pd.DataFrame(rows)
    frame["correct"] = (frame.p_b > 0.5) == (frame.label == "b")
    own = values[values.metric == "accuracy"].set_index("patient").score
    assert own.to_dict() == pytest.approx((100 * frame.groupby("patient").correct.mean()).to_dict())
    assert list(of(values, "ece")) == [""] and values[values.metric == "auroc"].score.isna().all()


def test_a_site_whose_score_depends_on_one_patient_has_no_values_of_patients():
    """Without s0, who has all images of class b, there is no AUROC."""
    rows = [class_row("A", f"s{k}", f"i{k}", "b" if k == 0 else "a", 0.9 if k == 0 else 0.2) for k in range(6)]
    values = values_of(rows, CLASS_METRICS)
    assert of(values, "auroc") == {"": 100.0} and len(of(values, "accuracy")) == 6


def test_voxels_of_a_file_without_a_voxel_size_have_no_value():
    """Sizes of such images may differ; A has a voxel size, B has none."""
    sizes = {"A": "hd95_mm", "B": "hd95_percent_of_diagonal"}
    rows = [mask_row(site, "p", 0.9, **{key: 1.0}, hd95_pooled_vx=2.0) for site, key in sizes.items()]
    values = values_of(rows)
    own = values[values.metric == "hd95_pooled_vx"].set_index("site").value
    assert own["A"] == 2.0 and np.isnan(own["B"])

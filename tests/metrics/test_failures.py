"""Shares of failures: counts by hand, intervals against SciPy."""

import pytest
from made_runs import mask_row
from scipy.stats import binomtest

from medfed.metrics.failures import Share, failure_shares, share_of, summarise_failures


def row(patient, dice, status="ok", site="A", role="unseen"):
    return mask_row(site, patient, dice, status, role)


@pytest.mark.parametrize(("k", "n"), [(0, 1), (1, 1), (0, 13), (3, 13), (13, 13), (7, 200)])
def test_the_interval_is_the_exact_one_of_scipy(k, n):
    share, expected = share_of([1] * k + [0] * (n - k)), binomtest(k, n).proportion_ci(method="exact")
    assert (share.count, share.n) == (k, n)
    assert (share.low, share.high) == pytest.approx((expected.low, expected.high), abs=1e-9)


def test_without_a_failure_among_13_patients_a_quarter_may_still_fail():
    share = share_of([0] * 13)
    assert share.low == 0 and share.high == pytest.approx(1 - 0.025 ** (1 / 13))
    assert (share.text, share.interval_text) == ("0/13", "[0, 25] %")


def test_each_kind_of_failure_is_out_of_the_patients_for_whom_it_is_possible():
    rows = [row("1", 0.9), row("2", 0.7), row("3", 0.69), row("4", 0.0, "missed"), row("5", 0.0, "false_alarm")]
    rows += [row("6", None, "absent"), row("7", None, "absent")]
    shares = failure_shares(rows, dice_below=0.7)
    counts = {kind: (share.count, share.n) for kind, share in shares.items()}
    assert counts == {"low_dice": (3, 5), "missed": (1, 4), "false_alarm": (1, 3)}
    assert failure_shares(rows[:2], 0.7)["false_alarm"] is None


def test_patients_of_several_models_count_once():
    of_b = [row("1", 0.4, site="B"), row("1", 0.3, site="B")]
    rows = [row("1", 0.9), row("1", 0.5), row("2", 0.9), row("2", 0.9), *of_b]
    share = failure_shares(rows, 0.7)["low_dice"]
    assert (share.count, share.n, share.text) == (1.5, 3, "1.5/3")
    assert share_of([0, 0, 1]).low < share.low < share_of([0, 1, 1]).low


def test_the_summary_has_each_site_and_all_patients_of_a_role_together():
    rows = [row("1", 0.1), row("2", 0.9), row("1", 0.2, site="B"), row("1", 0.9, site="C", role="seen")]
    summary = summarise_failures(rows, 0.7)
    shares = [summary[role]["all"]["disc"]["low_dice"] for role in ("seen", "unseen")]
    assert [(share["count"], share["n"]) for share in shares] == [(0, 1), (2, 3)]
    assert Share(**summary["unseen"]["sites"]["A"]["disc"]["low_dice"]) == share_of([1, 0])
    assert summary["dice_below"] == 0.7 and "validation" not in summary

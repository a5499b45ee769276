"""Statistics of scores: means with intervals, paired differences, tests and verdicts; DataFrames in and out.

The input is the table of `medfed.results.scores`: one value of each patient for each run, in the unit that is
printed. The column `row` names a row of a comparison; `unseen`, `seed` and `trained_at` tell its runs apart. Intervals
cover new patients of the same sites, scored by the same trained models; neither new sites nor new trainings.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
import pandas as pd
from scipy import special, stats

from medfed.core.site_names import AVERAGE
from medfed.metrics.metric import Metric
from medfed.metrics.significance import ALPHA, holm, wilcoxon_test

LEVEL, POWER = 0.95, 0.8
MIN_PATIENTS = 5  # at each site, for an interval; with fewer, the standard deviation is hardly known
MIN_SEEDS = 3  # for "better" and "worse"; with fewer, the verdict says in how many
BLOCK = ["role", "structure", "metric", "unit"]  # scores can be compared if these are equal
METRIC = ["role", "structure", "metric"]
SITE = [*BLOCK, "site"]
FOLD = ["unseen", "seed"]
BETTER, WORSE, UNDECIDED, UNTESTED = "better", "worse", "not decided", "not tested"
WITHDRAWN = "no verdict"
NO_LIMITS = (-np.inf, np.inf)
NO_TEST = {"n": np.nan, "p": np.nan, "rank_sign": np.nan}  # of a score of a site: there are no pairs of patients


def site_scores(values: pd.DataFrame, metrics: Mapping[str, Metric]) -> pd.DataFrame:
    """The score of each row at each site and, as the site "average", over all sites of the role.

    Columns: `row`, those of `BLOCK`, `site`; `mean` and `sd` over the seeds; `n_seeds`, `n_patients`; `low` and `high`
    of the 95 % interval over patients. Unknown numbers are NaN. A row that lacks the score of a site has no average.
    """
    keys = ["row", *BLOCK]
    of_seed = _seed_means(values)
    table = of_seed.groupby([*keys, "site"]).agg(["mean", "std", "count"]).set_axis(["mean", "sd", "n_seeds"], axis=1)
    table = table.join(_estimates(_patient_means(values, "value"), [*keys, "site"]).drop(columns="mean"))
    averages = _of_all_sites(_averages(table, keys), values)
    seeds = _of_all_sites(
        of_seed.groupby([*keys, "seed"]).agg(["mean", "count"]).rename(columns={"count": "n_sites"}), values
    )
    seeds = seeds["mean"].groupby(keys).agg(["std", "count"]).set_axis(["sd", "n_seeds"], axis=1)
    averages = averages.join(seeds).assign(site=AVERAGE).set_index("site", append=True)
    table = pd.concat([table, averages]).reset_index()
    table["n_seeds"] = table.n_seeds.fillna(0).astype(int)
    table["low"], table["high"] = intervals(table, metrics)
    return table.drop(columns=["se", "df", "n_smallest"])


def ranks(scores: pd.DataFrame, rows: Collection[str], metrics: Mapping[str, Metric]) -> pd.Series:
    """The rank of the average of each of `rows` in its block, 1 for the best; equal averages share a rank.

    There are none in a block in which a row has scores but no average.
    """
    own = scores[scores.row.isin(rows)]
    averages = own[own.site == AVERAGE]
    n_rows = own.groupby(BLOCK).row.transform("nunique")[averages.index]
    keys = [averages[key] for key in BLOCK]
    sign = [-1 if metrics[metric].higher_is_better else 1 for metric in averages.metric]
    values = (averages["mean"].round(9) * sign).groupby(keys)
    return values.rank(method="min").where(values.transform("size") == n_rows)


def differences(
    values: pd.DataFrame,
    pairs: pd.DataFrame,
    metrics: Mapping[str, Metric],
    not_learned: Collection[str] = (),
    absent: pd.DataFrame | None = None,
) -> pd.DataFrame:
    """Paired differences of rows, `row` minus `minus`, at each site and on average, over the folds that both have.

    `pairs` has the columns `kind`, `row`, `minus`, and `tested`: with p values, corrected by Holm's method for all
    tested pairs (averages apart from sites), and a verdict. A pair of the kind "effort" is the difference from a row of
    less effort: a row that is worse than that is never "better". Rows in `not_learned` have no verdict. `absent` has
    the best values for patients without the structure and without a false alarm (`absent_values`); these patients are
    in a pair if the other row has a false alarm. A site of a run with an unknown value is in no pair.

    Returns:
        Columns of `pairs`, those of `BLOCK`, `site`; `difference`, `low` and `high` of its 95 % interval over patients;
        `n` patients in the test, `p` and `p_holm`, unknown with fewer than six different pairs; `rank_sign`, the
        direction of the test, 1 if `row` has the higher ranks; `detectable`, the smallest true difference that is found
        with a probability of 80 %; `of_seeds`, the difference of each seed, and `seeds_low` and `seeds_high` of the
        interval of their mean; `verdict`.
    """
    table = _paired(values, values.iloc[:0] if absent is None else absent, pairs)
    if table.empty:
        return table
    table["difference"] = table["mean"]
    table["low"], table["high"] = intervals(table)
    n_sites = table.role.map(values.groupby("role").site.nunique())
    n_pairs = max(1, int(pairs.tested.sum()))
    n_tests = np.where(table.tested, n_pairs * np.where(table.site == AVERAGE, 1, n_sites), 1)
    quantiles = stats.t.ppf(1 - (1 - LEVEL) / n_tests / 2, table.df) + stats.t.ppf(POWER, table.df)
    table["detectable"] = (table.se * quantiles).where(table.low.notna())
    is_tested = table.tested & table.n.notna()
    groups = table[is_tested].assign(p=table.p.fillna(1.0)).groupby([*BLOCK, table.site == AVERAGE])
    table["p_holm"] = groups.p.transform(lambda p: holm(p.tolist())).where(table.p.notna())
    table["verdict"] = np.where(is_tested, [_verdict(row, metrics) for row in table.itertuples()], UNTESTED)
    is_effort = (table.kind == "effort") & (table.site == AVERAGE)
    is_worse = np.array([_direction(difference, metrics) == WORSE for difference in table.itertuples()])
    losses = table.loc[is_effort & is_worse, ["row", *BLOCK]]
    loses = (table[["row", *BLOCK]].merge(losses, how="left", indicator=True)._merge == "both").to_numpy()
    table.loc[loses & (table.verdict == BETTER) & (table.site == AVERAGE), "verdict"] = UNDECIDED
    table.loc[table.tested & (table.row.isin(not_learned) | table.minus.isin(not_learned)), "verdict"] = WITHDRAWN
    return table.drop(columns=["mean", "se", "df", "n_patients", "n_smallest", "tested"])


def verdict_text(difference: Any) -> str:
    """The verdict with the number of seeds if they are few, or the condition that fails although 0 is excluded."""
    n = len(difference.of_seeds)
    if difference.verdict in (BETTER, WORSE) and n < MIN_SEEDS:
        return f"{difference.verdict} in {n} seed{'s' * (n > 1)}"
    if difference.verdict == UNDECIDED and (difference.low > 0 or difference.high < 0):
        is_significant = difference.p_holm < ALPHA
        failed = ["p"] * (not is_significant) + ["ranks"] * (is_significant and not _ranks_agree(difference))
        failed += ["seeds"] * (not _seeds_agree(difference))
        return f"{UNDECIDED} ({', '.join(failed) or 'less effort'})"
    return difference.verdict


def failure_shares(failures: pd.DataFrame) -> pd.DataFrame:
    """The share of patients of each row, in percent, for whom something failed, with exact binomial 95 % intervals.

    "average": the patients of all sites together. Clopper and Pearson 1934, https://doi.org/10.1093/biomet/26.4.404.
    """
    n_sites = failures.groupby(METRIC).site.transform("nunique")
    whole = failures[failures.groupby(["row", *METRIC]).site.transform("nunique") == n_sites]
    failures = pd.concat([failures, whole.assign(site=AVERAGE, patient=whole.site + "/" + whole.patient)])
    of_patient = failures.groupby(["row", *SITE, "patient"]).value.mean()
    table = of_patient.groupby(["row", *SITE]).agg(["mean", "size"]).set_axis(["mean", "n_patients"], axis=1)
    n, count, tail = table.n_patients, (table["mean"] * table.n_patients / 100).round(9), (1 - LEVEL) / 2
    table["low"] = 100 * np.where(count > 0, stats.beta.ppf(tail, count, n - count + 1), 0.0)
    table["high"] = 100 * np.where(count < n, stats.beta.isf(tail, count + 1, n - count), 1.0)
    return table.reset_index()


def intervals(table: pd.DataFrame, metrics: Mapping[str, Metric] | None = None) -> tuple[np.ndarray, np.ndarray]:
    """The ends of the 95 % intervals of `mean`, by Student's t; on the logit scale for a score with two limits.

    NaN for fewer than 5 patients at a site (`n_smallest`), or if all patients have the same value.
    """
    columns = zip(table.metric, table.unit)
    limits = [limits_of(metrics[metric], unit) if metrics else NO_LIMITS for metric, unit in columns]
    lowest, highest = np.array(limits, dtype=np.float64).reshape(-1, 2).T
    mean, width = table["mean"].to_numpy(), highest - lowest
    half = stats.t.ppf((1 + LEVEL) / 2, table.df) * table.se.to_numpy()
    with np.errstate(invalid="ignore", divide="ignore"):
        share = (mean - lowest) / width
        half_logit = half / width / (share * (1 - share))  # d logit(x) = dx / (x (1 - x))
        inside = np.isfinite(width) & (lowest < mean) & (mean < highest)
        logit = special.logit(share)
        low, high = (
            np.where(inside, lowest + width * special.expit(logit + sign * half_logit), mean + sign * half)
            for sign in (-1, 1)
        )
    low, high = np.maximum(lowest, low), np.minimum(highest, high)  # without the logit, the ends are cut
    known = ((table.n_smallest >= MIN_PATIENTS) & (table.se > 0)).to_numpy()
    return np.where(known, low, np.nan), np.where(known, high, np.nan)


def limits_of(metric: Metric, unit: str) -> tuple[float, float]:
    """The smallest and largest possible value in the printed unit."""
    if unit in ("mm", "% of diagonal"):
        return 0.0, np.inf if unit == "mm" else 100.0
    low, high = metric.limits or NO_LIMITS
    return (100 * low, 100 * high) if unit == "%" else (low, high)


def mean_over_sites(of_patients: pd.Series) -> tuple[float, float, float]:
    """The mean of the sites' means of values by (site, patient), and the ends of its 95 % interval."""
    averages = _averages(_estimates(of_patients, ["site"]).assign(metric="", unit=""), ["metric", "unit"]).reset_index()
    low, high = intervals(averages)
    return float(averages["mean"].iloc[0]), float(low[0]), float(high[0])


def _seed_means(values: pd.DataFrame) -> pd.Series:
    """Mean over the patients of each run, then over the runs of a seed; without seeds whose score is unknown."""
    of_run = _complete_mean(values.groupby(["row", *SITE, *FOLD, "trained_at"]).value)
    return _complete_mean(of_run.groupby(["row", *SITE, "seed"])).dropna()


def _complete_mean(groups: Any) -> pd.Series:
    """The mean of each group; NaN if one of its values is."""
    return groups.mean().where(groups.count() == groups.size())


def _patient_means(values: pd.DataFrame, column: str) -> pd.Series:
    """Mean of each patient over the runs; empty for a site that has a score without values of patients."""
    is_of_site = (values.patient == "").groupby([values[key] for key in ("row", *SITE)]).transform("any")
    unknown = values.value.isna().groupby([values[key] for key in ("row", *SITE, *FOLD)]).transform("any")
    return values[~is_of_site & ~unknown].groupby(["row", *SITE, "patient"])[column].mean().dropna()


def _estimates(of_patients: pd.Series, keys: list[str]) -> pd.DataFrame:
    """Mean over patients with its standard error sd / sqrt(n); n - 1 degrees of freedom."""
    table = of_patients.groupby(keys).agg(["mean", "std", "size"]).set_axis(["mean", "sd", "n_patients"], axis=1)
    sd = table.sd.where(~(table.sd <= 1e-9 * table["mean"].abs()), 0.0)  # rounding errors are no spread
    return table.assign(se=sd / np.sqrt(table.n_patients), df=table.n_patients - 1, n_smallest=table.n_patients).drop(
        columns="sd"
    )


def _averages(table: pd.DataFrame, keys: list[str]) -> pd.DataFrame:
    """Average of the sites with equal weights, and of their standard errors: sqrt(sum(se_i^2)) / k for k sites.

    Degrees of freedom by Welch and Satterthwaite (Biometrics Bulletin 1946, https://doi.org/10.2307/3002019):
    sum(se_i^2)^2 / sum(se_i^4 / df_i). The standard error is unknown if that of a site is.
    """
    variance = table.se**2
    groups = table.assign(variance=variance, scale=variance**2 / table.df).groupby(keys)
    total, scale, k = groups.variance.sum(), groups.scale.sum(), groups.size()
    return pd.DataFrame(
        {
            "mean": groups["mean"].mean(),
            "se": (np.sqrt(total) / k).where(groups.variance.count() == k),
            "df": (total**2 / scale).where(scale > 0, groups.df.sum()),
            "n_patients": groups.n_patients.sum(),
            "n_smallest": groups.n_smallest.min(),
            "n_sites": k,
        }
    )


def _of_all_sites(averages: pd.DataFrame, values: pd.DataFrame) -> pd.DataFrame:
    """The averages that are over all sites with the metric; sites with another unit count, too."""
    n_sites = values.groupby(METRIC).site.nunique()
    own = [n_sites[tuple(names)] for names in averages.index.to_frame()[METRIC].to_numpy()]
    return averages[averages.n_sites == own].drop(columns="n_sites")


def _paired(values: pd.DataFrame, absent: pd.DataFrame, pairs: pd.DataFrame) -> pd.DataFrame:
    """All pairs in each block, at each site and on average, before corrections and verdicts."""
    keys, block = ["row", *SITE], ["row", *BLOCK]  # the row is the number of the pair
    parts = _matched([_of_pairs(values, pairs[name]) for name in ("row", "minus")], keys)
    false_alarms = pd.concat(parts)[[*keys, "patient"]].drop_duplicates()
    for place, name in enumerate(("row", "minus") if len(absent) else ()):
        runs = parts[place][[*keys, *FOLD]].drop_duplicates()
        parts[place] = pd.concat([parts[place], _of_pairs(absent, pairs[name]).merge(false_alarms).merge(runs)])
    of_seeds = [_seed_means(part) for part in parts]
    means = (of_seeds[0].groupby(keys).mean() - of_seeds[1].groupby(keys).mean()).dropna()
    patients = [_patient_means(part, "value") for part in parts]
    estimates = _estimates((patients[0] - patients[1]).dropna(), keys).reindex(means.index)
    estimates["mean"] = estimates["mean"].fillna(means)
    averages = _of_all_sites(_averages(estimates, block), values).assign(site=AVERAGE).set_index("site", append=True)
    gaps = (of_seeds[0] - of_seeds[1]).dropna()
    seeds = {key: tuple(of_site) for key, of_site in gaps.groupby(keys)}
    of_all = gaps.groupby([*block, "seed"]).agg(["mean", "size"]).set_axis(["mean", "n_sites"], axis=1)
    seeds |= {(*key, AVERAGE): tuple(own) for key, own in _of_all_sites(of_all, values)["mean"].groupby(block)}
    scores = pd.concat([_patient_means(part, "score") for part in parts], axis=1, keys=("own", "other"))
    tests = {key: _test(of_site, pairs.tested[key[0]]) for key, of_site in scores.groupby(keys)}
    tests |= {(*key, AVERAGE): _test(of_block, pairs.tested[key[0]]) for key, of_block in scores.groupby(block)}
    table = pd.concat([estimates, averages]).sort_index(level=block, sort_remaining=False, kind="stable")
    more = [{**_seeds(seeds.get(key, ())), **tests.get(key, NO_TEST)} for key in table.index]
    table = table.join(pd.DataFrame(more, index=table.index)).reset_index()
    return pairs.join(table.drop(columns="row").set_index(table.row), how="inner").reset_index(drop=True)


def _of_pairs(values: pd.DataFrame, rows: pd.Series) -> pd.DataFrame:
    """The values of one row of each pair, whose number is the new `row`."""
    return (
        values.merge(pd.DataFrame({"pair": rows.index, "row": rows}))
        .drop(columns="row")
        .rename(columns={"pair": "row"})
    )


def _matched(parts: list[pd.DataFrame], keys: list[str]) -> list[pd.DataFrame]:
    """The folds that both rows have, without the sites of a run that have an unknown value in one of the rows."""
    folds = parts[0][["row", *FOLD]].drop_duplicates().merge(parts[1][["row", *FOLD]].drop_duplicates())
    run = [*keys, *FOLD]
    every = pd.concat(parts)
    unknown = pd.MultiIndex.from_frame(every.loc[every.value.isna(), run])
    parts = [part.merge(folds) for part in parts]
    return [part[~pd.MultiIndex.from_frame(part[run]).isin(unknown)] for part in parts]


def _seeds(of_seeds: tuple[float, ...]) -> dict[str, Any]:
    """The differences of the seeds, and the 95 % t interval of their mean."""
    if len(of_seeds) < 2:
        return {"of_seeds": of_seeds, "seeds_low": np.nan, "seeds_high": np.nan}
    half = stats.t.ppf((1 + LEVEL) / 2, len(of_seeds) - 1) * stats.sem(of_seeds)
    return {"of_seeds": of_seeds, "seeds_low": np.mean(of_seeds) - half, "seeds_high": np.mean(of_seeds) + half}


def _test(scores: pd.DataFrame, is_tested: bool) -> dict[str, Any]:
    """The Wilcoxon test over the patients of both rows; without `is_tested`, only their number."""
    if not is_tested:
        return {**NO_TEST, "n": len(scores.dropna())}
    result = wilcoxon_test(scores.own.dropna().to_dict(), scores.other.dropna().to_dict())
    return result | {"p": np.nan if result["p"] is None else result["p"]}


def _direction(difference: Any, metrics: Mapping[str, Metric]) -> str:
    """ "better" or "worse" if the interval is on one side of 0; otherwise "not decided"."""
    if not (difference.low > 0 or difference.high < 0):
        return UNDECIDED
    return BETTER if (difference.low > 0) == metrics[difference.metric].higher_is_better else WORSE


def _verdict(difference: Any, metrics: Mapping[str, Metric]) -> str:
    """ "better" or "worse" if p, the interval, the ranks and all seeds agree."""
    is_decided = difference.p_holm < ALPHA and _ranks_agree(difference) and _seeds_agree(difference)
    return _direction(difference, metrics) if is_decided else UNDECIDED


def _ranks_agree(difference: Any) -> bool:
    """Whether the signed ranks of the patients have the sign of the mean difference."""
    return bool(difference.rank_sign == np.sign(difference.difference))


def _seeds_agree(difference: Any) -> bool:
    """Whether the differences of all seeds have the sign of their mean."""
    return bool(difference.of_seeds) and len(set(np.sign([difference.difference, *difference.of_seeds]))) == 1

"""How much say each site has in an average, and how it follows what the average does for the site (FedDG-GA)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

Say = dict[str, float]


def entered(say: Mapping[str, float], sites: Iterable[str]) -> Say:
    """The weights with those of new sites, each the mean of the known ones; all brought to sum 1."""
    mean = sum(say.values()) / len(say) if say else 1.0
    found = {**say, **{site: mean for site in sites if site not in say}}
    total = sum(found[site] for site in sorted(found))
    return {site: found[site] / total for site in sorted(found)}


def adjusted(say: Mapping[str, float], present: Sequence[str], gaps: Mapping[str, float], step: float) -> Say:
    """a_k + step (G_k - mean G) / max |G - mean G|, cut at 0, for the sites present.

    These keep in sum what they held together; the others keep theirs. Equal gaps, or fewer than two, change nothing.

    Args:
        say: by site, at least 0, summing to 1.
        present: sites among them; gaps: of some of those present, the others do not move but for the sum.
        step: at least 0.
    """
    if len(gaps) < 2:
        return dict(say)
    mean = sum(gaps.values()) / len(gaps)
    largest = max(abs(gap - mean) for gap in gaps.values())
    held = sum(say[site] for site in present)
    if largest == 0 or step == 0:
        return dict(say)
    moved = {site: max(0.0, say[site] + step * (gaps.get(site, mean) - mean) / largest) for site in present}
    total = sum(moved.values())
    return {**say, **{site: held * a / total for site, a in moved.items()}}

"""Membership: whether what a site sends tells whose images it was made of."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from medfed.auditing.distance import Ruler
from medfed.auditing.perturbations import copied
from medfed.auditing.sharing import Sharing, people, spread_out
from medfed.core.batch import Batch
from medfed.core.seeds import stream
from medfed.federation.local_round import Samples

MOST_PEOPLE, MOST_IMAGES = 40, 24  # of either group; of a person
DRAWS, LEVEL = 2000, 0.95  # of the bootstrap, and its interval
VIEWS = ("same_images", "second_look")


def membership(
    sharing: Sharing, held_out: Samples | None, tick: Callable[[], object] = lambda: None
) -> dict | None:
    """The test says "member" where a person's own statistic lies near what was sent.

    held_out: images of people of the site that took no part in what was sent.
    tick: called for each person.

    Returns:
        {"members", "others", "same_images": {"auc", "low", "high"}, "second_look": ...}: of a person's images as they
        are, and of perturbed copies. 0.5 is chance. None without two people on either side.
    """
    groups = [spread_out(people(one), MOST_PEOPLE) if one else [] for one in (sharing.site.training, held_out)]
    if min(map(len, groups)) < 2:
        return None
    found: dict[str, list[list[Tensor]]] = {view: [[], []] for view in VIEWS}
    for group, (samples, everyone) in enumerate(zip((sharing.site.training, held_out), groups, strict=True)):
        for who, places in enumerate(everyone):
            batch = samples.batch(spread_out(places, MOST_IMAGES))
            again = Batch(_copies(batch.image, stream(sharing.site.seed, "copies", group, who)), batch.label)
            for view, seen in zip(VIEWS, (batch, again), strict=True):
                if len(rows := sharing.rows(sharing.again(seen, view, group, who))):
                    found[view][group].append(rows)
            tick()
    result = {"members": len(groups[0]), "others": len(groups[1])}
    return result | {view: _judged(sharing, *one, view) for view, one in found.items()}


def n_people(sharing: Sharing, held_out: Samples | None) -> int:
    """How many people `membership` will look at."""
    return sum(min(MOST_PEOPLE, len(people(one))) for one in (sharing.site.training, held_out) if one)


def auc(members: Tensor, others: Tensor) -> Tensor:
    """Of scores (..., M) and (..., N): how often a member has the higher one; ties count half. 0.5 is chance."""
    higher = (members[..., :, None] > others[..., None, :]).double()
    return (higher + 0.5 * (members[..., :, None] == others[..., None, :])).mean(dim=(-2, -1))


def interval(members: Tensor, others: Tensor, rng: torch.Generator) -> tuple[float, float]:
    """The middle 95 % of the AUC over people drawn again with replacement, members and others by themselves."""
    drawn = [group[torch.randint(len(group), (DRAWS, len(group)), generator=rng)] for group in (members, others)]
    edge = (1 - LEVEL) / 2
    low, high = auc(*drawn).quantile(torch.tensor([edge, 1 - edge], dtype=torch.float64)).tolist()
    return low, high


def _judged(sharing: Sharing, members: Sequence[Tensor], others: Sequence[Tensor], view: str) -> dict | None:
    if min(len(members), len(others)) < 2:
        return None
    sent = sharing.rows(sharing.sent)
    ruler = Ruler.over(*members, *others)
    scores = [torch.stack([-ruler.distances(rows, sent).amin(dim=1).mean() for rows in group])
              for group in (members, others)]
    low, high = interval(*scores, stream(sharing.site.seed, "bootstrap", view))
    return {"auc": float(auc(*scores)), "low": low, "high": high}


def _copies(images: Tensor, rng: torch.Generator) -> Tensor:
    return torch.stack([copied(image, rng) for image in images])

"""Checks of the replies of one round: each reply on its own, then against the network and the other sites.

A rejected reply never enters a computation; `federation.on_bad_update` and `federation.quorum` decide whether the run
goes on without it. A site is compared with the median of the sites, which fewer than half of them cannot move, and only
if at least `MIN_SITES` replied. What is unusual but may be honest is named in a notice, and used.
"""

from __future__ import annotations

import math
import reprlib
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from medfed.core.errors import UserError
from medfed.federation.encoding import InvalidMessage, check_encodable
from medfed.federation.message import FAILED, Kind, Message, n_bytes, readable, weights_digest
from medfed.functional.weights import DTYPES, check_same_entries

Replies = dict[str, Message]
Reasons = Iterator[tuple[str, str]]  # sites, and why each reply is rejected: a clause whose subject is the reply
CONTENTS: dict[str, str] = {
    Kind.SURVEY: "survey",
    Kind.SHARE: "share",
    Kind.TRAIN: "update",
    Kind.VALIDATE: "score",
}
# The facts that a site's reply may hold, by the kind of the request. A reply to "train" also holds those that the
# method reports (`Method.fact_names`), one to "survey" those of `medfed.federation.survey`, and a reply to "share" has
# `pixels` only with the moments of the images.
REPLY_FACTS: dict[str, frozenset[str]] = {
    Kind.SURVEY: frozenset(),
    Kind.SHARE: frozenset({"pixels"}),
    Kind.TRAIN: frozenset({"examples", "steps", "loss"}),
    Kind.VALIDATE: frozenset({"score", "boundary_distance"}),
    Kind.END: frozenset(),
}
NOUNS = {"examples": "training images", "steps": "training steps", "pixels": "pixels"}
MAX_COUNT, MAX_PIXELS = 10**8, 10**15  # more images or steps, and more pixels of all images, than any hospital has
MAX_FACTS = 1000  # numbers in a reply
MAX_WEIGHT = 1e6  # no learned parameter is so large
CHUNK = 2**16  # elements of a layer that are compared at the same time, to limit memory
MAX_NUMBER = 1e18  # the square of a larger number could overflow float32
MAX_LOSS = 1e6  # absolute value; Dice losses may be below 0
MAX_MODELS, EXTRA_BYTES = 8, 2 * 2**30  # a reply is at most this many times as large as the model, plus statistics
MAX_ENTRIES = 100_000
MAX_REASON_CHARACTERS = 300
MIN_SITES = 3  # two values do not show which of them is unusual
MIN_SITES_TO_REJECT_STATISTICS = 4
MAX_STATISTIC_RATIO = 8.0  # to the median of the sites, above which a statistic is rejected
UNUSUAL_STATISTIC_RATIO = 4.0  # above which, or below its inverse, a statistic is named
MAX_STEP_RATIO = 10.0  # how much more a site with more steps and images may change the weights
MAX_RECEIVED = 3.0  # how much more a site may change them that received large statistics of another site
MAX_VARIANCE_RATIO = 5.0  # of running variances of a layer, or its inverse
NAMED_VARIANCE_RATIO = 2.5  # named above; honest sites reach 2.0, and with CCST 3.5 in one layer of one round
NAMED_CHANGE_RATIO = 2.5  # to the median of the sites; honest sites reach 1.7, and a site that was not asked in some
NAMED_CHANGE_ROUNDS = 3  # rounds before (SCAFFOLD) 9.1 in single rounds: a site is named after this number in a row
MAX_MEAN_DISTANCE = 3.0  # of running means of a layer, in standard deviations
NAMED_MEAN_DISTANCE, NAMED_MEAN_RATIO = 0.1, 10.0  # named if also as many times as far as the median site
NAMED_LAYERS_RATIO = 0.25  # variances and means are named in at least this fraction of the layers, or
NAMED_LAYER_ROUNDS = 3  # in the same layer in this number of rounds in a row, or
FAR_VARIANCE_RATIO, FAR_MEAN_DISTANCE = 4.0, 0.4  # in one layer of one round; honest sites reach 3.5 and 0.2
EPSILON = 1e-5  # BatchNorm adds it to a variance
OPPOSED_COSINE, OPPOSED_ROUNDS = -0.3, 3  # a site whose change points against the others is named after these rounds
DOMINANT_SHARE = 2 / 3  # of the images; a site with more is named
DIVERGED = (
    "training diverged at this site, so try a smaller training.learning_rate, or check its images with "
    "python -m medfed.data check"
)
ADVICE = (
    "check the data and the log of that site, or set federation.on_bad_update to drop to continue without its reply"
)


@dataclass
class Earlier:
    """What the coordinator remembers of the sites' replies of earlier rounds, in this process."""

    n_images: dict[str, int] = field(default_factory=dict)  # by site, the number of training images that it reported
    rounds: dict[str, dict[str, int]] = field(default_factory=dict)  # by site, of its updates by digest of the weights
    opposed: Counter[tuple[str, str]] = field(default_factory=Counter)  # by site and group of tensors, rounds in a row
    large: Counter[tuple[str, str]] = field(default_factory=Counter)  # the same, of large changes
    layers: Counter[tuple[str, str, str]] = field(default_factory=Counter)  # by site, statistic and layer, the same


@dataclass(frozen=True)
class Expected:
    """What the replies to one request are compared with."""

    kind: str
    round: int
    weights: Mapping[str, Tensor]  # the global weights that were sent
    parameters: frozenset[str]  # names of the entries of `weights` that are parameters; the others are buffers
    largest_change: float | None = None  # `federation.largest_change`
    largest_count: float = math.inf  # `federation.largest_count`
    ranges: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # `Method.statistic_ranges`
    row_tensors: frozenset[str] = frozenset()  # `Method.row_tensors`
    received: Mapping[str, float] = field(default_factory=dict)  # `received_ratios`
    local_keys: frozenset[str] | None = None  # names of the entries that stay at the sites; None if not known
    local_epochs: int = 1
    fact_names: frozenset[str] | None = None  # `Method.fact_names`; None if they are not known
    batch_size: int = 0  # 0 if it is not known, or if the method trains on other images than the site's own


class InvalidReply(ValueError):
    """A reply fails a check. Its arguments are the `reason` of a `Rejection`, and optionally its `advice`."""


@dataclass(frozen=True)
class Rejection:
    """Why a site's reply is not used; `str` returns one sentence that begins with the name of the site."""

    site: str
    round: int
    kind: str
    reason: str  # a clause whose subject is the reply, such as "was not received"
    advice: str = ADVICE
    is_bad: bool = True  # a reply was received and failed a check; False if no usable reply to the request was received

    def __str__(self) -> str:
        return f"{self.site}: its {CONTENTS[self.kind]} of round {self.round} {self.reason}"


def check_replies(
    requests: Mapping[str, Message], replies: Mapping[str, Message], expected: Expected, earlier: Earlier
) -> tuple[Replies, list[Rejection], list[str]]:
    """Separate the replies into accepted and rejected ones, both sorted by site, and return notices.

    1. A missing reply, a reply without a request, a reply that cannot be read (`Message.check`) and a failed reply are
       rejected, but not as bad (`Rejection.is_bad`).
    2. A reply must be of the kind and round of its request, not too large, and without anything that was not requested.
       Its numbers must be finite, variances not negative, tensors in their ranges, counts and losses plausible. With
       `largest_change`, an update must differ from the site's updates of earlier rounds.
    3. The weights of an update must be exactly those entries of the network that do not stay at the sites, with the
       shapes and dtypes of the global weights. A tensor whose name is or ends in the name of a network entry, such as
       `control/ENTRY`, must have the shape and dtype of this entry. Any other tensor must have the dtype and shape of
       more than half of the sites that sent it; only the number of rows of `row_tensors` may differ.
    4. Numbers of images and steps, shared statistics, running means and variances, and changes are compared with the
       other sites. `earlier` then learns the accepted replies.
    """
    accepted: Replies = {}
    rejected: list[Rejection] = []

    def reject(site: str, reason: str, advice: str = ADVICE, is_bad: bool = True) -> None:
        rejected.append(Rejection(site, expected.round, expected.kind, reason, advice, is_bad))

    for site in requests.keys() - replies.keys():
        reject(site, "was not received", is_bad=False)
    for site in sorted(replies):
        reply = readable(replies[site])
        if site not in requests:
            reject(site, "was not requested", is_bad=False)
        elif reply.kind == FAILED:
            why = "".join(c if c.isprintable() else " " for c in reply.facts["why"][:MAX_REASON_CHARACTERS])
            reject(site, f"was not received: {why}", is_bad=False)
        else:
            try:
                _check_reply(site, reply, expected, earlier)
                accepted[site] = reply
            except InvalidReply as invalid:
                reject(site, *invalid.args)
    for compare in COMPARISONS:
        reasons: dict[str, str] = {}
        for site, reason in compare(accepted, expected) if accepted else ():
            reasons.setdefault(site, reason)
        for site, reason in reasons.items():
            reject(site, reason)
            del accepted[site]
    notices = list(_notices(accepted, expected, earlier))
    return accepted, sorted(rejected, key=lambda rejection: rejection.site), notices


def find_failing_sites(step: Callable[[Replies], Any], replies: Replies, kind: str, number: int) -> list[Rejection]:
    """Find the sites whose accepted replies make `step` fail, by calling it with the reply of one site at a time.

    If each reply works alone, the site is found without which the others work. A `UserError` does not count as a
    failure. The list is empty if `step` fails with every site, because the error is then in the method and not in the
    replies, and if several sites could be the cause.
    """
    failing: list[Rejection] = []
    for site, reply in replies.items():
        try:
            step({site: reply})
        except UserError:
            pass  # the method refuses to work with one site, which is not an error of this site
        except Exception as error:
            reason = f"cannot be used by the method ({type(error).__name__}: {reprlib.repr(str(error))})"
            failing.append(Rejection(site, number, kind, reason))
    if failing:
        return failing if len(failing) < len(replies) else []
    unlike = [site for site in replies if _works(step, {other: replies[other] for other in replies if other != site})]
    reason = "does not fit the replies of the other sites: the method cannot use them together"
    return [Rejection(site, number, kind, reason) for site in unlike] if len(unlike) == 1 else []


def _works(step: Callable[[Replies], Any], replies: Replies) -> bool:
    try:
        step(replies)
    except UserError:
        return True
    except Exception:
        return False
    return True


def received_ratios(requests: Mapping[str, Message], expected: Expected) -> dict[str, float]:
    """Return, by site, how much larger than usual the statistics are that it receives with its request; at least 1.

    It is the largest ratio, over the tensors that are not named after a network entry, of the root mean square or of
    the largest element to the median of the sites that receive a tensor of this name (of two values, the smaller one).
    """
    result = dict.fromkeys(requests, 1.0)
    for measure in (_root_mean_square, _largest):
        for by_site in _statistic_sizes(requests, expected, measure).values():
            median = statistics.median_low(by_site.values())
            for site, size in by_site.items():
                result[site] = max(result[site], size / median if median else 1.0)
    return result


def range_of(name: str, ranges: Mapping[str, tuple[float, float]]) -> tuple[float, float] | None:
    """Return the range of a tensor, or None; a name in `ranges` that ends in "/" is the beginning of names."""
    return ranges.get(name) or next(
        (limits for start, limits in ranges.items() if start.endswith("/") and name.startswith(start)), None
    )


def entry_named(name: str, weights: Mapping[str, Tensor]) -> str:
    """Return the network entry after which a tensor is named: ENTRY for `control/ENTRY` or `0/control/ENTRY`; or ""."""
    while name not in weights and "/" in name:
        name = name.partition("/")[2]
    return name if name in weights else ""


def is_number(value: object) -> bool:
    """Return whether a fact is a finite number with an absolute value of at most 1e18."""
    return isinstance(value, int | float) and type(value) is not bool and -MAX_NUMBER <= value <= MAX_NUMBER


# One reply on its own


def _check_reply(site: str, reply: Message, expected: Expected, earlier: Earlier) -> None:
    if reply.kind != expected.kind:
        raise InvalidReply(f"is of kind {reprlib.repr(str(reply.kind))}, but '{expected.kind}' was requested")
    if reply.facts.get("round", expected.round) != expected.round:
        raise InvalidReply(f"belongs to round {reprlib.repr(reply.facts['round'])}, but {expected.round} was requested")
    entries = [*reply.weights.values(), *reply.tensors.values()]
    size, max_size = (sum(map(n_bytes, tensors)) for tensors in (entries, expected.weights.values()))
    max_size = MAX_MODELS * max_size + EXTRA_BYTES
    if size > max_size or len(entries) > MAX_ENTRIES:
        raise InvalidReply(
            f"has {size:,} bytes in {len(entries):,} entries, but at most {max_size:,} bytes in {MAX_ENTRIES:,} "
            "entries are allowed; this limit follows from the size of the network, and no setting changes it"
        )
    if expected.kind != Kind.TRAIN and reply.weights:
        raise InvalidReply(f"holds {len(reply.weights)} entries of a network, but no weights were requested")
    if expected.kind in (Kind.VALIDATE, Kind.SURVEY) and reply.tensors:
        raise InvalidReply(f"holds {len(reply.tensors)} tensors, but only numbers were requested")
    for name, tensor in [*reply.weights.items(), *reply.tensors.items()]:
        _check_tensor(name, tensor, expected)
        try:
            check_encodable(name, tensor)
        except InvalidMessage as invalid:
            raise InvalidReply(f"cannot be read: {invalid}") from invalid
    _check_facts(reply.facts, expected, earlier.n_images.get(site))
    is_compared = expected.kind == Kind.TRAIN and expected.largest_change is not None
    if is_compared and not _is_unchanged(reply, expected):
        number = earlier.rounds.get(site, {}).get(weights_digest(reply.weights), expected.round)
        if number != expected.round:
            raise InvalidReply(f"has the same weights as its update of round {number}, although the model has changed")


def _check_tensor(name: str, tensor: Tensor, expected: Expected) -> None:
    if tensor.dtype not in DTYPES.values():
        raise InvalidReply(f"holds {tensor.dtype} in '{name}', but real numbers are expected")
    low, high = (float(end) for end in torch.aminmax(tensor)) if tensor.numel() else (0.0, 0.0)  # NaN if any is NaN
    if not (math.isfinite(low) and math.isfinite(high)):
        raise InvalidReply(f"is not finite (first in '{name}')", DIVERGED)
    if (largest := max(-low, high)) > MAX_NUMBER:
        raise InvalidReply(
            f"contains the number {largest:.0e} in '{name}'; at most {MAX_NUMBER:.0e} is allowed", DIVERGED
        )
    entry_name = entry_named(name, expected.weights)
    if entry_name in expected.parameters and largest > MAX_WEIGHT:
        raise InvalidReply(f"contains the weight {largest:.0e} in '{name}'; at most {MAX_WEIGHT:.0e} is allowed")
    is_count = entry_name and not expected.weights[entry_name].is_floating_point()
    is_positive = is_count or entry_name.endswith("running_var")
    limits = (0.0, math.inf) if is_positive else range_of(name, expected.ranges)
    if limits is None:
        return
    tolerance = 1e-4 * min(limits[1] - limits[0], 1.0)  # for rounding
    if low < limits[0] - (tolerance if limits[0] else 0) or high > limits[1] + tolerance:
        number = low if low < limits[0] else high
        text = f"at least {limits[0]:g}" if is_positive else f"from {limits[0]:g} to {limits[1]:g}"
        raise InvalidReply(f"contains the number {number:.3g} in '{name}', but numbers {text} are expected")


def _check_facts(facts: Mapping[str, Any], expected: Expected, n_images_before: int | None) -> None:
    if len(facts) > MAX_FACTS:
        raise InvalidReply(f"reports {len(facts):,} numbers, but at most {MAX_FACTS:,} are allowed")
    for name, fact in facts.items():
        if "/" in name:  # NAME/SITE is a column of the history
            raise InvalidReply(f"reports a number with the name {reprlib.repr(name)}, which must not contain '/'")
        largest = MAX_PIXELS if name == "pixels" else MAX_COUNT
        if name in NOUNS and (type(fact) is not int or not 1 <= fact <= largest):
            raise InvalidReply(
                f"reports {reprlib.repr(fact)} {NOUNS[name]}, but a whole number from 1 to {largest:,} is expected"
            )
        if not is_number(fact):
            raise InvalidReply(
                f"reports {reprlib.repr(fact)} for '{name}', but a finite number is expected",
                DIVERGED if isinstance(fact, float) else ADVICE,
            )
    if not 0 <= facts.get("score", 0) <= 1:
        raise InvalidReply(f"reports the score {facts['score']!r}, but a number from 0 to 1 is expected")
    if expected.kind != Kind.TRAIN:
        return
    known = REPLY_FACTS[Kind.TRAIN] | {"round"}
    if expected.fact_names is not None and (unknown := sorted(facts.keys() - known - expected.fact_names)):
        raise InvalidReply(f"reports {reprlib.repr(unknown[0])}, which is not in the fact_names of the method")
    if missing := sorted(REPLY_FACTS[Kind.TRAIN] - facts.keys()):
        raise InvalidReply(f"does not report {', '.join(missing)}")
    if abs(facts["loss"]) > MAX_LOSS:
        raise InvalidReply(
            f"reports the loss {facts['loss']!r}, but a number from {-MAX_LOSS:g} to {MAX_LOSS:g} is expected", DIVERGED
        )
    n_images, n_steps = facts["examples"], facts["steps"]
    if n_images_before not in (None, n_images):
        raise InvalidReply(f"reports {n_images} training images, but {n_images_before} in an earlier round")
    planned = expected.local_epochs * math.ceil(n_images / expected.batch_size) if expected.batch_size else n_steps
    if n_steps != planned:
        raise InvalidReply(
            f"reports {n_steps:,} training steps, but {n_images:,} images in batches of {expected.batch_size} give "
            f"{planned:,} steps in {expected.local_epochs} epochs"
        )


def _is_unchanged(update: Message, expected: Expected) -> bool:
    return all(
        name not in expected.parameters or name not in expected.weights or torch.equal(entry, expected.weights[name])
        for name, entry in update.weights.items()
    )


# Replies against the network and against each other


def _wrong_entries(replies: Replies, expected: Expected) -> Reasons:
    """Find updates with missing or unknown network entries, or entries of another shape or dtype."""
    if expected.kind != Kind.TRAIN:
        return
    local = expected.local_keys
    if local is None:
        sent = Counter(name for reply in replies.values() for name in reply.weights)
        local = frozenset(name for name in expected.weights if 2 * sent[name] < len(replies))
    common = {name: entry for name, entry in expected.weights.items() if name not in local}
    for site, reply in replies.items():
        if not common:
            yield site, "does not fit the network: it holds none of its entries"
        try:
            check_same_entries(common, reply.weights)
        except ValueError as error:
            yield site, f"does not fit the network: {error}"


def _unlike_other_sites(replies: Replies, expected: Expected) -> Reasons:
    """Find tensors whose dtype or shape is not that of their network entry, or of most sites that sent the tensor."""
    if expected.kind == Kind.SHARE:  # a site may share nothing
        names = Counter(tuple(sorted(reply.tensors)) for reply in replies.values() if reply.tensors)
        for site, reply in replies.items():
            if reply.tensors and 2 * names[tuple(sorted(reply.tensors))] <= names.total():
                yield site, f"holds {reprlib.repr(sorted(reply.tensors))}, but at most half of the sites sent these"
    votes: dict[str, Counter] = {}
    for reply in replies.values():
        for name, tensor in reply.tensors.items():
            votes.setdefault(name, Counter())[_form(name, tensor, expected)] += 1
    for site, reply in replies.items():
        for name, tensor in reply.tensors.items():
            holds = f"holds '{name}' as {_format(tensor)}, but"
            entry = expected.weights.get(entry_named(name, expected.weights))
            if entry is not None:
                if entry.shape != tensor.shape or entry.dtype != tensor.dtype:
                    yield site, f"{holds} the network's entry is {_format(entry)}"
            elif name in expected.row_tensors and not (tensor.dim() and len(tensor)):
                yield site, f"{holds} at least one row is expected"
            elif 2 * votes[name][_form(name, tensor, expected)] <= votes[name].total():
                yield site, f"{holds} at most half of the sites sent that form"
    if expected.kind == Kind.TRAIN:  # the comparison of changes needs the same tensors of all sites
        named = {
            site: tuple(sorted(name for name in reply.tensors if entry_named(name, expected.weights)))
            for site, reply in replies.items()
        }
        common, n = Counter(named.values()).most_common(1)[0]
        for site, of_entries in named.items():
            if of_entries != common and 2 * n > len(named):
                difference = min(set(of_entries) ^ set(common))
                yield site, f"{'holds' if difference in of_entries else 'lacks'} '{difference}', unlike most sites"


def _form(name: str, tensor: Tensor, expected: Expected) -> tuple:
    """Return what must be equal at all sites: the dtype and the shape, or the shape of one row."""
    return tensor.dtype, tensor.dim(), tuple(tensor.shape[int(name in expected.row_tensors) :])


def _format(tensor: Tensor) -> str:
    """Shape and dtype as text, such as "(2, 3) float32"."""
    return f"{tuple(tensor.shape)} {str(tensor.dtype).removeprefix('torch.')}"


def _count_outliers(replies: Replies, expected: Expected) -> Reasons:
    """Find numbers of images, steps or pixels above `largest_count` times the median of the other sites.

    A site with many images dominates every average that is weighted by numbers of images.
    """
    for name, noun in NOUNS.items():
        counts = {site: count for site, reply in replies.items() if (count := _reported_count(reply, name)) is not None}
        for site, count in counts.items() if len(counts) >= MIN_SITES else ():
            others = [number for other, number in counts.items() if other != site]
            if count > expected.largest_count * (median := statistics.median(others)):
                yield (
                    site,
                    f"reports {count:,} {noun}, but the median of the other sites is {median:,g} and "
                    f"federation.largest_count allows {expected.largest_count:g} times the median",
                )


def _reported_count(reply: Message, name: str) -> int | None:
    """Return the largest of the facts and tensors of this name (of a tensor also the end "/NAME"); None without any."""
    tensors = [entry for key, entry in reply.tensors.items() if key.rpartition("/")[2] == name and entry.numel()]
    counts = [int(entry.max()) for entry in tensors] + ([reply.facts[name]] if name in reply.facts else [])
    return max(counts, default=None)


def _statistic_outliers(replies: Replies, expected: Expected) -> Reasons:
    """Find shared statistics far above the median of at least `MIN_SITES_TO_REJECT_STATISTICS` sites."""
    for site, name, ratio, n_sites in _statistic_ratios(replies, expected):
        if ratio > MAX_STATISTIC_RATIO and n_sites >= MIN_SITES_TO_REJECT_STATISTICS:
            yield (
                site,
                f"holds '{name}' {ratio:.3g} times as large as the median of the sites (root mean square), and at most "
                f"{MAX_STATISTIC_RATIO:g} times is accepted",
            )


def _statistic_ratios(replies: Replies, expected: Expected) -> Iterator[tuple[str, str, float, int]]:
    """Yield the site, the name, the ratio of its size to the median, and the number of sites of each statistic."""
    for name, by_site in _statistic_sizes(replies, expected, _root_mean_square).items():
        median = statistics.median(by_site.values())
        if len(by_site) >= MIN_SITES and median:
            yield from ((site, name, size / median, len(by_site)) for site, size in by_site.items())


def _statistic_sizes(
    messages: Mapping[str, Message], expected: Expected, measure: Callable[[Tensor], float]
) -> dict[str, dict[str, float]]:
    """Return the size of each statistic, by its name and by site.

    A single number, such as a loss, is left out: its ratios have no limit.
    """
    sizes: dict[str, dict[str, float]] = {}
    for site, message in messages.items():
        for name, tensor in message.tensors.items():
            if tensor.numel() > 1 and tensor.is_floating_point() and not entry_named(name, expected.weights):
                sizes.setdefault(name, {})[site] = measure(tensor)
    return sizes


def _median(tensors: Iterable[Tensor]) -> Tensor:
    return torch.stack(list(tensors)).quantile(0.5, dim=0)


def _root_mean_square(tensor: Tensor) -> float:
    return math.sqrt(float(tensor.to(torch.float64).square().mean()))


def _largest(tensor: Tensor) -> float:
    return float(tensor.to(torch.float64).abs().max())


def _layer_outliers(replies: Replies, expected: Expected) -> Reasons:
    """Find updates whose running means or variances are, in one layer, far from the median of the sites.

    Both change the sum over all layers little, but all activations of their layer. Few steps leave a running variance
    near its start, so that its limit grows with the ratio of the steps. A site that received large statistics of
    another site may be as far as their square.
    """
    slack = _variance_slack(replies, expected)
    for name, variance_ratios, distances in _layers(replies, expected):
        for site, ratio in variance_ratios.items():
            if max(ratio, 1 / ratio) > (limit := MAX_VARIANCE_RATIO * slack[site]):
                yield (
                    site,
                    f"holds variances in '{name}' that are {ratio:.3g} times the median of the sites (geometric mean), "
                    f"but at most a factor of {limit:.3g} is accepted",
                )
        for site, distance in distances.items():
            if distance > (limit := MAX_MEAN_DISTANCE * expected.received.get(site, 1.0) ** 2):
                yield (
                    site,
                    f"holds means beside '{name}' that are {distance:.3g} standard deviations from the median of the "
                    f"sites (root mean square), but at most {limit:.3g} are accepted",
                )


def _variance_slack(replies: Replies, expected: Expected) -> dict[str, float]:
    """Return, by site, the factor by which a limit of variances grows."""
    ratios = _step_ratios(replies) if expected.kind == Kind.TRAIN else {}
    return {site: max(ratio, 1 / ratio) * expected.received.get(site, 1.0) ** 2 for site, ratio in ratios.items()}


def _layers(replies: Replies, expected: Expected) -> Iterator[tuple[str, dict[str, float], dict[str, float]]]:
    """Yield, of each layer with running statistics, the name of its variances, and by site two distances from the
    median of the sites: the geometric mean of the ratios of the variances, and the root mean square difference of the
    means in standard deviations (roots of the median variances)."""
    if expected.largest_change is None or expected.kind != Kind.TRAIN or len(replies) < MIN_SITES:
        return
    entries = {site: {**reply.tensors, **reply.weights} for site, reply in replies.items()}
    names = sorted({name for by_name in entries.values() for name in by_name if name.endswith("running_var")})
    for name in (name for name in names if entry_named(name, expected.weights)):
        variances = {site: by_name[name].double() + EPSILON for site, by_name in entries.items() if name in by_name}
        if len(variances) < MIN_SITES:
            continue
        mean_name = f"{name.removesuffix('running_var')}running_mean"
        means = {site: entries[site][mean_name].double() for site in variances if mean_name in entries[site]}
        variance = _median(variances.values())
        ratios = {site: math.exp(float((own / variance).log().mean())) for site, own in variances.items()}
        mean = _median(means.values()) if means else variance
        yield name, ratios, {site: _root_mean_square((own - mean) / variance.sqrt()) for site, own in means.items()}


def _changes(replies: Replies, expected: Expected) -> Iterator[tuple[str, Tensor, Tensor]]:
    """Yield what n sites change, and the inner products (n, n) and largest elements (n,) of the changes.

    The parameters are one group, and so are the tensors that are named after parameters with the same beginning, such
    as SCAFFOLD's `change/ENTRY`. A group that sites send in part is left out.
    """
    groups: dict[str, dict[str, dict[str, Tensor]]] = {}
    for site, reply in replies.items():
        for name, entry in reply.weights.items():
            if name in expected.parameters:
                groups.setdefault("the weights", {}).setdefault(site, {})[name] = entry
        for name, tensor in reply.tensors.items():
            if (entry_name := entry_named(name, expected.weights)) in expected.parameters:
                groups.setdefault(f"'{name.removesuffix(entry_name)}...'", {}).setdefault(site, {})[name] = tensor
    for group, by_site in groups.items():
        if len(by_site) == len(replies) and len({tuple(sorted(tensors)) for tensors in by_site.values()}) == 1:
            yield group, *change_products(list(by_site.values()), expected.weights)


def change_products(sent: Sequence[Mapping[str, Tensor]], start: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the inner products (n, n) of the changes of n groups of tensors, and the largest element of each (n,).

    A change is measured from the tensor in `start`, or from 0.
    """
    products, largest = (torch.zeros(size, dtype=torch.float64) for size in ((len(sent), len(sent)), len(sent)))
    for name in sent[0]:
        flat = [tensors[name].flatten().split(CHUNK) for tensors in sent]
        before = start[name].flatten().split(CHUNK) if name in start else (None,) * len(flat[0])
        for parts, origin in zip(zip(*flat, strict=True), before, strict=True):
            changes = torch.stack([part.double() for part in parts])
            changes = changes if origin is None else changes - origin.double()
            if changes.numel():
                products += changes @ changes.T
                largest = largest.maximum(changes.abs().amax(dim=1))
    return products, largest


def _size_outliers(replies: Replies, expected: Expected) -> Reasons:
    """Find updates that change the weights, or a control, much more than the updates of most sites.

    Two sizes are compared: the L2 norm and the largest element. The limit is `largest_change` times the median. A site
    that makes k times as many steps as the median site may change the weights k times as much, if it also has k times
    as many images. A control is a mean of few or of many gradients, so that its limit grows with the ratio of the steps
    in both directions. A site that received large statistics of another site may change the weights more, so that it is
    not rejected for what the other site shared.
    """
    if expected.largest_change is None or expected.kind != Kind.TRAIN or len(replies) < MIN_SITES:
        return
    for group, products, largest in _changes(replies, expected):
        for measure, site, size, median, ratio in _change_ratios(replies, expected, group, products, largest):
            if ratio > expected.largest_change:
                yield (
                    site,
                    f"changes {group} by {size:.4g} ({measure}), but the median of the sites is {median:.4g} and "
                    f"federation.largest_change allows {expected.largest_change:g} times the median, and more only "
                    "for more training steps",
                )


def _change_ratios(
    replies: Replies, expected: Expected, group: str, products: Tensor, largest: Tensor
) -> Iterator[tuple[str, str, float, float, float]]:
    """Yield the measure, the site, the size of its change, the median, and their ratio.

    The ratio is divided by the factor that the site's steps, images and received statistics explain.
    """
    ratios = _step_ratios(replies)
    for measure, norms in (("L2 norm", products.diag().clamp_min(0).sqrt()), ("largest element", largest)):
        sizes = norms.tolist()
        median = statistics.median(sizes)
        for site, size in zip(replies, sizes, strict=True):
            slack = max(ratios[site], 1.0 if group == "the weights" else 1 / ratios[site])
            received = min(expected.received.get(site, 1.0), MAX_RECEIVED)
            if median:
                yield measure, site, size, median, size / (median * received * slack)


def _step_ratios(replies: Replies) -> dict[str, float]:
    """Return, by site, the ratio of its steps to the median, from 1 / `MAX_STEP_RATIO` to `MAX_STEP_RATIO`.

    A ratio that the number of images does not explain does not count: of the ratio of the steps and that of the images,
    the one that is closer to 1 is returned, and 1 if they are on different sides of 1.
    """
    n_images, n_steps = (
        statistics.median(reply.facts[name] for reply in replies.values()) for name in ("examples", "steps")
    )
    ratios = {}
    for site, reply in replies.items():
        low, high = sorted((reply.facts["examples"] / n_images, reply.facts["steps"] / n_steps))
        ratio = low if low > 1 else min(high, 1.0)
        ratios[site] = min(max(ratio, 1 / MAX_STEP_RATIO), MAX_STEP_RATIO)
    return ratios


COMPARISONS = (
    _wrong_entries,
    _unlike_other_sites,
    _count_outliers,
    _statistic_outliers,
    _size_outliers,
    _layer_outliers,
)


# What is named, and used

LAYER_NOTICES = {
    "variances": f"more than {NAMED_VARIANCE_RATIO:g} times as large or as small as the median of the sites",
    "means": "far from those of the other sites, which agree",
}


def _notices(replies: Replies, expected: Expected, earlier: Earlier) -> Iterator[str]:
    """Yield what is unusual about the accepted replies, and remember these for the next rounds.

    The sentences contain nothing that differs between rounds, so that a resumed run adds no notice.
    """
    content = CONTENTS.get(expected.kind, "")
    for site, name, ratio, _ in _statistic_ratios(replies, expected):
        if not 1 / UNUSUAL_STATISTIC_RATIO <= ratio <= UNUSUAL_STATISTIC_RATIO:
            limit = UNUSUAL_STATISTIC_RATIO if ratio > 1 else 1 / UNUSUAL_STATISTIC_RATIO
            yield (
                f"{site}: its {content} holds '{name}' {'more' if ratio > 1 else 'less'} than {limit:g} times as large "
                "as the median of the sites (root mean square); it is used, because an unusual scanner is no error; "
                "check the images of that site with python -m medfed.data check"
            )
    counts = {site: count for site, reply in replies.items() if (count := _reported_count(reply, "examples"))}
    earlier.n_images |= counts if expected.kind in (Kind.SHARE, Kind.TRAIN) else {}
    if expected.kind != Kind.TRAIN:
        return
    senders: dict[str, list[str]] = {}
    for site, update in replies.items():
        checksum = weights_digest(update.weights)
        earlier.rounds.setdefault(site, {})[checksum] = expected.round
        if _is_unchanged(update, expected):
            yield f"{site}: returned the weights unchanged: it has not trained; check the log of that site"
        else:
            senders.setdefault(checksum, []).append(site)
    for sites in senders.values():
        if len(sites) > 1:
            yield f"{' and '.join(sites)}: sent the same weights: one of them is a copy, or both have the same images"
    if expected.largest_change is not None and len(replies) < MIN_SITES:
        yield (
            f"the sizes of the updates are not compared: federation.largest_change needs {MIN_SITES} sites in a "
            f"round; {len(replies)} sent a valid update"
        )
    if len(counts) == MIN_SITES - 1 and max(counts.values()) > expected.largest_count * min(counts.values()):
        larger, smaller = sorted(counts, key=lambda site: -counts[site])
        yield (
            f"{larger} and {smaller}: report very different numbers of training images; two sites do not show which "
            "number is wrong; make sure that both are right"
        )
    if len(replies) < MIN_SITES:
        return
    slack, n_layers, n_unusual = _variance_slack(replies, expected), 0, Counter[tuple[str, str]]()
    for name, variance_ratios, distances in _layers(replies, expected):
        n_layers += 1
        limit = max(NAMED_MEAN_DISTANCE, NAMED_MEAN_RATIO * statistics.median(distances.values() or [0.0]))
        sizes = {}  # in units of the size that is named, and of the size that is named at once
        for site, ratio in variance_ratios.items():
            size = max(ratio, 1 / ratio) / slack[site]
            sizes[site, "variances"] = size / NAMED_VARIANCE_RATIO, size / FAR_VARIANCE_RATIO
        for site, distance in distances.items():
            size = distance / expected.received.get(site, 1.0) ** 2
            sizes[site, "means"] = size / limit, size / max(limit, FAR_MEAN_DISTANCE)
        for (site, statistic), (size, far) in sizes.items():
            layer = site, statistic, name
            in_a_row = earlier.layers[layer] + 1 if size > 1 else 0
            earlier.layers[layer] = NAMED_LAYER_ROUNDS if far > 1 else in_a_row
            n_unusual[site, statistic] += size > 1
    for (site, statistic), n in n_unusual.items():
        most = max(rounds for key, rounds in earlier.layers.items() if key[:2] == (site, statistic))
        if n and (n >= NAMED_LAYERS_RATIO * n_layers or most >= NAMED_LAYER_ROUNDS):
            yield (
                f"{site}: its running {statistic} are {LAYER_NOTICES[statistic]}, in many layers, in "
                f"{NAMED_LAYER_ROUNDS} rounds in a row in one layer, or there by far; they are used, because an "
                "unusual scanner is no error; check the images of that site with python -m medfed.data check"
            )
    for site, count in counts.items():
        if count > DOMINANT_SHARE * sum(counts.values()):
            yield (
                f"{site}: reports more than {DOMINANT_SHARE:.0%} of all training images of a round, so that its update "
                "decides most of an average that is weighted by images; make sure that this number is right"
            )
    for group, products, largest in _changes(replies, expected):
        large = {
            site
            for _, site, _, _, ratio in _change_ratios(replies, expected, group, products, largest)
            if expected.largest_change is not None and ratio > NAMED_CHANGE_RATIO
        }
        for site in replies:
            earlier.large[site, group] = earlier.large[site, group] + 1 if site in large else 0
            if earlier.large[site, group] >= NAMED_CHANGE_ROUNDS:
                yield (
                    f"{site}: changes {group} more than {NAMED_CHANGE_RATIO:g} times as much as the median of the "
                    f"sites in {NAMED_CHANGE_ROUNDS} rounds in a row; it is used, because unusual images do that too; "
                    "check its labels with python -m medfed.data check"
                )
        norms = products.diag().clamp_min(torch.finfo(torch.float64).tiny).sqrt()
        for index, (site, cosines) in enumerate(zip(replies, (products / norms.outer(norms)).tolist(), strict=True)):
            is_opposed = statistics.median(cosines[:index] + cosines[index + 1 :]) < OPPOSED_COSINE
            earlier.opposed[site, group] = earlier.opposed[site, group] + 1 if is_opposed else 0
            if earlier.opposed[site, group] >= OPPOSED_ROUNDS:
                yield (
                    f"{site}: changes {group} against the other sites in {OPPOSED_ROUNDS} rounds in a row; "
                    "it is used, because unusual images do that too; check its labels with python -m medfed.data check"
                )

"""Every method that comes with medfed keeps the rules of `Method` (`medfed.testing`)."""

import pytest
import torch
from toy_runs import batch_of, local_round, rounds_of, shared_bits, shared_run, updates_of

from medfed.core.batch import Batch
from medfed.core.registry import known_names, resolve
from medfed.deployment.dry_run import dry_run
from medfed.federation.message import State
from medfed.federation.method import Method
from medfed.federation.settings import Training
from medfed.methods.fedbn import FedBN
from medfed.methods.fisc import VIEW
from medfed.methods.harmofl import HarmoFL
from medfed.testing import method_checks
from medfed.testing.small_unet import SmallUNet
from medfed.testing.toy import ToyClassification, ToySegmentation

# Settings for images of 32 x 32 pixels and four patients per site.
SMALL = {
    "elcfs": {"alpha": 0.1, "views": 1},
    "ccst": {"min_patients": 1, "k": 2},
    "fisc": {"min_patients": 1},
    "stable_fdg": {"min_patients": 1, "stages": (1, 2)},
    "trimmed_mean": {"trim": 0.0},
}
# What a method leaves out where masks are segmented.
FOR_MASKS = {"fedsr": {"l2": 0.0, "cmi": 0.0, "stochastic": False}, "stable_fdg": {"attention": False}}
NAMES = [name for name in known_names("methods") if name != "stack"]  # every method is checked inside a stack as well


# Methods whose code is the same for every task and network: they read no labels, features or image sizes. By default,
# they train a U-Net with BatchNorm, so that integers and running statistics are averaged too; they classify in the slow
# tests only.
SAME_FOR_ALL_TASKS = {
    "coordinate_median",
    "fedavg",
    "fedbn",
    "feddyn",
    "fedgma",
    "fednova",
    "fedprox",
    "norm_clipping",
    "scaffold",
    "swa",
    "trimmed_mean",
}


def checks_of(name: str):
    """Yield the checks of a shipped method, with settings that fit the toy federations."""
    small, for_masks = SMALL.get(name, {}), FOR_MASKS.get(name, {})
    cls = resolve("methods", name)
    if name in SAME_FOR_ALL_TASKS:
        method = cls(**small) if small else cls
        yield from method_checks(method, network=SmallUNet(norm="batch"))
        yield from list(method_checks(method, tasks=["classification"]))[1:]  # without the check of the settings
        return
    if not for_masks:
        yield from method_checks(cls(**small) if small else cls, tasks=["segmentation", "classification"])
        return
    yield from method_checks(cls(**small, **for_masks), tasks=["segmentation"])
    yield from method_checks(cls(**small), tasks=["classification"])


# The methods that are also checked inside a stack by default: together they override every hook that one overrides.
IN_STACK = {"copa", "elcfs", "fedbn", "feddg_ga", "fisc", "scaffold", "stable_fdg", "swa"}


def slow(name: str, rule: str) -> list[pytest.MarkDecorator]:
    """By default, a method is checked alone, on both tasks if its code depends on the task, some also in a stack."""
    is_slow = rule.endswith("classification-stack") or (rule.endswith("-stack") and name not in IN_STACK)
    is_repeated = rule.endswith("-classification") and name in SAME_FOR_ALL_TASKS
    return [pytest.mark.slow] if is_slow or is_repeated else []


@pytest.mark.parametrize(
    "check",
    [
        pytest.param(check, id=f"{name}-{rule}", marks=slow(name, rule))
        for name in NAMES
        for rule, check in checks_of(name)
    ],
)
def test_a_shipped_method_keeps_the_rule(check):
    check()


def test_the_methods_that_are_checked_in_a_stack_override_every_hook():
    def overridden(names) -> set[str]:
        members = [hook for hook in vars(Method) if not hook.startswith("_")]
        classes = [resolve("methods", name) for name in names]
        return {hook for cls in classes for hook in members if getattr(cls, hook) is not getattr(Method, hook)}

    assert overridden(IN_STACK) == overridden(NAMES)


@pytest.mark.parametrize("name", NAMES)
def test_a_shipped_method_can_be_built_with_its_defaults(name):
    resolve("methods", name)()


@pytest.mark.parametrize(
    "method",
    [
        resolve("methods", "elcfs")(exchange=False, alpha=0.1),
        resolve("methods", "harmofl")(normalise=False),
        resolve("methods", "stable_fdg")(style=False),
    ],
    ids=["elcfs", "harmofl", "stable_fdg"],
)
def test_a_method_whose_settings_use_no_shared_statistics_does_not_ask_for_them(method):
    """Alone no site is asked to share; in a stack, sites share only what the other method asks for."""
    toy = ToyClassification(n_images=4)
    styles = resolve("methods", "ccst")(transfer="moments", k=1, min_patients=1)
    stacked = resolve("methods", "stack")((method, styles))
    for checked, expected in ((method, set()), (stacked, {"1"})):
        start, engine = toy.start(checked), toy.engine(checked)
        ledger = [row for done in rounds_of(toy, checked, 2, engine, start) for row in done.ledger]
        rows = [row for row in ledger if row["kind"] == "share"]
        assert {row["name"].partition("/")[0] for row in rows if row["content"] == "statistic"} == expected
        assert {row["round"] for row in rows} == ({1} if expected else set())
        shown = [reply.tensors for reply, _ in dry_run(engine.local_sites[0], start, 0) if reply.kind == "share"]
        names = {name.partition("/")[0] for tensors in shown for name in tensors}
        assert names == expected, "the dry run shows what will be asked for"


FEW = {"min_patients": 1}
STYLES_OFF = {"attention": False, "stages": (1, 2), **FEW}
FCR_OFF = {"foreign_classifier": 0.0, "foreign_features": 0.0, "random_classifier": 0.0}
NEUTRAL = [  # settings that turn a method into FedAvg, and settings that do not; toy sites have equally many images
    ("bigaug", {"probability": 0.0}, {}),
    ("dsu", {"probability": 0.0}, {"probability": 1.0}),
    ("dsu", {"factor": 0.0, "probability": 1.0}, {"probability": 1.0}),
    ("efdmix", {"probability": 0.0}, {"probability": 1.0}),
    ("epi_fcr", FCR_OFF, {**FCR_OFF, "foreign_classifier": 1.0}),
    ("epi_fcr", FCR_OFF, {**FCR_OFF, "foreign_features": 1.0}),
    ("epi_fcr", FCR_OFF, {**FCR_OFF, "random_classifier": 1.0}),
    ("feddg_ga", {"step": 0.0}, {}),
    ("fedgma", {"tau": 0.0}, {"tau": 1.0}),
    ("fedprox", {"mu": 0.0}, {"mu": 1.0}),
    ("fedsr", {"l2": 0.0, "cmi": 0.0, "stochastic": False}, {"l2": 1.0, "cmi": 0.0, "stochastic": False}),
    ("fisc", {"contrast": 0.0, "regularisation": 0.0, **FEW}, {"margin": 3.0, "transfer": "moments", **FEW}),
    ("gin", {"probability": 0.0}, {}),
    ("harmofl", {"normalise": False, "perturbation": 0.0}, {"normalise": False}),
    ("harmofl", {"normalise": False, "perturbation": 0.0}, {"perturbation": 0.0, **FEW}),
    ("mixstyle", {"probability": 0.0}, {"probability": 1.0}),
    ("norm_clipping", {"bound": 1e9, "times": 1e9}, {"bound": 1e-3}),
    ("norm_clipping", {"times": 1e9}, {}),
    ("rsc", {"position_share": 0.0, "channel_share": 0.0}, {}),
    ("rsc", {"sample_shares": (0.0,)}, {}),
    ("stable_fdg", {"probability": 0.0, **STYLES_OFF}, STYLES_OFF),
    ("stable_fdg", {"style": False, **STYLES_OFF}, STYLES_OFF),
    ("trimmed_mean", {"trim": 0.0}, {}),
]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(("name", "neutral", "other"), NEUTRAL)
def test_neutral_settings_are_bit_identical_to_fedavg(any_toy, name, neutral, other):
    cls, fedavg = resolve("methods", name), resolve("methods", "fedavg")()
    if name == "epi_fcr":
        any_toy.settings = Training(batch_size=6)  # all images of a site in one batch
    assert shared_bits(any_toy, cls(**neutral), 2) == shared_bits(any_toy, fedavg, 2)
    if name == "fedsr" and any_toy.architecture.decoder_levels:
        return  # on masks it has no other settings
    assert shared_bits(any_toy, cls(**other), 2) != shared_bits(any_toy, fedavg, 2)


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("ccst", {"site_weights": "uniform"}),
        ("fedbn", FedBN.presets["released"]),
        ("fedsr", {"site_weights": "uniform"}),
        ("harmofl", HarmoFL.presets["paper"]),
        ("harmofl", HarmoFL.presets["released"]),
        ("scaffold", {"site_weights": "uniform"}),
    ],
)
def test_sites_are_weighted_by_their_images_or_uniformly(name, settings):
    """Weights 1 and 5 of one and three images: (1 + 15) / 4 by images, (1 + 5) / 2 uniformly."""
    cls, updates, state = resolve("methods", name), updates_of(a=(1.0, 1), b=(5.0, 3)), State(0, {"w": torch.zeros(1)})
    assert [float(method.aggregate(state, updates)["w"]) for method in (cls(), cls(**settings))] == [4, 3]


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize(
    ("name", "settings", "what"),
    [
        ("ccst", {"transfer": "moments"}, "style"),
        ("elcfs", {"alpha": 0.1}, "frequency windows"),
        ("epi_fcr", {}, "model of its own"),
        ("fisc", {"transfer": "moments"}, "style"),
        ("fpl", {}, "prototypes"),
        ("harmofl", {}, "amplitudes"),
        ("stable_fdg", {"attention": False, "stages": (1, 2)}, "style"),
    ],
)
def test_a_site_with_few_patients_shares_nothing_but_weights(any_toy, name, settings, what):
    method = resolve("methods", name)(min_patients=4, **settings)
    warning = f"north: has 3 training patients, fewer than method.min_patients .* shares no {what}"
    with pytest.warns(UserWarning, match=warning):
        done = rounds_of(any_toy, method, 2)
    assert {row["content"] for one in done for row in one.ledger} == {"weight", "fact"} and not done[-1].state.memory


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("elcfs", {"alpha": 0.1}),
        ("fisc", {}),
        ("harmofl", {"normalise": False, "perturbation": 0.05}),
        ("jigen", {}),
        ("rsc", {"mask": "positions", "sample_shares": (1.0,)}),
        ("rsc", {"mask": "channels", "sample_shares": (1.0,)}),
    ],
)
@pytest.mark.parametrize(
    "toy", [ToySegmentation(SmallUNet(norm="batch")), ToyClassification()], ids=["masks", "classes"]
)
def test_only_the_pass_on_the_images_changes_batch_norm_statistics_and_hooks_are_removed(toy, name, settings):
    batch, buffers = batch_of(toy), []
    batch = Batch(batch.image, batch.label, {VIEW: 1 - batch.image})
    for method in (resolve("methods", name)(**settings), resolve("methods", "fedavg")()):
        local = local_round(toy, method)
        hooks = [len(part._forward_hooks) for part in local.network.modules()]
        _, output = method.loss(local, batch)
        method.regulariser(local, output)
        assert [len(part._forward_hooks) for part in local.network.modules()] == hooks
        buffers.append(dict(local.network.named_buffers()))
    assert buffers[1] and all(torch.equal(entry, buffers[0][name]) for name, entry in buffers[1].items())


@pytest.mark.parametrize("name", ["bigaug", "dsu", "efdmix", "feddyn", "mixstyle"])
def test_only_weights_are_shared(any_toy, name):
    changed = {} if name == "feddyn" else {"probability": 1.0}
    method, fedavg = resolve("methods", name)(**changed), resolve("methods", "fedavg")()
    runs = (shared_run(any_toy, one, 2).rounds for one in (method, fedavg))
    rows, plain = ([(row["name"], row["n"]) for done in rounds for row in done.ledger] for rounds in runs)
    assert rows == plain


INVALID = (  # what no single bound refuses; the sentence begins with the name
    ("bigaug", {"scaling": (1.5, 0.5)}),
    ("bigaug", {"rotation_deg": (20.0, -20.0)}),
    ("elcfs", {"ratio": [0.6, 0.2]}),
    ("fisc", {"restyled_loss": True, "positives": "augmented"}),
    ("gin", {"kernel_sizes": (1, 2)}),
    ("trimmed_mean", {"trim": float("nan")}),
)


@pytest.mark.parametrize(("name", "settings"), INVALID)
def test_invalid_settings_are_rejected_by_name(name, settings):
    with pytest.raises(ValueError, match=f"^{next(iter(settings))}"):
        resolve("methods", name)(**settings)

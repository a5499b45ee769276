"""Every method that comes with medfed keeps the rules of `Method` (`medfed.testing`)."""

import pytest
from toy_runs import rounds_of

from medfed.core.registry import known_names, resolve
from medfed.deployment.dry_run import dry_run
from medfed.federation.method import Method
from medfed.testing import method_checks
from medfed.testing.small_unet import SmallUNet
from medfed.testing.toy import ToyClassification

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
        yield from method_checks(cls(**small) if small else cls)
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
        changed = {hook for cls in classes for hook in members if getattr(cls, hook) is not getattr(Method, hook)}
        return changed - {"renamed_presets"}  # only the reader of configs uses it

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
        assert {row["name"].partition("/")[0] for row in rows if row["direction"] == "up"} == expected
        assert {row["round"] for row in rows} == ({1} if expected else set())
        shown = [row["name"] for row in dry_run(engine.local_sites[0], start, 0) if row["kind"] == "share"]
        assert {name.partition("/")[0] for name in shown} == expected, "the dry run shows what will be asked for"

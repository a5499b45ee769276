"""Measure what each method sends: `python docs/method_facts.py` writes `reference/method_facts.json`.

Each method trains three rounds in a toy federation of three sites (`medfed.testing`), once on masks and once on
classes, with its default settings. The rows of the ledger are those of the site `north`. `--check` writes nothing and
names the methods whose facts differ from the file; names after it restrict both.
"""

from __future__ import annotations

import argparse
import json
import sys
import warnings
from collections.abc import Iterable, Mapping
from itertools import islice
from pathlib import Path
from typing import Any

import torch

from medfed.core.errors import UserError
from medfed.core.registry import known_names, resolve
from medfed.federation.ledger import FACT
from medfed.federation.method import Method
from medfed.federation.rounds import federate
from medfed.federation.settings import Federation
from medfed.methods import Stack
from medfed.networks.resnet import ResidualNetwork
from medfed.networks.unet import UNet
from medfed.testing import ToyClassification, ToyFederation, ToySegmentation

FILE = Path(__file__).with_name("reference") / "method_facts.json"
SITE, N_ROUNDS, N_IMAGES = "north", 3, 6  # two images of each of three patients
FEATURES = (16, 16, 32, 64, 128, 16)  # of configs/prostate.yaml
FEDERATIONS: dict[str, tuple[type[ToyFederation], UNet | ResidualNetwork]] = {
    "segmentation": (ToySegmentation, UNet(features=FEATURES)),
    "classification": (ToyClassification, ResidualNetwork(width=16)),
}
# Settings without which a method refuses a task, or has nothing to combine.
SETTINGS: dict[tuple[str, str], dict[str, Any]] = {
    ("stable_fdg", "segmentation"): {"attention": False},
    ("stack", "segmentation"): {"methods": [{"name": "ccst"}, {"name": "elcfs"}]},
    ("stack", "classification"): {"methods": [{"name": "ccst"}, {"name": "elcfs"}]},
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("methods", nargs="*", help="names of methods; by default, all")
    parser.add_argument("--check", action="store_true", help="write nothing; exit code 1 if a fact has changed")
    args = parser.parse_args()
    torch.set_num_threads(1)
    measured = {name: facts_of(name) for name in args.methods or known_names("methods")}
    known = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    if args.check:
        changed = [name for name, facts in measured.items() if known.get(name) != facts]
        print("\n".join(changed) or "all facts are those of the file")
        return int(bool(changed))
    lines = [f" {json.dumps(name)}: {json.dumps(facts)}" for name, facts in sorted({**known, **measured}.items())]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    return 0


def facts_of(name: str) -> dict[str, Any]:
    """By task: `settings` that are not defaults, and `messages`; or `refused`, the sentence of the error."""
    facts: dict[str, Any] = {}
    for task, (kind, network) in FEDERATIONS.items():
        settings = SETTINGS.get((name, task), {})
        toy = kind(network, n_images=N_IMAGES)
        try:
            facts[task] = {"settings": settings, "messages": messages_of(toy, _build(name, settings))}
        except UserError as error:
            facts[task] = {"refused": str(error)}
    return facts


def _build(name: str, settings: Mapping[str, Any]) -> Method:
    if name == "stack":
        return Stack(tuple(resolve("methods", entry["name"])() for entry in settings["methods"]))
    return resolve("methods", name)(**settings)


def messages_of(toy: ToyFederation, method: Method) -> list[dict[str, Any]]:
    """The rows of the ledger of one site over the rounds: equal rows are one, with the rounds in which they occur."""
    federation = Federation(rounds=N_ROUNDS + 1)  # every round is validated, as by default
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rounds = list(islice(federate(method, toy.engine(method), toy.start(method), federation, 0), N_ROUNDS))
    return merged(row for one in rounds for row in one.ledger if row["site"] == SITE)


def merged(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Join rows that differ in their round only. Facts have no `bytes`: a number is a text, whose length varies."""
    found: dict[str, dict[str, Any]] = {}
    for row in rows:
        entry = {key: value for key, value in row.items() if key not in ("round", "site")}
        if entry["content"] == FACT:
            del entry["bytes"]
        found.setdefault(json.dumps(entry), {**entry, "rounds": []})["rounds"].append(row["round"])
    return list(found.values())


if __name__ == "__main__":
    sys.exit(main())

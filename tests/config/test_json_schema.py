"""The JSON Schema of a config: what it describes, and that it accepts and refuses what the loader does."""

import copy
import json
from pathlib import Path

import jsonschema
import pytest

from medfed.config import json_schema, strict_yaml
from medfed.config.schema import load_text
from medfed.config.search import FILE
from medfed.core.errors import UserError
from medfed.core.registry import code_allowed

CONFIGS = Path(__file__).parents[2] / "configs"
VALIDATOR = jsonschema.Draft202012Validator(json.loads(FILE.read_text(encoding="utf-8")))
GOOD = """
data: {name: prostate, root: data/x}
network: {name: unet}
method: {name: elcfs}
"""


def test_the_file_in_the_package_is_what_the_code_makes_and_a_valid_schema():
    result = json.loads(FILE.read_text(encoding="utf-8"))
    assert result == json_schema.build(), "run: python -m medfed keys --json-schema > medfed/config/schema.json"

    VALIDATOR.check_schema(VALIDATOR.schema)


@pytest.mark.parametrize("path", sorted(CONFIGS.glob("*.yaml")), ids=lambda path: path.stem)
def test_a_shipped_config_names_the_schema_and_fits_it(path):
    text = path.read_text()
    first, _, _ = text.partition("\n")
    assert first.startswith("# yaml-language-server: $schema=")
    assert (path.parent / first.partition("$schema=")[2]).resolve() == FILE
    VALIDATOR.validate(strict_yaml.parse(text, str(path)))


@pytest.mark.parametrize(
    "text",
    [
        "training:",
        "training: {betas: [0, 0.5], learning_rate: 1}",
        "federation: {engine: mypackage.Engine}",
        "evaluation: {metrics: [ece, mypackage.metric]}",
        "evaluation: {metrics: [myp\u00e4ckage.metric]}",
        "federation: {unseen_site: St. Mary}",
        "federation: {unseen_site: \u6771}",
        "federation: {unseen_site: ''}",
        "federation: {largest_change: null}",
    ],
)
def test_what_the_loader_accepts_fits_the_schema(text):
    with code_allowed():
        load_text(GOOD + text, "a.yaml")
    VALIDATOR.validate(strict_yaml.parse(GOOD + text, "a.yaml"))


WRONG = [
    "trainings: {}",
    "training: {learnig_rate: 0.1}",
    "training: {betas: [0.9]}",
    "training: {betas: [0.9, 1]}",
    'training: {learning_rate: "1"}',
    "training: {augment: 1}",
    "training: fast",
    "federation: {rounds: 3.5}",
    "federation: {unseen_site: 7}",
    "seed: -1",
    "device: gpu",
    "device:",
    "federation: {engine: in_proces}",
    "federation: {participating: 0}",
    "federation: {answer_seconds: 5}",
    "evaluation: {threshold: 1}",
    "evaluation: {metrics: [dcie]}",
    "evaluation: {metrics: [ece, ece]}",
    "federation: {unseen_site: ../x}",
    "federation: {validation_site: ' a'}",
    "privacy: {delta: 0}",
    "privacy: {clip: -1}",
]
WRONG_BLOCKS = [
    ("{name: prostate, root: data/x}", "{name: prostate}"),
    ("{name: prostate, root: data/x}", "{root: data/x}"),
    ("{name: prostate, root: data/x}", "{name: prostat, root: data/x}"),
    ("{name: prostate, root: data/x}", "{name: prostate, root: data/x, image_size: 0}"),
    ("{name: prostate, root: data/x}", "{name: prostate, root: data/x, published_split: true}"),
    ("{name: prostate, root: data/x}", "{name: prostate, root: data/x, sites: [UCL, UCL]}"),
    ("{name: prostate, root: data/x}", "{name: prostate, root: data/x, sites: ['<script>']}"),
    ("{name: elcfs}", "{name: elcfs, alpha: 0.7}"),
    ("{name: elcfs}", "{name: elcfs, preset: papre}"),
    ("{name: elcfs}", "{name: elcfs, ratio: both}"),
    ("{name: elcfs}", "{name: stack, methods: [{name: fedprox, mu: -1}]}"),
    ("{name: elcfs}", "{name: mixstyle, stages: [1, 1]}"),
]


@pytest.mark.parametrize(
    "text", [*(GOOD + text for text in WRONG), *(GOOD.replace(*b) for b in WRONG_BLOCKS), "seed: 1"]
)
def test_what_the_loader_refuses_does_not_fit_the_schema(text):
    with pytest.raises(UserError):
        load_text(text, "a.yaml")
    assert not VALIDATOR.is_valid(strict_yaml.parse(text, "a.yaml"))


def test_a_class_outside_of_medfed_may_have_any_key():
    document = strict_yaml.parse(GOOD, "a.yaml")
    for block in ("data", "network", "method"):
        outside = copy.deepcopy(document)
        outside[block] = {"name": "mypackage.MyClass", "any": [1, "b"]}
        assert VALIDATOR.is_valid(outside)


def test_every_setting_has_a_meaning_and_a_default():
    definitions = VALIDATOR.schema["$defs"]
    for name, definition in definitions.items():
        for key, schema in definition["properties"].items():
            assert schema["description"], f"{name}.{key} has no entry in the Args section of its class"
            is_required = key in definition["required"]
            assert is_required or "default" in schema or "$ref" in schema, f"{name}.{key}"
            if "default" in schema:
                own = {**schema, "$defs": definitions}
                assert jsonschema.Draft202012Validator(own).is_valid(schema["default"]), f"{name}.{key}"

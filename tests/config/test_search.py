"""The list of settings: meanings from docstrings, and what a word finds."""

import subprocess
import sys
from dataclasses import dataclass

import pytest

from medfed.config import json_schema, search
from medfed.config.search import describe_schema
from medfed.core.errors import UserError


@dataclass
class Documented:
    """A class.

    Args:
        first, second: of both.

        a table            with: a colon
        third: is no entry any more
    """


def test_an_entry_may_have_several_names_and_another_paragraph_ends_the_entries():
    assert json_schema.meanings_of(Documented) == {"first": "of both.", "second": "of both."}


def settings_named(word: str) -> dict[str, list[str]]:
    return {group.name or group.block: list(group.settings) for group in search.find(word)}


def test_a_word_finds_blocks_names_and_keys():
    assert settings_named("privacy") == {"privacy": ["clip", "noise", "statistics_clip", "statistics_noise", "delta"]}
    assert settings_named("fedprox") == {"fedprox": ["name", "preset", "mu"]}
    assert settings_named("federation.rounds") == {"federation": ["rounds"]} == settings_named("rounds")
    assert settings_named("elcfs.alpha") == {"elcfs": ["alpha"]} == settings_named("method.elcfs.alpha")
    assert {"elcfs", "ccst", "feddyn"} <= settings_named("method.alpha").keys() == settings_named("alpha").keys()
    assert settings_named("seed") == {"": ["seed"]}
    assert settings_named("weights") == {"network": ["weights"]}  # which every network has from it


def test_a_search_reads_the_schema_and_imports_neither_torch_nor_monai():
    code = (
        "import sys; from medfed import keys; codes = [keys.main([w]) for w in "
        "('elcfs', 'alpha', 'training', 'dice', 'federation.rounds', 'trainig')]; "
        "print(codes, 'torch' in sys.modules, 'monai' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[0, 0, 0, 0, 0, 2] False False"


@pytest.mark.parametrize(
    "word, place",
    [("in_process", "federation.engine"), ("method.elcfs", "method")],
)
def test_a_metric_an_engine_and_a_name_after_its_block_are_known(word, place):
    (group,) = search.find(word)
    assert (group.block, group.name) == (place, word.rpartition(".")[2]) and group.title and group.file.endswith(".py")


@pytest.mark.parametrize(
    "word, sentence",
    [
        ("elcsf", "no block, name or setting 'elcsf'. Did you mean 'elcfs'? Known: data, "),
        ("learning_rte", "no block, name or setting 'learning_rte'. Did you mean 'learning_rate'?"),
        ("elcfs.alpa", "no setting 'alpa' in elcfs. Did you mean 'alpha'? Known: name, preset, alpha, "),
        ("federation.round", "no setting 'round' in federation. Did you mean 'rounds'? Known: unseen_site, "),
        ("", "no block, name or setting ''."),
        (".alpha", "no block, name or setting '.alpha'."),
        ("elcsf.alpha", "no block, name or setting 'elcsf.alpha'."),
        ("a.b.C", "no block, name or setting 'a.b.C'."),
    ],
)
def test_an_unknown_word_is_answered_with_the_nearest(word, sentence):
    with pytest.raises(UserError) as raised:
        search.find(word)
    assert str(raised.value).startswith(sentence)


@pytest.mark.parametrize(
    "schema, text",
    [
        ({"type": "number", "minimum": 0, "exclusiveMaximum": 1}, "number in [0, 1)"),
        ({"type": "integer", "minimum": 1}, "whole number at least 1"),
        ({"type": "boolean"}, "true or false"),
        ({"enum": ["a", 2]}, '"a" | 2'),
        ({"anyOf": [{"type": "number", "exclusiveMinimum": 0}, {"type": "null"}]}, "number above 0 | null"),
        ({"type": "array", "prefixItems": [{"type": "number"}] * 2}, "list of 2: number"),
        (
            {"type": "object", "additionalProperties": {"type": "array", "items": {"type": "string"}}},
            "block: list: text",
        ),
        ({"type": "object", "additionalProperties": True}, "block"),
    ],
)
def test_a_schema_in_words(schema, text):
    assert describe_schema(schema) == text

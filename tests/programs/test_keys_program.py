"""`medfed keys`: what it prints for a word, for none, and for editors."""

import json

import pytest

from medfed import keys
from medfed.config.search import FILE


@pytest.mark.parametrize("columns", [80, 120])
def test_all_blocks_fit_the_terminal(columns, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(columns))
    assert keys.main([]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert max(map(len, lines)) <= columns
    for block in ("data", "network", "method", "training", "federation", "evaluation", "privacy", "cache"):
        assert any(line.startswith(f"{block}  (medfed/") for line in lines), block
    for key in ("seed", "batch_size", "reply_timeout_s", "threshold", "statistics_noise"):
        assert any(line.startswith(f"  {key}: ") for line in lines), key


def test_a_method_is_printed_with_types_ranges_defaults_presets_and_source(capsys):
    assert keys.main(["elcfs"]) == 0
    text = capsys.readouterr().out
    assert text.startswith("method.name: elcfs  (medfed/methods/elcfs.py)\n")
    assert "https://arxiv.org/abs/2103.06030" in text
    lines = text.splitlines()
    alpha = next(line for line in lines if line.startswith("  alpha: "))
    assert "number in [0, 0.5)" in alpha and alpha.endswith('; default "auto"')
    assert "Preset paper: 0.01. Preset released: 0.0." in " ".join(text.split())


def test_a_key_is_printed_alone_and_a_metric_with_the_key_that_names_it(capsys):
    assert keys.main(["federation.rounds"]) == 0
    assert "  rounds: whole number in [1, 1000000]; default 100\n" in capsys.readouterr().out
    assert keys.main(["dice"]) == 0
    text = "evaluation.metrics: dice  (medfed/metrics/masks/dice.py)\n  Dice coefficient of two masks.\n"
    assert capsys.readouterr().out == text


def test_the_json_schema_is_printed(capsys):
    assert keys.main(["--json-schema"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads(FILE.read_text(encoding="utf-8"))

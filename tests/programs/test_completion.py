"""The completion script is made from the parsers of the programs."""

import subprocess
import sys
from types import SimpleNamespace

from medfed import completion
from medfed.core.registry import shipped_configs


def test_the_parser_of_a_program_has_its_flags_and_commands():
    train = completion.parser_of("train")
    assert {"--resume", "--set", "--jobs"} <= set(train._option_string_actions)
    commands = next(action for action in completion.parser_of("data")._actions if action.dest == "command")
    assert {"check", "fetch", "prepare"} <= set(commands.choices)


def test_the_script_offers_programs_flags_and_names_of_configs(monkeypatch, capsys):
    received = {}

    def complete(parser, shell, preamble):
        received.update(parser=parser, shell=shell, preamble=preamble)
        return "script"

    monkeypatch.setitem(sys.modules, "shtab", SimpleNamespace(complete=complete))
    monkeypatch.setattr(completion, "programs", lambda: {"train": "train", "keys": "settings"})
    assert completion.main(["bash"]) == 0 and capsys.readouterr().out == "script\n"
    train = received["parser"]._subparsers._group_actions[0].choices["train"]
    assert next(action for action in train._actions if action.dest == "config").complete["bash"] == "_medfed_configs"
    script = received["preamble"]["bash"] + "; _medfed_configs prostate_"
    assert subprocess.run(["bash", "-c", script], capture_output=True, text=True).stdout.split() == [
        name for name in shipped_configs() if name.startswith("prostate_")
    ]


def test_without_shtab_the_message_names_it(monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "shtab", None)
    assert completion.main(["bash"]) == 2
    assert capsys.readouterr().err.strip().endswith("pip install shtab")

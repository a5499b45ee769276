"""Every command of medfed in README.md, docs and the heads of the configs is one that the programs accept."""

import functools
import importlib
import io
import itertools
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

from medfed.cli.program import programs
from medfed.config import search
from medfed.core.errors import UserError
from medfed.core.registry import shipped_configs

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
FENCED = re.compile(r"^ *(`{3,}|~{3,})[ {]*([\w-]*)[^\n]*\n(.*?)^ *\1$", re.MULTILINE | re.DOTALL)
SHELL = ("", "sh", "bash", "shell", "console")  # languages of the blocks that hold commands
BEFORE = re.compile(r"[&|;]+|do|then|else|time|nohup|[!{($]|\w+=.*")  # words that may come before a command
ENDS = re.compile(r"[&|;<>]+")
PLACEHOLDER = re.compile(r"[A-Z_]+")  # a word such as CONFIG
WITH_CONFIG = ("train", "evaluate", "audit")


def blocks(text: str) -> list[str]:
    """The content of each fenced block of Markdown with commands."""
    assert not re.search(r"^ *(```|~~~)", FENCED.sub("", text), re.MULTILINE), "a block has no end"
    return [block for _, language, block in FENCED.findall(text) if language in SHELL]


def notebook_blocks(text: str) -> Iterator[str]:
    """The lines of a notebook that begin with `!`, and the blocks of its texts."""
    for cell in json.loads(text)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield from blocks(source)
        elif source.lstrip().startswith(("%%bash", "%%sh")):
            yield source.partition("\n")[2]
        else:
            yield "\n".join(line.lstrip()[1:] for line in source.splitlines() if line.lstrip().startswith("!"))


def config_blocks(text: str) -> Iterator[str]:
    """The lines with a command, and the commands in backticks, of the comment at the head of a config."""
    head = [line[1:].strip() for line in itertools.takewhile(lambda line: line.startswith("#"), text.splitlines())]
    for line in head:
        if match := re.match(r"(?:[^`]*: +)?((?:python -m )?medfed[. ].*?)(?: {3,}.*|\. .*|\.)?$", line):
            yield match[1]
    yield from re.findall(r"`((?:python -m )?medfed[. ][^`]*)`", " ".join(head))


def commands(block: str) -> Iterator[list[str]]:
    """The words of each command of medfed after `medfed` or `python -m medfed.`."""
    for line in block.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
        lexer.whitespace_split = True
        try:
            words = [";", *lexer]
        except ValueError:  # no command, as an apostrophe in a text
            continue
        for before, (start, word) in zip(words, enumerate(words[1:], 2)):
            rest = list(itertools.takewhile(lambda word: not ENDS.fullmatch(word), words[start:]))
            if word == "medfed" and BEFORE.fullmatch(before):
                yield rest
            elif before == "-m" and word.startswith("medfed."):
                yield [word.removeprefix("medfed."), *rest]


@functools.cache
def parser_of(program: str):
    return importlib.import_module(f"medfed.{program}").parser()


def mistake(words: list[str]) -> str:
    """Why the programs do not accept a command; "" if they do."""
    program, *arguments = words or ["--help"]
    if PLACEHOLDER.fullmatch(program) or program in ("-h", "--help", "--version"):
        return ""
    if program not in programs():
        return f"no program {program}"
    output = io.StringIO()
    arguments = [re.sub(r"\$\{?\w+\}?", "1", argument) for argument in arguments]  # variables of the shell
    try:
        with redirect_stderr(output), redirect_stdout(output):
            found = parser_of(program).parse_args(arguments)
    except SystemExit as end:
        return output.getvalue().splitlines()[-1] if end.code else ""
    try:
        for setting in getattr(found, "set", ()):
            key, equals, _ = setting.partition("=")
            if not equals:
                return f"--set {setting}: no value"
            if not PLACEHOLDER.fullmatch(key) and not key.startswith("data.part_names."):
                search.find(key)
        if program == "keys" and found.word:
            search.find(found.word)
    except UserError as error:
        return str(error)
    if program in WITH_CONFIG:
        name = str(found.config)
        is_named = found.config.suffix or PLACEHOLDER.fullmatch(name) or name in shipped_configs()
        if not is_named or name.startswith("configs/") and not (ROOT / name).is_file():
            return f"no config {name}"
    return ""


def sources() -> Iterator[tuple[Path, str]]:
    """File and content of each block with commands."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md")), *sorted(DOCS.rglob("*.ipynb"))]
    for path in [page for page in pages if page.is_file() and not page.is_relative_to(DOCS / "results" / "runs")]:
        read = notebook_blocks if path.suffix == ".ipynb" else blocks
        yield from ((path, block) for block in read(path.read_text(encoding="utf-8")))
    for path in CONFIGS:
        yield from ((path, block) for block in config_blocks(path.read_text(encoding="utf-8")))


def test_the_programs_accept_every_documented_command():
    wrong, counts = [], dict.fromkeys(("README.md", "docs", "configs"), 0)
    for path, block in sources():
        place = path.relative_to(ROOT)
        for words in commands(block):
            counts[place.parts[0] if place.parts[0] in counts else "docs"] += 1
            if why := mistake(words):
                wrong.append(f"{place}: medfed {shlex.join(words)}: {why}")
    assert not wrong, "\n".join(wrong)
    assert all(count >= 5 for count in counts.values()), counts


TEXT = """
```sh
CUDA_VISIBLE_DEVICES=0 python -m medfed.train prostate \\
    --set "training.betas=[0.9, 0.999]" > log.txt && medfed keys alpha  # a comment's apostrophe
for seed in 1 2; do medfed evaluate CONFIG --leave-one-site-out --seed $seed; done
pip install medfed
```

```python
medfed.train
```

   ```
   $ medfed data check images | head
   ```
"""


def test_commands_are_found_in_blocks_in_front_of_and_behind_other_commands():
    found = [words for block in blocks(TEXT) for words in commands(block)]
    assert found == [
        ["train", "prostate", "--set", "training.betas=[0.9, 0.999]"],
        ["keys", "alpha"],
        ["evaluate", "CONFIG", "--leave-one-site-out", "--seed", "$seed"],
        ["data", "check", "images"],
    ]
    assert [mistake(words) for words in found] == [""] * 4
    assert mistake(["train", "prostate", "--set", "federation.round=3"]) and mistake(["trian", "prostate"])
    cells = [
        {"cell_type": "code", "source": ["import medfed\n", "!medfed keys alpha\n"]},
        {"cell_type": "markdown", "source": ["```\n", "medfed --version\n", "```"]},
    ]
    in_notebook = [words for block in notebook_blocks(json.dumps({"cells": cells})) for words in commands(block)]
    assert in_notebook == [["keys", "alpha"], ["--version"]]
    head = "# Plan: python -m medfed.init ROOT --unseen SITE    (a config)\n# See `medfed data\n# card folder`.\n"
    in_config = [words for block in config_blocks(f"{head}data:\n# medfed no") for words in commands(block)]
    assert in_config == [["init", "ROOT", "--unseen", "SITE"], ["data", "card", "folder"]]

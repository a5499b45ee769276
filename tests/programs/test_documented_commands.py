"""Every command of medfed in README.md, docs and the heads of the configs is one that the programs accept."""

import functools
import importlib
import io
import json
import re
import shlex
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path

import pytest

from medfed.cli.program import programs
from medfed.config import search
from medfed.core.errors import UserError
from medfed.core.registry import shipped_configs

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONFIGS = sorted((ROOT / "configs").glob("*.yaml"))
FENCE = re.compile(r"^( *)(`{3,}|~{3,})[ {]*([\w-]*)")
SHELL = ("", "sh", "bash", "shell", "console")  # languages of the blocks that hold commands
BEFORE = ("do", "then", "else", "time", "nohup", "!", "{", "(")  # words that may come before a command
ENDS = re.compile(r"[&|;]+")
PLACEHOLDER = re.compile(r"[A-Z_]+")  # a word such as CONFIG
WITH_CONFIG = ("train", "evaluate", "audit")


def blocks(text: str) -> Iterator[tuple[int, str]]:
    """The number of the first line, and the content, of each fenced block of Markdown with commands."""
    lines, fence, start = text.splitlines(), "", 0
    for number, line in enumerate(lines, 1):
        if not fence and (match := FENCE.match(line)):
            fence, start, language = match[2], number + 1, match[3]
        elif fence and line.strip() == fence:
            if language in SHELL:
                yield start, "\n".join(lines[start - 1 : number - 1])
            fence = ""
    assert not fence, f"the block that begins at line {start} has no end"


def notebook_blocks(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a notebook that begin with `!`, and the blocks of its texts; the number is that of the cell."""
    for number, cell in enumerate(json.loads(text)["cells"], 1):
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            yield from ((number, block) for _, block in blocks(source))
        elif source.lstrip().startswith("%%bash") or source.lstrip().startswith("%%sh"):
            yield number, source.partition("\n")[2]
        else:
            yield number, "\n".join(line.lstrip()[1:] for line in source.splitlines() if line.lstrip().startswith("!"))


def config_blocks(text: str) -> Iterator[tuple[int, str]]:
    """The lines with a command, and the commands in backticks, of the comment at the head of a config."""
    head = []
    for line in text.splitlines():
        if not line.startswith("#"):
            break
        head.append(line[1:].strip())
    for number, line in enumerate(head, 1):
        if match := re.match(r"(?:[^`]*: +)?((?:python -m )?medfed[. ].*?)(?: {3,}.*|\. .*|\.)?$", line):
            yield number, match[1]
    yield from ((1, span) for span in re.findall(r"`((?:python -m )?medfed[. ][^`]*)`", " ".join(head)))


def commands(block: str) -> Iterator[tuple[int, list[str]]]:
    """The words of each command of medfed after `medfed` or `python -m medfed.`, and its line in the block, from 0."""
    lines = block.splitlines()
    for first, line in enumerate(lines):
        if first and lines[first - 1].rstrip().endswith("\\"):
            continue
        following = first
        while line.rstrip().endswith("\\") and following + 1 < len(lines):
            following += 1
            line = f"{line.rstrip()[:-1]} {lines[following]}"
        if not re.search(r"\bmedfed[. ]", line):
            continue
        try:
            words = _words(line.strip().removeprefix("$ "))
        except ValueError:  # no command, as an apostrophe in a text
            continue
        command: list[str] = []
        for word in [*words, ";"]:
            if not ENDS.fullmatch(word):
                command.append(word)
            else:
                if (found := _of_medfed(command)) is not None:
                    yield first, found
                command = []


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(line, posix=True, punctuation_chars="&|;<>")
    lexer.whitespace_split = True
    words = list(lexer)
    for index in reversed([index for index, word in enumerate(words) if re.fullmatch("[<>]+&?", word)]):
        words[index : index + 2] = []  # a redirection and its file
    return words


def _of_medfed(words: list[str]) -> list[str] | None:
    while words and (words[0] in BEFORE or re.match(r"\w+=", words[0])):
        words = words[1:]
    if words[:1] == ["medfed"]:
        return words[1:]
    if re.fullmatch(r"(\S*/)?python3?", words[0] if words else "") and words[1:2] == ["-m"] and len(words) > 2:
        package, _, program = words[2].partition(".")
        if package == "medfed":
            return [*filter(None, [program]), *words[3:]]
    return None


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


def sources() -> Iterator[tuple[Path, int, str]]:
    """File, number of the first line (of the cell, in a notebook) and content of each block with commands."""
    pages = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md")), *sorted(DOCS.rglob("*.ipynb"))]
    for path in [page for page in pages if page.is_file() and not page.is_relative_to(DOCS / "results" / "runs")]:
        read = notebook_blocks if path.suffix == ".ipynb" else blocks
        yield from ((path, number, block) for number, block in read(path.read_text(encoding="utf-8")))
    for path in CONFIGS:
        yield from ((path, number, block) for number, block in config_blocks(path.read_text(encoding="utf-8")))


def test_the_programs_accept_every_documented_command():
    wrong, counts = [], dict.fromkeys(("README.md", "docs", "configs"), 0)
    for path, number, block in sources():
        place = path.relative_to(ROOT)
        for line, words in commands(block):
            counts[place.parts[0] if place.parts[0] in counts else "docs"] += 1
            if why := mistake(words):
                wrong.append(f"{place}:{number + line}: medfed {shlex.join(words)}: {why}")
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
    found = [(number + line, words) for number, block in blocks(TEXT) for line, words in commands(block)]
    assert found == [
        (3, ["train", "prostate", "--set", "training.betas=[0.9, 0.999]"]),
        (3, ["keys", "alpha"]),
        (5, ["evaluate", "CONFIG", "--leave-one-site-out", "--seed", "$seed"]),
        (14, ["data", "check", "images"]),
    ]
    assert [mistake(words) for _, words in found] == [""] * 4
    cells = [
        {"cell_type": "code", "source": ["import medfed\n", "!medfed keys alpha\n"]},
        {"cell_type": "markdown", "source": ["```\n", "medfed --version\n", "```"]},
    ]
    in_notebook = [words for _, block in notebook_blocks(json.dumps({"cells": cells})) for _, words in commands(block)]
    assert in_notebook == [["keys", "alpha"], ["--version"]]
    head = "# Plan: python -m medfed.init ROOT --unseen SITE    (a config)\n# See `medfed data\n# card folder`.\n"
    in_config = [words for _, block in config_blocks(f"{head}data:\n# medfed no") for _, words in commands(block)]
    assert in_config == [["init", "ROOT", "--unseen", "SITE"], ["data", "card", "folder"]]


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("medfed trian prostate", "no program trian"),
        ("medfed train", "the following arguments are required: config"),
        ("medfed train prostate --seeds 3", "unrecognized arguments: --seeds 3"),
        ("medfed train prostate --jobs many", "expected a whole number of at least 1, got many"),
        ("medfed train prostate --set federation.round=3", "no setting 'round' in federation. Did you mean 'rounds'"),
        ("medfed train prostate --set federation.rounds 3", "unrecognized arguments: 3"),
        ("python -m medfed.train configs/prostat.yaml", "no config configs/prostat.yaml"),
        ("medfed evaluate prostat --leave-one-site-out", "no config prostat"),
        ("medfed keys alfa", "no block, name or setting 'alfa'"),
    ],
)
def test_a_wrong_command_is_found(command, words):
    ((_, found),) = commands(command)
    assert words in mistake(found)

"""Print the settings that a config may hold: type, range, default, meaning and source of each."""

from __future__ import annotations

import argparse
import json
import shutil
import sys
import textwrap

from medfed.cli.program import main_of, new_parser
from medfed.config import search
from medfed.config.search import Group, describe_schema
from medfed.core import registry
from medfed.core.registry import BLOCK_KINDS


def parser() -> argparse.ArgumentParser:
    parser = new_parser(
        "keys",
        __doc__,
        ("elcfs", "the settings of a method"),
        ("training.batch_size", "one setting; without a word, all blocks"),
    )
    parser.add_argument(
        "word", nargs="?", help="a block, method, network, dataset, engine, metric or key; without it, all blocks"
    )
    parser.add_argument("--json-schema", action="store_true", help="print the JSON Schema of a config, for editors")
    return parser


def _work(args: argparse.Namespace) -> int:
    if args.json_schema:
        from medfed.config import json_schema  # imports torch and MONAI, which the other words do not need

        print(json_schema.to_text(), end="")
        return 0
    groups = list(search.blocks().values()) if args.word is None else search.find(args.word)
    width = min(max(shutil.get_terminal_size((100, 24)).columns, 80), 120)
    print("\n\n".join("\n".join(_lines(group, width)) for group in groups))
    return 0


def _lines(group: Group, width: int) -> list[str]:
    """Return the heading of a group and its settings, as lines of at most `width` characters where words allow it."""
    key = f"{group.block}.name" if group.block in BLOCK_KINDS else group.block
    place = f"{key}: {group.name}" if group.name else group.block or "top level"
    lines = [f"{place}  ({group.file})", *_wrapped(group.title, width, 2)]
    if group.source:
        lines += _wrapped(f"Source: {group.source}", width, 2)
    for key, setting in group.settings.items():
        default = f"default {json.dumps(setting['default'])}" if "default" in setting else "required"
        kind = "name | dotted name" if key == "name" and "anyOf" in setting else describe_schema(setting)
        lines += ["", *_wrapped(f"{key}: {kind}; {default}", width, 2)]
        meaning = setting["description"]
        lines += _wrapped(meaning[:1].upper() + meaning[1:], width, 6)
    if "name" in group.settings and not group.name:
        names = registry.known_names(BLOCK_KINDS[group.block])
        lines += ["", *_wrapped(f"`medfed keys NAME` prints the settings of one of: {', '.join(names)}.", width, 2)]
    return lines


def _wrapped(text: str, width: int, indent: int) -> list[str]:
    space = " " * indent
    return textwrap.wrap(
        text, width, initial_indent=space, subsequent_indent=space, break_long_words=False, break_on_hyphens=False
    )


main = main_of("keys", parser, _work)

if __name__ == "__main__":
    sys.exit(main())

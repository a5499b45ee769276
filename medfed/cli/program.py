"""What the command-line programs share: their list, their flags, their exit codes and how errors are printed.

Importing torch and MONAI takes seconds. A program therefore checks its flags first: its module imports only what the
parser needs, and the function that does the work imports what this needs.
"""

from __future__ import annotations

import argparse
import errno
import json
import os
import select
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, redirect_stdout, suppress
from pathlib import Path
from typing import Any, TextIO

from medfed.cli.notes import show_notes_by
from medfed.core.errors import UserError, WorkerBug, is_out_of_memory
from medfed.core.files import note_absolute
from medfed.core.import_path import import_from_current_folder
from medfed.core.malloc import keep_freed_memory
from medfed.core.registry import PACKAGE, code_allowed, first_line

PROGRAMS = (
    "init train evaluate reproduce export score aggregate report audit keys coordinator site data codec benchmark"
).split()
INTERRUPTED, TERMINATED, CLOSED_PIPE = (128 + number for number in (2, 15, 13))  # as shells count signals
OUT_OF_MEMORY = (
    "the memory is not enough; expected what the images and the network need; lower data.image_size or "
    "training.batch_size, choose a smaller network or fewer --jobs, or free some memory"
)
EXAMPLES = "examples:"  # the line of a program's help after which its examples begin
NO_SPACE = (errno.ENOSPC, errno.EDQUOT)  # a full disk, an exhausted quota


class Terminated(KeyboardInterrupt):
    """Raised for SIGTERM and SIGHUP (of a terminal that is closed); the same clean-up code runs as for Ctrl-C."""


def programs() -> dict[str, str]:
    """The first docstring line of each program, by name, such as "train"; none is imported."""
    return {name: first_line(PACKAGE / f"{name}.py") for name in PROGRAMS}


class _ExamplesFormatter(argparse.HelpFormatter):
    """Wraps all text as usual, except for the lines of the examples."""

    def _fill_text(self, text: str, width: int, indent: str) -> str:
        return text if text.startswith(EXAMPLES) else super()._fill_text(text, width, indent)


def new_parser(program: str, description: str | None, *examples: tuple[str, str]) -> argparse.ArgumentParser:
    """Return the parser of a program, such as "train"; `examples` are pairs of arguments and a comment."""
    parser = argparse.ArgumentParser(prog=f"medfed {program}", description=description)
    return _with_examples(parser, examples)


def add_command(
    commands: argparse._SubParsersAction[argparse.ArgumentParser],
    name: str,
    description: str,
    *examples: tuple[str, str],
) -> argparse.ArgumentParser:
    """Add a command of a program, such as "check" of `medfed data`, and return its parser (examples: `new_parser`)."""
    summary = description.partition(". ")[0].rstrip(".")
    parser = commands.add_parser(name, help=summary[:1].lower() + summary[1:], description=description)
    return _with_examples(parser, examples)


def _with_examples(parser: argparse.ArgumentParser, examples: Iterable[tuple[str, str]]) -> argparse.ArgumentParser:
    lines = [f"  # {comment}\n  {parser.prog} {arguments}".rstrip() for arguments, comment in examples]
    parser.formatter_class, parser.epilog = _ExamplesFormatter, "\n".join([EXAMPLES, *lines])
    return parser


def add_config_argument(parser: argparse.ArgumentParser) -> None:
    """Add the argument `config`: a YAML file, or the name of a config that comes with medfed."""
    parser.add_argument(
        "config",
        type=Path,
        help="a YAML file, for example my.yaml, or the name of a config that comes with medfed, for example prostate",
    )


def add_common_flags(parser: argparse.ArgumentParser) -> None:
    """Add --out, --resume, and the flags of `add_setting_flags`."""
    parser.add_argument("--out", type=Path, metavar="FOLDER", help="folder for the results")
    parser.add_argument("--resume", action="store_true", help="continue the run in that folder after its last round")
    add_setting_flags(parser)


def add_setting_flags(parser: argparse.ArgumentParser) -> None:
    """Add --set (which may be repeated), --seed and --device (see `overrides`), --allow-code and --quiet."""
    _add_set_flag(parser, "change one setting: --set training.batch_size=8")
    parser.add_argument("--seed", type=int, help="the same as --set seed=...")
    parser.add_argument("--device", help="the same as --set device=...: auto, cpu or cuda")
    add_code_flag(parser)


def add_image_flags(parser: argparse.ArgumentParser) -> None:
    """Add how a folder of images is read, --dataset and --set, and --allow-code and --quiet."""
    parser.add_argument("--dataset", metavar="NAME", help="name in a config (default: found by the names of the files)")
    _add_set_flag(parser, "a setting, such as 'data.image={site}/{case}_T2.nii.gz' or data.image_size=128")
    add_code_flag(parser)


def _add_set_flag(parser: argparse.ArgumentParser, what: str) -> None:
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help=what)


def add_code_flag(parser: argparse.ArgumentParser) -> None:
    """Add --quiet, and --allow-code, which `main_of` hands on."""
    parser.add_argument(
        "--allow-code",
        action="store_true",
        help="let the config name classes outside of medfed, such as my_methods.Mine in my_methods.py in this folder; "
        "their code is then run",
    )
    parser.add_argument("--quiet", action="store_true", help="print only the result, no progress")


def add_json_flag(parser: argparse.ArgumentParser, what: str) -> None:
    """Add `--json` (see `only_json`)."""
    text = f"print only {what} on standard output, as one JSON document"
    parser.add_argument("--json", action="store_true", help=text)


@contextmanager
def only_json(is_wanted: bool) -> Iterator[Callable[[Any], None]]:
    """Yield a function that prints a result as JSON if it `is_wanted`; all other output then goes to stderr."""
    stdout = sys.stdout

    def show(content: Any) -> None:
        if is_wanted:
            print(json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False), file=stdout)

    with redirect_stdout(sys.stderr if is_wanted else stdout):
        yield show


def add_jobs_flag(parser: argparse.ArgumentParser, what: str) -> None:
    """Add `--jobs`: how many of `what`, such as "sites", work at the same time."""
    parser.add_argument(
        "--jobs",
        type=whole_number(1),
        metavar="N",
        help=f"how many {what} work at the same time, each in a process of its own (1: no process is "
        "started). Default: as many as cores and memory allow, if this saves time; on a GPU 1. "
        "The result does not depend on N",
    )


def require_paths(expected: str, *paths: Path) -> None:
    """UserError for the first path that does not exist, before anything slow is imported."""
    for path in paths:
        if not path.exists():
            raise UserError(f"{path}: does not exist{note_absolute(path)}; expected {expected}")


def whole_number(minimum: int) -> Callable[[str], int]:
    """Return the type of a flag that is a whole number of at least `minimum`."""

    def convert(text: str) -> int:
        if not text.isdecimal() or int(text) < minimum:
            raise argparse.ArgumentTypeError(f"expected a whole number of at least {minimum}, got {text}")
        return int(text)

    return convert


def overrides(arguments: argparse.Namespace) -> list[str]:
    """The changes of the config as `KEY=VALUE`: those of --set, then `seed=...` and `device=...`."""
    short = {"seed": arguments.seed, "device": arguments.device}
    return [*arguments.set, *(f"{key}={value}" for key, value in short.items() if value is not None)]


def main_of(
    name: str, parser: Callable[[], argparse.ArgumentParser], work: Callable[[argparse.Namespace], int]
) -> Callable[..., int]:
    """Return the function `main` of a program, which does its work for a list of arguments (None: `sys.argv`)."""

    def main(argv: list[str] | None = None) -> int:
        args = parser().parse_args(argv)
        return run_program(f"medfed.{name}", lambda: work(args), getattr(args, "allow_code", False))

    return main


def run_program(name: str, work: Callable[[], int], allow_code: bool = False) -> int:
    """Do a program's work, and print errors that a user can correct without a traceback. Return the exit code:

    - the result of `work`;
    - 1 if a file cannot be written or the memory is not enough, or for a `WorkerBug`;
    - 2 for a UserError;
    - 130 for Ctrl-C and 143 for SIGTERM and SIGHUP;
    - 141, without a message, if the reader of the output has ended, such as `head` in `medfed data | head`.

    Any other exception is a bug and keeps its traceback. `name`, such as `medfed.train`, starts each line on stderr.
    Without `allow_code`, Python finds no module in the current folder, which somebody else may have sent.
    """
    keep_freed_memory()
    try:
        with (
            import_from_current_folder(allow_code),
            _signals_raise(),
            _notices_are_lines(),
            code_allowed(allow_code),
            _says_starting(name),
        ):
            code = work()
            for stream in filter(None, (sys.stdout, sys.stderr)):
                stream.flush()
            return code
    except UserError as error:
        return _end(name, error.sentences, 2)
    except KeyboardInterrupt as stop:
        was, code = ("terminated", TERMINATED) if isinstance(stop, Terminated) else ("interrupted", INTERRUPTED)
        return _end(name, (str(stop) or was,), code)
    except BrokenPipeError:
        if not _drop_dead_streams():
            raise
        return CLOSED_PIPE
    except Exception as error:
        sentence = str(error) if isinstance(error, WorkerBug) else machine_sentence(error)
        if sentence is None:
            raise
        return _end(name, (sentence,), 1)


def machine_sentence(error: Exception) -> str | None:
    """What to do if the machine caused an error (an unusable file, little memory); None for a UserError and a bug."""
    if isinstance(error, (MemoryError, RuntimeError)) and is_out_of_memory(error):
        return OUT_OF_MEMORY
    if isinstance(error, OSError) and error.errno and (error.filename or error.errno in NO_SPACE):
        cure = (
            "free some space; a run goes on with --resume"
            if error.errno in NO_SPACE
            else "correct this, or choose another folder"
        )
        return f"{error.filename2 or error.filename or 'a file could not be written'}: {error.strerror}; {cure}"
    return None


def _end(name: str, sentences: Iterable[str], code: int) -> int:
    """Print each sentence, or row of a table, as one line on stderr and return the exit code."""
    _drop_dead_streams()
    with suppress(OSError):  # the terminal may have been closed
        for sentence in sentences:
            print(f"{name}: {' '.join(map(str.strip, sentence.splitlines()))}", file=sys.stderr)
    _drop_dead_streams()
    return code


@contextmanager
def _notices_are_lines() -> Iterator[None]:
    """Print each warning of medfed as one line on stderr, once; other warnings keep Python's format."""
    shown: set[str] = set()

    def show(text: str) -> None:
        if text not in shown:
            shown.add(text)
            print(f"note: {text}", file=sys.stderr)

    with warnings.catch_warnings():
        warnings.showwarning = show_notes_by(show, warnings.showwarning)
        yield


@contextmanager
def _says_starting(name: str) -> Iterator[None]:
    """Tell a terminal after half a second that the program works, as importing torch and MONAI takes seconds."""
    timer = threading.Timer(0.5, print, [f"{name}: starting ..."], {"file": sys.stderr, "flush": True})
    timer.daemon = True
    if sys.stderr is not None and sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


@contextmanager
def _signals_raise() -> Iterator[None]:
    """Turn SIGTERM and SIGHUP into exceptions while the work runs; Python allows this in the main thread only.

    A signal that is ignored stays ignored, so that under nohup the terminal may be closed.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)}
    before = {number: handler for number, handler in handlers.items() if handler != signal.SIG_IGN}
    for number in before:
        signal.signal(number, _terminate)
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler or signal.SIG_DFL)


def _terminate(*_: object) -> None:
    raise Terminated


def _drop_dead_streams() -> bool:
    """Redirect stdout and stderr to /dev/null if they cannot be written to; return whether one was redirected.

    Otherwise Python would print an error when it closes the stream at exit.
    """
    dead = [stream for stream in (sys.stdout, sys.stderr) if stream is not None and _is_dead(stream)]
    for stream in dead:
        devnull = os.open(os.devnull, os.O_WRONLY)
        os.dup2(devnull, stream.fileno())
        os.close(devnull)
    return bool(dead)


def _is_dead(stream: TextIO) -> bool:
    """Whether a stream cannot be flushed, or is a pipe whose reader has gone."""
    try:
        stream.flush()
    except OSError:
        return True
    try:
        pipe = stream.fileno()
    except OSError:  # not a file, as in a test or a notebook
        return False
    poll = select.poll()
    poll.register(pipe, 0)
    return any(event & select.POLLERR for _, event in poll.poll(0))

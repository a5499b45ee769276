"""The list, the one command over the programs, how programs end, and how names are found."""

import argparse
import errno
import os
import signal
import subprocess
import sys
import time

import pytest

from medfed import __main__, __version__, benchmark, evaluate, reproduce, train
from medfed.cli import program
from medfed.cli.program import Terminated, add_common_flags, overrides, run_program
from medfed.core import registry
from medfed.core.errors import UserError


def run_python(code: str, **options) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, **options)


def raising(error: BaseException):
    def work() -> int:
        raise error

    return work


def test_the_list_describes_programs_and_names_what_a_config_may_hold(capsys):
    assert __main__.main([]) == 0
    printed = capsys.readouterr().out
    lines = printed.splitlines()
    assert lines[0].startswith(f"medfed {__version__}: ")
    train, report = (next(line for line in lines if line.startswith(f"  {name} ")) for name in ("train", "report"))
    assert train.index("Train a federation") == report.index("Write one HTML page")
    for kind in registry.KINDS:
        names = "".join(lines[lines.index(kind.replace("_", " ")) :]).replace("  ", " ")
        assert ", ".join(registry.known_names(kind)) in names


def test_the_list_imports_nothing_heavy():
    heavy = "[name for name in ('torch', 'monai', 'numpy', 'yaml') if name in sys.modules]"
    assert run_python(f"import sys, medfed.__main__ as m; m.listing(); print({heavy})").stdout == "[]\n"


def test_the_list_survives_a_closed_pipe():
    command = f"{sys.executable} -m medfed | true"
    assert subprocess.run(command, shell=True, capture_output=True, timeout=60).stderr == b""


def test_version_help_and_an_unknown_program_that_suggests_another(capsys):
    assert __main__.main(["trian"]) == 2
    assert capsys.readouterr().err.startswith("medfed: no program 'trian'. Did you mean 'train'? Known: init, train")
    assert __main__.main(["--version"]) == 0 and capsys.readouterr().out == f"medfed {__version__}\n"
    assert __main__.main(["-h"]) == 0 and "programs" in capsys.readouterr().out


def test_every_program_reads_its_flags_before_it_imports_torch_or_monai():
    """In one new process, through the command `medfed`, which imports the module of the program."""
    code = """
import sys
from medfed.__main__ import main
from medfed.cli.program import programs
codes = {'--help': [], '--no-such-flag': []}
for flag in codes:
    for name in programs():
        try:
            codes[flag].append(main([name, flag]))
        except SystemExit as end:
            codes[flag].append(end.code)
print(codes, [name for name in ('torch', 'monai', 'nvflare', 'matplotlib', 'scipy') if name in sys.modules])
"""
    done, n = run_python(code), len(program.programs())
    assert done.stdout.splitlines()[-1] == f"{{'--help': {[0] * n}, '--no-such-flag': {[2] * n}}} []"
    assert done.stdout.count("usage: ") == done.stderr.count("usage: ") == n


def test_the_command_passes_the_other_arguments_to_the_program(monkeypatch):
    called = []
    module = argparse.Namespace(main=lambda argv: called.append(argv) or 7)
    monkeypatch.setitem(sys.modules, "medfed.train", module)
    assert __main__.main(["train", "a.yaml", "--quiet"]) == 7
    assert called == [["a.yaml", "--quiet"]]


def test_a_user_error_is_one_line_and_exit_code_2_and_other_codes_are_those_of_the_work(capsys):
    assert [run_program("x", lambda: 0), run_program("x", lambda: 3)] == [0, 3]
    assert run_program("medfed.train", raising(UserError("a.yaml: seed: expected\n  a number"))) == 2
    assert capsys.readouterr().err == "medfed.train: a.yaml: seed: expected a number\n"


@pytest.mark.parametrize(
    "stop, code, text",
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (KeyboardInterrupt("stopped after round 3"), 130, "stopped after round 3"),
        (Terminated(), 143, "terminated"),
        (Terminated("stopped after round 3"), 143, "stopped after round 3"),
    ],
)
def test_an_interrupted_program_prints_the_text_of_the_exception(stop, code, text, capsys):
    assert run_program("medfed.train", raising(stop)) == code
    assert capsys.readouterr().err == f"medfed.train: {text}\n"


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_signal_stops_the_work_and_its_handler_is_removed(number):
    ignored = signal.signal(number, signal.SIG_DFL)  # under nohup, pytest itself ignores SIGHUP
    before = signal.getsignal(number)
    tidied = []

    def work() -> int:
        try:
            os.kill(os.getpid(), number)
            time.sleep(10)
        except KeyboardInterrupt:
            tidied.append(True)
            raise
        return 0

    try:
        assert run_program("x", work) == 143
        assert tidied == [True] and signal.getsignal(number) is before
    finally:
        signal.signal(number, ignored)


def test_under_nohup_the_terminal_may_be_closed():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        assert run_program("x", lambda: os.kill(os.getpid(), signal.SIGHUP) or 0) == 0
    finally:
        signal.signal(signal.SIGHUP, before)


@pytest.mark.parametrize(
    "number, advice",
    [
        (errno.ENOSPC, "No space left on device; free some space; a run goes on with --resume"),
        (errno.EROFS, "Read-only file system; correct this, or choose another folder"),
        (errno.EACCES, "Permission denied; correct this, or choose another folder"),
        (errno.EDQUOT, "Disk quota exceeded; free some space; a run goes on with --resume"),
    ],
)
def test_an_error_of_the_disk_is_one_line_with_the_file(number, advice, capsys):
    assert run_program("medfed.train", raising(OSError(number, os.strerror(number), "runs/a/x"))) == 1
    assert capsys.readouterr().err == f"medfed.train: runs/a/x: {advice}\n"


def test_a_bug_and_another_system_error_keep_their_traceback():
    with pytest.raises(ZeroDivisionError):
        run_program("medfed.train", lambda: 1 // 0)
    with pytest.raises(OSError):
        run_program("x", raising(OSError(errno.ECONNREFUSED, "refused")))
    with pytest.raises(BrokenPipeError):  # of a socket; the standard streams are well
        run_program("x", raising(BrokenPipeError()))


PRINTS_A_LOT = (
    "import sys\nfrom medfed.cli.program import run_program\n"
    "def work():\n    for _ in range(100000): print('a line')\n    return 0\n"
    "sys.exit(run_program('x', work))\n"
)


def test_a_closed_pipe_ends_the_program_without_a_message(tmp_path):
    reading, writing = os.pipe()
    os.close(reading)
    done = subprocess.run([sys.executable, "-c", PRINTS_A_LOT], stdout=writing, stderr=subprocess.PIPE, timeout=60)
    os.close(writing)
    assert (done.returncode, done.stderr) == (141, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="needs /dev/full")
def test_printing_to_a_full_disk_is_one_line():
    with open("/dev/full", "wb") as full:
        done = subprocess.run([sys.executable, "-c", PRINTS_A_LOT], stdout=full, stderr=subprocess.PIPE, timeout=60)
    assert done.returncode == 1 and done.stderr.count(b"\n") == 1
    assert done.stderr.startswith(b"x: a file could not be written: No space left on device;")


def test_the_common_flags_become_overrides():
    parser = argparse.ArgumentParser()
    add_common_flags(parser)
    none = parser.parse_args([])
    assert (overrides(none), none.out, none.resume, none.quiet) == ([], None, False, False)
    some = parser.parse_args("--set a.b=1 --seed 0 --set c=[1] --device cpu --out runs/x --resume --quiet".split())
    assert overrides(some) == ["a.b=1", "c=[1]", "seed=0", "device=cpu"]
    assert (str(some.out), some.resume, some.quiet) == ("runs/x", True, True)


def test_each_file_in_the_folder_of_a_kind_is_a_name_and_is_not_imported(tmp_path, monkeypatch):
    monkeypatch.setattr(registry, "PACKAGE", tmp_path)
    (tmp_path / "engines" / "parts").mkdir(parents=True)
    (tmp_path / "engines" / "__init__.py").write_text('"""Engines."""\n')
    (tmp_path / "engines" / "post.py").write_text('"""By post.\n\nMore."""\nraise SystemExit\n')
    (tmp_path / "engines" / "parts" / "envelope.py").write_text('"""Helper."""\n')
    assert registry.known_names("engines") == {"post": "By post."}


def test_every_listed_name_is_found():
    for kind in registry.KINDS:
        for name in registry.known_names(kind):
            assert registry.name_of(kind, registry.resolve(kind, name)) == name


@pytest.mark.parametrize(
    "name, sentence",
    [
        ("nowhere_for_test.x", "'NAME' cannot be imported: No module named 'nowhere_for_test'; it must be"),
        ("os.path", "'NAME' is no method; expected a class derived from medfed.federation.method.Method$"),
        ("os.getcwd", "'NAME' is no method; expected a class derived from medfed.federation.method.Method$"),
        ("medfed.federation.method.Method", "'NAME' is no method; expected a class derived from NAME$"),
        ("needs_for_test", "no method 'NAME'. "),
        ("..x", "'NAME' cannot be imported: "),
        ("a b.c", "'NAME' cannot be imported: No module named 'a b'; it must be"),
    ],
)
def test_a_dotted_name_that_cannot_be_resolved_is_one_sentence(name, sentence):
    with registry.code_allowed(), pytest.raises(UserError, match="^" + sentence.replace("NAME", name)):
        registry.resolve("methods", name)


def test_a_missing_import_of_an_outside_module_is_named(tmp_path, monkeypatch):
    (tmp_path / "needy_for_test.py").write_text("import absent_for_test\n")
    monkeypatch.syspath_prepend(tmp_path)
    sentence = "^'needy_for_test.Mine' cannot be imported: No module named 'absent_for_test'; it must be"
    with registry.code_allowed(), pytest.raises(UserError, match=sentence):
        registry.resolve("methods", "needy_for_test.Mine")


def test_suggestions_ignore_case():
    assert registry.suggestion("ELCFS", ["elcfs", "fedavg"]) == "Did you mean 'elcfs'? Known: elcfs, fedavg"
    assert registry.suggestion("zzz", []) == "Known: none"


@pytest.mark.parametrize("text", ["0", "-1", "x", "1.5", "", "²"])
@pytest.mark.parametrize(
    ("main", "words", "smallest"),
    [
        (train.main, ["prostate"], 1),
        (evaluate.main, ["prostate", "--leave-one-site-out"], 1),
        (reproduce.main, ["ccst", "table_2"], 1),
        (benchmark.main, [], 2),
    ],
    ids=["train", "evaluate", "reproduce", "benchmark"],
)
def test_a_wrong_number_of_jobs_gets_the_same_sentence_from_every_program(main, words, smallest, text, capsys):
    with pytest.raises(SystemExit) as ended:
        main([*words, f"--jobs={text}"])
    assert ended.value.code == 2
    last = capsys.readouterr().err.splitlines()[-1]
    assert last.endswith(f"--jobs: expected a whole number of at least {smallest}, got {text}")

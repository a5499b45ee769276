"""Code that runs in a forked process as if some packages had not been imported, and all others had."""

import os
import sys
import traceback
from contextlib import redirect_stdout


def run_without(packages: tuple[str, ...], code: str) -> str:
    """Run Python code in a process that has not imported these packages, but all else; return what the code prints."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        exit_code = 1
        try:
            for name in [name for name in sys.modules if name.partition(".")[0] in packages]:
                del sys.modules[name]
            with open(writing, "w") as file, redirect_stdout(file):
                exec(code, {})
            exit_code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(exit_code)  # nothing of the tests may run in the child
    os.close(writing)
    with open(reading) as file:
        text = file.read()
    exit_code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert exit_code == 0, text
    return text

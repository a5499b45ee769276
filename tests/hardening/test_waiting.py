"""R6: nothing waits without an end: a search of the code."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import medfed

pytestmark = pytest.mark.hardening
ROOT = Path(medfed.__file__).parent
WITHOUT_ARGUMENTS = {"join", "wait", "get", "acquire", "result", "communicate", "accept"}  # endless if called like this
ALWAYS = {"recv", "recv_bytes", "input"}
NEED_TIMEOUT = {"run", "check_call", "check_output", "call", "urlopen"}
REVIEWED = {  # calls that end although they have no deadline themselves, and why
    "deployment/take_part.py: input": "a person is asked",
    "engines/in_process.py: result": "the end of a write to the disk of this machine",
    "engines/parts/worker_pool.py: result": "the future is done (as_completed)",
    "engines/parts/worker_process.py: wait": "the process was killed before",
    "engines/parts/worker_process.py: recv_bytes": "the socket has a receive timeout",
    "engines/nvflare.py: wait": "the process was killed before",
    "engines/flare/connection.py: recv_bytes": "polled before; ends when the process of FLARE's job ends",
    "engines/flare/controller.py: accept": "the coordinator's program, which ends the job if it is late",
    "engines/flare/controller.py: recv_bytes": "polled before; ends when the coordinator's program ends",
    "engines/flare/kit.py: recv": "the socket has the timeout with which it was connected",
    "engines/flare/site_worker.py: result": "the future is done",
    "engines/flare/site_worker.py: get": "a thread waits for a request, and ends with the object",
    "deployment/worker.py: recv_bytes": "a worker waits for its parent, and ends when the parent ends",
}


def blocking_calls(tree: ast.Module, source: str) -> Iterator[str]:
    """Yield "FILE: NAME" of each call that may wait without a deadline."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "attr", getattr(node.func, "id", ""))
        owner = getattr(getattr(node.func, "value", None), "id", "")
        has_arguments = bool(node.args or node.keywords)
        has_timeout = any(keyword.arg and "timeout" in keyword.arg for keyword in node.keywords)
        if (
            name in ALWAYS
            or (name in WITHOUT_ARGUMENTS and not has_arguments)
            or (name in NEED_TIMEOUT and (owner == "subprocess" or name == "urlopen") and not has_timeout)
        ):
            yield f"{source}: {name}"


def test_r6_calls_without_a_deadline(measurement):
    files = sorted(ROOT.rglob("*.py"))
    trees = {path.relative_to(ROOT).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in files}
    found = [call for source, tree in trees.items() for call in blocking_calls(tree, source)]
    new = sorted(set(found) - REVIEWED.keys())
    control = "import subprocess, queue\nsubprocess.run(['x'])\nqueue.Queue().get()\nconnection.recv()\nevent.wait()\n"
    n_control = len(list(blocking_calls(ast.parse(control), "control.py")))
    measurement.report(
        f"calls in {len(files)} files that may wait without a deadline",
        (
            "0 that were not reviewed",
            f"{len(new)} not reviewed; {len(found)} reviewed, all of which end",
            not new,
        ),
        (f"found in a file with 4 such calls: {n_control}", n_control == 4),
        new,
    )

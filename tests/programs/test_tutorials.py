"""The notebooks in docs/tutorials: what is committed, and (slow) that they run."""

import ast
import json
import re
import shlex
import time
from pathlib import Path

import pytest

import medfed

ROOT = Path(medfed.__file__).parent.parent
NOTEBOOKS = sorted((ROOT / "docs/tutorials").glob("*.ipynb"))
MAX_NOTEBOOK_BYTES, MAX_IMAGE_BYTES, MAX_SECONDS = 600_000, 150_000, 600
MACHINE_PATH = re.compile(r"(?<![\w.])/(tmp|root|work|home|Users|private|var)/|site-packages")
EMBEDDED_IMAGE = re.compile(r"base64,[\w+/=\\]*")
IMAGES = ("image/png", "image/jpeg")

pytestmark = pytest.mark.skipif(not NOTEBOOKS, reason="no tutorials beside the package")
each_notebook = pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)


def cells_of(path: Path, kind: str) -> list[dict]:
    return [cell for cell in json.loads(path.read_text(encoding="utf-8"))["cells"] if cell["cell_type"] == kind]


def joined(text: str | list[str]) -> str:
    return "".join(text)


def shows_something(source: str) -> bool:
    """Whether a cell calls `print` or `plot`, or ends with the name of a value; its functions do not count."""
    statements = ast.parse(source).body
    outside = [line for line in statements if not isinstance(line, ast.FunctionDef | ast.ClassDef)]
    calls = [ast.unparse(node.func) for line in outside for node in ast.walk(line) if isinstance(node, ast.Call)]
    is_value = isinstance(statements[-1], ast.Expr) and not isinstance(statements[-1].value, ast.Call)
    return is_value or any(name == "print" or name.startswith("medfed.plot.") for name in calls)


@each_notebook
def test_a_tutorial_begins_with_its_title_and_ends_with_what_comes_next(path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    assert all(cell["cell_type"] == "markdown" for cell in (cells[0], cells[-1]))
    assert joined(cells[0]["source"]).startswith("# ") and joined(cells[-1]["source"]).startswith("## Next")


@each_notebook
def test_the_outputs_of_a_tutorial_are_those_of_one_run_without_errors_notes_and_machine_paths(path):
    cells = cells_of(path, "code")
    assert [cell["execution_count"] for cell in cells] == list(range(1, len(cells) + 1))
    for cell in cells:
        source, outputs = joined(cell["source"]), cell["outputs"]
        assert outputs or not shows_something(source), f"no output: {source}"
        assert all(output["output_type"] != "error" for output in outputs), source
        assert all(output.get("name") != "stderr" for output in outputs), source
        texts = [joined(output.get("text", "")) for output in outputs]
        texts += [
            EMBEDDED_IMAGE.sub("", joined(content))
            for output in outputs
            for kind, content in output.get("data", {}).items()
            if kind not in IMAGES
        ]
        for text in (source, *texts):
            assert not MACHINE_PATH.search(text), text


@each_notebook
def test_a_tutorial_is_small(path):
    assert path.stat().st_size < MAX_NOTEBOOK_BYTES
    images = [
        joined(content)
        for cell in cells_of(path, "code")
        for output in cell["outputs"]
        for kind, content in output.get("data", {}).items()
        if kind in IMAGES
    ]
    assert all(len(image) * 3 / 4 < MAX_IMAGE_BYTES for image in images)


@pytest.mark.parametrize("name", ["train_and_read", "compare_methods"])
def test_the_command_of_a_tutorial_has_the_settings_of_its_cells(name):
    path = ROOT / f"docs/tutorials/{name}.ipynb"
    (source,) = (text for cell in cells_of(path, "code") if "load_config(" in (text := joined(cell["source"])))
    session: dict = {}
    exec(source, session)
    texts = [joined(cell["source"]) for cell in cells_of(path, "markdown")]
    (block,) = (found[1] for text in texts if (found := re.search(r"^```\n(.*?)^```", text, re.MULTILINE | re.DOTALL)))
    _, _, _, config, *arguments = shlex.split(block.replace("\\\n", " "), comments=True)
    settings = [value for flag, value in zip(arguments, arguments[1:]) if flag == "--set"]
    assert medfed.load_config(config, settings) == session["config"]


@pytest.mark.slow
@each_notebook
def test_a_tutorial_runs_in_an_empty_folder(path, tmp_path, monkeypatch):
    import nbformat
    from nbclient import NotebookClient

    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    start = time.monotonic()
    notebook = nbformat.read(path, as_version=4)
    place = {"metadata": {"path": str(tmp_path)}}
    NotebookClient(notebook, timeout=MAX_SECONDS, kernel_name="python3", resources=place).execute()
    assert time.monotonic() - start < MAX_SECONDS

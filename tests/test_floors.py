"""Imports only go down: the architecture, as a test."""

import ast
from pathlib import Path

import medfed

ROOT = Path(medfed.__file__).parent
FLOORS = [
    {"functional", "batch", "errors", "files", "discovery", "typed", "strict_yaml", "site_names", "memory"},
    {"transforms", "networks", "metrics"},
    {"tasks", "datasets"},
    {"federation"},
    {"methods", "engines", "outputs"},
    {"config", "overrides", "programs"},
]
MAY_NOT = [  # (who, whom): walls inside and between floors
    ("federation", "tasks"),
    ("federation", "datasets"),
    ("federation", "methods"),
    ("federation", "engines"),
    ("federation", "networks"),
    ("datasets", "tasks"),
    ("methods", "engines"),
    ("methods", "outputs"),
    ("methods", "datasets"),
    ("methods", "tasks"),
    ("engines", "methods"),
    ("engines", "outputs"),
    ("outputs", "methods"),
]


def imports(path: Path) -> set[str]:
    """The medfed modules that a file names, also inside functions."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.startswith("medfed"):
            parts = node.module.split(".")
            names |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            names |= {a.name.split(".")[1] for a in node.names if a.name.startswith("medfed.")}
    return names


def room(path: Path) -> str:
    """A `__main__.py` is a door of the programs, wherever it is."""
    return "__main__" if path.name == "__main__.py" else path.relative_to(ROOT).parts[0].removesuffix(".py")


def floor(name: str) -> int:
    return next((index for index, rooms in enumerate(FLOORS) if name in rooms), len(FLOORS))


def test_imports_only_go_down():
    wrong = [
        f"{path.relative_to(ROOT)} imports {name}"
        for path in sorted(ROOT.rglob("*.py"))
        for name in imports(path)
        if floor(name) > floor(room(path)) or (room(path), name) in MAY_NOT
    ]
    assert not wrong, wrong


def test_methods_do_not_know_each_other():
    for path in sorted((ROOT / "methods").glob("*.py")):
        assert "methods" not in imports(path), path.name


def test_no_pickle_and_no_code_from_data():
    for path in sorted(ROOT.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), f"{path.name}:{node.lineno}"
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                modules = [a.name for a in node.names] + [getattr(node, "module", None) or ""]
                assert not {"pickle", "dill", "cloudpickle"} & set(modules), path.name

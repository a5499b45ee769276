"""The architecture, as a test: imports only go down, and every module has a place."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest
from parsed_sources import parsed

import medfed

ROOT = Path(medfed.__file__).parent
LAYERS = [  # a package imports from itself and from the layers above it in this list, and from nothing else
    {"core"},
    {"functional"},
    {"cli", "federation", "losses", "metrics", "networks"},
    {"engines", "transforms"},
    {"images"},
    {"datasets", "methods"},
    {"phantoms", "tasks"},
    {"config"},
    {"results"},
    {"outputs"},
    {"experiments", "preparation"},
    {"scoring"},
    {"auditing", "benchmarks", "deployment", "planning"},
    {"api", "testing"},
    {"plot", "reproduction"},
]
PROGRAMS = set(
    "__main__ aggregate audit benchmark codec coordinator data evaluate export init keys report reproduce score site"
    " train".split()
)
WALLS = [  # (package, package that it may not import although that is in a lower layer)
    ("engines", "networks"),
    ("engines", "metrics"),
    ("methods", "engines"),
    ("methods", "metrics"),
    ("methods", "cli"),
    ("outputs", "methods"),
    ("outputs", "engines"),
]
MAX_PROGRAM_LINES = 148  # with the examples of its help
MODULES = {
    ".".join(path.relative_to(ROOT.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(ROOT.rglob("*.py"))
}


def statements(node: ast.AST) -> Iterator[ast.stmt]:
    """All statements within a node, at every depth; `ast.walk` would also visit every expression."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.stmt, ast.excepthandler, ast.match_case)):
            yield child
            yield from statements(child)


def imported(path: Path) -> set[str]:
    """The medfed modules that a file imports, also inside functions and for type checking."""
    result = set()
    for node in statements(parsed(path)):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "medfed":
            names = (f"{node.module}.{alias.name}" for alias in node.names)
            result |= {name if name in MODULES else node.module for name in names}
        elif isinstance(node, ast.Import):
            result |= {alias.name for alias in node.names if alias.name.split(".")[0] == "medfed"}
    return result


def package(module: str) -> str:
    """`medfed.methods.elcfs` is in `methods`; a program is its own; medfed itself is "medfed"."""
    return (module.split(".") + ["medfed"])[1] if module != "medfed" else "medfed"


def layer(name: str) -> int:
    return next((index for index, names in enumerate(LAYERS) if name in names), len(LAYERS))


@pytest.fixture(scope="module")
def graph() -> dict[str, set[str]]:
    """The modules that each module imports."""
    return {module: imported(path) for module, path in MODULES.items()}


def test_every_package_and_program_has_a_layer():
    known = set().union(*LAYERS) | PROGRAMS | {"medfed"}
    assert {package(module) for module in MODULES} == known


def test_imports_only_go_down(graph):
    wrong = [
        f"{module} imports {other}"
        for module, others in graph.items()
        for other in others
        if module != "medfed"  # the public names are from anywhere
        if package(other) not in (package(module), "medfed")
        and (layer(package(other)) >= layer(package(module)) or (package(module), package(other)) in WALLS)
    ]
    assert not wrong, wrong


def test_no_module_imports_itself_through_others(graph):
    done: set[str] = set()

    def walk(module: str, path: tuple[str, ...]) -> None:
        assert module not in path, " -> ".join([*path, module])
        if module not in done:
            for other in sorted(graph[module] - {"medfed"}):
                walk(other, (*path, module))
            done.add(module)

    for module in graph:
        walk(module, ())


def test_a_program_is_flags_and_one_call():
    for name in PROGRAMS:
        n_lines = len((ROOT / f"{name}.py").read_text().splitlines())
        assert n_lines <= MAX_PROGRAM_LINES, f"{name}.py has {n_lines} lines"


@pytest.mark.parametrize("folder", ["methods", "datasets.collections", "phantoms"])
def test_files_that_a_config_names_do_not_know_each_other(graph, folder):
    """A method or a dataset is one file. Datasets share `base` and helpers, which no config names."""
    names = {module for module in graph if module.rpartition(".")[0] == f"medfed.{folder}"}
    assert names
    for module in names:
        assert not graph[module] & names, module


def test_no_pickle_and_no_code_from_data():
    for path in MODULES.values():
        for node in ast.walk(parsed(path)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in ("eval", "exec"), f"{path.name}:{node.lineno}"
            if isinstance(node, (ast.Import, ast.ImportFrom)):
                modules = [alias.name for alias in node.names] + [getattr(node, "module", None) or ""]
                assert not {"pickle", "dill", "cloudpickle"} & set(modules), path.name

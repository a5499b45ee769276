"""The pages of the Python reference: one for each public package, from its `__all__`."""

from __future__ import annotations

import importlib
import inspect
import types
from collections.abc import Mapping

from page_text import body_of, paragraphs, table

from medfed import api
from medfed.core.registry import known_names, resolve

SHARED_ARGUMENTS = "Arguments of several functions:"  # in the docstring of `medfed.api`
PACKAGES = {
    "medfed": "Run, compare, export and score",
    "medfed.methods": "Federated methods",
    "medfed.transforms": "MONAI transforms",
    "medfed.networks": "Networks",
    "medfed.losses": "Loss functions",
    "medfed.metrics": "Metrics",
    "medfed.functional": "Mathematics on tensors",
    "medfed.datasets": "Datasets",
    "medfed.plot": "Figures of runs and comparisons",
    "medfed.testing": "Checks of your own methods, networks and metrics",
}


def api_pages() -> dict[str, str]:
    """The text of each page by its path in the folder `reference`."""
    rows = [[f"[`{name}`](api/{name}.md)", title] for name, title in PACKAGES.items()]
    toc = "\n".join(f"api/{name}" for name in PACKAGES)
    head = (
        "# Python\n\nFind here what each public class and function of medfed takes, returns and raises. A name that no "
        "page lists is internal, and may change without notice."
    )
    text = f"{head}\n\n{table(['package', 'content'], rows)}\n\n```{{toctree}}\n:hidden:\n\n{toc}\n```\n"
    return {"api.md": text, **{f"api/{name}.md": package_page(name) for name in PACKAGES}}


def package_page(package: str) -> str:
    """The list of a package's public names, then each one's docstring."""
    module = importlib.import_module(package)
    cards = _cards() if package == "medfed.methods" else {}
    names = sorted(module.__all__, key=str.lower)
    values = {name: getattr(module, name) for name in names}
    rows, entries = [], []
    for name, value in values.items():
        full = f"{package}.{name}"
        if name in cards:
            rows.append([f"[`{name}`](../methods/{cards[name]}.md)", _summary(value)])
        elif full in PACKAGES:
            rows.append([f"[`{name}`]({full}.md)", PACKAGES[full]])
        elif name != "__version__":
            of_module = f"medfed.api.{name}" if isinstance(value, types.ModuleType) else full
            rows.append([f"{{py:obj}}`{name} <{of_module}>`", _summary(getattr(value, name, value))])
            entries.append(_entry(full, value))
    parts = [f"# {package}", paragraphs(_text_of(module)), table(["name", "what it is"], rows)]
    if package == "medfed":
        shared = _text_of(api).partition(SHARED_ARGUMENTS)[2]
        parts += [
            "The functions share some arguments. Where a text says \"see `medfed.api`\", look here:", paragraphs(shared)
        ]
    if entries:
        parts.append("```{eval-rst}\n" + "\n\n".join(entries) + "\n```")
    return "\n\n".join(parts) + "\n"


def _text_of(module: types.ModuleType) -> str:
    return body_of(module.__doc__ or "")


def _entry(full_name: str, value: object) -> str:
    """The directive of autodoc: a class with the members that it adds to its base classes, or a function."""
    if isinstance(value, type):
        members = ", ".join(own_members(value))
        return f".. autoclass:: {full_name}" + (f"\n   :members: {members}" if members else "")
    if isinstance(value, types.ModuleType):  # medfed.export: a program that is called like a function
        return f".. autofunction:: medfed.api.{full_name.rpartition('.')[2]}"
    return f".. autofunction:: {full_name}"


def own_members(cls: type) -> list[str]:
    """The public methods and properties with a docstring that no base class has."""
    found = []
    for name, content in vars(cls).items():
        function = getattr(content, "fget", None) or getattr(content, "func", None) or content
        function = getattr(function, "__func__", function)
        is_new = not any(hasattr(base, name) for base in cls.__mro__[1:])
        if isinstance(function, types.FunctionType) and not name.startswith("_") and is_new and function.__doc__:
            found.append(name)
    return found


def _summary(value: object) -> str:
    """The first paragraph of a docstring."""
    return " ".join(inspect.cleandoc(value.__doc__ or "").split("\n\n")[0].split())


def _cards() -> Mapping[str, str]:
    """The names of the methods that have a card, by class."""
    return {resolve("methods", name).__name__: name for name in known_names("methods")}

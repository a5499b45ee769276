"""Draws the packages of medfed as rows: a package imports only from rows below its own."""

import ast
from pathlib import Path

WIDTH, ROW, BOX, GAP = 640, 62, 34, 14  # pixels
ARROW = (
    '<marker id="arrow" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    '<path d="M0 0L8 4L0 8Z"/></marker>\n'
)


def imports_of_packages(root: Path) -> dict[str, set[str]]:
    """The packages (and modules of the top level that are no programs) that each one imports."""
    found: dict[str, set[str]] = {}
    for path in root.rglob("*.py"):
        name = path.relative_to(root).parts[0].removesuffix(".py")
        others = found.setdefault(name, set())
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("medfed"):
                module = node.module.split(".")[1:]
                others |= {module[0]} if module else {alias.name for alias in node.names}
    return {name: {other for other in others if other in found} - {name} for name, others in found.items()}


def rows(imports: dict[str, set[str]]) -> list[list[str]]:
    """The packages by level, the lowest first: each is one above the highest package that it imports."""
    level: dict[str, int] = {}

    def find(name: str) -> int:
        if name not in level:
            level[name] = 1 + max((find(other) for other in imports[name]), default=-1)
        return level[name]

    for name in imports:
        find(name)
    return [sorted(name for name in level if level[name] == row) for row in range(max(level.values()) + 1)]


def direct(imports: dict[str, set[str]]) -> set[tuple[str, str]]:
    """The imports that do not follow from others: without a -> c where a -> b -> c."""

    def below(name: str) -> set[str]:
        return imports[name].union(*(below(other) for other in imports[name]))

    return {
        (name, other)
        for name, others in imports.items()
        for other in others
        if not any(other in below(between) for between in others)
    }


def draw(root: Path) -> str:
    """Return the figure as SVG, in the colours of the page."""
    imports = imports_of_packages(root)
    programs = {name for name in imports if (root / f"{name}.py").exists()} - {"api", "plot"} | {"__init__"}
    imports = {name: others - programs for name, others in imports.items() if name not in programs}
    levels = rows(imports)
    height = len(levels) * ROW + BOX
    place: dict[str, tuple[float, float, float]] = {}
    for index, names in enumerate(levels):
        widths = [9 * len(name) + 18 for name in names]
        left = (WIDTH - sum(widths) - GAP * (len(names) - 1)) / 2
        for name, width in zip(names, widths):
            place[name] = (left, height - BOX - index * ROW - 10, width)
            left += width + GAP
    lines = []
    for name, other in sorted(direct(imports)):
        (x1, y1, w1), (x2, y2, w2) = place[name], place[other]
        a, b = (x1 + w1 / 2, y1 + BOX), (x2 + w2 / 2, y2)
        bend = (b[1] - a[1]) / 2
        lines.append(f'<path d="M{a[0]:.0f} {a[1]:.0f}C{a[0]:.0f} {a[1] + bend:.0f} {b[0]:.0f} {b[1] - bend:.0f} '
                     f'{b[0]:.0f} {b[1]:.0f}" marker-end="url(#arrow)"/>')
    boxes = [
        f'<rect x="{x:.0f}" y="{y:.0f}" width="{width}" height="{BOX}" rx="6"/>'
        f'<text x="{x + width / 2:.0f}" y="{y + BOX / 2 + 5:.0f}">{name}</text>'
        for name, (x, y, width) in sorted(place.items())
    ]
    return (
        f'<svg class="imports" viewBox="0 0 {WIDTH} {height}" role="img" aria-label="Packages of medfed by level">\n'
        f"{ARROW}<g>{''.join(lines)}</g>\n{''.join(boxes)}\n</svg>\n"
    )

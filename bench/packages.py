"""Draws the packages, from their imports: `python -m bench.packages [FOLDER]`.

It prints a Mermaid flowchart. Each package of the project is a box with its sub-packages; an arrow leads from a package
to what it imports. An arrow that follows from two others is left out, because the packages are layers: what `tm` may
import, `xabridge` may import as well. Imports for type checkers only are not counted.

With `--lines` it prints instead how many modules and lines each package has. With `--into FILE` it replaces the drawing
between the marks in FILE; `make docs` does that for docs/architecture.md, and a test compares the two.
"""

from __future__ import annotations

import argparse
import ast
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

PACKAGES: Final = ("xabridge", "tm", "rm_amqp", "rm_openwire", "rm_db", "rm_delta", "dtx", "xa", "pipeline", "bench")
"""Those that the project has, has had, or will have; what FOLDER doesn't have is left out."""
BEGIN: Final = "<!-- drawn by bench/packages.py -->"
END: Final = "<!-- end of the drawing -->"


def modules(folder: Path) -> Iterator[tuple[str, Path]]:
    """The package and the file of every module below `folder`."""
    for package in PACKAGES:
        for path in sorted((folder / package).rglob("*.py")):
            yield package, path


def imports(folder: Path) -> dict[str, set[str]]:
    """Package → the other packages that its modules import when they run."""
    found: dict[str, set[str]] = {}
    for package, path in modules(folder):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        names = {name.partition(".")[0] for name in _imported(tree.body)}
        found.setdefault(package, set()).update(names & set(PACKAGES) - {package})
    return found


def _imported(body: Sequence[ast.stmt]) -> Iterator[str]:
    """The modules that statements import, without those for type checkers."""
    for statement in body:
        if isinstance(statement, ast.If) and "TYPE_CHECKING" in ast.dump(statement.test):
            continue
        if isinstance(statement, ast.Import):
            yield from (alias.name for alias in statement.names)
        elif isinstance(statement, ast.ImportFrom):
            yield statement.module or ""
        else:
            inner = (child for child in ast.iter_child_nodes(statement) if isinstance(child, ast.stmt))
            yield from _imported(list(inner))


def reduced(arrows: Mapping[str, set[str]]) -> dict[str, set[str]]:
    """The arrows without those that follow from others."""

    def reached(start: str) -> set[str]:
        seen: set[str] = set()
        waiting = list(arrows.get(start, ()))
        while waiting:
            package = waiting.pop()
            if package not in seen:
                seen.add(package)
                waiting += arrows.get(package, ())
        return seen

    return {
        package: {target for target in targets if not any(target in reached(other) for other in targets - {target})}
        for package, targets in arrows.items()
    }


def drawing(folder: Path) -> str:
    """The flowchart."""
    lines = ["```mermaid", "flowchart TD"]
    arrows = reduced(imports(folder))
    for package in (name for name in PACKAGES if name in arrows):
        inner = sorted(path.parent.name for path in (folder / package).glob("*/__init__.py"))
        label = f"<b>{package}</b>" + "".join(f"<br>{name}" for name in inner)
        lines.append(f'    {package}["{label}"]')
    lines += [f"    {package} --> {target}" for package in sorted(arrows) for target in sorted(arrows[package])]
    return "\n".join([*lines, "```"])


def sizes(folder: Path) -> str:
    """How many modules and lines each package has, as a table."""
    counted: dict[str, list[int]] = {}
    for package, path in modules(folder):
        entry = counted.setdefault(package, [0, 0])
        entry[0] += 1
        entry[1] += len(path.read_text(encoding="utf-8").splitlines())
    rows = [f"| `{package}/` | {files} | {lines:,} |" for package, (files, lines) in counted.items()]
    return "\n".join(["| package | modules | lines |", "|---|---|---|", *rows])


def replaced(page: str, drawn: str) -> str:
    """The page with this drawing in place of its own."""
    before, _, rest = page.partition(BEGIN)
    _, mark, after = rest.partition(END)
    if not mark:
        raise ValueError(f"the page has no {BEGIN} with {END} behind it")
    return f"{before}{BEGIN}\n{drawn}\n{END}{after}"


def main(argv: Sequence[str] | None = None) -> int:
    """Prints what was asked for, or writes it into a page."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.packages", description="Draws the packages by their imports."
    )
    parser.add_argument("folder", type=Path, nargs="?", default=Path(), help="a checkout (default: this one)")
    parser.add_argument("--lines", action="store_true", help="the modules and lines of each package instead")
    parser.add_argument("--into", type=Path, metavar="FILE", help="write the drawing into this page")
    arguments = parser.parse_args(argv)
    if arguments.into is not None:
        page = arguments.into.read_text(encoding="utf-8")
        arguments.into.write_text(replaced(page, drawing(arguments.folder)), encoding="utf-8")
        return 0
    print(sizes(arguments.folder) if arguments.lines else drawing(arguments.folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())

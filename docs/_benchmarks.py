"""Benchmark pages, made when the site is built: one for each program of benchmarks/ that has saved results.

A page has what the program says of itself, then its tables and pictures from benchmarks/results.
"""

import os
from pathlib import Path

from _pages import HOME, MADE, ROOT, docstring, write

RESULTS = ROOT / "benchmarks/results"
NAMED_OTHERWISE = {"objects": "overhead", "torch": "torch_backends"}  # results of: program


def make() -> None:
    """Write all pages, and the one that lists them."""
    results = by_program()
    for program, files in results.items():
        write(f"benchmarks/{program}.md", page(program, files))
    rows = [f"| [{name}]({name}.md) | {docstring(source(name))[0]} |" for name in results]
    write(
        "benchmarks/index.md",
        "# Benchmarks\n\nFor those who ask where a number comes from: saved results of the programs in "
        f"[benchmarks]({HOME}/blob/main/benchmarks). Each table names its machine and its day.\n\n"
        "| program | what it measures |\n|---|---|\n"
        + "\n".join(rows)
        + "\n\n```{toctree}\n:hidden:\n\n"
        + "\n".join(results)
        + "\n```\n",
    )


def source(program: str) -> Path:
    """File of a program."""
    return ROOT / f"benchmarks/{program}.py"


def by_program() -> dict[str, list[Path]]:
    """Saved tables of each program: those whose name begins with its own."""
    programs = sorted((path.stem for path in source("*").parent.glob("*.py")), key=len, reverse=True)
    found: dict[str, list[Path]] = {}
    for path in sorted(RESULTS.glob("*.txt")):
        names = [name for name in programs if f"{path.stem}_".startswith(f"{name}_")]
        program = names[0] if names else NAMED_OTHERWISE[path.stem.partition("_")[0]]
        found.setdefault(program, []).append(path)
    return dict(sorted(found.items()))


def page(program: str, files: list[Path]) -> str:
    """What a program says of itself, and all that it has saved."""
    title, rest = docstring(source(program))
    parts = [f"# {program}\n\nFor those who ask where a number comes from. {title}\n\n{rest}\n"]
    parts.append(f"Source: [benchmarks/{program}.py]({HOME}/blob/main/benchmarks/{program}.py)\n")
    for path in files:
        parts.append(f"## {path.stem}\n\n```text\n{path.read_text().rstrip()}\n```\n")
        picture = path.with_suffix(".png")
        if picture.exists():
            parts.append(f"![{path.stem}]({os.path.relpath(picture, MADE / 'benchmarks')})\n")
    return "\n".join(parts)

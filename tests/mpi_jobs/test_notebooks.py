"""The notebooks of docs/ run, and show what they show in the repository."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 60

pytestmark = pytest.mark.once


def shown(notebook: Path) -> list[tuple[str, str]]:
    """Source and output of all cells that are run."""
    cells = json.loads(notebook.read_text(encoding="utf-8"))["cells"]
    return [
        ("".join(cell["source"]), "".join(map(text_of, cell["outputs"])))
        for cell in cells
        if cell["cell_type"] == "code"
    ]


def text_of(output: dict[str, Any]) -> str:
    """What an output says: one cell may print in several. Of a picture only that there is one."""
    kinds = {"text": output.get("text", ""), **output.get("data", {})}
    if "image/png" in kinds:
        return "a picture"
    return "".join(kinds.get("text/markdown", kinds.get("text/plain", kinds["text"])))


@pytest.mark.parametrize("name", [path.stem for path in sorted((ROOT / "docs").glob("*.ipynb"))])
def test_a_notebook_shows_what_it_shows_in_the_repository(name: str, tmp_path: Path) -> None:
    for needed in ("nbclient", "ipykernel", "matplotlib"):
        if not importlib.util.find_spec(needed):
            pytest.skip(f"{needed} is not installed")
    copy = tmp_path / f"{name}.ipynb"
    shutil.copy(ROOT / f"docs/{name}.ipynb", copy)
    command = [
        str(Path(sys.executable).parent / "jupyter"),
        "execute",
        "--inplace",
        f"--timeout={LIMIT_S}",
        str(copy),
    ]
    path = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    environ = {
        **os.environ,
        "PYTHONPATH": path,
        "IPYTHONDIR": str(tmp_path),
        "JUPYTER_RUNTIME_DIR": str(tmp_path),
    }
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    assert shown(copy) == shown(ROOT / f"docs/{name}.ipynb")

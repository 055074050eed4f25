"""Pictures and output of the apps, for the gallery: python docs/_gallery.py [NAME ...]

Each program runs under the MPI of this Python. What it prints, behind the command that a reader types, goes
to docs/pictures/apps/NAME.txt, and what it draws to NAME.png beside it.
"""

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SHOWN = ROOT / "docs/pictures/apps"
APP = "hpcomm run -n {ranks} python -m hpcomm.apps.{name}"
APPS = {  # name: ranks, further words
    "allreduce_demo": (4, "--no-timing"),
    "p2p_ring": (4, ""),
    "groups_demo": (4, ""),
    "softmax_demo": (4, ""),
    "stats_demo": (4, "--picture stats_demo.png"),
    "heat2d": (4, "--picture heat2d.png"),
    "fft_demo": (4, ""),
    "matmul_demo": (4, ""),
    "restart_demo": (4, ""),
    "pingpong": (2, "--plot pingpong.png"),
    "overlap_demo": (2, "--picture overlap_demo.png"),
}
CASES = {  # name: program, what is added to its command so that it draws a map
    "climate": "ocean",
    "earth": "",
    "heat_coupled": "",
    "pipeline": "",
}
LEFT = {"earth": "apps/earth/ocean_1.png"}  # maps that a case leaves by itself
LIMIT_S = 300


def main(wanted: list[str]) -> None:
    SHOWN.mkdir(exist_ok=True)
    for name, (ranks, more) in APPS.items():
        if not wanted or name in wanted:
            keep(name, f"{APP.format(ranks=ranks, name=name)} {more}".strip(), SHOWN)
    for name, drawing in CASES.items():
        if not wanted or name in wanted:
            case(name, drawing)


def case(name: str, drawing: str) -> None:
    """Run a spec of mpmd_configs; its program `drawing` draws a map at the end."""
    spec = ROOT / f"mpmd_configs/{name}.toml"
    text = spec.read_text().replace('workdir = "../', f'workdir = "{ROOT}/')
    if drawing:
        told = f"python {drawing}.py"
        text = text.replace(told, f"{told} --picture {SHOWN / name}.png")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / spec.name).write_text(text)
        keep(
            name, f"hpcomm run --progress 0 mpmd_configs/{name}.toml", folder, ["--progress", "0", spec.name]
        )
    if name in LEFT:
        shutil.copy(ROOT / LEFT[name], SHOWN / f"{name}.png")


def keep(name: str, command: str, folder: Path | str, words: list[str] | None = None) -> None:
    """Run command in folder and keep what it prints; words: those after `hpcomm run`, if they differ."""
    words = command.split()[2:] if words is None else words
    done = subprocess.run(
        [sys.executable, "-m", "hpcomm", "run", *words],
        cwd=folder,
        text=True,
        stdout=subprocess.PIPE,
        timeout=LIMIT_S,
        check=True,
    )
    (SHOWN / f"{name}.txt").write_text(f"$ {command}\n{done.stdout.rstrip()}\n")
    print(f"{name}: {command}")


if __name__ == "__main__":
    main(sys.argv[1:])

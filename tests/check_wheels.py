"""Look at wheels: python tests/check_wheels.py dist/*.whl, in an environment with abi3audit and auditwheel.

Each has the core in it, uses nothing but the stable ABI, runs where its tag says, and is small.
"""

import subprocess
import sys
import zipfile
from pathlib import Path

IN_C = ("hpcomm/node/_native/core.abi3.so", "hpcomm/grids/_native/geometry.abi3.so")
MOST = 2 << 20  # bytes of a wheel


def check(wheel: str) -> None:
    with zipfile.ZipFile(wheel) as archive:
        core, _ = (archive.getinfo(name).file_size for name in IN_C)
    size = Path(wheel).stat().st_size
    print(f"{wheel}: {size / 1e6:.2f} MB, with a core of {core / 1e6:.2f} MB", flush=True)
    assert size < MOST
    subprocess.run([sys.executable, "-m", "abi3audit", "--strict", wheel], check=True)
    shown = subprocess.run(
        [sys.executable, "-m", "auditwheel", "show", wheel], check=True, stdout=subprocess.PIPE, text=True
    ).stdout
    tag = Path(wheel).stem.rpartition("-")[2]
    assert f'is consistent with the following platform tag: "{tag}"' in " ".join(shown.split()), shown


for each in sys.argv[1:]:
    check(each)

"""A rank's part of the node_segment, between processes: whether its owner lives."""

import mmap
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from hpcomm.node.segment import Region

ROOT = Path(__file__).parents[2]
OWNER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from hpcomm.node.segment import Region
region = Region(memoryview(bytearray(65536)), os.open(sys.argv[2], os.O_RDWR), int(sys.argv[3]))
region.hold()
child = os.fork()  # which is no rank: it may outlive one
if child == 0:
    sys.stdin.read()
    os._exit(0)
print(child, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("space", ["the same", "another"])
def test_a_rank_lives_as_long_as_its_process_whatever_number_that_has(tmp_path: Path, space: str) -> None:
    """In another PID namespace, as containers have them, the number is another one."""
    if space == "another" and (os.geteuid() or not shutil.which("unshare")):
        pytest.skip("unshare, or leave to use it, is missing")
    file = tmp_path / "node_segment"
    file.write_bytes(bytes(2 * 65536))
    ways = ["unshare", "--pid", "--fork", "--kill-child"] if space == "another" else []
    words = [*ways, sys.executable, "-c", OWNER, str(ROOT), str(file), "65536"]
    with (
        file.open("r+b") as opened,
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner,
    ):
        memory = mmap.mmap(opened.fileno(), 0)
        region, nobody = (Region(memoryview(memory)[at:], opened.fileno(), at) for at in (65536, 0))
        assert owner.stdout is not None
        assert int(owner.stdout.readline()) > 1
        for each in (region, nobody):
            each.look()
        assert not region.gone
        assert not nobody.gone, "an end is seen only of a rank that was seen to live"
        owner.kill()
        owner.wait()
        deadline = time.monotonic() + 10  # whom unshare takes with it ends a moment later
        while not region.gone and time.monotonic() < deadline:
            time.sleep(0.01)
        assert region.gone
        del region, nobody

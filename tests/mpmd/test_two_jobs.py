"""Two jobs that were started apart: joined where the MPI can do that, and told what to do where it cannot."""

import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
from processes import finish

from hpcomm.job.installation import find_mpi

PROGRAM = """
import os
import sys
import numpy as np
import hpcomm
from hpcomm.mpmd import jobs

me = hpcomm.join(sys.argv[1])
link = (jobs.accept if me.name == "ocean" else jobs.connect)(me, "sea.port", timeout=30)
peer = "air" if me.name == "ocean" else "ocean"
assert (link.peer, me.peers, me.link(peer)) == (peer, (peer,), link)
assert link.comm.all_reduce(np.array([me.comm.rank + 1])).tolist() == [link.size * (link.size + 1) // 2]
assert link.comm.merge(high=me.name == "air").all_reduce(1) == 3
points = np.array_split(np.arange(7), me.comm.size)[me.comm.rank]
if me.name == "ocean":
    give, take = me.gives("sst", points * 1.0, points), me.takes("heat", np.zeros(7), np.arange(7))
else:
    give, take = me.gives("heat", points * 2.0, points), me.takes("sst", np.zeros(7), np.arange(7))
me.put(give)
assert me.get(take).tolist() == [(2.0 if me.name == "ocean" else 1.0) * i for i in range(7)]
me.report()
print("fine\\n", end="")
END
if me.name == "air":
    link.comm.recv(np.zeros(1), source=0)  # nobody sends that
    print("went on")
"""


ENDS = {
    "well": "",
    "by a signal": "link.comm.barrier()\nif me.name == 'ocean': sys.stdout.flush(), os.kill(os.getpid(), 9)",
}


@pytest.mark.parametrize("end", ENDS)
def test_jobs_that_were_started_apart_exchange_fields_and_are_told_of_each_others_end(tmp_path, end):
    if end != "well" and find_mpi().vendor == "openmpi":
        pytest.skip("Open MPI cannot join jobs")
    (tmp_path / "program.py").write_text(PROGRAM.replace("END", ENDS[end]))
    launch = [sys.executable, "-m", "hpcomm", "run", "--timeout", "50"]

    def run(name, n):
        return finish([*launch, "-n", n, "python", "program.py", name], 70, tmp_path)

    with ThreadPoolExecutor(2) as pool:
        ocean, air = pool.map(run, ["ocean", "air"], [2, 1])
    if find_mpi().vendor == "openmpi":
        for done in (ocean, air):
            assert done.returncode not in (0, 124)
            assert "Open MPI cannot join jobs that were started apart" in done.stderr
            assert "or use MPICH for both" in done.stderr
        return
    assert ocean.stdout.startswith("fine\nfine\n"), ocean.stderr
    assert (ocean.returncode == 0) == (end == "well")
    assert air.returncode not in (0, 124)
    assert air.stdout == "fine\n"
    assert "waits for rank 0 of program 'ocean', which has ended" in air.stderr

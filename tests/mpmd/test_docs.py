"""The examples of docs/mpmd.md run, and a program that may fail does not end the others."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCUMENT = ROOT / "docs" / "mpmd.md"
AIR = """
import numpy as np
import hpcomm

me = hpcomm.join("atmosphere")
sst = me.takes("sst", np.zeros(500))
heat = me.gives("heat", np.full(500, 2.0))
for step in range(10):
    me.put(heat)
    got = me.get(sst)
assert np.allclose(got, 290.0 + 9 * 2e-3)
print("fine")
"""


def test_the_first_example_of_the_document_runs(programs):
    code = re.search(r"^```python\n(# ocean.py\n.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)[1]
    assert programs([(1, code), (2, AIR)]).stdout.count("fine") == 2


@pytest.mark.once
def test_the_two_programs_of_readme_meet(programs):
    text = (ROOT / "README.md").read_text()
    ocean, air = (
        re.search(rf"^```python\n(# {name}.py\n.*?)^```", text, re.MULTILINE | re.DOTALL)[1]
        for name in ("ocean", "air")
    )
    assert programs([(1, ocean), (2, air)]).stdout.count("290.0") == 2


def test_every_key_of_the_documents_spec_is_known(tmp_path):
    from hpcomm.mpmd.spec.spec_reader import read

    text = re.search(r"^```toml\n(.*?)^```", DOCUMENT.read_text(), re.MULTILINE | re.DOTALL)[1]
    text += '[program.atmosphere]\ncommand = "python air.py"\nranks = 1\n'
    text += '[grid.sky]\nkind = "gaussian"\nnlat = 24\nnlon = 48\n'
    path = tmp_path / "job.toml"
    path.write_text(text)
    spec = read(path, here=False)
    assert spec.fields[0].time == "mean"
    assert spec.programs["ocean"].gpus == (0, 1)


def test_programs_that_may_fail_leave_the_others_running(spec):
    """One by an exception, one by a signal, of which MPI would end the job."""
    text = """
        [program.viewer]
        command = "python viewer.py"
        ranks = 1
        on_failure = "continue"
        [program.disk]
        command = "python disk.py"
        ranks = 1
        on_failure = "continue"
        [program.solver]
        command = "python solver.py"
        ranks = 2
        [[field]]
        name = "f"
        from = "solver"
        to = "viewer"
        [[field]]
        name = "f"
        from = "solver"
        to = "disk"
    """
    taker = """
        import os, signal
        import numpy as np
        import hpcomm
        me = hpcomm.join()
        me.get(me.takes("f", np.zeros(4)))
        END
    """
    solver = """
        import time
        import numpy as np
        import hpcomm
        me = hpcomm.join()
        f = me.gives("f", np.zeros(2))
        there = {name: me.link(name) for name in me.peers}
        for step in range(5):
            time.sleep(0.5)
            f.values = np.full(1 << 1, float(step))
            for name, link in list(there.items()):
                if link.ended():
                    del there[name]
                else:
                    link.put(f)
        assert not there
        assert me.comm.all_reduce(1) == 2
        print("solved\\n", end="")
    """
    files = {"viewer.py": taker.replace("END", "raise ValueError('no screen')"), "solver.py": solver}
    files["disk.py"] = taker.replace("END", "os.kill(os.getpid(), signal.SIGKILL)")
    done = spec(text, "--progress", "0.5", files=files)
    assert done.stdout.count("solved") == 2
    assert "ValueError: no screen" in done.stderr
    assert "program 'viewer' (rank 0 of 1) ended with status 1; the others go on without it" in done.stderr
    assert "program 'disk' (rank 0 of 1) was killed by SIGKILL; the others go on without it" in done.stderr
    assert re.search(r"hpcomm: after \d+ s: viewer .*; solver has made \d exchanges?\n", done.stderr)
    assert "BAD TERMINATION" not in done.stdout + done.stderr


def test_progress_says_how_far_a_program_is_that_waits_for_another_one(spec):
    text = """
        [program.a]
        command = "python a.py"
        ranks = 1
        [program.b]
        command = "python b.py"
        ranks = 1
        [[field]]
        name = "f"
        from = "a"
        to = "b"
    """
    a = """
        import pathlib, time
        import numpy as np
        import hpcomm
        me = hpcomm.join()
        f = me.gives("f", np.zeros(4))
        for step in range(3):
            me.put(f)
        while not pathlib.Path("said").exists():
            time.sleep(0.01)
        me.put(f)
    """
    b = """
        import pathlib, threading
        import numpy as np
        import hpcomm
        me = hpcomm.join()
        f = me.takes("f", np.zeros(4))
        threading.Timer(3.0, pathlib.Path("said").touch).start()
        for step in range(4):
            me.get(f)
    """
    done = spec(text, "--progress", "0.5", files={"a.py": a, "b.py": b})
    assert "b has made 3 exchanges\n" in done.stderr, done.stderr

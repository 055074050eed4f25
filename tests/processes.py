"""Commands that tests start: in processes that are gone when the test is."""

import os
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
CLOCK = 5  # a limit of `hpcomm run`, which goes by the clock, is that many times a test's own


def finish(command, limit_s, cwd=None, env=None):
    """Run command to its end; a test that would hang fails with what the command said.

    limit_s: of steady_time(), which goes slower where others use the machine too.
    """
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, **(env or {})},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    ended = said(process, limit_s)
    return subprocess.CompletedProcess(command, process.returncode, *ended)


def said(process, limit_s):
    """What process says to its end, (stdout, stderr); see finish. It leads a process group."""
    try:
        return process.communicate(timeout=limit_s)
    except BaseException as error:  # it hangs, the time of the test is up, or somebody wants an end
        os.killpg(process.pid, signal.SIGKILL)
        if not isinstance(error, subprocess.TimeoutExpired):
            raise
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired as error:  # who has left its group, and holds what it writes to
        out, err = error.stdout, error.stderr
    words = " ".join(map(str, process.args))
    pytest.fail(f"no end after {limit_s:g} s: {words}\n--- stdout\n{out}\n--- stderr\n{err}")


def judge(done, expect):
    """Fail unless the exit status is expect; None: any; "failure": any but 0 and that of a time limit."""
    fits = done.returncode not in (0, 124) if expect == "failure" else expect in (None, done.returncode)
    if not fits:
        words = " ".join(map(str, done.args))
        pytest.fail(
            f"ended with {done.returncode}, not {expect}: {words}\n"
            f"--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
        )

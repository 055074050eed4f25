"""Tests that start jobs of their own, each in processes that are gone when the test is."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[2]
END_S = 15.0  # `hpcomm run --timeout` ends a job by itself; only if that fails too do we kill it


@pytest.fixture
def job(tmp_path):
    """job(n, code_or_args, timeout=60, expect=0, env=None, options=()) -> CompletedProcess

    Runs Python source (a string) or a command (a list; "python" is this Python) on n ranks through
    `hpcomm run`, with its options and with env added to the environment. Fails, and shows what the job
    said, if it takes longer than timeout seconds or ends with another status than expect (None: any).
    """

    def run(n, code_or_args, timeout=60, expect=0, env=None, options=()):
        command = code_or_args
        if isinstance(code_or_args, str):
            source = tmp_path / "job.py"
            source.write_text(dedent(code_or_args))
            command = ["python", str(source)]
        launch = [sys.executable, "-m", "hpcomm", "run", "-n", str(n), "--timeout", str(timeout), *options]
        done = _finish([*launch, *command], timeout + END_S, env or {})
        if expect is not None and done.returncode != expect:
            pytest.fail(
                f"the job ended with {done.returncode}, not {expect}: {' '.join(command)}\n"
                f"--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
            )
        return done

    return run


def _finish(command, limit_s, env):
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        command,
        env={**os.environ, "PYTHONPATH": path, **env},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        out, err = process.communicate(timeout=limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        out, err = process.communicate()
        pytest.fail(f"no end after {limit_s:g} s: {' '.join(command)}\n--- stdout\n{out}\n--- stderr\n{err}")
    return subprocess.CompletedProcess(command, process.returncode, out, err)

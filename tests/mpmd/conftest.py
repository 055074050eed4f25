"""Jobs of several programs, each in processes that are gone when the test is."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from textwrap import dedent

import pytest

ROOT = Path(__file__).parents[2]
END_S = 15.0


def finish(command, limit_s, cwd, env=None):
    """Run command to its end; a test that would hang fails with what the command said."""
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    process = subprocess.Popen(
        [str(word) for word in command],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1", **(env or {})},
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
        pytest.fail(f"no end after {limit_s:g} s: {command}\n--- stdout\n{out}\n--- stderr\n{err}")
    return subprocess.CompletedProcess(command, process.returncode, out, err)


@pytest.fixture
def programs(tmp_path):
    """programs([(n, source or command), ...], timeout=40, expect=0, env=None) -> CompletedProcess

    Starts programs side by side through `hpcomm run`, without a spec. expect: the exit status; None: any;
    "failure": any but 0 and that of the time limit.
    """

    def run(parts, timeout=40, expect=0, env=None):
        words = []
        for i, (n, what) in enumerate(parts):
            command = what
            if isinstance(what, str):
                script = tmp_path / f"program_{i}.py"
                script.write_text(dedent(what))
                command = ["python", str(script)]
            head = [":"] if i else ["--timeout", str(timeout)]
            words += [*head, "-n", str(n), *command] if i else ["-n", str(n), *head, *command]
        done = finish([sys.executable, "-m", "hpcomm", "run", *words], timeout + END_S, tmp_path, env)
        judge(done, expect)
        return done

    return run


@pytest.fixture
def spec(tmp_path):
    """spec(text, *options, files={name: source}, ...) -> CompletedProcess of `hpcomm run job.toml`."""

    def run(text, *options, files=None, timeout=60, expect=0, env=None):
        for name, source in (files or {}).items():
            (tmp_path / name).write_text(dedent(source))
        (tmp_path / "job.toml").write_text(dedent(text))
        command = [sys.executable, "-m", "hpcomm", "run", "--timeout", str(timeout), *options, "job.toml"]
        done = finish(command, timeout + END_S, tmp_path, env)
        judge(done, expect)
        return done

    return run


def judge(done, expect):
    fits = done.returncode not in (0, 124) if expect == "failure" else expect in (None, done.returncode)
    if not fits:
        pytest.fail(
            f"ended with {done.returncode}, not {expect}: {done.args}\n"
            f"--- stdout\n{done.stdout}\n--- stderr\n{done.stderr}"
        )

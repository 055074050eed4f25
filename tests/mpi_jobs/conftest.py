"""Tests that start jobs of their own, each in processes that are gone when the test is."""

import sys
from textwrap import dedent

import pytest
from processes import CLOCK, finish, judge

END_S = 15.0  # to end in


@pytest.fixture
def job(tmp_path):
    """job(n, code_or_args, timeout=60, expect=0, env=None, options=(), python=sys.executable)
    -> CompletedProcess

    Runs Python source (a string) or a command (a list; "python" is python) on n ranks through
    `hpcomm run`, with its options and with env added to the environment. Fails, and shows what the job
    said, if it takes longer than timeout seconds or ends with another status than expect (None: any).
    timeout is one of steady_time(); with expect=124 it is that of `hpcomm run` itself.
    """

    def run(n, code_or_args, timeout=60, expect=0, env=None, options=(), python=sys.executable):
        command = code_or_args
        if isinstance(code_or_args, str):
            source = tmp_path / "device_call.py"
            source.write_text(dedent(code_or_args))
            command = ["python", str(source)]
        clock = timeout if expect == 124 else CLOCK * timeout
        launch = [python, "-m", "hpcomm", "run", "-n", str(n), "--timeout", str(clock), *options]
        done = finish([*launch, *command], timeout + END_S, env=env)
        judge(done, expect)
        return done

    return run

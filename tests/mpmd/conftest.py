"""Jobs of several programs, each in processes that are gone when the test is."""

import sys
from textwrap import dedent

import pytest
from processes import CLOCK, finish, judge

END_S = 15.0
ONE_THREAD = {"OMP_NUM_THREADS": "1"}


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
            head = [":"] if i else ["--timeout", str(CLOCK * timeout)]
            words += [*head, "-n", str(n), *command] if i else ["-n", str(n), *head, *command]
        done = finish(
            [sys.executable, "-m", "hpcomm", "run", *words],
            timeout + END_S,
            tmp_path,
            {**ONE_THREAD, **(env or {})},
        )
        judge(done, expect)
        return done

    return run


@pytest.fixture
def spec(tmp_path):
    """spec(text, *options, files={name: source}, ...) -> CompletedProcess of `hpcomm run job.toml`."""

    def run(text, *options, files=None, timeout=60, expect=0, env=None, python=sys.executable):
        for name, source in (files or {}).items():
            (tmp_path / name).write_text(dedent(source))
        (tmp_path / "job.toml").write_text(dedent(text))
        words = ["--timeout", str(CLOCK * timeout), *options, "job.toml"]
        command = [python, "-m", "hpcomm", "run", *words]
        done = finish(command, timeout + END_S, tmp_path, {**ONE_THREAD, **(env or {})})
        judge(done, expect)
        return done

    return run

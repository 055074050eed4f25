"""docs/debugging.md: its commands, its session with pdb, and its settings of VS Code, by another client."""

import json
import os
import re
import shlex
import socket
import subprocess
import sys
from contextlib import contextmanager

import pytest
from processes import ROOT, finish, judge
from steady import Alarm
from test_readme import FENCE
from test_tutorials import COMMANDS

PAGE = (ROOT / "docs/debugging.md").read_text()
LIMIT_S = 60
PROMPT = "(Pdb) "
SPAWN = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"
AT_A_TERMINAL = [sys.executable, "-c", SPAWN]  # whose keys are the process's input


def blocks(text, language):
    return [block[2] for block in FENCE.finditer(text) if block[1] == language]


def as_run(line):
    """A command line of the page, as this Python runs it."""
    first, *words = shlex.split(line, comments=True)
    return [*COMMANDS[first], *words]


@contextmanager
def started(words, folder):
    """The process, whose output goes to its stdout; it is gone at the end, and after LIMIT_S."""
    quiet = {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1", "HPCOMM_STALL": "600"}
    process = subprocess.Popen(
        words,
        cwd=folder,
        env={**os.environ, **quiet},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )

    alarm = Alarm(LIMIT_S, process.terminate)  # by which a job ends as a whole
    with process:
        try:
            yield process
            process.stdin.close()
            process.wait()
        finally:
            alarm.cancel()
            process.terminate()


@pytest.mark.once
def test_what_a_rank_prints_is_told_apart_as_the_page_says(tmp_path):
    (tmp_path / "program.py").write_text("from hpcomm import world\nprint('I am', world.rank)\n")
    label, output = blocks(PAGE, "")[0].splitlines()
    [(mark, rank)] = re.findall(r"# (\S+) before each line that rank (\d) prints", label)
    assert f"{mark} I am {rank}\n" in finish(as_run(label), LIMIT_S, tmp_path).stdout
    [(rank, file)] = re.findall(r"# what rank (\d) prints goes to (\S+)", output)
    judge(finish(as_run(output), LIMIT_S, tmp_path), 0)
    assert (tmp_path / file).read_text() == f"I am {rank}\n"


def test_who_types_at_pdb_what_the_page_types_sees_what_it_shows(tmp_path):
    (tmp_path / "program.py").write_text(blocks(PAGE, "python")[0])
    [session] = (block for block in blocks(PAGE, "") if block.startswith("$ "))
    command, shown = session.removeprefix("$ ").split("\n", 1)
    if sys.version_info >= (3, 13):
        [line] = re.findall(
            r"Python 3.13 and later stop at `breakpoint\(\)` itself, which is line (\d)", PAGE
        )
        at = f"> program.py({line})<module>()\n-> breakpoint()"
        shown = "\n".join([at, *shown.split("\n")[2:]])
    seen = where = ""
    with started([*AT_A_TERMINAL, *as_run(command)], tmp_path) as process:
        for keys in re.findall(re.escape(PROMPT) + r"(.*\n)", shown):
            while not seen.endswith(PROMPT) and (letter := process.stdout.read(1)):
                seen += letter
            where = where or finish([*COMMANDS["hpcomm"], "where", process.pid], LIMIT_S).stdout
            process.stdin.write(keys)
            process.stdin.flush()
            seen += process.stdout.readline()
        seen += process.stdout.read()
    assert seen.replace(f"{tmp_path}/", "") == shown
    assert process.returncode == 0
    assert "says of rank 0 that it is in a debugger" in PAGE
    assert re.search(r"^ *rank 0: .* in a debugger at program.py:\d", where, re.M), where


class Editor:
    """What VS Code says to a rank that waits for it (debug adapter protocol)."""

    def __init__(self, host, port):
        with socket.create_connection((host, port), LIMIT_S) as link:
            self.stream = link.makefile("rwb")  # which keeps it open
        self.number = 0

    def ask(self, command, **arguments):
        self.number += 1
        asked = {"seq": self.number, "type": "request", "command": command, "arguments": arguments}
        body = json.dumps(asked).encode()
        self.stream.write(b"Content-Length: %d\r\n\r\n%b" % (len(body), body))
        self.stream.flush()

    def told(self, what):
        """The body of the next event, or answer, of that name."""
        while True:
            head = self.stream.readline()
            assert head, f"it has hung up before {what}"
            self.stream.readline()
            message = json.loads(self.stream.read(int(head.split()[1])))
            assert message.get("success", True), message
            if what in (message.get("event"), message.get("command")):
                return message.get("body")


def test_vs_code_with_the_settings_of_the_page_stops_rank_1_at_a_breakpoint(tmp_path):
    pytest.importorskip("debugpy")
    with socket.create_server(("localhost", 0)) as free:
        page = PAGE.replace("5678", str(free.getsockname()[1]))
    program, rank_waits = blocks(page, "python")
    code = re.sub(r"^if comm.rank == 0:\n +breakpoint\(\)\n", rank_waits, program, flags=re.M)
    (tmp_path / "program.py").write_text(code)
    [settings] = map(json.loads, blocks(page, "json"))
    [chosen] = settings["configurations"]
    assert settings["version"] == "0.2.0"
    assert f"import {chosen['type']}\n" in rank_waits
    assert set(chosen) == {"name", "type", "request", "connect"}
    [command] = re.findall(r"Start the job with `(.*)`", page)
    with started(as_run(command), tmp_path) as process:
        assert process.stdout.readline() == f"[1] waits for a debugger at port {chosen['connect']['port']}\n"
        editor = Editor(**chosen["connect"])
        editor.ask("initialize", adapterID=chosen["type"], pathFormat="path")
        editor.ask(chosen["request"], **chosen)
        editor.told("initialized")
        last = code.count("\n")
        here = {"path": str(tmp_path / "program.py")}
        editor.ask("setBreakpoints", source=here, breakpoints=[{"line": last}])
        editor.ask("configurationDone")
        thread = editor.told("stopped")["threadId"]
        editor.ask("stackTrace", threadId=thread)
        frame = editor.told("stackTrace")["stackFrames"][0]
        editor.ask("evaluate", expression="comm.rank", frameId=frame["id"])
        assert (frame["line"], editor.told("evaluate")["result"]) == (last, chosen["name"].split()[1])
        editor.ask("continue", threadId=thread)
        with editor.stream:
            assert sorted(process.stdout) == [f"[{rank}] [3. 3. 3.]\n" for rank in range(2)]
    assert process.returncode == 0

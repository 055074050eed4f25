"""All command lines alike: defaults in --help, one voice, JSON, completion, and variables in one list."""

from __future__ import annotations

import argparse
import importlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from hpcomm.__main__ import main
from hpcomm.communicator.settings import LEVELS
from hpcomm.errors import ConfigError
from hpcomm.job import launcher, run_spec, variables
from hpcomm.job.command_line import Parser, table
from hpcomm.tools.commands import COMMANDS, parser_of
from hpcomm.transport.device.path_choice import PATHS

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "hpcomm"
APPS = sorted(path.stem for path in (PACKAGE / "apps").glob("[!_]*.py"))


def command(*words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("HPCOMM_")}
    return subprocess.run(
        [sys.executable, "-m", "hpcomm", *words],
        capture_output=True,
        text=True,
        timeout=60,
        env={**kept, **environ},
    )


def told(made: argparse.ArgumentParser) -> list[str]:
    """Options whose help does not say what holds without them."""
    formatter = made._get_formatter()
    return [
        "/".join(each.option_strings)
        for each in made._actions
        if each.option_strings and each.help != argparse.SUPPRESS
        if not each.help
        or (
            each.nargs is None
            and each.default not in (None, "")
            and "default" not in formatter._expand_help(each)
        )
    ]


@pytest.mark.parametrize("name", [*COMMANDS, "run SPEC"])
def test_every_option_of_a_command_says_what_it_does_and_its_default(name: str) -> None:
    assert told(run_spec.parser() if name == "run SPEC" else parser_of(name)) == []


@pytest.mark.parametrize("name", APPS)
def test_the_help_of_an_app_says_its_defaults(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Parser] = []

    def stop(self: Parser, argv: object = None) -> None:
        seen.append(self)
        raise SystemExit(0)

    monkeypatch.setattr(Parser, "parse_args", stop)
    with pytest.raises(SystemExit):
        importlib.import_module(f"hpcomm.apps.{name}").main([])
    assert told(seen[0]) == []


def test_programs_of_apps_say_their_defaults() -> None:
    plain = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "apps").rglob("*.py")
        if "ArgumentParser(" in path.read_text() and "ArgumentDefaultsHelpFormatter" not in path.read_text()
    ]
    assert plain == []


@pytest.mark.parametrize("words", [["--help"], ["sim", "--help"], ["sim"], ["sim", "--nothing"], ["env"]])
def test_only_the_first_rank_speaks(words: list[str]) -> None:
    first, second = (command(*words, PMI_RANK=rank) for rank in "01")
    assert first.stdout + first.stderr
    assert second.stdout + second.stderr == ""


def test_a_child_of_a_rank_speaks_whatever_number_that_has() -> None:
    began = launcher.began_of(os.getpid())
    assert command("env", PMI_RANK="1", HPCOMM_IS_RANK=f"{os.getpid()} {began} 1").stdout


def test_what_is_refused_on_all_ranks_is_said_by_the_first_to_come(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The others follow, if they live that long: a fault of one rank alone is not lost."""
    slept: list[float] = []
    monkeypatch.setattr("time.sleep", slept.append)
    monkeypatch.setenv("PMI_RANK", "2")
    with pytest.raises(SystemExit):
        importlib.import_module("hpcomm.apps.p2p_ring").main(["--count", "0"])
    assert slept
    assert "argument --count" in capsys.readouterr().err


@pytest.mark.parametrize(
    "words",
    [
        "sim all_reduce --algorithm ring --json",
        "draw ring --ranks 4 --view steps --json",
        "prove {star} --ranks 2,3 --json",
        "check {spec} --json",
        "plan {spec} --json",
        "env --json",
    ],
)
def test_a_table_comes_as_json_too(words: str, tmp_path: Path) -> None:
    star = tmp_path / "star.py"
    star.write_text(
        "from hpcomm.schedule.registry import build, register\n"
        "@register('mine', 'barrier')\n"
        "def mine(size, root=0):\n    return build('barrier', 'ring', size, root)\n"
    )
    spec = ROOT / "mpmd_configs" / "heat_coupled.toml"
    done = command(*words.format(star=star, spec=spec).split())
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("report none -o {none}/a.html", "  try:   mkdir -p {none}\n"),
        ("report none -o {file}/a.json", "there is no folder {file}"),
        ("report none -o /proc/a.json", "/proc/a.json cannot be written: "),
        ("mpmd draw {spec} -o {none}/a.svg", "there is no folder {none}"),
        ("mpmd draw {spec} -o /proc/a.svg", "/proc/a.svg cannot be written: "),
        ("sim --fit {none}/here.json", "there is no folder {none}"),
        ("tune -o {file}/table.json", "-o {file}: there is a file of that name"),
        ("run -n 1 --output {file}/out true", "--output {file}/out: Not a directory"),
        ("run -n 1 --trace {long} true", "{long}: File name too long"),
    ],
)
def test_what_cannot_be_written_is_named_before_anything_is_done(
    words: str, said: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("")
    names = {"none": tmp_path / "none", "file": tmp_path / "file", "long": tmp_path / ("x" * 300)}
    names["spec"] = ROOT / "mpmd_configs" / "heat_coupled.toml"
    assert main([each.format(**names) for each in words.split()]) == 2
    told = capsys.readouterr().err
    assert said.format(**names) in told
    assert told.startswith("ConfigError: ")
    assert "\n  try:   " in told
    assert [*tmp_path.iterdir()] == [tmp_path / "file"]


def test_a_picture_without_a_name_gets_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("matplotlib")
    monkeypatch.chdir(tmp_path)
    assert main(["draw", "double_tree:chunks=2", "--ranks", "4"]) == 0
    assert capsys.readouterr().out.startswith("double_tree_chunks_2_messages.svg: ")
    assert (tmp_path / "double_tree_chunks_2_messages.svg").exists()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_completes_all_commands_and_options(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert main(["completion", shell]) == 0
    script = capsys.readouterr().out
    assert all(name in script for name in (*COMMANDS, "dry-run", "algorithm"))
    if shell == "bash":
        done = subprocess.run(["bash", "-n"], input=script, text=True, capture_output=True, timeout=60)
        assert (done.returncode, done.stderr) == (0, "")


def test_bash_completes_files_and_the_names_of_apps(capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("shtab")
    assert main(["completion", "bash"]) == 0
    asked = """
        at() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1))
             _shtab_hpcomm; echo "${COMPREPLY[*]}"; COMPREPLY=(); }
        at hpcomm run -n 2 python READ
        at hpcomm run -n 2 python -m hpcomm.apps.p
        at hpcomm run --output tes
        at hpcomm check mpmd_confi
    """
    script = f"{capsys.readouterr().out}\ncd {ROOT}\n{asked}"
    done = subprocess.run(["bash", "-c", script], text=True, capture_output=True, timeout=60)
    told = ["README.md", "hpcomm.apps.p2p_ring hpcomm.apps.pingpong", "tests", "mpmd_configs"]
    assert (done.stdout.splitlines(), done.stderr) == (told, "")


def test_completion_without_shtab_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "shtab", None)
    with pytest.raises(ConfigError, match=r"hpcomm\[completion\]"):
        importlib.import_module("hpcomm.tools.commands").completion(["bash"])


def test_a_table_is_as_wide_as_its_cells() -> None:
    assert table(("a", "b", "c"), [("long", 1, "x"), ("s", 100, "yy")], left=(0, 2)) == (
        "a       b  c\n-------------\nlong    1  x\ns     100  yy"
    )


# -- variables -------------------------------------------------------------------------------------


def test_every_variable_that_is_read_is_in_the_list_and_the_other_way_round() -> None:
    sources = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.c"), *(ROOT / "apps").rglob("*.py")]
    text = "\n".join(path.read_text() for path in sources if path.name != "variables.py")
    found = set(re.findall(r"""["'](HPCOMM_[A-Z_]+)["']""", text))
    assert found == {each.name for each in variables.VARIABLES}
    values = {each.name: each.values.split(", ") for each in variables.VARIABLES}
    assert values["HPCOMM_CHECK"] == list(LEVELS)
    assert set(values["HPCOMM_GPU"]) == {"off", *PATHS}


def test_the_page_of_variables_is_made_of_the_list() -> None:
    rows = [
        f"| `{each.name}` | {each.values} | {each.default} | {each.what} |"
        for each in variables.VARIABLES
        if not each.own
    ]
    rows += [f"| `{each.name}` | {each.values} | {each.what} |" for each in variables.VARIABLES if each.own]
    page = (ROOT / "docs" / "variables.md").read_text()
    assert re.findall(r"^\| `HPCOMM_.*$", page, re.MULTILINE) == rows


def test_a_variable_that_nothing_reads_is_warned_about_with_the_name_that_is_near(
    capsys: pytest.CaptureFixture[str],
) -> None:
    environ = {"HPCOMM_CHEKC": "full", "HPCOMM_ZZZ": "1", "HPCOMM_CHECK": "full", "OTHER": ""}
    assert variables.unknown(environ) == {"HPCOMM_CHEKC": "HPCOMM_CHECK", "HPCOMM_ZZZ": ""}
    said = command("env", **environ).stdout
    assert "nothing reads HPCOMM_CHEKC; is HPCOMM_CHECK meant?" in said
    done = subprocess.run(
        [sys.executable, "-c", "import hpcomm; hpcomm.world.barrier(); hpcomm.self_.barrier()"],
        capture_output=True, text=True, timeout=60, env={**os.environ, "HPCOMM_CHEKC": "full"},
    )  # fmt: skip
    assert done.stderr.count("nothing reads the variable HPCOMM_CHEKC\n  try:   HPCOMM_CHECK, or") == 1

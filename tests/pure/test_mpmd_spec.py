"""Specs: what a right one says, and one clear message for each kind of wrong one, before anything starts."""

import json
import os
import re
import sys
import tomllib
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from processes import finish

from hpcomm.errors import ConfigError
from hpcomm.grids import methods
from hpcomm.job import launch, program_watch, rank_supervisor, run_spec
from hpcomm.job.installation import VENDORS, Mpi, find_mpi
from hpcomm.job.launch import Machine
from hpcomm.job.spec import schema
from hpcomm.mpmd.coupling.unit import conversion
from hpcomm.mpmd.spec import draw_spec
from hpcomm.mpmd.spec.spec_reader import read

pytest.importorskip("pint")
ROOT = Path(__file__).parents[2]
RIGHT = """\
[job]
name = "climate"
timeout = 60

[program.ocean]
command = "python ocean.py --fast --mark '|' 'a; b'"
ranks = 2
step = 1800.0
device = "gpu"
gpus = [0, 1]
threads = 2
env = { DEPTH = "50" }

[program.air]
command = ["python", "air.py"]
ranks = 1
on_failure = "end"

[program.viewer]
command = "python view.py"
ranks = 1
joins = false

[grid.sea]
kind = "latlon"
nlat = 8
nlon = 16

[grid.sky]
kind = "gaussian"
nlat = 8
nlon = 20

[grid.flat]
kind = "plane"
nx = 4
ny = 4

[grid.buoys]
kind = "points"
size = 9

[[field]]
name = "sst"
from = "ocean"
to = "air"
mapping = "bilinear"
from_grid = "sea"
to_grid = "sky"
every = 3600.0
from_unit = "K"
to_unit = "degC"

[[field]]
name = "heat"
from = "air"
to = "ocean"
mapping = "conservative"
from_grid = "sky"
to_grid = "sea"
every = 3600.0
lag = 3600.0
time = "mean"
unit = "W/m^2"
"""


@pytest.fixture
def folder(tmp_path):
    for name in ("ocean.py", "air.py", "view.py"):
        (tmp_path / name).write_text("from pathlib import Path\nPath('started').touch()\n")
    return tmp_path


def write(folder, text):
    path = folder / "job.toml"
    path.write_text(text)
    return path


def test_a_right_spec_is_read_as_it_stands(folder):
    spec = read(write(folder, RIGHT))
    ocean = spec.programs["ocean"]
    assert (spec.name, spec.timeout_s, list(spec.programs)) == ("climate", 60.0, ["ocean", "air", "viewer"])
    assert ocean.command == (sys.executable, "ocean.py", "--fast", "--mark", "|", "a; b")
    assert (ocean.ranks, ocean.device, ocean.gpus, ocean.threads, ocean.env) == (
        2,
        "gpu",
        (0, 1),
        2,
        {"DEPTH": "50"},
    )
    assert spec.programs["air"].command == (sys.executable, "air.py")
    assert {name: list(ranks) for name, ranks in spec.world_ranks().items()} == {
        "ocean": [0, 1],
        "air": [2],
        "viewer": [3],
    }
    sst, heat = spec.fields
    assert (sst.source, sst.target, sst.mapping, sst.time, sst.lag.seconds) == (
        "ocean",
        "air",
        "bilinear",
        "instant",
        0.0,
    )
    assert (heat.every, heat.lag.seconds, heat.time, heat.target_unit) == (
        (3600.0, 0),
        3600.0,
        "mean",
        "W/m^2",
    )
    assert spec.grids["sky"].size == 160


def test_a_programs_ranks_have_what_torchrun_would_set_for_it_alone(folder):
    hosts = 'hosts = ["n1:2", "n2:1"]'
    text = f"[program.a]\ncommand = 'true'\nranks = 2\n[program.b]\ncommand = 'true'\nranks = 3\n{hosts}\n"
    (folder / "job.toml").write_text(text)
    names = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GROUP_WORLD_SIZE")
    names = (*names, "MASTER_ADDR", "MASTER_PORT", "ROLE_NAME")
    names = (*names, "TORCHELASTIC_RESTART_COUNT", "TORCHELASTIC_MAX_RESTARTS")
    spec = read(folder / "job.toml", here=False)

    def told(program, rank):
        found = rank_supervisor._for_torch(spec, program, rank, "n0:3000", (1, 4))
        return " ".join(found[name] for name in names)

    assert told("a", 1) == "1 2 1 2 0 1 n0 3000 a 1 4"
    assert [told("b", rank) for rank in (1, 2)] == ["1 3 1 2 0 2 n1 3001 b 1 4", "2 3 0 1 1 2 n1 3001 b 1 4"]


def test_the_environment_of_a_rank_is_what_the_spec_says(folder):
    spec = read(write(folder, RIGHT))
    second = rank_supervisor.environment(spec, "ocean", 1, {})
    assert (second["CUDA_VISIBLE_DEVICES"], second["OMP_NUM_THREADS"], second["DEPTH"]) == ("1", "2", "50")
    assert second["HPCOMM_PROGRAMS"] == "ocean=0-1 air=2-2"
    assert "HPCOMM_PROGRAMS" not in rank_supervisor.environment(spec, "viewer", 0, {})
    assert rank_supervisor.environment(spec, "air", 0, {})["CUDA_VISIBLE_DEVICES"] == ""


def test_a_rank_on_the_host_of_another_one_is_refused(folder):
    text = "[program.a]\ncommand = 'true'\nranks = 2\nhosts = ['n1', 'n2.far']\n"
    text += "[program.b]\ncommand = 'true'\nranks = 1\nhosts = ['n3']\n"
    (folder / "job.toml").write_text(text)
    spec = read(folder / "job.toml", here=False)
    for place in ("n1", "n1.near", "10.0.0.1"):  # the last one may be a name of it
        assert rank_supervisor.misplaced(spec, "a", 0, place) == ""
    assert rank_supervisor.misplaced(spec, "a", 1, "n2") == ""
    twice = replace(
        spec, programs=spec.programs | {"b": replace(spec.programs["b"], hosts=(("localhost", 1),))}
    )
    assert rank_supervisor.misplaced(twice, "b", 0, "n1") == ""  # another name of this host
    wrong = "the launcher has put rank 1 of 'a' on n3, and the spec on n2.far"
    assert rank_supervisor.misplaced(spec, "a", 1, "n3").startswith(wrong)
    here = os.uname().nodename
    (folder / "job.toml").write_text(text.replace("n1", "elsewhere").replace("n3", here))
    rank = [sys.executable, "-m", "hpcomm.job.rank_supervisor", "--spec", "job.toml", "a"]
    done = finish(rank, 30, folder)
    assert done.returncode == 127
    assert done.stderr.startswith(
        f"hpcomm: the launcher has put rank 0 of 'a' on {here}, and the spec on else"
    )


def test_a_rank_of_a_spec_shares_the_cores_of_its_host_with_all_that_are_there(folder, monkeypatch):
    text = "[program.a]\ncommand = 'true'\nranks = 2\nhosts = ['n1:1', 'n2:1']\n"
    text += "[program.b]\ncommand = 'true'\nranks = 3\nhosts = ['n2:2', 'n1:1']\n"
    (folder / "job.toml").write_text(text)
    spec = read(folder / "job.toml", here=False)
    assert [spec.ranks_beside("a", rank) for rank in range(2)] == [2, 3]
    assert [spec.ranks_beside("b", rank) for rank in range(3)] == [3, 3, 2]
    assert replace(spec, programs={"b": replace(spec.programs["b"], hosts=())}).ranks_beside("b", 0) is None
    monkeypatch.setattr(rank_supervisor, "threads", {2: 8, 3: 4}.get)
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    told = [rank_supervisor.environment(spec, "b", rank, {})["OMP_NUM_THREADS"] for rank in range(3)]
    assert told == ["4", "4", "8"]
    monkeypatch.setenv("OMP_NUM_THREADS", "5")
    assert rank_supervisor.environment(spec, "b", 0, {})["OMP_NUM_THREADS"] == "5"


MEMBERS = """
[program.ocean]
command = "python ocean.py --seed {member} --file r{member:03}.nc --set {depth}"
ranks = 2
members = 3
device = "gpu"
gpus = [0, 1, 2]
env = { NUMBER = "7{member}" }
hosts = ["n1:4", "n2:2"]

[program.air]
command = "python air.py {member}"
ranks = 1
members = 3
hosts = ["n3:3"]
first = "put"

[program.viewer]
command = "python view.py {member}"
ranks = 1
hosts = ["n4"]

[[field]]
name = "heat"
from = "air"
to = "ocean"

[[field]]
name = "sst"
from = "ocean"
to = "viewer"

[[field]]
name = "shift"
from = "viewer"
to = "air"
"""


def test_each_member_is_a_program_with_its_own_name_number_and_place(folder, capsys):
    spec = read(write(folder, MEMBERS))
    names = ["ocean_0001", "ocean_0002", "ocean_0003", "air_0001", "air_0002", "air_0003", "viewer"]
    assert [*spec.programs] == names
    assert [*spec.world_ranks()["ocean_0002"]] == [2, 3]
    second, third, viewer = (spec.programs[name] for name in ("ocean_0002", "ocean_0003", "viewer"))
    assert second.command[2:] == ("--seed", "2", "--file", "r002.nc", "--set", "{depth}")
    assert (second.hosts, third.hosts, second.gpus) == ((("n1", 2),), (("n2", 2),), (2, 0, 1))
    assert (second.ensemble, second.member, viewer.ensemble, viewer.member) == ("ocean", 2, "viewer", 0)
    assert viewer.command[2:] == ("{member}",)
    found = rank_supervisor.environment(spec, "ocean_0003", 1, {})
    assert (found["HPCOMM_PROGRAM"], found["HPCOMM_MEMBER"], found["NUMBER"]) == ("ocean_0003", "3", "73")
    assert found["HPCOMM_PROGRAMS"].startswith("ocean_0001=0-1 ocean_0002=2-3")
    assert "HPCOMM_MEMBER" not in rank_supervisor.environment(spec, "viewer", 0, {})
    assert [str(each) for each in spec.fields][:4] == [
        *(f"heat (air_000{n} -> ocean_000{n})" for n in (1, 2, 3)),
        "sst (ocean_0001 -> viewer)",
    ]
    assert [each.member for each in spec.fields[2:4]] == [None, (1, 3, True)]
    assert spec.fields[8].member == (3, 3, False)
    heard = program_watch.Watch(spec)
    for n in (1, 2):
        heard.hear(["at", f"ocean_000{n}", "0", "4", "60"])
    assert "ocean_0001 to ocean_0002 at 60 s, 4 exchanges; ocean_0003 starts; air" in heard.progress()
    path = str(folder / "job.toml")
    assert draw_spec.check([path]) == draw_spec.plan([path]) == 0
    told = capsys.readouterr().out
    assert "3 programs, 6 members, 10 ranks, 3 fields\n" in told
    assert "program ocean_0003: ranks 4-5, gpu, n2\n" in told
    assert "field sst: ocean -> viewer, as it is\n" in told


def test_fields_that_are_implicit_or_go_in_a_circle_are_refused_by_the_names_of_ensembles(folder):
    circle = MEMBERS.replace(
        'name = "shift"\nfrom = "viewer"\nto = "air"', 'name = "s"\nfrom = "viewer"\nto = "ocean"'
    )
    with pytest.raises(ConfigError, match=r'first = "put" in \[program\.(ocean|viewer)\]'):
        read(write(folder, circle))
    with pytest.raises(ConfigError, match="'sst' is implicit, between an ensemble and one program"):
        read(write(folder, MEMBERS.replace('name = "sst"', 'name = "sst"\nimplicit = true')))


LONG = "x" * 300
VALUES = st.sampled_from(
    ["0", "-1", "1e300", "nan", "true", '""', '"x"', '"ocean"', '"sea"', "[]", "[0]", '["x"]', "[[1]]", "{}",
     '["nearest", true]', f'"{LONG}"', f'"./{LONG} y"']
)  # fmt: skip


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_spec_with_any_value_in_place_of_another_is_read_or_refused_in_words(folder, data):
    lines = RIGHT.splitlines()
    keys = [i for i, line in enumerate(lines) if " = " in line]
    for at in data.draw(st.lists(st.sampled_from(keys), min_size=1, max_size=2, unique=True)):
        lines[at] = f"{lines[at].partition(' = ')[0]} = {data.draw(VALUES)}"
    told = None
    try:
        read(write(folder, "\n".join(lines)))
    except ConfigError as error:
        told = error
    assert told is None or ("job.toml" in str(told) and told.hint)


BOTH = RIGHT[RIGHT.index("ranks = 2") : RIGHT.index("on_failure")]  # of ocean, and of air
# what is replaced in RIGHT, by what, words of the message, the line that it names
WRONG = {
    "no valid TOML": ("ranks = 2", "ranks = = 2", "no valid TOML", "ranks = = 2"),
    "nested too deeply": (
        "ranks = 2",
        f"ranks = 2\nx = {'[' * 3000}1{']' * 3000}",
        "is nested too deeply",
        f"x = {'[' * 3000}1{']' * 3000}",
    ),
    "a text without quotes": ('name = "climate"', "name = climate", "no valid TOML", "name = climate"),
    "a key twice": ("ranks = 2", "ranks = 2\nranks = 3", "no valid TOML", "ranks = 3"),
    "an unknown table": (
        "[program.viewer]",
        "[programs.viewer]",
        "no key 'programs'.*did you mean 'program'",
        "[programs.viewer]",
    ),
    "an unknown key of a program": (
        "threads = 2",
        "treads = 2",
        "no key 'treads'.*did you mean 'threads'",
        "treads = 2",
    ),
    "an unknown key of a field": (
        "lag = 3600.0",
        "lagg = 3600.0",
        "no key 'lagg'.*did you mean 'lag'",
        "lagg = 3600.0",
    ),
    "an unknown key of the job": (
        "timeout = 60",
        "time_limit = 60",
        "no key 'time_limit'",
        "time_limit = 60",
    ),
    "no programs": (RIGHT, "[job]\nname = 'x'\n", "no programs", "[job]"),
    "no command": ('command = "python view.py"\n', "", "program 'viewer' has no command", "[program.viewer]"),
    "an empty command": ('"python view.py"', '""', "a text or a list of texts, not ''", 'command = ""'),
    "quotes left open in a command": (
        '"python view.py"',
        '"python \'view.py"',
        "cannot be read",
        'command = "python \'view.py"',
    ),
    "a command that is no text": ('"python view.py"', "7", "command must be a text", "command = 7"),
    "a command that is not there": (
        '"python view.py"',
        '"./viewer --all"',
        "command not found: ./viewer",
        'command = "./viewer --all"',
    ),
    "a command of a long name": (
        '"python view.py"',
        f'"./{"x" * 300}"',
        "command not found: ./xxx",
        f'command = "./{"x" * 300}"',
    ),
    "a script of a long name": (
        '"python view.py"',
        f'"python {"x" * 300}.py"',
        "File name too long",
        f'command = "python {"x" * 300}.py"',
    ),
    "a mapping that is true": (
        'mapping = "bilinear"',
        'mapping = ["nearest", true]',
        "there is no mapping True",
        'mapping = ["nearest", true]',
    ),
    "a script that is not there": (
        '"python view.py"',
        '"python view2.py"',
        "no script view2.py.*did you mean 'view.py'",
        'command = "python view2.py"',
    ),
    "no member at all": (
        "ranks = 2",
        "ranks = 2\nmembers = 0",
        "members must be a whole number from 1",
        "members = 0",
    ),
    "more members than names": (
        "ranks = 2",
        "ranks = 2\nmembers = 10000",
        "at most 9,999",
        "members = 10000",
    ),
    "a name that is a member's": (
        "[program.viewer]",
        "members = 2\n[program.air_0002]",
        "members of 'air' cannot be called air_0001 to air_0002",
        "members = 2",
    ),
    "a name too long for members": (
        "[program.viewer]",
        f"[program.{'v' * 60}]\nmembers = 2",
        "cannot be called v.*a shorter name",
        "members = 2",
    ),
    "other numbers of members": (
        BOTH,
        BOTH.replace("ranks = 2", "ranks = 2\nmembers = 2").replace("ranks = 1", "ranks = 1\nmembers = 3"),
        "field 'sst' goes member by member, but 'ocean' has 2 and 'air' has 3.*as many members of both",
        'to = "air"',
    ),
    "hosts for one member": (
        "ranks = 2",
        'ranks = 2\nmembers = 2\nhosts = ["n1:2"]',
        "hosts hold 2 ranks, but the program has 4 in all its members",
        'hosts = ["n1:2"]',
    ),
    "a folder that a member has not": (
        "ranks = 2",
        'ranks = 2\nmembers = 2\nworkdir = "run{member}"',
        "there is no folder .*run1",
        'workdir = "run{member}"',
    ),
    "no ranks": ("ranks = 2\n", "", "program 'ocean' has no ranks", "[program.ocean]"),
    "no rank at all": ("ranks = 2", "ranks = 0", "ranks must be a whole number from 1, not 0", "ranks = 0"),
    "ranks that are no number": (
        "ranks = 2",
        'ranks = "two"',
        "ranks must be a whole number",
        'ranks = "two"',
    ),
    "a name with a blank": (
        "[program.viewer]",
        '[program."the viewer"]',
        "is no name for a program",
        '[program."the viewer"]',
    ),
    "an unknown device": ('"gpu"', '"gpuu"', "no device 'gpuu'.*did you mean 'gpu'", 'device = "gpuu"'),
    "GPUs for a CPU program": (
        'device = "gpu"',
        'device = "cpu"',
        "'ocean' has gpus, but device is cpu",
        "gpus = [0, 1]",
    ),
    "a GPU twice": ("gpus = [0, 1]", "gpus = [1, 1]", "each once, not .1, 1.", "gpus = [1, 1]"),
    "a negative GPU": (
        "gpus = [0, 1]",
        "gpus = [-1]",
        "each of gpus must be a whole number from 0, not -1",
        "gpus = [-1]",
    ),
    "no threads": ("threads = 2", "threads = 0", "threads must be a whole number from 1", "threads = 0"),
    "a variable that is no text": (
        'DEPTH = "50"',
        "DEPTH = 50",
        "env.DEPTH must be a text, not 50",
        "env = { DEPTH = 50 }",
    ),
    "a variable of hpcomm's": (
        'DEPTH = "50"',
        'HPCOMM_PROGRAM = "x"',
        "is hpcomm's own",
        'env = { HPCOMM_PROGRAM = "x" }',
    ),
    "a folder that is not there": (
        "joins = false",
        'workdir = "nowhere"',
        "there is no folder",
        'workdir = "nowhere"',
    ),
    "a policy that is none": (
        'on_failure = "end"',
        'on_failure = "ignore"',
        "no on_failure 'ignore'",
        'on_failure = "ignore"',
    ),
    "hosts that hold too few": (
        "joins = false",
        'hosts = ["n1:3"]',
        "hosts hold 3 ranks, but the program has 1",
        'hosts = ["n1:3"]',
    ),
    "a host that is none": (
        "joins = false",
        'hosts = ["n 1"]',
        "each of hosts must be a host, or host:ranks, not 'n 1'",
        'hosts = ["n 1"]',
    ),
    "a time limit of nothing": ("timeout = 60", "timeout = 0", "above 0, not 0", "timeout = 0"),
    "a grid of no kind": (
        'kind = "gaussian"',
        'kind = "gaussien"',
        "no kind 'gaussien'.*did you mean 'gaussian'",
        'kind = "gaussien"',
    ),
    "a grid without its size": (
        "nlon = 20\n",
        "",
        "grid 'sky' has kind gaussian, but no nlon",
        'kind = "gaussian"',
    ),
    "an octahedral grid of no rows": (
        'kind = "gaussian"\nnlat = 8\nnlon = 20',
        'kind = "reduced_gaussian"',
        "grid 'sky' has kind reduced_gaussian, but no N",
        'kind = "reduced_gaussian"',
    ),
    "rows of no reduced grid": (
        'kind = "gaussian"\nnlat = 8\nnlon = 20',
        'kind = "reduced_gaussian"\nrows = [4, 8, 4]',
        "rows has 3 numbers.*all 2 N rows",
        "rows = [4, 8, 4]",
    ),
    "nested pixels of another number": (
        'kind = "gaussian"\nnlat = 8\nnlon = 20',
        'kind = "healpix"\nnside = 12\nnest = true',
        "nest = true, but nside is no power of two",
        "nest = true",
    ),
    "a kind beside a file": (
        'kind = "points"\nsize = 9',
        'kind = "cells"\nfile = "grids.nc"\nsize = 9',
        "grid 'buoys' has kind, but its file says that",
        'kind = "cells"',
    ),
    "a size beside a file": (
        'kind = "points"\nsize = 9',
        'file = "grids.nc"\nsize = 9',
        "size, which is for points, mesh and cells",
        "size = 9",
    ),
    "a name without a file": (
        'kind = "points"\nsize = 9',
        'kind = "points"\nsize = 9\nname = "torc"',
        "name, but no file that it is in",
        'name = "torc"',
    ),
    "neither kind nor file": (
        'kind = "points"\nsize = 9',
        "size = 9",
        'no kind.*or file = "grids.nc"',
        "[grid.buoys]",
    ),
    "a grid in a file that is not there": (
        'kind = "points"\nsize = 9',
        'file = "grids.nc"',
        "grid 'buoys': there is no file .*grids.nc",
        'file = "grids.nc"',
    ),
    "a plane that is a sphere": (
        "nx = 4",
        "nx = 4\nsphere = true",
        "sphere = true, but a plane is not",
        "sphere = true",
    ),
    "a field of no program": (
        'from = "ocean"',
        'from = "oceon"',
        "no program 'oceon'.*did you mean 'ocean'",
        'from = "oceon"',
    ),
    "a field without a receiver": ('to = "air"\n', "", "field 'sst' has no to", "[[field]]"),
    "a field to itself": ('to = "air"', 'to = "ocean"', "goes from 'ocean' to itself", 'to = "ocean"'),
    "a field to a program that does not join": (
        'to = "air"',
        'to = "viewer"',
        "joins = false",
        'to = "viewer"',
    ),
    "a field in one bracket": (
        '[[field]]\nname = "heat"',
        '[field]\nname = "heat"',
        "no valid TOML",
        "[field]",
    ),
    "a field twice": (
        '[[field]]\nname = "heat"\nfrom = "air"\nto = "ocean"',
        '[[field]]\nname = "sst"\nfrom = "ocean"\nto = "air"',
        "'air' receives two fields called 'sst'.*line 43",
        'name = "sst"',
    ),
    "an unknown mapping": (
        '"bilinear"',
        '"bilinaer"',
        "no mapping 'bilinaer'.*did you mean 'bilinear'",
        'mapping = "bilinaer"',
    ),
    "a mapping without grids": (
        'from_grid = "sea"\n',
        "",
        "needs the grids of both sides",
        'mapping = "bilinear"',
    ),
    "an unknown grid": (
        'from_grid = "sea"',
        'from_grid = "see"',
        "no grid 'see'.*did you mean 'sea'",
        'from_grid = "see"',
    ),
    "a mapping that does not fit": (
        'to_grid = "sea"',
        'to_grid = "buoys"',
        "does not go to a grid of kind points .'sky' to 'buoys'.",
        'to_grid = "buoys"',
    ),
    "a sphere onto a plane": (
        'to_grid = "sky"',
        'to_grid = "flat"',
        "from a grid on a sphere to one on a plane",
        'from_grid = "sea"',
    ),
    "no mapping between sizes": (
        'mapping = "bilinear"\n',
        "",
        "its grids differ: 'sea' .latlon, 128 points. and 'sky' .gaussian, 160 points.",
        'name = "sst"',
    ),
    "weights that are not there": (
        'mapping = "bilinear"\n',
        'mapping = "bilinear"\nweights = "none.npz"\n',
        "no weights in .*none.npz",
        'weights = "none.npz"',
    ),
    "weights in a file that is something else": (
        'mapping = "bilinear"\n',
        'mapping = "bilinear"\nweights = "air.py"\n',
        "no weights in .*air.py",
        'weights = "air.py"',
    ),
    "weights without a mapping": (
        'mapping = "bilinear"\nfrom_grid = "sea"\nto_grid = "sky"\n',
        'weights = "none.npz"\n',
        "has weights, but no mapping",
        'weights = "none.npz"',
    ),
    "a unit that is none": (
        'from_unit = "K"',
        'from_unit = "kelvim"',
        "no unit 'kelvim'.*did you mean 'kelvin'",
        'from_unit = "kelvim"',
    ),
    "the same wrong unit on both sides": (
        'unit = "W/m^2"\n',
        'unit = "bananas"\n',
        "no unit 'bananas'",
        'unit = "bananas"',
    ),
    "a unit that cannot be read": (
        'from_unit = "K"',
        'from_unit = "W//m^^"',
        r"'W//m\^\^' is no unit(: [^\n]*)?\n",
        'from_unit = "W//m^^"',
    ),
    "a command for a shell": (
        '"python view.py"',
        '"python view.py | tee log"',
        "has a '|', but no shell reads it",
        'command = "python view.py | tee log"',
    ),
    "a variable before a command": (
        '"python view.py"',
        '"DEPTH=5 python view.py"',
        'begins with a variable.*env = { DEPTH = "5" }',
        'command = "DEPTH=5 python view.py"',
    ),
    "a launcher as command": (
        '"python view.py"',
        '"mpirun -n 2 python view.py"',
        "mpirun starts ranks of its own",
        'command = "mpirun -n 2 python view.py"',
    ),
    "a script behind an option that is not there": (
        '"python view.py"',
        '"python -u -W ignore view2.py"',
        "no script view2.py.*did you mean 'view.py'",
        'command = "python -u -W ignore view2.py"',
    ),
    "a module that is not there": (
        '"python view.py"',
        '"python -m no_such.module"',
        "no module no_such",
        'command = "python -m no_such.module"',
    ),
    "a script that is no program": (
        '"python view.py"',
        '"./view.py"',
        "may not be executed.*chmod",
        'command = "./view.py"',
    ),
    "a folder as command": ('"python view.py"', '"./"', "is a folder", 'command = "./"'),
    "a path that a shell would read": (
        '"python view.py"',
        '"~/view"',
        "not found: ~/view.*no shell reads it",
        'command = "~/view"',
    ),
    "a key of another kind of grid": (
        'kind = "points"\nsize = 9',
        'kind = "points"\nsize = 9\nnlat = 3',
        "grid 'buoys' has nlat, which is for latlon and gaussian",
        "nlat = 3",
    ),
    "bounds that are no numbers": (
        "nx = 4",
        "bounds = [false, true, 0, 1]\nnx = 4",
        "bounds must be",
        "bounds = [false, true, 0, 1]",
    ),
    "a stack of a mapping that is none": (
        'mapping = "bilinear"',
        'mapping = ["bilinear", "neerest"]',
        "no mapping 'neerest'.*did you mean 'nearest'",
        'mapping = ["bilinear", "neerest"]',
    ),
    "a stack that only fills": (
        'mapping = "bilinear"',
        "mapping = [0.0]",
        "there is no mapping",
        "mapping = [0.0]",
    ),
    "a stack that begins to creep": (
        'mapping = "bilinear"',
        'mapping = ["creep", "nearest"]',
        "no mapping 'creep'",
        'mapping = ["creep", "nearest"]',
    ),
    "a stack that goes on behind its end": (
        'mapping = "bilinear"',
        'mapping = ["bilinear", "keep", "nearest"]',
        "no mapping 'keep' at this place",
        'mapping = ["bilinear", "keep", "nearest"]',
    ),
    "a stack with amounts": (
        'mapping = "bilinear"',
        'mapping = ["to_nearest", "nearest"]',
        "'to_nearest' gives each amount away whole, so no other mapping goes with it",
        'mapping = ["to_nearest", "nearest"]',
    ),
    "normalise of a mapping without": (
        'mapping = "bilinear"',
        'mapping = "bilinear"\nnormalise = "destarea"',
        "has normalise, which only conservative mappings use",
        'normalise = "destarea"',
    ),
    "conserve of amounts": (
        'mapping = "bilinear"',
        'mapping = "to_nearest"\nconserve = "global"',
        "has conserve, but to_nearest keeps the sum by itself",
        'conserve = "global"',
    ),
    "a vector that nothing maps": (
        'mapping = "conservative"',
        "vector = true",
        "has vector, but no mapping that turns them",
        "vector = true",
    ),
    "a vector of three names": (
        'mapping = "bilinear"',
        'mapping = "bilinear"\nvector = ["u", "v", "w"]',
        'vector must be two names, as \\["u", "v"\\], not',
        'vector = ["u", "v", "w"]',
    ),
    "a vector of one name twice": (
        'mapping = "bilinear"',
        'mapping = "bilinear"\nvector = ["u", "u"]',
        "vector must be two names",
        'vector = ["u", "u"]',
    ),
    "a vector that has a component's name": (
        'mapping = "bilinear"',
        'mapping = "bilinear"\nvector = ["u", "sst"]',
        "has the name of a component of the vector",
        'vector = ["u", "sst"]',
    ),
    "a component that comes alone, too": (
        'every = 3600.0\nfrom_unit = "K"',
        'vector = ["u", "v"]\n[[field]]\nname = "v"\nfrom = "ocean"\nto = "air"\nfrom_unit = "K"',
        "'air' receives two fields called 'v'",
        'name = "v"',
    ),
    "an implicit field of two components": (
        'lag = 3600.0\ntime = "mean"',
        'implicit = true\nvector = ["u", "v"]',
        "has vector of two fields, but is implicit",
        'vector = ["u", "v"]',
    ),
    "least vectors": (
        'time = "mean"',
        'time = "min"\nvector = true',
        "has vector, but time = 'min' is for numbers",
        "vector = true",
    ),
    "a radius of a mapping without": (
        'mapping = "bilinear"',
        'mapping = "bilinear"\nradius = 3.0',
        "has radius, which only to_nearest uses",
        "radius = 3.0",
    ),
    "neighbours of a mapping without": (
        'mapping = "bilinear"',
        'mapping = "bilinear"\nneighbours = 3',
        "neighbours, which only idw uses",
        "neighbours = 3",
    ),
    "uncovered without a mapping": (
        'mapping = "conservative"',
        'uncovered = "keep"',
        "has uncovered, but no mapping",
        'uncovered = "keep"',
    ),
    "nan without a mapping": (
        'mapping = "conservative"',
        'nan = "spread"',
        "has nan, but no mapping",
        'nan = "spread"',
    ),
    "an uncovered that is none": (
        'mapping = "conservative"',
        'mapping = "conservative"\nuncovered = "kept"',
        'uncovered must be "error", "keep" or a value, not \'kept\'',
        'uncovered = "kept"',
    ),
    "more neighbours than points": (
        'mapping = "bilinear"',
        'mapping = "idw"\nneighbours = 300',
        "300 neighbours, but grid 'sea' has 128 points",
        "neighbours = 300",
    ),
    "an implicit field with a lag": (
        "every = 3600.0\nlag = 3600.0",
        "lag = 3600.0\nimplicit = true",
        "'heat' has lag, but is implicit: it goes in every iteration",
        "lag = 3600.0",
    ),
    "an implicit field that nothing answers": (
        'every = 3600.0\nlag = 3600.0\ntime = "mean"\n',
        "implicit = true\n",
        "implicit, but no implicit field comes back",
        "implicit = true",
    ),
    "units that do not convert": (
        'to_unit = "degC"',
        'to_unit = "m/s"',
        "'K' does not convert to 'm/s'",
        'to_unit = "m/s"',
    ),
    "a unit on one side": ('to_unit = "degC"\n', "", "unit on one side only", 'from_unit = "K"'),
    "a period that is no multiple of a step": (
        "every = 3600.0\nfrom_unit",
        "every = 2000.0\nfrom_unit",
        "no multiple of the step of 'ocean', 1800 s",
        "every = 2000.0",
    ),
    "a lag that is no multiple": (
        "lag = 3600.0",
        "lag = 1000.0",
        "lag = 1000 s is no multiple",
        "lag = 1000.0",
    ),
    "a lag without a period": ("every = 3600.0\nlag", "lag", "has a lag, but no every", "lag = 3600.0"),
    "an unknown kind of time": ('time = "mean"', 'time = "average"', "no time 'average'", 'time = "average"'),
    "a circle without a lag": (
        "lag = 3600.0\n",
        "",
        "nobody could begin: .*waits for.*no field in this circle has a lag",
        'name = "sst"',
    ),
    "a name that no file can have": (
        'name = "climate"',
        'name = "a/b"',
        "part of a file's name: printable .* not 'a/b'",
        'name = "a/b"',
    ),
    "a field that no file can be called by": (
        'name = "heat"',
        'name = "a/b"',
        "part of a file's name: .* not 'a/b'",
        'name = "a/b"',
    ),
    "a variable without a name": (
        'env = { DEPTH = "50" }',
        'env = { "A=B" = "1" }',
        "'A=B' is no name of a variable",
        'env = { "A=B" = "1" }',
    ),
    "a unit for both sides and for one": (
        'from_unit = "K"',
        'unit = "K"\nfrom_unit = "K"',
        "and one for a side",
        'unit = "K"',
    ),
    "a sum of degrees": (
        'to_unit = "degC"',
        'time = "sum"\nto_unit = "degC"',
        "a sum of K does not convert to degC",
        'to_unit = "degC"',
    ),
    "a negative lag": ("lag = 3600.0", "lag = -3600.0", "0 or more, not -3600", "lag = -3600.0"),
    "a lag of no number": ("lag = 3600.0", "lag = nan", "0 or more, not nan", "lag = nan"),
    "more ranks than any machine has": (
        "ranks = 2",
        "ranks = 10_000_000",
        "ranks must be at most 1,000,000, not 10,000,000",
        "ranks = 10_000_000",
    ),
    "more ranks in all than any machine has": (
        "ranks = 2",
        "ranks = 1_000_000",
        "the programs have 1,000,002 ranks in all",
        "ranks = 1",
    ),
    "a time limit that no clock has": (
        "timeout = 60",
        "timeout = 1e300",
        r"timeout must be at most 1e\+09 s",
        "timeout = 1e300",
    ),
    "a grid of more points than there is memory": (
        "nlat = 8\nnlon = 16",
        "nlat = 100_000_000\nnlon = 100_000_000",
        "has 10,000,000,000,000,000 points",
        "nlat = 100_000_000",
    ),
    "an end between two steps": (
        "timeout = 60",
        "stop = 4000.0",
        "stop = 4000 s is no multiple of the step of 'ocean', 1800 s",
        "stop = 4000.0",
    ),
    "an end before the first step": (
        "timeout = 60",
        "stop = 1.0",
        "stop = 1 s is no multiple of the step",
        "stop = 1.0",
    ),
    "a step far longer than the period": (
        "step = 1800.0",
        "step = 1e14",
        "every = 3600 s is no multiple of the step",
        "every = 3600.0",
    ),
    "grids of one size that differ, and no mapping": (
        RIGHT[RIGHT.index("nlon = 20") : RIGHT.index("from_grid")],
        'nlon = 16\n[[field]]\nname = "sst"\nfrom = "ocean"\nto = "air"\n',
        "no mapping, but its grids differ: 'sea' .latlon, 128 points. and 'sky' .gaussian, 128 points.",
        'name = "sst"',
    ),
    "a grid on one side": (
        'mapping = "bilinear"\nfrom_grid = "sea"\n',
        "",
        "a grid on one side only",
        'to_grid = "sky"',
    ),
    "one field on two grids": (
        'name = "heat"\nfrom = "air"\nto = "ocean"\nmapping = "conservative"\nfrom_grid = "sky"',
        'name = "sst"\nfrom = "ocean"\nto = "third"\nmapping = "conservative"\nfrom_grid = "sky"',
        "'ocean' gives 'sst' on grid 'sky', and on 'sea' .line 43.",
        'from_grid = "sky"',
    ),
    "planes that do not meet": (
        'to = "air"\nmapping = "bilinear"\nfrom_grid = "sea"\nto_grid = "sky"',
        'to = "air"\nmapping = "bilinear"\nfrom_grid = "flat"\nto_grid = "far"',
        "between planes that do not meet",
        'mapping = "bilinear"',
    ),
    "programs in two brackets": (
        RIGHT,
        "[[program]]\nname = 'x'\n",
        r"each program is a table with a name.*\[program.NAME\]",
        "[[program]]",
    ),
    "a grid that is no table": (RIGHT, "grid = 3\n", "each grid is a table with a name", "grid = 3"),
    "a program with dots in its name": (
        '[program.viewer]\ncommand = "python view.py"\nranks = 1',
        '[program."a.b"]\ncommand = "python view.py"\nranks = 0',
        "ranks must be a whole number from 1",
        "ranks = 0",
    ),
    "a variable that a key sets": (
        'DEPTH = "50"',
        'OMP_NUM_THREADS = "3"',
        "OMP_NUM_THREADS is what threads sets",
        'env = { OMP_NUM_THREADS = "3" }',
    ),
    "two calendars": (
        "timeout = 60\n\n[program.ocean]",
        'start = "2000-01-01"\ncalendar = "noleap"\n[program.ocean]\ncalendar = "360_day"',
        "program 'ocean' has the calendar 360_day, and the job has the calendar noleap",
        'calendar = "360_day"',
    ),
    "a calendar without a start": (
        "timeout = 60",
        'calendar = "noleap"',
        "a calendar, but no start",
        'calendar = "noleap"',
    ),
    "a date without a start": ("timeout = 60", 'stop = "2000-01-01"', "but no start", 'stop = "2000-01-01"'),
    "a day that is not there": (
        "timeout = 60",
        'start = "2000-02-30"',
        "there is no 2000-02-30 in the calendar standard",
        'start = "2000-02-30"',
    ),
    "a stop before the start": (
        "timeout = 60",
        'start = "2000-02-01"\nstop = "2000-01-01"',
        "stops at 2000-01-01, and starts at 2000-02-01",
        'stop = "2000-01-01"',
    ),
    "a stop within a step": (
        "timeout = 60",
        'start = "2000-02-01"\nstop = "2000-02-01T00:45"',
        "stop = PT45M is no multiple of the step of 'ocean', PT30M",
        'stop = "2000-02-01T00:45"',
    ),
    "months without dates": (
        "every = 3600.0\nfrom_unit",
        'every = "P1M"\nfrom_unit',
        "every is in months, but the job has no dates",
        'every = "P1M"',
    ),
    "a duration that is none": (
        "step = 1800.0",
        'step = "P6M1H"',
        "'P6M1H' is no duration",
        'step = "P6M1H"',
    ),
    "a lag of another kind": (
        "timeout = 60" + RIGHT.split("timeout = 60")[1].split("lag = 3600.0")[0] + "lag = 3600.0",
        'start = "2000-01-01"' + RIGHT.split("timeout = 60")[1].split("lag = 3600.0")[0] + 'lag = "P1M"',
        "lag = P1M is no multiple of every = PT1H",
        'lag = "P1M"',
    ),
    "a blank for a unit": ('unit = "W/m^2"\n', 'unit = " "\n', "unit must be a text", 'unit = " "'),
}
MORE = """
[program.third]
command = "python view.py"
ranks = 1
[grid.far]
kind = "plane"
nx = 2
ny = 2
bounds = [2.0, 3.0, 0.0, 1.0]
"""


# what the schema cannot say: it sees one table at a time, no files, no units, no sums
BEYOND = """
a name that is a member's: a name too long for members: other numbers of members: hosts for one member:
a folder that a member has not:
quotes left open in a command: a command that is not there: a command of a long name:
a script that is not there: a script of a long name: a variable of
hpcomm's: a folder that is not there: hosts that hold too few: a field of no program: a field to itself: a
field twice: a field to a program that does not join: an unknown grid: a mapping that does not fit: a sphere
onto a plane: no mapping between sizes: weights that are not there: weights in a file that is something
else: a unit that is none: the same wrong unit on both sides: a unit that cannot be read: a command for a
shell: a variable before a command: a launcher as command: a script behind an option that is not there: a
module that is not there: a script that is no program: a folder as command: a path that a shell would read:
a stack that only fills: a stack that begins to creep: a stack that goes on behind its end:
a stack with amounts: a radius of a mapping without: conserve of amounts: a vector that nothing maps:
least vectors: a vector that has a component's name: a component that comes alone, too:
an implicit field of two components: normalise of a mapping without:
more neighbours than points: an implicit field that nothing answers: units that do not convert: a period
that is no multiple of a step: a lag that is no multiple: a circle without a lag: a variable without a name:
a sum of degrees: a lag of no number: rows of no reduced grid: a grid in a file that is not there:
more ranks in all than any machine has: a grid of more points than
there is memory: an end between two steps: an end before the first step: a step far longer than the period:
grids of one size that differ, and no mapping: one field on two grids: planes that do not meet: a variable
that a key sets: two calendars: a day that is not there: a stop before the start: a stop within a step: months
without dates: a duration that is none: a lag of another kind
"""


def parsed(text):
    """The tables of a spec; none, if it is no TOML."""
    try:
        return tomllib.loads(text)
    except (tomllib.TOMLDecodeError, RecursionError):
        return {}


def changed(kind):
    """The text of a wrong spec."""
    old, new, _, _ = WRONG[kind]
    assert RIGHT.count(old) >= 1
    at = RIGHT.rindex(old) if old in ('from = "air"',) else RIGHT.index(old)
    return RIGHT[:at] + new + RIGHT[at + len(old) :] + (MORE if '"third"' in new or '"far"' in new else "")


def test_the_schema_takes_what_we_take_and_refuses_what_we_refuse(capsys):
    validator = pytest.importorskip("jsonschema").Draft202012Validator
    assert draw_spec.check(["--schema"]) == 0
    schema = json.loads(capsys.readouterr().out)
    validator.check_schema(schema)
    takes = validator(schema).is_valid
    texts = [RIGHT, *(path.read_text() for path in ROOT.glob("mpmd_configs/*.toml"))]
    for path in (*ROOT.glob("docs/**/*.md"), *ROOT.glob("tests/mpmd/*.py")):
        texts += re.findall(
            r'(?:^```toml\n|"""\n(?=\s*\[))(.*?)(?:^```|""")', path.read_text(), re.MULTILINE | re.DOTALL
        )
    found = [tables for text in texts if "program" in (tables := parsed(text))]
    assert len(found) > 12
    assert [tables for tables in found if not takes(tables)] == []
    beyond = {each.strip() for each in BEYOND.replace("\n", " ").split(": ")}
    for kind in WRONG:
        tables = parsed(changed(kind))
        assert not tables or takes(tables) == (kind in beyond), kind


def test_the_schemas_names_are_those_of_the_grids_and_the_page_names_all_keys():
    assert tuple(schema.GRID["properties"]["kind"]["enum"]) == tuple(methods.KINDS)
    assert tuple(schema.FIELD["properties"]["mapping"]["anyOf"][0]["enum"]) == (
        "none",
        *methods.MAPPINGS,
        *methods.AMOUNTS,
    )
    page = (ROOT / "docs" / "mpmd.md").read_text()
    page = page[page.index("```toml") : page.index("## Time")]
    tables = (schema.JOB, schema.PROGRAM, schema.GRID, schema.FIELD)
    assert [key for each in tables for key in each["properties"] if not re.search(rf"\b{key}\b", page)] == []


@pytest.mark.parametrize("kind", WRONG)
def test_a_wrong_spec_gives_one_message_with_its_line(folder, kind):
    _, _, words, line = WRONG[kind]
    text = changed(kind)
    with pytest.raises(ConfigError) as caught:
        read(write(folder, text))
    message = str(caught.value)
    assert re.search(words, message, re.DOTALL), message
    number = int(re.search(r"where: job.toml, line (\d+)\n", message)[1])
    assert text.split("\n")[number - 1] == line
    assert "  try:   " in message
    assert message.count("\n") <= 3


def test_a_spec_may_have_dates_and_months(folder, capsys):
    dates = 'timeout = 60\nstart = "2000-01-01"\nstop = "2001-01-01"\ncalendar = "365_day"'
    text = RIGHT.replace("timeout = 60", dates).replace("step = 1800.0", 'step = "PT6H"\ncalendar = "noleap"')
    text = text.replace("every = 3600.0", 'every = "P1M"').replace("lag = 3600.0", 'lag = "P2M"')
    spec = read(write(folder, text))
    assert (spec.calendar.name, spec.until_s) == ("noleap", 365 * 86400)
    heard = program_watch.Watch(spec)
    for words in ("began ocean 0", "at ocean 0 4 7884000"):
        heard.hear(words.split())
    assert "ocean at 2000-04-02T06:00:00 on the way to 2001-01-01 (25 %), 4 exchanges" in heard.progress()
    assert [(each.every, each.lag.months) for each in spec.fields] == [
        ((2592000.0, 1), 0),
        ((2592000.0, 1), 2),
    ]
    assert draw_spec.plan([str(folder / "job.toml")]) == 0
    told = capsys.readouterr().out
    assert "time: 2000-01-01 to 2001-01-01, calendar noleap\n" in told
    assert "conservative, every P1M, mean, lag P2M" in told
    for step, words in (("P1W", "every = P1M is no multiple of the step of 'ocean', P7D"), ("P1Y", "P12M")):
        with pytest.raises(ConfigError, match=words):
            read(write(folder, text.replace("PT6H", step)))
    with pytest.raises(ConfigError, match="every is in months, but not all have the day 30"):
        read(write(folder, text.replace('start = "2000-01-01"', 'start = "2000-01-30"')))


def test_who_puts_before_it_gets_begins_a_circle_without_a_lag(folder):
    wrong = RIGHT.replace("lag = 3600.0\n", "")
    with pytest.raises(ConfigError, match=r'first = "put" in \[program\.(ocean|air)\]'):
        read(write(folder, wrong))
    found = read(write(folder, wrong.replace("[program.ocean]\n", '[program.ocean]\nfirst = "put"\n')))
    assert [each.first for each in found.programs.values()].count("put") == 1


def test_a_spec_is_utf8_with_a_mark_or_without(folder):
    path = write(folder, RIGHT)
    path.write_bytes(b"\xef\xbb\xbf" + RIGHT.encode())
    assert read(path).name == "climate"
    path.write_bytes(RIGHT.encode() + b"# \xe9t\xe9\n")
    with pytest.raises(ConfigError, match=f"no UTF-8: byte 0xe9\n.*line {RIGHT.count(chr(10)) + 1}\n"):
        read(path)


def test_a_wrong_spec_starts_nothing(folder):
    write(folder, RIGHT.replace("lag = 3600.0\n", ""))
    for command in ("run", "check", "plan"):
        done = finish([sys.executable, "-m", "hpcomm", command, "job.toml"], 60, folder)
        assert done.returncode == 2
        assert done.stderr.startswith("ConfigError: nobody could begin")
        assert "Traceback" not in done.stderr
        assert not (folder / "started").exists()


def test_a_spec_that_is_not_there_says_so(tmp_path):
    with pytest.raises(ConfigError, match="cannot be read"):
        read(tmp_path / "job.toml")


def test_weights_from_a_file_must_be_of_the_sizes_of_the_grids(folder):
    pytest.importorskip("scipy")
    from hpcomm import regrid

    path = folder / "w.npz"
    text = RIGHT.replace('mapping = "bilinear"', 'mapping = "bilinear"\nweights = "w.npz"')
    sea, sky = regrid.LatLon(8, 16), regrid.Gaussian(8, 20)
    regrid.weights(sea, sky, "bilinear").save(path)
    assert read(write(folder, text)).fields[0].weights == path.resolve()
    for source, target in ((regrid.LatLon(9, 16), sky), (sea, regrid.Gaussian(8, 18))):
        regrid.weights(source, target, "bilinear").save(path)
        with pytest.raises(ConfigError, match="but the grids have 128 and 160"):
            read(write(folder, text))


# -- what the launchers are told ---------------------------------------------------------------------

LAPTOP = Machine(8, False, {})


def composed(folder, mpi, machine=LAPTOP, text=RIGHT):
    return run_spec.job_command(read(write(folder, text)), mpi, machine)


def words_of(folder, name):
    return [
        sys.executable,
        "-m",
        "hpcomm.job.rank_supervisor",
        "--spec",
        str(folder.resolve() / "job.toml"),
        name,
    ]


@pytest.mark.parametrize("vendor", ["openmpi", "mpich"])
def test_mpiexec_starts_the_programs_one_behind_the_other(folder, vendor):
    made = composed(folder, Mpi("mpiexec", vendor))
    ocean, air, viewer = (words_of(folder, name) for name in ("ocean", "air", "viewer"))
    assert made.command == ["mpiexec", "-n", "2", *ocean, ":", "-n", "1", *air, ":", "-n", "1", *viewer]
    assert made.files == {}


def test_srun_reads_a_multi_prog_file(folder):
    made = composed(folder, Mpi("srun", "mpich"), Machine(8, False, {"SLURM_JOB_ID": "1"}))
    assert made.command == [
        "srun",
        "--mpi=pmi2",
        "--kill-on-bad-exit=1",
        "-n",
        "4",
        "--multi-prog",
        "climate.multiprog",
    ]
    lines = made.files["climate.multiprog"].splitlines()
    assert [line.split(" ", 1)[0] for line in lines] == ["0-1", "2", "3"]
    assert lines[0].split(" ")[1:] == words_of(folder, "ocean")
    assert "cat > climate.multiprog <<'END'" in launch.shown(made)


PLACED = RIGHT.replace("ranks = 2\n", 'ranks = 2\nhosts = ["n1", "n2"]\n').replace(
    "ranks = 1\n", 'ranks = 1\nhosts = ["n3"]\n'
)


def test_each_launcher_hears_of_hosts_in_its_own_way(folder):
    viewer = words_of(folder, "viewer")
    made = composed(folder, Mpi("mpirun", "openmpi"), text=PLACED)
    assert made.command[:5] == ["mpirun", "-n", "2", "--host", "n1:1,n2:1"]
    assert made.command[-len(viewer) - 4 : -len(viewer)] == ["-n", "1", "--host", "n3:2"]
    made = composed(folder, Mpi("mpiexec", "mpich"), text=PLACED)
    assert made.command[:3] == ["mpiexec", "-hosts", "n1:1,n2:1,n3:1,n3:1"]
    made = composed(folder, Mpi("srun", "mpich"), Machine(8, False, {"SLURM_JOB_ID": "1"}), PLACED)
    placed = ["--distribution", "arbitrary", "--nodelist", "n1,n2,n3,n3"]
    begin = ["srun", "--mpi=pmi2", "--kill-on-bad-exit=1", *placed]
    assert made.command == [*begin, "-n", "4", "--multi-prog", "climate.multiprog"]


def test_openmpi_fills_a_host_of_several_programs_by_one_after_the_other(folder):
    """Else it finds no slots left, and ranks of one program would take those of another one there."""
    text = PLACED.replace('hosts = ["n1", "n2"]', 'hosts = ["n3", "n2"]')
    ocean, air, viewer = (words_of(folder, name) for name in ("ocean", "air", "viewer"))
    made = composed(folder, Mpi("mpirun", "openmpi"), text=text)
    both = ["-n", "1", "--host", "n3:3"]
    expected = [
        *both,
        *ocean,
        ":",
        "-n",
        "1",
        "--host",
        "n2:1",
        *ocean,
        ":",
        *both,
        *air,
        ":",
        *both,
        *viewer,
    ]
    assert made.command[1:] == expected


@pytest.mark.parametrize("vendor", ["openmpi", "mpich"])
def test_hosts_are_for_all_programs_or_none(folder, vendor):
    text = PLACED.replace('ranks = 1\nhosts = ["n3"]\n', "ranks = 1\n", 1)
    with pytest.raises(ConfigError, match=r"'air' has no hosts, but others have.\n.*job.toml, line 15\n"):
        composed(folder, Mpi("mpiexec", vendor), text=text)


def test_pbs_hands_over_its_list_of_hosts(folder):
    there = Machine(8, False, {"PBS_NODEFILE": "/var/nodes"})
    assert composed(folder, Mpi("mpirun", "openmpi"), there).command[1:3] == ["--hostfile", "/var/nodes"]
    assert composed(folder, Mpi("mpiexec", "mpich"), there).command[1:3] == ["-f", "/var/nodes"]


@pytest.mark.parametrize(
    "kind", ["openmpi", "mpich", "slurm-openmpi", "slurm-mpich", "pbs-openmpi", "pbs-mpich"]
)
def test_dry_run_shows_the_line_for_any_launcher_and_runs_nothing(folder, capsys, kind):
    write(folder, RIGHT)
    assert draw_spec.run(["--dry-run", "--as", kind, str(folder / "job.toml")]) == 0
    out = capsys.readouterr().out
    assert ("srun" if "slurm" in kind else "mpi") in out
    assert ('"$PBS_NODEFILE"' in out) == kind.startswith("pbs")
    assert "hpcomm.job.rank_supervisor" in out
    assert not (folder / "started").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--as", "lsf", "--dry-run"], "--as lsf is not possible"),
        (["--as", "mpich"], "--as mpich is not possible"),
        (["--dry-runn"], "unknown option --dry-runn"),
        (["--files"], "argument --files: expected one argument"),
        (["--only"], "which spec?"),
        (["--progress", "soon"], "--progress soon: the time is a number of seconds, or 0 for none"),
        (["--only", "ocaen"], "there is no program 'ocaen'\n.*\n.*did you mean 'ocean'"),
        (["--files", __file__], "there is a file of that name"),
        (["--only", "ocean"], "nothing is recorded for 'ocean'"),
        (["--only", "ocean", "--record", "a b"], r"hpcomm run --record '\S*/a b' \S*job.toml first"),
        (["-n", "2"], r"-n does not go with a spec[^$]*write ranks = "),
        (["other.toml"], "two specs: other.toml says all of a job"),
        (["other.toml", "--verbose"], "two specs"),
    ],
)
def test_wrong_options_are_refused(folder, words, message):
    path = str(write(folder, RIGHT))
    with pytest.raises(ConfigError, match=message):
        draw_spec.run([path, *words] if words == ["--files"] else [*words, path])


def test_commands_that_read_a_spec_take_all_their_words_or_refuse_them(folder, capsys):
    path = str(write(folder, RIGHT))
    assert draw_spec.check([path, path]) == 0
    assert capsys.readouterr().out.count("job.toml is right") == 2
    for command, words, message in (
        (draw_spec.check, [path, "b"], "'b' is no spec"),
        (draw_spec.check, [], "which spec"),
        (draw_spec.plan, [path, path], "what is '.*job.toml'"),
        (draw_spec.main, ["draw", path, "b"], "what is 'b'"),
        (draw_spec.run, [path, "b"], "'b' behind a spec"),
        (
            draw_spec.main,
            ["draw", path, "-o", str(folder / "none" / "a.svg")],
            "there is no folder .*none",
        ),
    ):
        with pytest.raises(ConfigError, match=message):
            command(words)
    assert not (folder / "a.svg").exists()
    for command, words, name in (
        (draw_spec.check, [], "check"),
        (draw_spec.plan, [], "plan"),
        (draw_spec.main, ["draw"], "mpmd draw"),
        (draw_spec.run, [], "run"),
    ):
        with pytest.raises(
            ConfigError, match=f"none.toml cannot be read: No such.*\n  where: hpcomm {name}\n"
        ):
            command([*words, str(folder / "none.toml")])
    with pytest.raises(SystemExit):
        draw_spec.main([])
    assert "usage: hpcomm mpmd draw [-h] [-o FILE] SPEC.toml\n" in capsys.readouterr().out


def test_a_command_with_a_spec_as_its_argument_is_a_command():
    for words in (
        ["a.toml"],
        ["--only", "x", "a.toml", "-v"],
        ["--timeout", "5", "a.toml"],
        ["--help", "a.toml"],
    ):
        assert launch.has_spec(words)
    for words in (["python", "a.py", "b.toml"], ["-n", "2", "python", "b.toml"], ["-v", "./a", "b.toml"], []):
        assert not launch.has_spec(words)


def test_programs_are_told_apart_by_colour_on_a_terminal(folder, monkeypatch):
    spec = read(write(folder, RIGHT))
    assert rank_supervisor.prefix_of(spec, "ocean", 1, False) == b"[ocean 1] "
    made = [rank_supervisor.prefix_of(spec, name, 0, True) for name in spec.programs]
    assert made[0] == b"\033[36m[ocean 0] \033[0m"
    assert len({text[:5] for text in made}) == 3
    asked = run_spec.parse([str(spec.path)])
    for shows, environ in ((True, {}), (False, {}), (False, {"NO_COLOR": "1"})):
        monkeypatch.setattr(sys.stdout, "isatty", lambda: shows or bool(environ), raising=False)  # noqa: B023
        monkeypatch.delenv("NO_COLOR", raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        assert ("--colour" in run_spec._options(asked)) == shows


@pytest.mark.parametrize("kind", ["a Python", "a compiled program"])
def test_a_program_that_loads_another_mpi_is_refused_before_anything_starts(folder, monkeypatch, kind):
    mine = find_mpi().vendor
    other, library = ("mpich", "libmpi.so.12") if mine == "openmpi" else ("openmpi", "libmpi.so.40")
    here = folder / "other"
    for name in ("bin", "lib"):
        (here / name).mkdir(parents=True)
    if kind == "a Python":
        (here / "lib" / library).touch()
        name, words = "python3", f"python3 loads {VENDORS[other]}, but mpirun is {VENDORS[mine]}"
    else:
        (here / "bin" / "ldd").write_text(f"#!/bin/sh\necho '{library} => /usr/lib/{library}'\n")
        monkeypatch.setenv("PATH", str(here / "bin"), prepend=os.pathsep)
        name, words = "lake", f"is linked to {VENDORS[other]}, but the job is started by {VENDORS[mine]}"
    (here / "bin" / name).write_text("#!/bin/sh\ntouch started\n")
    for path in (here / "bin").iterdir():
        path.chmod(0o755)
    text = RIGHT.replace('command = ["python", "air.py"]', f'command = ["{here / "bin" / name}", "air.py"]')
    monkeypatch.setattr(run_spec, "find_mpi", lambda launcher: Mpi("mpirun", mine))
    with pytest.raises(ConfigError, match=words):
        draw_spec.run([str(write(folder, text))])
    assert not (folder / "started").exists()


def test_a_launcher_that_ends_well_while_programs_run_has_not_ended_well(folder, capfd):
    """MPICH's mpiexec kills the others of a rank that left without Finalize, and ends with 0."""
    heard = program_watch.Watch(read(write(folder, RIGHT)))
    for words in ("began ocean 0", "began air 0", "ended ocean 0 0 1.5"):
        heard.hear(words.split())
    assert heard.judged(0, None) != 0
    assert "program 'ocean' (rank 0 of 2) ended (status 0), while 'air' still ran" in capfd.readouterr().err
    heard.hear(["ended", "air", "0", "0", "2.5"])
    assert heard.judged(0, None) == 0


@pytest.mark.parametrize("joins", [True, False])
def test_programs_that_do_not_join_end_with_those_that_do_if_there_are_any(folder, monkeypatch, joins):
    alone = "[program.first]\ncommand = 'python air.py'\nranks = 1\njoins = false\n"
    text = alone.replace("joins = false", f"joins = {'true' if joins else 'false'}")
    spec = read(write(folder, text + alone.replace("first", "second")))
    monkeypatch.setattr(program_watch, "GRACE_S", -1.0)
    heard = program_watch.Watch(spec)
    for words in ("began first 0", "began second 0", "ended first 0 0 1.5"):
        heard.hear(words.split())
    assert (heard.verdict() is None) is (not joins)
    heard.hear(["ended", "second", "0", "3", "2.5"])
    assert heard.status == 3


@pytest.mark.parametrize(
    ("ends", "words", "status"),
    [
        ("ocean 0 -15 1.5, air 0 3 1.7, ocean 1 14 1.6", "'air' (rank 0 of 1) ended with status 3", 3),
        ("ocean 0 14 1.7, air 0 -9 1.6", "'air' (rank 0 of 1) was killed by SIGKILL", 137),
        ("ocean 0 14 1.7, air 0 -15 1.6", "'air' (rank 0 of 1) was killed by SIGTERM", 143),
        ("ocean 0 14 1.7, air 0 -42 1.6", "'air' (rank 0 of 1) was killed by signal 42", 170),
        ("ocean 0 2 1.7, ocean 1 5 1.6, air 0 1 1.8", "'ocean' (rank 1 of 2) ended with status 5", 5),
    ],
)
def test_who_failed_first_is_named_whatever_came_first_to_be_known(folder, capfd, ends, words, status):
    """On several hosts all end at once: one fails, the launcher or a lost connection ends the others."""
    heard = program_watch.Watch(read(write(folder, RIGHT)))
    for place in ("ocean 0", "ocean 1", "air 0"):
        heard.hear(["began", *place.split()])
    for end in ends.split(", "):
        heard.hear(["ended", *end.split()])
    assert heard.judged(1, None) == status
    assert f"hpcomm run: program {words}" in capfd.readouterr().err


def test_progress_tells_how_far_each_program_is(folder):
    heard = program_watch.Watch(
        read(write(folder, RIGHT.replace("timeout = 60", "timeout = 60\nstop = 7200")))
    )
    assert heard.progress() == "hpcomm: after 0 s: ocean starts; air starts; viewer starts"
    for words in (
        "began ocean 0",
        "began air 0",
        "began viewer 0",
        "at ocean 0 4 1800.0",
        "at ocean 1 3",
        "at air 0 1",
    ):
        heard.hear(words.split())
    assert heard.progress().endswith(
        ": ocean at 1800 of 7200 s (25 %), 4 exchanges; air has made 1 exchange; viewer runs"
    )
    heard.hear(["ended", "air", "0", "0", "2.5"])
    assert "air has ended" in heard.progress()


@pytest.mark.parametrize(
    ("source", "target", "at_ten"),
    [("degC", "K", 283.15), ("W/m^2", "kW/m^2", 0.01), ("degC", "degF", 50.0), ("hour", "s", 36000.0)],
)
def test_units_convert_by_factor_and_offset(source, target, at_ten):
    factor, offset = conversion(source, target)
    assert factor * 10 + offset == pytest.approx(at_ten)
    with pytest.raises(ConfigError, match="there is no unit 'kelvim'"):
        conversion(source, "kelvim")

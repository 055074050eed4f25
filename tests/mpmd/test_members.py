"""Ensembles: members of a program, coupled member by member, and with programs that have values of all."""

import re
from pathlib import Path
from textwrap import dedent

import pytest

DOCUMENT = Path(__file__).parents[2] / "docs" / "mpmd.md"
SPEC = """
    [program.ocean]
    command = "python ocean.py --seed {member} --file restart.{member:03}"
    ranks = 2
    members = 2
    env = { SEED = "7{member}" }
    workdir = "run{member}"

    [program.air]
    command = "python air.py"
    ranks = 1
    members = 2
    first = "put"

    [program.filter]
    command = "python filter.py"
    ranks = 2

    [[field]]
    name = "wind"
    from = "air"
    to = "ocean"

    [[field]]
    name = "state"
    from = "ocean"
    to = "filter"
    mapping = "nearest"
    from_grid = "sea"
    to_grid = "sky"
    every = 10.0
    unit = "K"

    [[field]]
    name = "analysis"
    from = "filter"
    to = "ocean"
    every = 10.0
    lag = 10.0

    [[field]]
    name = "mean"
    from = "filter"
    to = "air"
    every = 10.0
    lag = 10.0

    [grid.sea]
    kind = "plane"
    nx = 4
    ny = 2

    [grid.sky]
    kind = "plane"
    nx = 4
    ny = 4
"""
OCEAN = """
    import os, sys
    import numpy as np
    import hpcomm

    me = hpcomm.join("ocean", peers=["air", "filter"])
    n, r = me.member, me.comm.rank
    assert me.name == f"ocean_000{n}" == os.environ["HPCOMM_PROGRAM"], me.name
    assert hpcomm.join("ocean") is me
    assert os.environ["HPCOMM_MEMBER"] == str(n)
    assert sys.argv[1:] == ["--seed", str(n), "--file", f"restart.00{n}"]
    assert os.environ["SEED"] == f"7{n}"
    assert os.getcwd().endswith(f"run{n}")
    assert me.members == {"ocean": 2, "air": 2}
    assert me.link("air") is me.link(f"air_000{n}")
    assert (me.ensemble.size, me.ensemble.rank) == (2, n - 1)
    assert me.ensemble.all_reduce(10.0 * n + r, "avg") == 15 + r
    points = np.arange(4) + 4 * r
    wind = me.takes("wind", np.zeros(4), points)
    state = me.gives("state", points + 100.0 * n, points)
    analysis = me.takes("analysis", np.zeros(4), points)
    for step in range(3):
        t = 10.0 * step
        assert (me.get(wind) == 1000 * n + step).all()
        me.get(analysis, t)
        if step:
            assert (analysis.values == step - 1 + 100 * n + np.arange(4)).all(), analysis.values
        state.values = points + 100.0 * n + 1000 * step
        me.put(state, t)
    print(f"member {n} is done\\n", end="")
"""
AIR = """
    import numpy as np
    import hpcomm

    me = hpcomm.join()
    wind = me.gives("wind", np.zeros(8))
    mean = me.takes("mean", np.zeros(8))
    for step in range(3):
        wind.values[:] = 1000 * me.member + step
        me.link("ocean").put(wind)
        me.get(mean, 10.0 * step)
        assert (mean.values == (step - 1) * (step > 0)).all(), mean.values
"""
FILTER = """
    import numpy as np
    import hpcomm

    me = hpcomm.join("filter", peers=["ocean"])
    assert (me.member, me.members["ocean"]) == (0, 2)
    sky = me.grid("sky")
    mine = np.array_split(np.arange(16), 2)[me.comm.rank]
    x = np.zeros((2, len(mine))).T
    state = me.takes("state", x, mine, grid=sky)
    points = np.array_split(np.arange(8), 2)[me.comm.rank]
    analysis = me.gives("analysis", np.zeros((4, 2)), points)
    mean = me.gives("mean", np.zeros(4), points)
    nearest = (mine // 8) * 4 + mine % 4  # two rows of the sky over one of the sea
    for step in range(3):
        if step == 1:
            state.values = np.zeros_like(x)
        got = me.get(state, 10.0 * step)
        assert got is state.values
        for n in (1, 2):
            assert (got[:, n - 1] == nearest + 100 * n + 1000 * step).all(), (step, n, got)
        analysis.values = step + np.array([100, 200]) + np.arange(4)[:, None]
        mean.values[:] = step
        for n in (1, 2):
            me.link(f"ocean_000{n}").put(analysis, 10.0 * step)
        me.put(mean, 10.0 * step)
    for part in (me.report(), me.link("ocean_0002").report()):
        print(part + "\\n", end="") if me.comm.rank == 0 else None
"""


@pytest.mark.once
def test_members_are_coupled_with_one_another_and_with_a_program_for_all(spec, tmp_path):
    for n in (1, 2):
        (tmp_path / f"run{n}").mkdir()
        (tmp_path / f"run{n}" / "ocean.py").symlink_to(tmp_path / "ocean.py")
    report = "\n    me.report()\n    me.link('filter').report() if me.name == 'ocean_0002' else None\n"
    files = {"ocean.py": OCEAN + report, "air.py": AIR + "\n    me.report()\n", "filter.py": FILTER}
    out = spec(SPEC, files=files).stdout
    for n in (1, 2):
        assert out.count(f"[ocean_000{n} 1] member {n} is done") == 1
        assert f"state: ocean_000{n} -> filter, 8 points to 16, nearest" in out
        assert f"mean: filter -> air_000{n}, 8 points to 8" in out


@pytest.mark.once
def test_the_example_of_the_page_finds_the_truth(spec):
    text = DOCUMENT.read_text()
    text = text[text.index("## Ensembles") : text.index("## Mappings")]
    job, *programs = re.findall(r"^```(?:toml|python)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    out = spec(job, files=dict(zip(("ocean.py", "filter.py"), programs, strict=True))).stdout
    for rank, truth in enumerate(((0, 1), (2, 3))):
        found = re.search(rf"\[ocean_0001 {rank}\] \[ *(\S+) +(\S+?) *\]", out).groups()
        assert [float(x) for x in found] == pytest.approx(truth, abs=0.3)
    assert out.count("ocean_") == 2


FEW = """
    [job]
    stop = 6
    [program.ocean]
    command = "python ocean.py"
    ranks = 1
    members = 2
    step = 1
    [program.filter]
    command = "python filter.py"
    ranks = 1
    step = 1
    [[field]]
    name = "x"
    from = "ocean"
    to = "filter"
    every = 2
    time = "mean"
    [[field]]
    name = "y"
    from = "filter"
    to = "ocean"
    every = 1
    lag = 1
"""
AT_ONCE = (
    FEW.replace("    stop = 6\n", "")
    .replace('every = 2\n    time = "mean"', "")
    .replace("every = 1\n    lag = 1", "")
    .replace("step = 1", 'first = "put"', 1)
)
MEMBER = """
    import sys
    from pathlib import Path
    import numpy as np
    import hpcomm
    me = hpcomm.join("ocean")
    points = np.array_split(np.arange(4), me.comm.size)[me.comm.rank]
    x, y = me.gives("x", np.zeros(len(points)), points), me.takes("y", np.zeros(len(points)), points)
    try:
        assert me.ensemble.size == 2
    except hpcomm.errors.ConfigError:
        print(f"0.0 of {me.member}: no ensemble\\n", end="")
    if Path("kept").exists():
        me.restore("kept")
    else:
        me.put(x, me.start)
    for now, then in me.steps():
        x.values[:] = points + then / 4
        me.put(x, then)
        print(f"{then} of {me.member}: {me.comm.all_reduce(me.get(y, then).sum()):.3f}\\n", end="")
        if "half" in sys.argv and then == 3:
            me.save("kept", then)
            break
"""
TAKER = """
    import sys
    from pathlib import Path
    import numpy as np
    import hpcomm
    me = hpcomm.join("filter")
    x, y = me.takes("x", np.zeros((4, 2))), me.gives("y", np.zeros((4, 2)))
    if Path("kept").exists():
        me.restore("kept")
    else:
        me.put(y, me.start)
    for now, then in me.steps():
        me.get(x, then - 1)
        y.values[:] = x.values * [1, 10] + then
        me.put(y, then)
        print(f"{then} of all: {x.values.sum():.3f}\\n", end="")
        if "half" in sys.argv and then == 3:
            me.save("kept", then)
            break
"""


@pytest.mark.once
def test_members_are_recorded_run_alone_and_go_on_after_a_restart(spec, tmp_path):
    files, ends = {"ocean.py": MEMBER, "filter.py": TAKER}, []

    def said(text, *options):
        grids = "".join(f'[grid.{name}]\nkind = "plane"\nnx = 2\nny = 2\n' for name in "ab")
        mapped = text.replace("every = 2", 'every = 2\nmapping = "nearest"\nfrom_grid = "a"\nto_grid = "b"')
        done = spec(dedent(mapped) + grids, *options, files=files)
        ends.append(
            dict(re.findall(r"program '(\w+)' has ended after .* s, with (\d+) exchanges", done.stderr))
        )
        return set(re.findall(r"\d\.0 of .*", done.stdout))

    whole = said(FEW, "--record", "recorded")
    assert len(whole) == 18
    assert (tmp_path / "recorded" / "filter.0.x_0002.npz").exists()
    for name, more in (("filter", set()), ("ocean_0002", {"0.0 of 2: no ensemble"})):
        alone = said(FEW, "--record", "recorded", "--only", name)
        assert alone == more | {each for each in whole if f"of {name[-1].replace('r', 'all')}:" in each}
        assert int(ends[-1][name]) >= 12
        assert ends[-1][name] == ends[0][name]
    half = said(FEW.replace("ocean.py", "ocean.py half").replace("filter.py", "filter.py half"))
    assert len(half) == 9
    assert sorted(path.name for path in (tmp_path / "kept").iterdir()) == [
        "filter",
        "ocean_0001",
        "ocean_0002",
    ]
    assert half | said(FEW.replace("ranks = 1", "ranks = 2", 1)) == whole


UNFIT = """
    import numpy as np
    import hpcomm
    me = hpcomm.join()
    mine, its = ("x", "y")[:: 1 if me.member else -1]
    for taken, given in (((4,), (4, 2)), ((4, 2), (4, 3))):  # of the filter; connect may be called again
        me._declared.clear()
        me.gives(mine, np.zeros(4 if me.member else given))
        me.takes(its, np.zeros(4 if me.member else taken))
        try:
            me.connect()
        except hpcomm.HpcommError as error:
            print("told", str(error).replace("\\n", " "))
"""


@pytest.mark.once
def test_what_does_not_fit_to_members_is_refused(spec):
    out = spec(FEW, files={"ocean.py": UNFIT, "filter.py": UNFIT}).stdout
    assert "'x' has () per point at 'ocean_0001' and () at 'filter'" in out
    assert "(3,) per point at 'filter' and () at 'ocean_0001'" in out
    assert out.count("told") == 6
    text = FEW[: FEW.index("    [[field]]")]
    done = spec(text, files={"ocean.py": MEMBER, "filter.py": TAKER}, expect="failure")
    assert "'filter' takes a field 'x', which nobody gives" in done.stderr


@pytest.mark.once
def test_exchange_moves_the_parts_of_all_members(spec):
    both = """
        import numpy as np
        import hpcomm
        me = hpcomm.join()
        shape = (4, 2)[: 2 - (me.member > 0)]
        mine, its = ("x", "y")[:: 1 if me.member else -1]
        given, taken = me.gives(mine, np.zeros(shape)), me.takes(its, np.zeros(shape))
        for step in range(3):
            given.values = np.arange(4.0 * len(shape)).reshape(shape[::-1]).T + 100 * me.member + step
            me.exchange()
        print(taken.values.tolist())
    """
    out = spec(AT_ONCE, files={"ocean.py": both, "filter.py": both}).stdout
    assert "[filter] [[102.0, 202.0], [103.0, 203.0], [104.0, 204.0], [105.0, 205.0]]" in out
    assert "[ocean_0001] [2.0, 3.0, 4.0, 5.0]" in out
    assert "[ocean_0002] [6.0, 7.0, 8.0, 9.0]" in out


@pytest.mark.once
def test_the_others_go_on_without_a_member_that_fails(spec):
    text = FEW[: FEW.index('    [[field]]\n    name = "y"')].replace("stop = 6", "")
    text = text.replace('every = 2\n    time = "mean"', "")
    text = text.replace("members = 2", 'members = 3\n    on_failure = "continue"')
    member = """
        import numpy as np
        import hpcomm
        me = hpcomm.join("ocean")
        x = me.gives("x", np.zeros(4))
        for step in range(3):
            x.values[:] = 10 * me.member + step
            me.put(x)
            if me.member == 2:
                raise ValueError("no ice")
    """
    taker = """
        import numpy as np
        import hpcomm
        from hpcomm.errors import PeerFailedError
        me = hpcomm.join("filter")
        x = me.takes("x", np.full((4, 3), -1.0))
        left = {n: me.link(f"ocean_000{n}") for n in (1, 2, 3)}
        for step in range(3):
            for n in list(left):
                try:
                    left[n].get(x)
                except PeerFailedError:
                    del left[n]
            print(step, *left, x.values[3])
    """
    done = spec(text, files={"ocean.py": member, "filter.py": taker})
    assert "0 1 2 3 [10. 20. 30.]" in done.stdout
    assert "2 1 3 [12. 20. 32.]" in done.stdout
    assert (
        "program 'ocean_0002' (rank 0 of 1) ended with status 1; the others go on without it" in done.stderr
    )


IN_C = """
#include <hpcomm.h>
int main(void) {
  MPI_Comm comm;
  hpcomm_init(getenv("HPCOMM_MEMBER") ? "ocean" : NULL, &comm);
  int64_t numbers[] = {0, 1, 2, 3};
  double x[4], y[4];
  int grid = hpcomm_grid(4, numbers);
  int given = hpcomm_field("x", HPCOMM_GIVES, grid, 8, 1);
  int taken = hpcomm_field("y", HPCOMM_TAKES, grid, 8, 1);
  hpcomm_connect(0.0);
  for (int i = 0; i < 4; i++) x[i] = i + 10.0 * atoi(getenv("HPCOMM_MEMBER"));
  hpcomm_put(given, x, 4, 0.0);
  hpcomm_get(taken, y, 4, 0.0);
  for (int i = 0; i < 4; i++)
    if (y[i] != 2 * x[i]) return 3;
  hpcomm_end();
}
"""


LINKED = """
#include <hpcomm.h>
int main(void) {
  MPI_Comm comm;
  hpcomm_init("ocean", &comm);
  double number = atoi(getenv("HPCOMM_MEMBER"));
  MPI_Send(&number, 1, MPI_DOUBLE, 0, 3, hpcomm_link("air"));
  hpcomm_end();
}
"""


@pytest.mark.once
def test_a_member_in_c_is_linked_with_that_of_the_same_number(spec, in_c):
    in_c(LINKED, "two")
    air = """
        import numpy as np
        import hpcomm
        me = hpcomm.join("air")
        got = me.link("ocean").comm.recv(source=0, tag=3, out=np.zeros(1))
        print(me.name, got)
    """
    text = AT_ONCE[: AT_ONCE.index("    [[field]]")].replace("python ocean.py", "./two")
    text = text.replace("[program.filter]", "[program.air]\n    members = 2").replace("filter.py", "air.py")
    out = spec(text, files={"air.py": air}).stdout
    assert "air_0001 [1.]" in out
    assert "air_0002 [2.]" in out


@pytest.mark.once
def test_members_may_be_in_c_and_a_program_for_all_may_not(spec, in_c):
    in_c(IN_C, "two")
    doubles = """
        import numpy as np
        import hpcomm
        me = hpcomm.join()
        x, y = me.takes("x", np.zeros((4, 2))), me.gives("y", np.zeros((4, 2)))
        y.values[:] = 2 * me.get(x)
        me.put(y)
        print(me.name, x.values[3])
    """
    files = {"filter.py": doubles, "ocean.py": doubles.replace("(4, 2)", "4")}
    assert "filter [13. 23.]" in spec(AT_ONCE.replace("python ocean.py", "./two"), files=files).stdout
    other = AT_ONCE.replace("python filter.py", "./two").replace('"ocean"', '"o"')
    other = other.replace('"filter"', '"ocean"')
    done = spec(other.replace('"o"', '"filter"'), files=files, expect="failure")
    assert "is one of all members, but 'filter' is a program without Python" in done.stderr

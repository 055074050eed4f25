"""Programs in Fortran and C give and take fields as programs in Python do, and say what is wrong."""

import os
import re
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from processes import finish

from hpcomm import __version__ as version
from hpcomm.tools.fortran import FOLDER

PAGE = Path(__file__).parents[2] / "docs" / "fortran.md"
BLOCKS = re.findall(r"^```(\w+)\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
SPEC = """
    [program.ocean]
    command = "OCEAN"
    ranks = RANKS
    step = 1.0
    [program.river]
    command = "RIVER"
    ranks = 1
    step = 2.0
    [program.air]
    command = "python air.py"
    ranks = RANKS
    step = 1.0
    [grid.sea]
    kind = "latlon"
    nlat = 12
    nlon = 20
    [grid.sky]
    kind = "gaussian"
    nlat = 8
    nlon = 16
    [grid.mouths]
    kind = "points"
    size = 9
    [[field]]
    name = "sst"
    from = "ocean"
    to = "air"
    mapping = "conservative"
    from_grid = "sea"
    to_grid = "sky"
    every = 2.0
    time = "mean"
    from_unit = "degC"
    to_unit = "K"
    [[field]]
    name = "wind"
    from = "air"
    to = "ocean"
    mapping = ["bilinear", "nearest"]
    from_grid = "sky"
    to_grid = "sea"
    every = 2.0
    lag = 2.0
    time = "linear"
    from_unit = "km/h"
    to_unit = "m/s"
    [[field]]
    name = "flow"
    from = "river"
    to = "air"
    mapping = "to_nearest"
    from_grid = "mouths"
    to_grid = "sky"
    every = 2.0
    time = "max"
    [[field]]
    name = "rain"
    from = "air"
    to = "river"
    mapping = ["idw", 0.5]
    from_grid = "sky"
    to_grid = "mouths"
    every = 4.0
    lag = 4.0
    time = "sum"
    [[field]]
    name = "inflow"
    from = "river"
    to = "ocean"
    mapping = "idw"
    from_grid = "mouths"
    to_grid = "sea"
    every = 2.0
    lag = 2.0
    time = "mean"
    from_unit = "t/s"
    to_unit = "kg/s"
    [[field]]
    name = "level"
    from = "ocean"
    to = "air"
"""
AIR = """
    import numpy as np
    import hpcomm

    me = hpcomm.join("air")
    mine = np.array_split(np.arange(8 * 16), me.comm.size)[me.comm.rank]
    sst = me.takes("sst", np.zeros(len(mine)), mine)
    flow = me.takes("flow", np.zeros(len(mine), np.float32), mine)
    wind = me.gives("wind", (mine % 13)[:, None] * [0.3, 0.7], mine)
    rain = me.gives("rain", (mine % 7) * 0.1, mine)
    level = me.takes("level", np.zeros(240 // me.comm.size))
    kept = {field.name: open(f"{field.name}{me.comm.rank}.bin", "wb") for field in (sst, flow, level)}
    for t in range(9):
        me.put(wind, t), me.put(rain, t)
        for field in (sst, flow, level):
            kept[field.name].write(me.get(field, t).tobytes())
        wind.values[:, 0] += sst.values * 0.01
        wind.values[:, 1] -= 0.2
        rain.values += 1e-3 * flow.values
    if me.link("ocean").is_plain:  # so it waits for nobody
        assert "sst: ocean -> air, 128 points here, conservative" in me.report()
"""
OCEAN = """
    import numpy as np
    import hpcomm

    me = hpcomm.join("ocean")
    points = np.array_split(np.arange(240), me.comm.size)[me.comm.rank]
    sst = me.gives("sst", (points % 31) * 0.25, points)
    level = me.gives("level", points * 0.5, points)
    wind = me.takes("wind", np.zeros((len(points), 2), np.float32), points)
    inflow = me.takes("inflow", np.zeros(len(points)), points)
    with open(f"wind{me.comm.rank}.bin", "wb") as kept, open(f"inflow{me.comm.rank}.bin", "wb") as more:
        for t in range(9):
            me.put(sst, t), me.put(level)
            kept.write(me.get(wind, t).T.tobytes())
            more.write(me.get(inflow, t).tobytes())
            sst.values += 0.125 * wind.values[:, 0].astype(float)
"""
OCEAN_F90 = """
program ocean
  use, intrinsic :: iso_fortran_env
  use hpcomm_mod
  implicit none
  integer :: comm, rank, size, rows, grid, sst, wind, level, inflow, i, j, t, unit, more
  real(real64), allocatable :: temperature(:, :), height(:, :), flow(:)
  real(real32), allocatable :: speed(:, :, :)
  character(16) :: name
  call hpcomm_init("ocean", comm, rank, size)
  if (hpcomm_link("air") == comm) error stop
  rows = 12 / size
  allocate (temperature(20, rows), height(2, 20 * rows))
  allocate (flow(20 * rows), source=0.0_real64)
  allocate (speed(20, rows, 2), source=0.0_real32)
  grid = hpcomm_grid_rectangle(12, 20, rows * rank, rows, 0, 20)
  sst = hpcomm_field("sst", hpcomm_gives, grid)
  level = hpcomm_field("level", hpcomm_gives, grid, kind=8)
  wind = hpcomm_field("wind", hpcomm_takes, grid, kind=4, width=2)
  inflow = hpcomm_field("inflow", hpcomm_takes, grid)
  do j = 1, rows
    do i = 1, 20
      temperature(i, j) = mod(20 * (rows * rank + j - 1) + i - 1, 31) * 0.25d0
      height(1, (j - 1) * 20 + i) = (20 * (rows * rank + j - 1) + i - 1) * 0.5d0
    end do
  end do
  write (name, '("wind", i0, ".bin")') rank
  open (newunit=unit, file=name, access="stream", form="unformatted", status="replace")
  write (name, '("inflow", i0, ".bin")') rank
  open (newunit=more, file=name, access="stream", form="unformatted", status="replace")
  call hpcomm_connect(0.0d0)
  do t = 0, 8
    call hpcomm_put(sst, temperature, real(t, real64))
    call hpcomm_put(level, height(1, :), real(t, real64))
    call hpcomm_get(wind, speed, real(t, real64))
    write (unit) speed
    call hpcomm_get(inflow, flow, real(t, real64))
    write (more) flow
    temperature = temperature + 0.125d0 * speed(:, :, 1)
  end do
  if (abs(hpcomm_time(sst) - 8) > 0) error stop
  close (unit)
  close (more)
  call hpcomm_end()
end program
"""
RIVER = """
    import numpy as np
    import hpcomm
    from hpcomm import regrid

    me = hpcomm.join("river")
    n = np.arange(9)
    grid = regrid.PointCloud(np.stack([n * 40.0, n * 15.0 - 60.0], axis=1))
    flow = me.gives("flow", n * 0.5, n, grid=grid)
    inflow = me.gives("inflow", n * 1.0, n, grid=grid)
    rain = me.takes("rain", np.zeros(9), n, grid=grid)
    with open("rain0.bin", "wb") as kept:
        for t in range(0, 9, 2):
            kept.write(me.get(rain, t).tobytes())
            flow.values += 0.25 * rain.values
            inflow.values[:] = flow.values + 1.0
            me.put(flow, t), me.put(inflow, t)
"""
RIVER_C = """
#include "hpcomm.h"
#include <stdio.h>
int main(void) {
  int64_t numbers[9];
  double x[9][2], flow[9], more_flow[9], rain[9] = {0};
  hpcomm_init(NULL, NULL);
  for (int i = 0; i < 9; i++) {
    numbers[i] = i, flow[i] = i * 0.5;
    x[i][0] = i * 40.0, x[i][1] = i * 15.0 - 60.0;
  }
  int grid = hpcomm_grid_points(9, numbers, *x);
  int gives = hpcomm_field("flow", HPCOMM_GIVES, grid, 8, 1);
  int more = hpcomm_field("inflow", HPCOMM_GIVES, grid, 8, 1);
  int takes = hpcomm_field("rain", HPCOMM_TAKES, grid, 8, 1);
  FILE *kept = fopen("rain0.bin", "wb");
  hpcomm_connect(0.0);
  for (int t = 0; t < 9; t += 2) {
    hpcomm_get(takes, rain, 9, t);
    fwrite(rain, 8, 9, kept);
    for (int i = 0; i < 9; i++) flow[i] += 0.25 * rain[i];
    hpcomm_put(gives, flow, 9, t);
    for (int i = 0; i < 9; i++) more_flow[i] = flow[i] + 1.0;
    hpcomm_put(more, more_flow, 9, t);
  }
  fclose(kept);
  hpcomm_end();
  return 0;
}
"""
KEPT = {"sst": (np.float64, ()), "flow": (np.float32, ()), "level": (np.float64, ())}
KEPT |= {"wind": (np.float32, (2,)), "inflow": (np.float64, ()), "rain": (np.float64, ())}
TWO_SPEC = """
    [program.ocean]
    command = "OCEAN"
    ranks = 2
    [program.river]
    command = "RIVER"
    ranks = 1
    [grid.sea]
    kind = "latlon"
    nlat = 12
    nlon = 20
    [grid.mouths]
    kind = "points"
    size = 9
    [[field]]
    name = "sst"
    from = "ocean"
    to = "river"
    mapping = "idw"
    from_grid = "sea"
    to_grid = "mouths"
    every = 2.0
    time = "mean"
    [[field]]
    name = "flow"
    from = "river"
    to = "ocean"
    mapping = ["idw", 0.5]
    from_grid = "mouths"
    to_grid = "sea"
    every = 3.0
    lag = 6.0
    time = "linear"
"""
[PLANNER] = [text for language, text in BLOCKS if language == "toml" and "planner" in text]
TWO_PY = {
    "ocean.py": """
        import sys
        import numpy as np
        import hpcomm

        me = hpcomm.join("ocean")
        points = np.array_split(np.arange(240), me.comm.size)[me.comm.rank]
        sst = me.gives("sst", np.zeros((len(points), 2), np.float32), points)
        flow = me.takes("flow", np.zeros(len(points)), points)
        begin, end, verbs = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
        if "restore" in verbs:
            assert me.restore("kept", begin - 1) == begin - 1
        else:
            me.connect(begin)
        with open(f"flow{me.comm.rank}.bin", "ab") as kept:
            for t in range(begin, end + 1):
                sst.values[:] = ((points % 31) * 0.3 * t)[:, None] + [0, 1]
                me.put(sst, t)
                kept.write(me.get(flow, t).tobytes())
        if "save" in verbs:
            me.save("kept", end)
    """,
    "river.py": """
        import sys
        import numpy as np
        import hpcomm
        from hpcomm import regrid

        me = hpcomm.join("river")
        n = np.array_split(np.arange(9), me.comm.size)[me.comm.rank]
        grid = regrid.PointCloud(np.stack([n * 40.0, n * 15.0 - 60.0], axis=1))
        flow = me.gives("flow", np.zeros(len(n)), n, grid=grid)
        sst = me.takes("sst", np.zeros((len(n), 2), np.float32), n, grid=grid)
        begin, end, verbs = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
        if "restore" in verbs:
            assert me.restore("kept", begin - 1) == begin - 1
        else:
            me.connect(begin)
        with open(f"sst{me.comm.rank}.bin", "ab") as kept:
            for t in range(begin, end + 1):
                flow.values[:] = (n + 1) * 0.1 * t
                me.put(flow, t)
                kept.write(me.get(sst, t).tobytes())
        if "save" in verbs:
            me.save("kept", end)
    """,
}
TWO_F90 = """
program ocean
  use, intrinsic :: iso_fortran_env
  use hpcomm_mod
  implicit none
  integer :: comm, rank, size, rows, grid, sst, flow, i, t, begin, end, unit
  real(real32), allocatable :: temperature(:, :)
  real(real64), allocatable :: inflow(:, :)
  character(80) :: word
  call hpcomm_init("ocean", comm, rank, size)
  rows = 12 / size
  allocate (temperature(20 * rows, 2))
  allocate (inflow(20, rows), source=0.0_real64)
  grid = hpcomm_grid_rectangle(12, 20, rows * rank, rows, 0, 20)
  sst = hpcomm_field("sst", hpcomm_gives, grid, kind=4, width=2)
  flow = hpcomm_field("flow", hpcomm_takes, grid)
  call get_command_argument(1, word)
  read (word, *) begin
  call get_command_argument(2, word)
  read (word, *) end
  write (word, '("flow", i0, ".bin")') rank
  open (newunit=unit, file=word, access="stream", form="unformatted", position="append")
  call get_command_argument(3, word)
  if (index(word, "restore") > 0) then
    call hpcomm_restore("kept", real(begin - 1, real64))
  else
    call hpcomm_connect(real(begin, real64))
  end if
  do t = begin, end
    do i = 1, 20 * rows
      temperature(i, 1) = real(mod(20 * rows * rank + i - 1, 31) * 0.3d0 * t, real32)
      temperature(i, 2) = real(mod(20 * rows * rank + i - 1, 31) * 0.3d0 * t + 1, real32)
    end do
    call hpcomm_put_kind(sst, reshape(temperature, [5, 4, rows, 2]), 4, int(40 * rows, int64), &
                         real(t, real64))
    call hpcomm_get(flow, inflow, real(t, real64))
    write (unit) inflow
  end do
  if (index(word, "save") > 0) call hpcomm_save("kept", real(end, real64))
  close (unit)
  call hpcomm_end()
end program
"""
TWO_C = """
#include "hpcomm.h"
#include <stdio.h>
#include <string.h>
int main(int argc, char **argv) {
  int64_t numbers[9];
  double x[9][2], outflow[9];
  float temperature[9][2] = {{0}};
  int begin = atoi(argv[argc - 3]), end = atoi(argv[argc - 2]);
  const char *verbs = argv[argc - 1];
  hpcomm_init("river", NULL);
  for (int i = 0; i < 9; i++) numbers[i] = i, x[i][0] = i * 40.0, x[i][1] = i * 15.0 - 60.0;
  int grid = hpcomm_grid_points(9, numbers, *x);
  int flow = hpcomm_field("flow", HPCOMM_GIVES, grid, 8, 1);
  int sst = hpcomm_field("sst", HPCOMM_TAKES, grid, 4, 2);
  FILE *kept = fopen("sst0.bin", "ab");
  if (strstr(verbs, "restore"))
    hpcomm_restore("kept", begin - 1);
  else
    hpcomm_connect(begin);
  for (int t = begin; t <= end; t++) {
    for (int i = 0; i < 9; i++) outflow[i] = (i + 1) * 0.1 * t;
    hpcomm_put(flow, outflow, 9, t);
    hpcomm_get(sst, *temperature, 18, t);
    fwrite(temperature, sizeof temperature, 1, kept);
  }
  if (strstr(verbs, "save")) hpcomm_save("kept", end);
  fclose(kept);
  hpcomm_end();
  return 0;
}
"""
SANITIZED = ("-g", "-fsanitize=address,undefined", "-fno-sanitize-recover=all")


def kept(folder):
    """What each field was at each time: the parts of all ranks, one behind the other."""
    found = {}
    for name, (dtype, more) in KEPT.items():
        paths = sorted(folder.glob(f"{name}*.bin"))
        steps = 5 if name == "rain" else 9
        found[name] = np.concatenate(
            [np.fromfile(path, dtype).reshape(steps, *more, -1) for path in paths], -1
        )
        for path in paths:
            path.unlink()
    return found


def test_an_ocean_in_fortran_and_a_river_in_c_give_the_bits_of_three_programs_in_python(
    spec, in_c, in_fortran, tmp_path
):
    in_fortran(OCEAN_F90, "ocean")
    in_c(RIVER_C, "river", *SANITIZED)
    files = {"air.py": AIR, "ocean.py": OCEAN, "river.py": RIVER}
    compiled = SPEC.replace("OCEAN", "./ocean").replace("RIVER", "./river")
    compiled = compiled.replace("RANKS", "3", 1).replace("RANKS", "2")  # so one in Python plans for two
    done = spec(compiled, files=files, env={"ASAN_OPTIONS": "detect_leaks=0"})
    assert re.search("'ocean' has ended after .* s, with 36 exchanges", done.stderr), done.stderr
    ours = kept(tmp_path)
    spec(SPEC.replace("OCEAN", "python ocean.py").replace("RIVER", "python river.py").replace("RANKS", "1"))
    for name, values in kept(tmp_path).items():
        assert values.tobytes() == ours[name].tobytes(), name
        assert len(np.unique(values)) > 9


def two_kept(folder):
    """What ocean and river took at each time: the bits of all ranks, one behind the other."""
    found = []
    steps = sum(path.stat().st_size for path in folder.glob("sst*.bin")) // 72
    for name, dtype in (("flow", np.float64), ("sst", np.float32)):
        parts = sorted(folder.glob(f"{name}*.bin"))
        found.append(np.concatenate([np.fromfile(path, dtype).reshape(steps, -1) for path in parts], 1))
    for path in folder.glob("*.bin"):
        path.unlink()
    return found


@pytest.fixture
def two(spec, in_c, in_fortran, tmp_path):
    """two("fp", "30 40 save") -> [flow, sst]: of an ocean in Fortran and a river in Python, from 30 to 40."""
    in_fortran(TWO_F90, "ocean")
    in_c(TWO_C, "river", *SANITIZED)

    def run(languages, words, ranks=2, planner=None, expect=0):
        text = TWO_SPEC.replace("ranks = 2", f"ranks = {ranks}")
        for name, language in zip(("ocean", "river"), languages, strict=True):
            command = f"python {name}.py" if language == "p" else f"./{name}"
            text = text.replace(f'command = "{name.upper()}"', f'command = "{command} {words}"')
        if languages[1] == "p":
            text = text.replace("ranks = 1", "ranks = 2")
        more = "" if planner is None else PLANNER.replace("ranks = 1", f"ranks = {planner}")
        done = spec(text + more, files=TWO_PY, env={"ASAN_OPTIONS": "detect_leaks=0"}, expect=expect)
        return done if expect else two_kept(tmp_path)

    return run


@pytest.mark.once
def test_programs_in_fortran_and_c_give_the_bits_of_python_and_go_on_from_restarts(two):
    """On other numbers of ranks, or in Python; with a mean, a lag and an interpolation under way.

    From a time on that is not 0, which the planner does not know. At last it has more ranks than they.
    """
    whole = two("pp", "30 49 -", 1)
    parts = [
        two("fc", "30 37 save", 2, 1),
        two("fp", "38 43 restore,save", 3),
        two("fc", "44 49 restore", 1, 2),
    ]
    for values, *found in zip(whole, *parts, strict=True):
        assert values.tobytes() == np.concatenate(found).tobytes()
        assert len(np.unique(values)) > 9
    done = two("fc", "41 49 restore", 2, 1, expect="failure")
    assert re.search(
        "nothing was saved for 40 s in .*kept/.*a time that it has: 37 s, 43 s", done.stderr, re.DOTALL
    )


@pytest.mark.once
def test_programs_in_fortran_and_c_alone_are_told_that_nothing_plans_their_fields(two, programs, tmp_path):
    words = "30 49 -"
    said = "no program of this job is in Python, so nothing plans its fields"
    done = two("fc", words, expect="failure")
    assert said in done.stderr
    assert "python -m hpcomm.mpmd.planner" in done.stderr
    alone = [(1, [str(tmp_path / name), *words.split()]) for name in ("ocean", "river")]
    assert said in programs(alone, expect="failure").stderr


EARLY = """
#include "hpcomm.h"
#include <stdio.h>
int main(int argc, char **argv) {
  int64_t numbers[1] = {0};
  double x, y, start = atof(argv[1]);
  hpcomm_init("ocean", NULL);
  int grid = hpcomm_grid(1, numbers), sst = hpcomm_field("sst", HPCOMM_GIVES, grid, 8, 1);
  int heat = hpcomm_field("heat", HPCOMM_TAKES, grid, 8, 1);
  if (argc > 2) hpcomm_restore("kept", start - 0.25);
  else hpcomm_connect(start);
  for (double t = start; t < start + 1.1; t += 0.25) {
    x = t;
    hpcomm_put(sst, &x, 1, t);
    hpcomm_get(heat, &y, 1, t);
    if (y < t || y > t) return 1;
    hpcomm_save("kept", t);
  }
  hpcomm_end();
  return 0;
}
"""
MATE_EARLY = """
    import sys
    import numpy as np
    import hpcomm
    start = float(sys.argv[1])
    me = hpcomm.join("air")
    sst, heat = me.takes("sst", np.zeros(1), every=0.25), me.gives("heat", np.zeros(1))
    if sys.argv[2:]:
        assert me.restore("kept", start - 0.25) == start - 0.25
        assert sst.values == start - 0.25
    else:
        me.connect(start)
    for t in start + 0.25 * np.arange(5):
        heat.values[:] = t
        me.put(heat, t)
        assert me.get(sst, t) == t
        me.save("kept", t)
"""


@pytest.mark.once
def test_times_below_zero_and_several_in_a_second_are_exchanged_saved_and_found(spec, in_c, tmp_path):
    in_c(EARLY, "ocean")
    for words in ("-1.25", "-0.25 again"):
        text = f"""
            [program.ocean]
            command = "./ocean {words}"
            ranks = 1
            [program.air]
            command = "python air.py {words}"
            ranks = 1
            first = "put"
            [[field]]
            name = "sst"
            from = "ocean"
            to = "air"
            every = 0.25
            [[field]]
            name = "heat"
            from = "air"
            to = "ocean"
            every = 0.25
        """
        spec(text, files={"air.py": MATE_EARLY})


UNLISTED = """
#include "hpcomm.h"
int main(void) {
  MPI_Comm comm;
  int rank;
  hpcomm_init("sea", &comm);
  MPI_Comm_rank(comm, &rank);
  int64_t numbers[2] = {2 * rank, 2 * rank + 1};
  double corners[2][4][2], heat[2], back[24] = {0};
  float speed[24][2];
  for (int i = 0; i < 24; i++)
    for (int k = 0; k < 2; k++) speed[i][k] = (24 * rank + i) * 0.5f + k;
  for (int i = 0; i < 2; i++) {
    double west = 20.0 * numbers[i], x[4][2] = {{west, 0}, {west + 20, 0}, {west + 20, 15}, {west, 15}};
    for (int k = 0; k < 8; k++) corners[i][k / 2][k % 2] = x[k / 2][k % 2];
    heat[i] = 1.0 + numbers[i];
  }
  int rows = hpcomm_grid_rectangle(6, 8, 3 * rank, 3, 0, 8);
  int cells = hpcomm_grid_cells(2, numbers, 4, **corners);
  int speeds = hpcomm_field("speed", HPCOMM_GIVES, rows, 4, 2);
  int heats = hpcomm_field("heat", HPCOMM_GIVES, cells, 8, 1);
  int backs = hpcomm_field("back", HPCOMM_TAKES, rows, 8, 1);
  hpcomm_connect(0.0);
  hpcomm_put(speeds, *speed, 48, 0.0);
  hpcomm_put(heats, heat, 2, 0.0);
  hpcomm_get(backs, back, 24, 0.0);
  for (int i = 0; i < 24; i++)
    if (back[i] < 24 * rank + i || back[i] > 24 * rank + i) return 1;
  hpcomm_end();
  return 0;
}
"""
TAKER = """
    import numpy as np
    import hpcomm
    from hpcomm import regrid

    me = hpcomm.join("sky")
    sea, sky = regrid.LatLon(6, 8), regrid.Gaussian(4, 8)
    band = [[(x, 0), (x + 20, 0), (x + 20, 15), (x, 15)] for x in 20.0 * np.arange(4)]
    speed = me.takes("speed", np.zeros((32, 2)), grid=sky, mapping=["bilinear", "nearest"])
    heat = me.takes("heat", np.full(32, -1.0), grid=sky, mapping=["conservative", "keep"])
    back = me.gives("back", np.arange(48.0))
    me.exchange()
    given = np.arange(48, dtype=np.float32)[:, None] * 0.5 + np.arange(2)
    assert (speed.values == regrid.weights(sea, sky, ["bilinear", "nearest"]).apply(given)).all()
    weights = regrid.weights(regrid.Cells(band), sky, "conservative")
    assert (heat.values[weights.rows] == weights.apply(np.arange(4) + 1.0)[weights.rows]).all()
    assert (heat.values[weights.uncovered] == -1).all() and len(weights.rows)
    print("fine")
"""


@pytest.mark.once
def test_a_program_in_c_or_cpp_says_the_grids_that_no_spec_knows(programs, in_c, tmp_path):
    """Its two ranks are planned for by one of Python; what compilers differ in shows when they compile."""
    for compiler in filter(shutil.which, ("gcc", "clang++", "g++")):
        in_c(UNLISTED, "sea", compiler=None if compiler == "gcc" else compiler)
    assert "fine" in programs([(2, [str(tmp_path / "sea")]), (1, TAKER)]).stdout


ENVIRON = {"PATH": f"{sys.prefix}/bin:{os.environ['PATH']}"}  # where mpicc of this MPI is


@pytest.mark.parametrize("builder", [pytest.param("by hand", marks=pytest.mark.once), "cmake"])
def test_the_example_of_the_page_runs(spec, in_fortran, tmp_path, builder):
    code = dict(reversed(BLOCKS))
    if builder == "by hand":
        in_fortran(code["fortran"], "ocean")
    elif not (shutil.which("cmake") and shutil.which("gfortran")):
        pytest.skip("no cmake, or no gfortran here")
    else:
        (tmp_path / "ocean.f90").write_text(code["fortran"])
        (tmp_path / "CMakeLists.txt").write_text(code["cmake"])
        for words in (["-S", ".", "-B", ".", f"-Dhpcomm_DIR={FOLDER}"], ["--build", "."]):
            done = finish(["cmake", *words], 100, tmp_path, ENVIRON)
            assert done.returncode == 0, done.stdout + done.stderr
    done = spec(code["toml"], files={"air.py": code["python"]})
    assert all(line in done.stdout for line in ("ocean 0:  12.00", "ocean 1:  12.00", "air: 11.00")), (
        done.stdout
    )


def test_a_program_uses_the_mpi_module_of_the_machines_mpi(spec, in_fortran, tmp_path):
    """Debian's MPICH beside the library of the wheel, which is of the same ABI."""
    roots = PAGE.parents[1] / "build/debian", Path("/")  # where its packages are unpacked, or installed
    modules = [path for root in roots for path in root.glob("usr/lib/*/fortran/*/mpich/mpi.mod")]
    wheels = Path(sys.prefix) / "lib/libmpi.so.12"
    if not modules or not wheels.exists():
        pytest.skip("no module of MPICH, or another MPI")
    libraries = modules[0].parents[3]
    (tmp_path / "libmpich.so.12").symlink_to(wheels)
    code = dict(reversed(BLOCKS))
    source = code["fortran"].replace("use hpcomm_mod", "use mpi\n  use hpcomm_mod")
    doubles = (
        "call MPI_Allreduce(MPI_IN_PLACE, temperature, 9 * 36, MPI_DOUBLE_PRECISION, MPI_SUM, comm, step)"
    )
    source = source.replace("  print ", f"  {doubles}\n  print ")
    # An older MPICH's Fortran names three calls of its own that this one does not have; nobody calls them.
    library = libraries / "libmpichfort.so.12"
    in_fortran(source, "ocean", library, "-Wl,--allow-shlib-undefined", modules=modules[0].parent)
    paths = {"LD_LIBRARY_PATH": f"{tmp_path}:{libraries}"}
    done = spec(code["toml"], files={"air.py": code["python"]}, env=paths)
    assert all(line in done.stdout for line in ("ocean 0:  24.00", "ocean 1:  24.00")), done.stdout


def test_a_program_in_c_is_built_by_pkg_config(compiled, tmp_path):
    compiled()
    if not shutil.which("pkg-config"):
        pytest.skip("no pkg-config here")
    (tmp_path / "river.c").write_text(ALONE)
    [lines] = [text for _, text in BLOCKS if "pkg-config" in text]
    check = (
        'test "$(pkg-config --modversion hpcomm)" = "$(python -c "import hpcomm; print(hpcomm.__version__)")"'
    )
    done = finish(["sh", "-ec", f"{lines}\n{check}\n./river"], 100, tmp_path, ENVIRON | QUICK)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.once
def test_cmake_names_the_language_that_it_needs(tmp_path):
    if not shutil.which("cmake") or not shutil.which("gfortran"):
        pytest.skip("no cmake, or no gfortran here")
    [text] = [text.replace("LANGUAGES C ", "LANGUAGES ") for language, text in BLOCKS if language == "cmake"]
    (tmp_path / "CMakeLists.txt").write_text(text)
    done = finish(["cmake", f"-Dhpcomm_DIR={FOLDER}", "."], 100, tmp_path)
    assert done.returncode == 1
    assert "hpcomm is compiled from C: project(... LANGUAGES C ...)" in " ".join(done.stderr.split())


@pytest.mark.once
@pytest.mark.skipif(not shutil.which("cmake"), reason="no cmake here")
def test_cmake_takes_the_version_that_it_is_asked_for(tmp_path):
    """Whatever else is missing."""
    major, minor, _ = version.split(".")
    others = (f"{major}.{int(minor) - 1}", f"{major}.{int(minor) + 1}", f"{int(major) + 1}")
    for asked, fits in {
        f"{major}.{minor}": True,
        f"{version} EXACT": True,
        **dict.fromkeys(others, False),
    }.items():
        (tmp_path / "CMakeLists.txt").write_text(
            "cmake_minimum_required(VERSION 3.16)\nproject(p LANGUAGES NONE)\n"
            f"find_package(hpcomm {asked} QUIET)\n"
            'message("${hpcomm_CONSIDERED_VERSIONS}: ${hpcomm_VERSION}.")\n'
        )
        said = finish(["cmake", f"-Dhpcomm_DIR={FOLDER}", "."], 100, tmp_path).stderr
        assert f"{version}: {version if fits else ''}." in said, asked


@pytest.mark.once
@pytest.mark.parametrize("compiler", ["gcc", "clang"])
def test_the_sources_compile_without_a_warning(compiled, compiler):
    compiled(compiler, "-O2")


ALONE = """
#include "hpcomm.h"
#include <math.h>
int main(int argc, char **argv) {
  double x[6] = {0};
  float y[6] = {0};
  int64_t numbers[6] = {0, 1, 2, 3, 4, 5};
  int what = argc > 1 ? atoi(argv[1]) : 0;
  if (what == 1) hpcomm_connect(0);
  hpcomm_init(what == 2 ? "two words" : "ocean", NULL);
  if (what == 3) numbers[4] = -4;
  int grid = hpcomm_grid(what == 4 ? -1 : 6, numbers);
  int sst = hpcomm_field("sst", HPCOMM_GIVES, grid, 8, 1);
  if (what == 5) hpcomm_field("sst", HPCOMM_GIVES, grid, 8, 1);
  if (what == 6) hpcomm_field("ice", HPCOMM_GIVES, grid + 1, 8, 1);
  if (what == 7) hpcomm_grid_rectangle(4, 4, 3, 2, 0, 4);
  if (what == 8) hpcomm_link("ice");
  if (what == 17) hpcomm_field("ice", HPCOMM_GIVES, grid, 8, 0);
  if (what == 18) hpcomm_field("a/b", HPCOMM_GIVES, grid, 8, 1);
  if (what == 19) hpcomm_grid_cells(1, numbers, 2, x);
  if (what == 9) hpcomm_field("heat", HPCOMM_TAKES, grid, 8, 1);
  hpcomm_connect(0.0);
  if (what == 10) hpcomm_put(sst, x, 5, 0.0);
  if (what == 11) hpcomm_put(sst, y, 6, 0.0);
  if (what == 12) hpcomm_get(sst, x, 6, 0.0);
  if (what == 13) hpcomm_put(sst + 1, x, 6, 0.0);
  if (what == 14) hpcomm_field("ice", HPCOMM_GIVES, grid, 8, 1);
  if (what == 15) hpcomm_put(sst, x, 6, NAN);
  if (what == 16) hpcomm_init("ocean", NULL);
  if (what == 24) MPI_Finalize();
  hpcomm_put(sst, x, 6, 0.0);
  hpcomm_end();
  if (what == 20) hpcomm_end();
  if (what == 21) hpcomm_put(sst, x, 6, 1.0);
  if (what == 22) hpcomm_save("kept", 1.0);
  if (what == 23) hpcomm_link("ice");
  return 0;
}
"""
QUICK = {"OMPI_MCA_btl": "^ofi"}  # which waits for a second in MPI_Init
SAYS = [
    "",
    "connect was called before init",
    "'two words' is no name for a program",
    "point 4 here has the number -4",
    "a grid of -1 points",
    "this program gives 'sst' twice",
    "field 'ice': there is no grid 1",
    "rows 3 to 4 and columns 0 to 3 are no part of 4 x 4 points",
    "no program ice in this job",
    "'ocean' takes a field 'heat', which nobody gives",
    "field 'sst' has 6 points x 1 numbers here, and these are 5 values",
    "field 'sst' is of kind 8, and these values are of kind 4",
    "this program gives 'sst'\n  where: get in program 'ocean' (rank 0 of 1)\n  try:   hpcomm_put",
    "there is no field 1",
    "field 'ice' comes too late",
    "nan is no time of the model",
    "this program has joined already",
    "field 'ice' has the role 0, the kind 8 and the width 0",
    "'a/b' is no name for a field",
    "cells of 2 corners",
    "end was called after end",
    "put was called after end",
    "save was called after end",
    "link was called after end",
    "put was called after MPI_Finalize",
]


@pytest.mark.once
def test_what_a_program_in_c_is_told_of_a_wrong_call(in_c, tmp_path):
    in_c(ALONE, "ocean")
    for what, said in enumerate(SAYS):
        done = finish([tmp_path / "ocean", str(what)], 60, tmp_path, QUICK)
        assert (done.returncode != 0) == bool(said), (what, done.stdout, done.stderr)
        assert said in done.stderr
        assert not said or "\n  where: " in done.stderr


PAIR = """
#include "hpcomm.h"
#include <string.h>
int main(int argc, char **argv) {
  double x[6] = {0};
  int64_t numbers[6] = {0, 1, 2, 3, 4, 5};
  hpcomm_init("ocean", NULL);
  int grid = hpcomm_grid(6, numbers);
  int sst = hpcomm_field(argc > 1 ? argv[1] : "sst", HPCOMM_GIVES, grid, 8, 1);
  int heat = hpcomm_field("heat", HPCOMM_TAKES, grid, 8, 1);
  hpcomm_connect(0.0);
  hpcomm_put(sst, x, 6, argc > 2 ? atof(argv[2]) : 0.0);
  if (argc > 3) hpcomm_put(sst, x, 6, atof(argv[3]));
  for (;;) hpcomm_get(heat, x, 6, 0.0);
}
"""
MATE = """
    import numpy as np
    import hpcomm
    me = hpcomm.join("air", timeout=3)
    sst = me.takes("sst", np.zeros(6), every=2.0)
    heat = me.gives("heat", np.zeros(6))
    me.put(heat)
    me.get(sst, 0)
"""
ABSENT = "int main(void) { MPI_Init(NULL, NULL); sleep(60); }\n"
ANEW = "a partner that has ended"  # depends on the MPI
PAIRS = {
    "an unknown field": (["sts"], "'air' takes a field 'sst', which nobody gives"),
    "a put backwards": (["sst", "2", "0"], "'sst' is put at 0 s a second time, or backwards"),
    "a put at no coupling time": (
        ["sst", "3"],
        "the first put of 'sst' is at 3 s, which is no coupling time",
    ),
    "a partner that has ended": (
        [],
        "needs rank 0 of program 'air', which has ended\n  where: get of 'heat'",
    ),
    "it does not join": (None, "the world did not join within 3 s"),
}


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=() if case == ANEW else pytest.mark.once) for case in PAIRS]
)
def test_nobody_waits_for_ever_where_programs_in_c_and_python_do_not_fit(programs, in_c, tmp_path, case):
    words, said = PAIRS[case]
    source = PAIR if words is not None else "#include <mpi.h>\n#include <unistd.h>\n" + ABSENT
    in_c(source, "ocean")
    done = programs([(1, [str(tmp_path / "ocean"), *(words or [])]), (1, MATE)], expect="failure")
    assert said in re.sub(r"\[\w+( \d)?\] ", "", done.stderr), done.stderr


UNLIKE = """
#include "hpcomm.h"
#include <stdio.h>
int main(void) {
  int rank;
  char name[8];
  MPI_Comm comm;
  hpcomm_init("ocean", &comm);
  MPI_Comm_rank(comm, &rank);
  snprintf(name, 8, "sst%d", rank);
  hpcomm_field(name, HPCOMM_GIVES, hpcomm_grid(0, NULL), 8, 1);
  hpcomm_connect(0.0);
}
"""


@pytest.mark.once
def test_ranks_of_a_program_in_c_that_declare_different_fields_are_told_both(programs, in_c, tmp_path):
    in_c(UNLIKE, "ocean")
    done = programs([(2, [str(tmp_path / "ocean")])], expect="failure")
    assert "this rank declares:" in done.stderr
    assert "gives\tsst1" in done.stderr

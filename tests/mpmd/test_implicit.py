"""Implicit coupling: accelerators, waveforms, more than two programs, and what is refused."""

import shutil
from pathlib import Path

import pytest
from coupled import COMMON

HEAT = Path(__file__).parents[2] / "apps" / "heat_coupled"

IMPLICIT = """
from hpcomm.mpmd.coupling.implicit import Accelerator, windows, NotConvergedError
scheme, most = SCHEME
target = np.linspace(1, 2, 12)[:, None] * [1, 1j]
if me.name == "a":  # the leader
    x = me.gives("x", np.zeros((len(mine(12)), 2), complex), mine(12))
    y = me.takes("y", np.zeros((len(mine(12)), 2), complex), mine(12))
    accelerator = Accelerator(comm, scheme, relaxation=0.3)
    link, counts = me.link("b"), []
    for window in range(4):
        for k in windows(link, x, accelerator, tolerance=1e-9, most=most):
            link.get(y)
            x.values = y.values.copy()
        counts.append(k)
        assert np.allclose(x.values, (target * (1 + window) / 2)[mine(12)], rtol=1e-7)
    if comm.rank == 0:
        print(scheme, *counts)
else:  # answers with a contraction around a fixed point, and keeps a state to save and restore
    x = me.takes("x", np.zeros((12, 2), complex))
    y = me.gives("y", np.zeros((12, 2), complex))
    link, state = me.link("a"), {"calls": 0}
    weights = np.linspace(-0.9, 0.6, 12)[:, None]
    for window in range(4):
        def restore(saved):
            assert saved == {"calls": window}
            state["calls"] = saved["calls"]
        for k in windows(link, save=lambda: dict(state), restore=restore):
            link.get(x)
            goal = target * (1 + window) / 2
            y.values = goal + weights * (x.values - goal)
            state["calls"] += 1
            link.put(y)
        assert state["calls"] == window + 1
"""


@pytest.mark.once
@pytest.mark.parametrize(("scheme", "most"), [("aitken", 99), ("iqn-ils", 30)])
def test_implicit_coupling_finds_the_fixed_point_and_rolls_back(couple, scheme, most):
    out = couple(IMPLICIT.replace("SCHEME", f"({scheme!r}, {most})"), {"a": 2, "b": 1}).stdout
    counts = [int(word) for word in out.split()[1:]]
    assert len(counts) == 4
    assert max(counts) < {"aitken": 99, "iqn-ils": 20}[scheme]


@pytest.mark.once
def test_a_window_that_does_not_converge_is_an_error_on_both_sides(couple):
    done = couple(IMPLICIT.replace("SCHEME", "('constant', 3)"), {"a": 1, "b": 1}, expect="failure")
    assert "the coupling of 'a' and 'b' did not converge: after 3 iterations" in done.stderr


HEAT_JOB = """
    [program.dirichlet]
    command = "python {folder}/dirichlet.py --meshes 8 --steps 3 --substeps {left}"
    ranks = 1
    [program.neumann]
    command = "python {folder}/neumann.py --meshes 8 --steps 3 --tolerance 1e-11 {right}"
    ranks = 2
    [[field]]
    name = "temperature"
    from = "neumann"
    to = "dirichlet"
    implicit = true
    every = 0.1
    time = "linear"
    [[field]]
    name = "flux"
    from = "dirichlet"
    to = "neumann"
    implicit = true
    every = 0.1
    time = "linear"
"""


@pytest.mark.once
@pytest.mark.parametrize(("left", "right", "scheme"), [(1, 2, "iqn-ils"), (2, 1, "iqn-imvj")])
def test_partitioned_heat_is_exact_with_other_steps_on_either_side(spec, left, right, scheme):
    """u = 1 + x² + 3y² + 1.2t, of preCICE's tutorial: linear in time, so waveforms lose nothing."""
    job = HEAT_JOB.format(folder=HEAT, left=left, right=f"--substeps {right} --scheme {scheme}")
    line = next(line for line in spec(job).stdout.splitlines() if "largest error" in line)
    assert float(line.split()[-1]) < 1e-10
    counts = [int(word.strip(",")) for word in line.split("iterations")[1].split(", ")[0].split()]
    assert counts[0] <= 7
    assert max(counts[1:]) <= 4


# Two masses on springs, of preCICE's tutorial: each program moves one of them, by Newmark's method.
OSCILLATOR = """
from hpcomm.mpmd.coupling.implicit import Accelerator, windows

WINDOW, STEPS, SCHEME, PARALLEL = 0.04, PARAMETERS
LEFT = me.name == "left"
K = 4 * np.pi**2 * np.array([[5, -4], [-4, 5]])
omega, modes = np.linalg.eigh(K)

def exact(t):
    return modes @ (np.cos(np.sqrt(omega) * t) * (modes.T @ [1.0, 0.0]))

n = STEPS[0 if LEFT else 1]
dt, stiff, couples = WINDOW / n, K[0, 0], -K[0, 1]
own, other = (0, 1) if LEFT else (1, 0)
u, v, t = exact(0.0)[own], 0.0, 0.0
a = couples * exact(0.0)[other] - stiff * u
link = me.link("right" if LEFT else "left")
mine = me.gives("uv"[own], np.array([u]))
theirs = me.takes("uv"[other], exact(0.0)[[other]], every=WINDOW, time="linear", implicit=True)
leads = PARALLEL or not LEFT
together = me.together(link.peer) if PARALLEL else comm
accelerator = Accelerator(together, SCHEME, relaxation=1.0) if leads else None

def save():
    return u, v, a, t

def restore(state):
    global u, v, a, t
    u, v, a, t = state

counts, worst = [], 0.0
for window in range(25):
    how = {"save": save, "restore": restore}
    for k in windows(link, mine, accelerator, tolerance=1e-10, **how) if leads else windows(link, **how):
        for _ in range(n):
            f = couples * link.get(theirs, t + dt)[0]
            new = (f + (4 / dt**2) * u + (4 / dt) * v + a) / (stiff + 4 / dt**2)
            new_a = 4 / dt**2 * (new - u - dt * v) - a
            v, a, u, t = v + dt / 2 * (a + new_a), new_a, new, t + dt
            mine.values[:] = u
            link.put(mine, t)
    counts.append(k)
    worst = max(worst, abs(u - exact(t)[own]))
print(me.name, "error", worst, "iterations", *counts)
"""


@pytest.mark.once
@pytest.mark.parametrize(("scheme", "parallel"), [("constant", False), ("iqn-imvj", True)])
def test_an_oscillator_converges_by_the_order_of_its_steps(couple, scheme, parallel):
    errors, counts = [], []
    for steps in ((2, 4), (4, 8)):
        out = couple(
            OSCILLATOR.replace("PARAMETERS", f"{steps}, {scheme!r}, {parallel}"), {"left": 1, "right": 1}
        ).stdout
        rows = [line.split() for line in out.splitlines() if "iterations" in line]
        assert len(rows) == 2
        errors.append(max(float(row[2]) for row in rows))
        counts += [[int(word) for word in row[4:]] for row in rows]
    assert 3.0 < errors[0] / errors[1] < 5.0
    assert max(map(max, counts)) <= 6


# Each program answers linearly to all others; units differ by twelve orders of magnitude.
SYSTEM = """
from hpcomm.mpmd.coupling.implicit import Accelerator, windows, NotConvergedError

NAMES, N = ["a", "b", "c"][:PROGRAMS], 6
random = np.random.default_rng(5)
matrix = random.normal(size=(len(NAMES) * N, len(NAMES) * N))
for i in range(len(NAMES)):
    matrix[i * N:(i + 1) * N, i * N:(i + 1) * N] = 0.0
matrix *= 0.9 / np.abs(np.linalg.eigvals(matrix)).max()
units = {"a": 1e-6, "b": 1e6, "c": 1.0}
start = random.normal(size=len(matrix))
order = NAMES.index(me.name)
links = [me.link(peer) for peer in NAMES if peer != me.name]
rows = mine(N)
x = me.gives(f"x_{me.name}", np.zeros(len(rows)), rows)
got = {peer: me.takes(f"x_{peer}", np.zeros(N), np.arange(N)) for peer in NAMES if peer != me.name}
accelerator = Accelerator(me.together(*got), SCHEME, preconditioner=PRECONDITIONER, filter_limit=1e-2)
assert accelerator.comm.size == sum(len(ranks) for ranks in me.ranks.values())
counts = []
for window in range(3):
    whole = start * (1 + window)
    goal = np.linalg.solve(np.eye(len(matrix)) - matrix, whole)
    for k in windows(links, x, accelerator, tolerance={x.name: 1e-9}, most=MOST):
        parts = [got[peer].values / units[peer] if peer in got else np.zeros(N) for peer in NAMES]
        for link in links:
            link.get(got[link.peer])
            parts[NAMES.index(link.peer)] = got[link.peer].values / units[link.peer]
        answer = (matrix @ np.concatenate(parts) + whole)[order * N:(order + 1) * N]
        x.values[:] = units[me.name] * answer[rows]
        if window == NAN_IN and me.name == "b":
            x.values[:1] = np.nan
    np.testing.assert_allclose(x.values / units[me.name], goal[order * N:(order + 1) * N][rows], rtol=1e-7)
    counts.append(k)
    assert accelerator.by_field.keys() == {f"{name}.x_{name}" for name in NAMES}
if comm.rank == 0:
    print(me.name, *counts)
"""
SYSTEM_PARAMETERS = {"SCHEME": "'iqn-ils'", "PRECONDITIONER": "'residual-sum'", "MOST": "60", "NAN_IN": "9"}


def system(couple, sizes, expect=0, **parameters):
    """Runs SYSTEM; the iterations of each window."""
    code = SYSTEM.replace("PROGRAMS", str(len(sizes)))
    for name, value in (SYSTEM_PARAMETERS | parameters).items():
        code = code.replace(name, value)
    done = couple(code, sizes, expect=expect)
    counts = {
        tuple(map(int, line.split()[1:])) for line in done.stdout.splitlines() if line.strip()[1:2] == " "
    }
    return done, counts


@pytest.mark.once
def test_three_programs_converge_together_whatever_their_units(couple):
    _, counts = system(couple, {"a": 1, "b": 2, "c": 1}, SCHEME="'iqn-imvj'")
    assert len(counts) == 1  # all programs count alike
    assert max(*counts) <= 22


@pytest.mark.once
def test_without_a_preconditioner_a_field_in_small_units_is_not_seen(couple):
    _, (with_,) = system(couple, {"a": 1, "b": 1})
    _, (without,) = system(couple, {"a": 1, "b": 1}, PRECONDITIONER="'none'", MOST="500")
    assert sum(with_) < sum(without)


@pytest.mark.once
def test_a_residual_that_is_no_number_ends_the_window_at_once_for_all(couple):
    done, _ = system(couple, {"a": 1, "b": 2, "c": 1}, expect="failure", NAN_IN="0")
    words = "did not converge: after 1 iterations |H(x) - x| / |H(x)| is"
    assert done.stderr.count(words) >= 1
    assert "nan of 'b.x_b'" in done.stderr


WRONG = """
from hpcomm.mpmd.coupling.implicit import Accelerator, windows

x = me.gives("x", np.zeros(2)) if me.name == "a" else me.takes("x", np.zeros(2), **TIMES)
y = me.gives("y", np.zeros(2)) if me.name == "b" else me.takes("y", np.zeros(2), **TIMES)
link = me.link("b" if me.name == "a" else "a")
how = (x, Accelerator(comm)) if me.name == "a" else ()
try:
    for k in windows(link, *how):
        WRONG
except hpcomm.UsageError as error:
    print("said:", error)
    sys.exit(3)
"""
TIMES = "TIMES = {'every': 0.5, 'time': 'linear', 'implicit': True}"


@pytest.mark.once
@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ("link.put(y if me.name == 'b' else x, 0.6)", "at 0.6 s, but the window is from 0 s to 0.5 s"),
        ("link.get(x if me.name == 'b' else y, 0.7)", "at 0.7 s, but the window is from 0 s to 0.5 s"),
        ("[link.put(y if me.name == 'b' else x, 0.2) for _ in '12']", "at 0.2 s a second time, or backwards"),
        ("link.put(y if me.name == 'b' else x, 0.2)", "not been put at the end of the window, 0.5 s"),
        ("link.put(y if me.name == 'b' else x)", "needs the time"),
    ],
)
def test_a_time_outside_of_the_window_is_refused(couple, wrong, words):
    done = couple(f"{TIMES}\n{WRONG.replace('WRONG', wrong)}", {"a": 1, "b": 1}, expect="failure")
    assert words in done.stdout


KEPT = """
    [program.a]
    command = "python couple.py a"
    ranks = 1
    [program.b]
    command = "python couple.py b"
    ranks = 2
    [[field]]
    name = "x"
    from = "a"
    to = "b"
    implicit = true
    every = 1.0
    time = "linear"
    [[field]]
    name = "y"
    from = "b"
    to = "a"
    implicit = true
    every = 1.0
    time = "linear"
"""
KEEPING = """
from pathlib import Path
from hpcomm.mpmd.coupling.implicit import Accelerator, windows

x = me.gives("x", np.ones(4)) if me.name == "a" else me.takes("x", np.ones(2))
y = me.takes("y", np.zeros(4)) if me.name == "a" else me.gives("y", np.zeros(2))
link = me.link("b" if me.name == "a" else "a")
gives, takes, n = (x, y, 2) if me.name == "a" else (y, x, 3)
accelerator = Accelerator(me.together(link.peer), reuse=0)
begin = 0
if Path("kept").exists():
    begin = round(me.restore("kept"))
for window in range(begin, 4):
    for k in windows(link, gives, accelerator, tolerance=1e-9):
        for i in range(1, n + 1):
            t = window + i / n
            gives.values[:] = np.cos(link.get(takes, t) * 0.7 + t)
            link.put(gives, t)
    print("got", window, k, *link.get(takes, window + 1.0).round(14), *gives.values.round(14))
    if window == 1 and not begin:
        me.save("kept", window + 1.0)
"""


@pytest.mark.once
def test_waveforms_go_on_from_what_was_saved_and_one_program_runs_alone(spec, tmp_path):
    files = {"couple.py": COMMON + KEEPING}

    def got(done):
        return sorted(line for line in done.stdout.splitlines() if "got" in line)

    whole = got(spec(KEPT, "--record", "run", files=files))
    assert len(whole) == 12
    again = got(spec(KEPT, files=files))  # from the middle on
    assert again == [line for line in whole if int(line.split("got ")[1][0]) >= 2]
    shutil.rmtree(tmp_path / "kept")
    alone = got(spec(KEPT, "--only", "b", "--record", "run", files=files))
    assert alone == [line for line in whole if line.startswith("[b")]

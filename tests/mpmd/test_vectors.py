"""Vectors of two fields, as models have them: declared, put and got by two names, mapped as one in space."""

import re
from pathlib import Path

import pytest
from coupled import COMMON

PAGE = Path(__file__).parents[2] / "docs" / "mpmd.md"
SPEC = """
[program.a]
command = "python couple.py a"
ranks = 2
first = "put"
[program.b]
command = "python couple.py b"
ranks = 3
[grid.sky]
kind = "latlon"
nlat = 90
nlon = 180
[grid.sea]
kind = "latlon"
nlat = 97
nlon = 194
""" + "".join(
    f"""
[[field]]
name = "{name}"
vector = {vector}
from = "a"
to = "b"
mapping = "bilinear"
from_grid = "sky"
to_grid = "sea"
every = 2.0
time = "{time}"
"""
    for name, vector, time in (
        ("wind", '["u", "v"]', "mean"),
        ("whole", "true", "mean"),
        ("now", '["east", "north"]', "instant"),  # which a gives whole
        ("current", '["i", "j"]', "instant"),  # which b takes whole
    )
)
OVER_A_POLE = """
from hpcomm.grids import vectors
grid = me.grid("sky" if me.name == "a" else "sea")
points = mine(grid.size, 7 if me.name == "a" else 6)
x = grid.centres(points)
angle, link = points * 7.0, me.link("b" if me.name == "a" else "a")

def blows(t):
    "It blows over both poles, as strongly as elsewhere."
    turns = np.cross([1.0, 0.3, 0.2], x) * (1 + x[:, [0]] * x[:, [2]])
    return (1 + t) * vectors.on_sphere(turns, x)

if me.name == "a":
    u, v = (me.gives(name, np.zeros(len(points)), points, bases=angle) for name in "uv")
    whole = me.gives("whole", np.zeros((len(points), 2)), points, bases=angle)
    now = me.gives("now", np.zeros((len(points), 2)), points)
    i, j = (me.gives(name, np.zeros(len(points)), points) for name in "ij")
    axes = np.linalg.inv(vectors.checked_bases(angle, len(points), "", ""))
    for t in range(3):
        own = vectors.turned(blows(t), axes)
        u.values = own[:, 0].copy()
        me.put(u, t)
        u.values[:] = np.nan  # what was put has been copied
        v.values, whole.values, now.values = own[:, 1].copy(), own, blows(t)
        i.values, j.values = blows(t).T
        for field in (whole, v, now):
            me.put(field, t)
        if t < 2:
            link.put([j, i], t)  # in any order
    link.exchange(4)
else:
    apart = ("u", "v", "east", "north")
    u, v, east, north = (me.takes(name, np.full(len(points), -9.0), points) for name in apart)
    whole, current = (me.takes(name, np.zeros((len(points), 2)), points) for name in ("whole", "current"))
    assert (me.get(u, -1.0) == -9).all() and (v.values == -9).all()  # nothing was put so early
    for t in (0, 2):
        me.get(whole, t)
        got = me.get(u, t)
        assert got is u.values
        u.values[:] *= 4  # the program's own, from here on
        me.get(v, t)
        assert np.array_equal(np.stack([u.values / 4, v.values], 1), whole.values), t
        assert np.array_equal(link.get([u, v], t), v.values)
        assert np.array_equal(np.stack([u.values, v.values], 1), whole.values), t  # to the last bit
        if t == 0:
            me.get(current, t)
        me.get(north, t)
        assert not np.array_equal(east.values, whole.values[:, 0])
        me.get(east, t)
        if t == 0:
            off = np.abs(np.stack([east.values, north.values], 1) - blows(0.0))
            at_pole = np.abs(x[:, 2]) > np.cos(np.radians(2))
            mine_ = np.array([off[rows].max(initial=0.0) for rows in (at_pole, ~at_pole)])
            at, elsewhere = comm.all_reduce(mine_, "max")
            assert 0 < at < elsewhere < 1e-3, (at, elsewhere)
            assert np.array_equal(np.stack([east.values, north.values], 1), current.values)
    link.exchange(4)
text = me.report()
if me.name == "b" and comm.rank == 0:
    print(text)
"""


def test_two_fields_are_one_vector_over_a_pole(spec):
    done = spec(SPEC, files={"couple.py": COMMON + OVER_A_POLE})
    assert "wind: a -> b, 16200 points to 18818, bilinear" in done.stdout, done.stdout
    assert "its puts go nowhere" not in done.stderr, done.stderr


@pytest.mark.once
def test_the_example_of_the_page_is_as_exact_as_it_says(spec):
    text = PAGE.read_text()
    text = text[text.index("**Vectors.**") : text.index("Components along the axes")]
    job, air, sea = re.findall(r"^```(?:toml|python)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    out = spec(job, files={"air.py": air, "sea.py": sea}).stdout
    assert f"off by {re.search('# (0[.].*)', sea)[1]}" in out, out


ENSEMBLE = """
[job]
stop = 6
[program.a]
command = "python couple.py a"
ranks = 2
members = 3
step = 1
[program.b]
command = "python couple.py b"
ranks = 1
step = 1
[grid.sky]
kind = "latlon"
nlat = 4
nlon = 8
""" + "".join(
    f"""
[[field]]
name = "{name}"
from = "{giver}"
to = "{taker}"
mapping = "nearest"
from_grid = "sky"
to_grid = "sky"
{more}
"""
    for name, giver, taker, more in (
        ("wind", "a", "b", 'every = 2\ntime = "mean"\nvector = ["u", "v"]'),
        ("drift", "b", "a", 'every = 1\nlag = 1\ntime = "linear"\nvector = ["p", "q"]'),
        ("swell", "b", "a", 'every = 1\nlag = 1\nvector = ["r", "s"]'),
    )
)
MEMBERS = """
from pathlib import Path
points = mine(32, 3)
wide = () if me.name != "b" else (3,)
gives, takes = ("uv", "pqrs") if me.member else ("pq", "uv")
given = [me.gives(name, np.zeros((len(points), *wide)), points) for name in gives]
given += [me.gives("swell", np.zeros((len(points), 2)), points)] if me.name == "b" else []
taken = [me.takes(name, np.zeros((len(points), *wide)), points) for name in takes]

def put(t):
    for n, field in enumerate(given):
        values = np.sin(points) + n + t * (me.member or 3)
        field.values = values.reshape(-1, *[1] * len(field.shape)) * np.ones(field.shape)
        me.put(field, t)

def show(*words):
    for field in taken:
        whole = np.zeros((32, *wide))
        whole[points] = field.values
        for row in enumerate(comm.all_reduce(whole)):
            print(*words, me.name, field.name, *row, flush=True) if comm.rank == 0 else None

if Path("kept").exists():
    me.restore("kept")
    show("kept")
else:
    put(me.start)
for now, then in me.steps():
    put(then)
    for field in taken if then % 2 == 0 else taken[::-1]:
        me.get(field, then - (0.5 if me.member else 1))
    show("line", then)
    if sys.argv[2:] and then == 3:
        for field in taken:
            field.values += 100  # which no get has brought
        show("kept")
        me.save("kept", then)
        break
"""


@pytest.mark.once
def test_vectors_of_members_are_recorded_and_go_on_after_a_restart(spec):
    def said(text, *options):
        out = spec(text, *options, files={"couple.py": COMMON + MEMBERS}).stdout
        return [{*re.findall(rf"{word} .*", out)} for word in ("line", "kept")]

    whole, _ = said(ENSEMBLE, "--record", "record")
    assert len(whole) == 6 * 32 * (3 * 4 + 2)
    for name in ("b", "a_0002"):
        alone = said(ENSEMBLE, "--record", "record", "--only", name)[0]
        assert alone == {line for line in whole if f" {name} " in line}
    first, kept = said(re.sub('(couple.py .)"', r'\1 half"', ENSEMBLE))
    second, found = said(ENSEMBLE.replace("ranks = 2", "ranks = 1"))
    assert found == kept
    assert first | second == whole
    assert not first & second


ORDER = """
where = dict(points=mine(8), grid=regrid.LatLon(2, 4))
how = dict(mapping="nearest", vector=["u", "v"])
x = np.zeros(len(where["points"]))
if me.name == "a":
    u, v = (me.gives(name, x.copy(), **where) for name in "uv")
else:
    u, v = (me.takes(name, x.copy(), **where, **how, every=1.0) for name in "uv")
    plain = [me.takes(name, x.copy(), **where, mapping="nearest", vector=["p", "q"]) for name in "pq"]
if me.name == "a":
    plain = [me.gives(name, x.copy(), **where) for name in "pq"]
link = me.link("b" if me.name == "a" else "a")

def told(function, *words):
    try:
        function(*words)
    except hpcomm.HpcommError as error:
        print("told", str(error).replace("\\n", " "), flush=True)
    else:
        raise AssertionError(words)

if me.name == "a":
    told(me.put, u)
    me.put(u, 0.0)
    told(me.put, u, 0.0)
    told(me.put, v, 1.0)
    told(link.exchange, 0.0)
    me.put(v, 0.0)
    for t in (1.0, 2.0):
        link.put([v, u], t)
    told(link.put, [u, v], 1.0)
    for n in range(4):
        for field in plain:
            field.values[:] = n
        me.put(plain[0])
        me.put(plain[1])
    me.put(u, 3.0)
    told(me.save, "kept", 3.0)
    me.put(plain[0])  # and not the other one
else:
    link.get([u, v], 0.0)
    me.get(u, 1.0)
    me.get(u, 2.0)  # alone: nobody needs the other one
    got = [round(me.get(plain[n])[0]) for n in (0, 1, 1, 1, 0, 0, 1, 1)]
    assert got == [0, 0, 0, 1, 1, 2, 2, 3], got  # exchange has put the zeros before it was refused
    told(me.save, "kept", 3.0)
"""


@pytest.mark.once
def test_both_components_are_put_for_one_time(couple):
    done = couple(ORDER, {"a": 1, "b": 1}, expect="failure")
    at = [
        "put of 'u,v' needs the time",
        *["'u' is put at 0 s, and 'v' is not: both are the vector 'u,v'.*try: +put 'v' at 0 s, too"] * 3,
        "'u,v' is put at 1 s a second time, or backwards",
        "'u' is put at 3 s, and 'v' is not",
    ]
    told = re.findall("told .*", done.stdout)
    for words in at:
        assert any(re.search(words, line) for line in told), (words, told)
    assert len(told) == len(at) + 1, told
    assert re.search("rank 0 of 'a': at its end: '[pu]' is put", done.stderr), done.stderr

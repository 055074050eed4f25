"""Programs meet by name, in any order and number, and say who came when somebody did not."""

import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from processes import finish
from steady import steady_time

from hpcomm.errors import ConfigError
from hpcomm.mpmd import handshake

VERBS = """
    import sys
    import numpy as np
    import hpcomm

    me = hpcomm.join(NAME)
    comm = me.comm
    assert hpcomm.world is comm and comm.size == len(me.ranks[NAME])
    assert comm.all_reduce(1) == comm.size
    assert me.peers == tuple(sorted(set(me.ranks) - {NAME}))
    for peer in reversed(me.peers) if NAME < "b" else me.peers:
        me.link(peer)  # in whatever order: nobody waits
    for a in sorted(me.ranks):
        for b in sorted(me.ranks):
            if a < b and NAME in (a, b):
                peer = b if NAME == a else a
                link = me.link(peer)
                inter, n = link.comm, len(me.ranks[peer])
                assert (inter.is_inter, inter.remote_size, link.size) == (True, n, n)
                assert inter.all_reduce(np.array([comm.rank + 1])).tolist() == [n * (n + 1) // 2]
                assert inter.all_gather(np.array([float(comm.rank)])).ravel().tolist() == list(range(n))
                assert inter.all_to_all(np.full(n, comm.rank)).tolist() == list(range(n))
                root = (hpcomm.ROOT if comm.rank == 0 else hpcomm.PROC_NULL) if NAME == a else 0
                got = inter.broadcast(np.full(2, 7.0), root=root)
                assert got is None if NAME == a else got.tolist() == [7.0, 7.0]
                inter.barrier()
                if comm.rank < min(comm.size, n):
                    theirs = inter.sendrecv_object(NAME, comm.rank, comm.rank)
                    assert theirs == peer
    print(f"fine {NAME}\\n", end="")
"""


def named(name, source=VERBS):
    return source.replace("NAME", repr(name))


@pytest.mark.parametrize(
    "sizes",
    [
        {"c": 2, "a": 1, "b": 3},
        pytest.param({"alone": 2}, marks=pytest.mark.once),
    ],
    ids=str,
)
def test_programs_meet_by_name_and_their_links_have_all_verbs(programs, sizes):
    done = programs([(n, named(name)) for name, n in sizes.items()])
    assert sorted(done.stdout.split("\n")[:-1]) == sorted(
        f"fine {name}" for name, n in sizes.items() for _ in range(n)
    )
    assert done.stderr == ""


HILL = """
    import numpy as np
    from mpi4py import MPI

    world = MPI.COMM_WORLD
    lines = f"{world.rank}-{world.rank}/1\\thill\\tplain\\thill.py\\there\\t\\n".encode()
    if world.rank == 0:
        for r in range(1, world.size):
            line = bytearray(512)
            status = MPI.Status()
            world.Recv([line, MPI.BYTE], r, 32101, status)
            lines += line[: status.count]
        for r in range(1, world.size):
            world.Send([lines, MPI.BYTE], r, 32102)
    else:
        world.Send([lines, MPI.BYTE], 0, 32101)
        status = MPI.Status()
        world.Probe(0, 32102, status)
        lines = bytearray(status.count)
        world.Recv([lines, MPI.BYTE], 0, 32102)
    names = [None] * world.size
    for line in lines.decode().splitlines():
        ranks, name, *_ = line.split("\\t")
        first, last, step = map(int, ranks.replace("/", "-").split("-"))
        for r in range(first, last + 1, step):
            names[r] = name
    own = world.Create_group(world.group.Incl([r for r, name in enumerate(names) if name == "hill"]), 32111)
    programs, links, number = sorted(set(names)), {}, 32200
    for i, a in enumerate(programs):
        for b in programs[i + 1 :]:
            if "hill" in (a, b):
                peer = b if a == "hill" else a
                links[peer] = own.Create_intercomm(0, world, names.index(peer), number)
                kept = links[peer].Dup(), links[peer].Dup()
            number += 1
    got = np.zeros(1)
    links["lake"].Allreduce(np.array([1.0]), got)
    links["lake"].Send(np.array([2.5]), 0, 3)
    links["ocean"].Allreduce(np.array([7.0]), got)
    print(f"hill got {got[0]}\\n", end="")
"""


def test_a_program_without_hpcomm_takes_part_by_the_documented_handshake(programs, tmp_path, in_c):
    """A C program and one of plain mpi4py, as docs/mpmd.md shows them."""
    in_c((Path(__file__).parents[2] / "docs" / "lake.c").read_text(), "lake")
    source = """
        import numpy as np
        import hpcomm

        me = hpcomm.join(NAME)
        refused = {
            "recv_object": lambda: me.link("lake").comm.recv_object(0),
            "order": lambda: setattr(me.link("lake").comm, "order", "rank"),
            "together": lambda: me.together("lake"),
        }
        for word, call in refused.items():
            try:
                call()
            except hpcomm.UsageError as error:
                assert "speaks plain MPI" in str(error) and word in str(error), error
            else:
                raise AssertionError(f"{word} was not refused")
        assert me.link("lake").comm.order == "fast"
        total = me.link("lake").comm.all_reduce(np.array([1.0 + me.comm.rank]))
        if me.comm.rank == 0:
            me.link("lake").comm.send(np.array([2.5]), dest=0, tag=3)
        if NAME == "ocean":
            assert me.link("hill").comm.all_reduce(np.array([4.0]))[0] == 7.0
        print(f"{NAME} got {total[0]}\\n", end="")
        me.link("air" if NAME == "ocean" else "ocean").comm.close()
        me.link("lake").comm.close()  # when that says that it ends
    """
    for order in (["lake", "ocean", "air", "hill"], ["hill", "air", "lake", "ocean"]):
        commands = {"lake": (2, [str(tmp_path / "lake"), "air", "hill", "ocean"]), "hill": (1, HILL)}
        parts = [commands.get(name) or (1, named(name, source)) for name in order]
        done = programs(parts)
        assert "ocean got 30.0" in done.stdout
        assert "air got 30.0" in done.stdout
        assert done.stdout.count("lake got 1.0 and 2.5 from ocean") == 1
        assert "hill got 4.0" in done.stdout


BLOCKS = "from hpcomm.mpmd import handshake\nhandshake.BLOCK = 2\n"


def test_blocks_of_ranks_meet_through_their_captains(programs):
    """As more than 256 ranks do; where a captain does not come, its block counts as absent."""
    join = "import hpcomm\nme = hpcomm.join({}, timeout=3)\n"
    join += "print(str(sorted(me.ranks.items())) + chr(10), end='')\n"
    done = programs([(1, BLOCKS + join.format("'sea'")), (3, BLOCKS + join.format("'air'"))])
    assert done.stdout.splitlines() == ["[('air', [1, 2, 3]), ('sea', [0])]"] * 4
    done = programs(
        [(2, BLOCKS + join.format("'sea'")), (1, SLEEPS), (1, BLOCKS + join.format("'air'"))],
        expect="failure",
    )
    assert done.stderr.count("ranks 2-3 of the world did not join within 3 s") == 2, done.stderr


@pytest.mark.once
@given(st.lists(st.one_of(st.none(), st.tuples(st.integers(0, 3), st.integers(0, 2))), max_size=40))
def test_a_roster_tells_of_any_ranks_on_any_hosts_what_they_said(said):
    """None: a rank that did not come."""
    entries = [
        said and handshake.Entry(f"p{said[0]}", "hpcomm", "a b.py", f"n{said[1]}", "") for said in said
    ]
    here, there = handshake.Roster(), handshake.Roster()
    for rank, entry in enumerate(entries):
        if entry:
            here.add(f"{rank}-{rank}/1\t" + "\t".join(entry) + "\n")
    there.add(here.text())
    ranks = {entry: [rank for rank, its in enumerate(entries) if its == entry] for entry in entries if entry}
    for roster in (here, there):
        assert list(roster.said(range(len(entries))).items()) == list(ranks.items())
    assert there.count == sum(entry is not None for entry in entries)


def test_a_roster_is_as_long_as_programs_and_hosts_are_many():
    """Also where ranks are dealt out to the hosts in turn."""
    roster = handshake.Roster()
    for rank in range(3000):
        name = "sea" if rank < 2000 else "air"
        roster.add(f"{rank}-{rank}/1\t{name}\thpcomm\t{name}.py\tn{rank % 7}\t")
    text = roster.text()
    assert text.count("\n") == 14
    again = handshake.Roster()
    again.add(text)
    assert again.count == 3000
    assert again.said(range(5000))["sea", "hpcomm", "sea.py", "n4", ""] == list(range(4, 2000, 7))
    assert [*again.said([1, 2000, 4000]).values()] == [[1], [2000]]
    assert handshake.check(range(3000), again.said(range(3000)), {}, 1.0)["air"] == list(range(2000, 3000))
    with pytest.raises(ConfigError, match="ranks 1-1999 of the world did not join"):
        handshake.check(range(2000), again.said([0]), {}, 1.0)
    with pytest.raises(ConfigError, match="speaks another handshake: 'hpcomm 1'"):
        again.add("hpcomm 1\nsea\n")


JOIN = """
    import hpcomm
    from hpcomm.agree import runtime
    runtime.GRACE_S = 30  # by the clock, until who fails first ends the others
    me = hpcomm.join({}, timeout=20)
"""
LACKS = JOIN.replace("20", "3").replace("30", "4")  # some do not join, nor end
SLEEPS = "from mpi4py import MPI\nimport time\ntime.sleep(20)\n"
WRONG = {
    "a typo in a name": (
        [(1, JOIN.format("'ocaen'")), (2, JOIN.format("'atmosphere', peers=['ocean']"))],
        ["'atmosphere' asks for a program 'ocean'", "did you mean 'ocaen'?", "'ocaen' rank 0 (", "ranks 1-2"],
        3,
    ),
    "a program that is missing": (
        [(1, JOIN.format("'ocean', peers=['ice']")), (1, JOIN.format("'air'"))],
        ["'ocean' asks for a program 'ice'", "'ocean' rank 0 (", "'air' rank 1 ("],
        2,
    ),
    "two programs of one name": (
        [(1, JOIN.format("'ocean'")), (1, JOIN.format("'ocean'"))],
        ["two programs are called 'ocean'", "program_0.py", "program_1.py"],
        2,
    ),
    "a program that does not join": (
        [(2, LACKS.format("'ocean'")), (1, SLEEPS)],
        ["rank 2 of the world did not join within 3 s", "'ocean' ranks 0-1 ("],
        2,
    ),
    "the first program does not join": (
        [(1, SLEEPS), (1, LACKS.format("'ocean'")), (1, LACKS.format("'air'"))],
        ["rank 0 of the world did not join within 3 s", "'ocean' rank 1 (", "'air' rank 2 ("],
        2,
    ),
}


@pytest.mark.once
@pytest.mark.parametrize("case", WRONG)
def test_every_rank_is_told_who_came_within_seconds(programs, case):
    parts, words, times = WRONG[case]
    start = steady_time()
    done = programs(parts, expect="failure")
    assert steady_time() - start < 30
    for word in words:
        assert word in done.stderr
    assert done.stderr.count("ConfigError:") == times, done.stderr


def test_scripts_of_one_name_in_two_folders_are_two_programs():
    """As `mpirun -wdir a python run.py : -wdir b python run.py` starts them; hosts may differ in folders."""
    entries = [
        handshake.Entry("ocean", "hpcomm", script, host, "")
        for script, host in (("/a/run.py", "n1"), ("/b/run.py", "n1"), ("/b/run.py", "n2"))
    ]
    assert handshake.check([0, 1], {entries[0]: [0], entries[2]: [1]}, {}, 1.0) == {"ocean": [0, 1]}
    with pytest.raises(ConfigError, match=r"two programs are called 'ocean': /a/run\.py and /b/run\.py"):
        handshake.check([0, 1], {entries[0]: [0], entries[1]: [1]}, {}, 1.0)


JOINED = {
    "me.link('ice')": "'ocean' asks for a program 'ice', which is not in this job",
    "hpcomm.join('sea')": "this program has joined as 'ocean'",
}
REFUSED = {
    "hpcomm.join()": "this program has no name",
    "hpcomm.join('two words')": "holds a blank, a comma or '='",
    "hpcomm.join('x' * 99)": "is no name for a program",
    "hpcomm.join('ocean', peers='air')": "peers are a list of names, not 'air'",
    "hpcomm.join('ocean', timeout='x')": "timeout must be a number of seconds above 0, not 'x'",
    "hpcomm.join('ocean', peers=['x' * 60] * 9)": "the names of 9 peers are too long",
    "hpcomm.world.barrier(); hpcomm.join('ocean')": "hpcomm.world was used before join",
}


@pytest.mark.once
@pytest.mark.parametrize(("before", "calls"), [("", REFUSED), ("me = hpcomm.join('ocean')", JOINED)])
def test_what_join_refuses(programs, before, calls):
    tries = [
        f"try:\n    {call}\nexcept hpcomm.HpcommError as error:\n    print('refused', error)"
        for call in calls
    ]
    end = "assert hpcomm.join() is me" if before else ""
    said = programs([(1, "\n".join(["import hpcomm", before, *tries, end]))], expect=None)
    out = said.stdout.split("refused ")[1:]
    assert len(out) == len(calls)
    for words, told in zip(calls.values(), out, strict=True):
        assert words in told


def test_programs_under_another_mpis_launcher_say_so(tmp_path):
    """The launcher starts two ranks, and each believes that it is alone."""
    (tmp_path / "a.py").write_text("import hpcomm\nhpcomm.join('ocean')\n")
    done = finish([sys.executable, "a.py"], 60, tmp_path, {"PMI_SIZE": "2"})
    if "sees only itself" not in done.stderr:
        assert done.returncode != 0  # MPICH reads that variable itself, and finds no launcher
    else:
        assert "launcher started 2 ranks" in done.stderr


def test_mpichs_wheel_under_open_mpis_launcher_says_so_before_mpi_ends_it(tmp_path):
    (tmp_path / "a.py").write_text("import hpcomm\nhpcomm.join('ocean')\n")
    from hpcomm.job.installation import mpich_of_a_wheel

    if (library := mpich_of_a_wheel()) is None:
        pytest.skip("this MPI is not that of MPICH's wheel")
    done = finish([sys.executable, "a.py"], 60, tmp_path, {"OMPI_COMM_WORLD_SIZE": "2"})
    assert done.returncode == 1
    assert "Open MPI's launcher started this program, but its MPI is MPICH" in done.stderr
    assert f"a.py, with {library}" in done.stderr

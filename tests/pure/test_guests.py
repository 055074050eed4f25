"""Planning for programs without Python: ranks that one process plays, and fields that do not go there."""

from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from hpcomm.__main__ import main
from hpcomm.errors import ConfigError
from hpcomm.fields.files import checkpoints
from hpcomm.job.spec.calendar import Duration
from hpcomm.mpmd import restart
from hpcomm.mpmd.coupling.coupling_clock import NONE
from hpcomm.mpmd.guest import GuestContext
from hpcomm.mpmd.route import coupled_route
from hpcomm.mpmd.spec.spec_file import FieldSpec
from hpcomm.mpmd.virtual_ranks import VirtualRanks


class Alone:
    """A communicator of one process."""

    rank, size = 0, 1

    def alltoall(self, x):
        return x


def test_a_saved_coupling_whose_fields_were_numbered_otherwise_is_refused():
    with pytest.raises(ConfigError, match="saved by another version of hpcomm"):
        restart._restore(None, {}, restart.Stamp(Path("kept/step-00000000"), 1, 0.0, None, {}))


@pytest.mark.parametrize("step", [1, 7])
def test_ranks_that_one_process_plays_plan_as_ranks_of_their_own(step):
    points = np.arange(60) * step % 60  # in one run, or none
    gives = [points[:25], points[25:], None, None, None]
    takes = [None, None, points[30:], points[:0], points[:40]]

    def part(player):
        return coupled_route.plan(player, gives[player.rank], takes[player.rank])

    routes = VirtualRanks(Alone(), [0] * 5).play(dict.fromkeys(range(5), part))
    for taker in range(5):
        got = np.full(0 if takes[taker] is None else len(takes[taker]), -1)
        for giver, here in routes[taker].takes:
            got[here] = gives[giver][dict(routes[giver].gives)[taker]]
        assert got.tolist() == ([] if takes[taker] is None else takes[taker].tolist())


def test_what_one_of_them_refuses_ends_the_plan_of_all():
    def part(player):
        player.allgather(0)
        if player.rank == 1:
            raise ConfigError("no")
        player.allgather(0)

    all_ranks = VirtualRanks(Alone(), [0] * 3)
    for _ in range(2):
        with pytest.raises(ConfigError, match="no"):
            all_ranks.play(dict.fromkeys(range(3), part))


@pytest.mark.parametrize(
    ("words", "options"),
    [
        ("is a vector", {"vector": True}),
        ("is an implicit coupling", {"implicit": True}),
        ("is one with a period of months", {"every": Duration.of("P1M")}),
        ("is one with conserve = 'global'", {"conserve": "global"}),
        ("is one with nan = 'renormalise'", {"nan": "renormalise"}),
        ("is one of int64", {}),
        ("was built with hpcomm.c 0, and this is 2", None),
    ],
)
def test_what_cannot_go_to_a_program_without_python_is_refused(words, options):
    link = GuestContext.__new__(GuestContext)
    link.name, link.peer, link._given, link._version = "air", "sea", {"heat": "int64"}, "0"
    link.links = {}
    fields = [] if options is None else [FieldSpec("heat", "air", "sea", **options)]
    with pytest.raises(ConfigError, match=words):
        link.hear_points(fields, None)


def test_the_command_says_where_the_sources_are_and_how_to_build_with_them(capsys):
    assert main(["fortran", "--path"]) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert {"hpcomm.h", "hpcomm.c", "hpcomm_mod.f90"} <= {path.name for path in folder.iterdir()}
    assert main(["fortran"]) == 0
    assert f"mpicc -c {folder}/hpcomm.c" in capsys.readouterr().out


def kept(folder, *times):
    """A folder that has saved states of these times, with their steps."""
    for number, (step, seconds) in enumerate(times):
        part = folder.parent / f"part{number}"
        part.mkdir(parents=True)
        metadata = {"form": 2, "seconds": seconds, "dates": None, "fields": {}}
        manifest = {"format": 1, "step": step, "metadata": metadata, "fields": {}}
        checkpoints._publish(folder, part, step, manifest, None)
    return folder


def test_a_state_is_found_by_its_time_and_not_by_its_second(tmp_path):
    """Steps as form 2 rounded them: 0.5 and 2.5 down, 1.5 up."""
    (tmp_path / "kept").mkdir()
    times = [(0, -2.5), (0, 0.25), (0, 0.5), (1, 0.75), (2, 1.5), (2, 2.5), (2, 2.25), (0, 0.25)]
    folder = kept(tmp_path / "kept", *times)
    for _, seconds in times:
        found = restart._found(folder, seconds, 0.0)
        assert found.seconds == seconds
    assert restart._found(folder, 0.25, 0.0).path.name == "step-00000000.3"  # the newest of two
    assert restart._found(folder, 0.1 + 0.2 - 0.05, 0.0).seconds == 0.25
    assert restart._found(folder, 0.7500005, 1e-6).seconds == 0.75
    assert restart._found(folder, None, 0.0).seconds == 2.5
    assert restart._found(folder, 1.0, 0.0) == sorted({seconds for _, seconds in times})
    (folder / "step-00000001" / "manifest.json").write_text("spoilt")
    assert restart._found(folder, 0.5, 0.0).seconds == 0.5
    with pytest.raises(ValueError, match="its manifest is damaged"):
        restart._found(folder, 0.75, 0.0)


@pytest.mark.parametrize(("form", "version"), [(2, NONE), (3, -1)])
def test_what_stood_for_no_version_yet_in_an_earlier_form_is_read_as_that(form, version):
    comm = SimpleNamespace(all_reduce=lambda x, op: x)
    numbers = {"version": -1, "count": 0}
    entry = {"size": 0, "numbers": numbers, "arrays": {}}
    stamp = restart.Stamp(Path("kept/step-00000000"), form, 0.0, None, {"x to b": entry})
    (state,) = restart._restore(comm, {"x to b": np.empty(0, np.int64)}, stamp)
    assert state.numbers == {"version": version, "count": 0}

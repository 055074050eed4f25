"""Communicators: making, dividing, naming, closing, looking on."""

from __future__ import annotations

import copy
import gc
import importlib
import itertools
import os
import pickle
import re
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from threading import Thread
from types import FrameType
from typing import Any

import numpy as np
import pytest
from mpi4py import MPI

import hpcomm
from hpcomm.node import domains


def test_world_and_self_are_made_at_first_use_and_once() -> None:
    assert hpcomm.world is hpcomm.world
    assert (hpcomm.world.rank, hpcomm.world.size) == (MPI.COMM_WORLD.rank, MPI.COMM_WORLD.size)
    assert (hpcomm.self_.rank, hpcomm.self_.size) == (0, 1)
    assert (hpcomm.world.name, hpcomm.self_.name) == ("world", "self")
    assert hpcomm.world.all_reduce(1) == MPI.COMM_WORLD.size
    assert hpcomm.self_.all_reduce(7) == 7


@pytest.mark.skipif("PMIX_SERVER_URI2" not in os.environ, reason="Open MPI's launcher did not start this job")
def test_what_a_rank_tells_open_mpis_launcher_is_sent_at_once() -> None:
    """It costs each job 40 ms otherwise, in MPI_Finalize."""
    hpcomm.world.barrier()
    address = os.environ["PMIX_SERVER_URI2"].rpartition("/")[2]
    found = []
    for number in Path("/proc/self/fd").iterdir():
        try:
            connection = socket.socket(fileno=os.dup(int(number.name)))
        except OSError:  # no socket
            continue
        with connection:
            if connection.family == socket.AF_INET:
                try:
                    host, port = connection.getpeername()
                except OSError:  # it listens
                    continue
                if f"{host}:{port}" == address:
                    found.append(connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
    assert found == [1]


def test_the_communicator_underneath_is_a_duplicate_of_its_own(comm: Any) -> None:
    assert isinstance(comm.mpi, MPI.Intracomm)
    assert MPI.Comm.Compare(comm.mpi, MPI.COMM_WORLD) == MPI.CONGRUENT
    assert (comm.mpi.rank, comm.mpi.size) == (comm.rank, comm.size)
    assert not comm.is_inter
    assert comm.remote_size == 0


def test_a_name_stands_in_messages_and_in_the_representation() -> None:
    with hpcomm.Communicator(MPI.COMM_WORLD, name="tp") as comm:
        assert comm.name == "tp"
        assert "'tp'" in repr(comm)
        assert f"rank {comm.rank} of {comm.size}" in repr(comm)
        with pytest.raises(hpcomm.RankError, match="'tp'"):
            comm.broadcast(np.ones(1), root=99)


# -- dividing --------------------------------------------------------------------------------------


def test_split_puts_ranks_of_one_color_together_ordered_by_key(comm: Any) -> None:
    part = comm.split(comm.rank % 2, key=-comm.rank, name="half")
    members = [rank for rank in range(comm.size) if rank % 2 == comm.rank % 2][::-1]
    assert part.all_gather(comm.rank).tolist() == members
    assert part.rank == members.index(comm.rank)
    assert part.name == "half"
    part.close()


def test_ranks_of_equal_key_keep_their_order(comm: Any) -> None:
    with comm.split(0) as part:
        assert (part.rank, part.size) == (comm.rank, comm.size)


def test_a_rank_without_a_color_is_left_out(comm: Any) -> None:
    part = comm.split(None if comm.rank == 0 else 5)
    if comm.rank == 0:
        assert part is None
    else:
        assert part.size == comm.size - 1
        assert part.all_reduce(1) == comm.size - 1
        part.close()


def test_split_takes_color_in_both_spellings(comm: Any) -> None:
    with comm.split(colour=0, key=-comm.rank) as part:
        assert part.rank == comm.size - 1 - comm.rank
    assert comm.split(colour=None) is None
    for colors in ({}, {"color": 0, "colour": 0}):
        with pytest.raises(TypeError, match="one color"):
            comm.split(**colors)


@pytest.mark.parametrize("color", [-1, "red", 1.5], ids=repr)
def test_a_color_that_is_no_number_from_0_is_refused(comm: Any, color: Any) -> None:
    with pytest.raises(hpcomm.UsageError) as caught:
        comm.split(color)
    assert repr(color) in caught.value.what
    assert "None" in str(caught.value.hint)
    assert comm.all_reduce(1) == comm.size


def test_split_node_joins_the_ranks_that_share_memory(comm: Any) -> None:
    names = comm.all_gather_object(MPI.Get_processor_name())
    with comm.split_node() as node:
        assert node.size == names.count(names[comm.rank])
        assert node.all_gather_object(MPI.Get_processor_name()) == [names[comm.rank]] * node.size
    with comm.split_node(key=-comm.rank) as node:  # on one node, as all tests are
        assert node.all_gather(comm.rank).tolist() == [*range(comm.size)][::-1]
    for by in ("numa", "socket", "cache", "core"):
        places = comm.all_gather_object(domains.place(by))
        with comm.split_node(by=by, key=-comm.rank) as part:
            mine = [rank for rank in range(comm.size) if places[rank] == places[comm.rank]]
            assert part.all_gather(comm.rank).tolist() == mine[::-1]
            assert part.name.endswith(by)
    with pytest.raises(hpcomm.UsageError, match="a node has no part 'l9'") as caught:
        comm.split_node(by="l9")
    assert "one of node, numa, socket, cache, core" in str(caught.value)
    with pytest.raises(hpcomm.UsageError, match="key '0' is no whole number"):
        comm.split_node(key="0")
    assert comm.all_reduce(1) == comm.size


def test_ranks_bound_to_other_parts_of_a_node_are_apart(comm: Any, tmp_path: Path, monkeypatch: Any) -> None:
    """A node of two NUMA domains, as its files tell; rank 2 may run in both."""
    for cpu, numa in enumerate(("0-1", "0-1", "2-3", "2-3")):
        (at := tmp_path / f"cpu{cpu}" / f"node{numa[0]}").mkdir(parents=True)
        (at / "cpulist").write_text(f"{numa}\n")
        for i, shared in enumerate((str(cpu), "0-3")):
            (at := tmp_path / f"cpu{cpu}/cache/index{i}").mkdir(parents=True)
            (at / "shared_cpu_list").write_text(shared)
    own = [{0}, {3}, {1, 2}, {1}, {2}][comm.rank]
    monkeypatch.setattr("os.sched_getaffinity", lambda _: own)
    monkeypatch.setattr(domains.place, "__defaults__", (tmp_path,))
    with comm.split_node(by="numa") as part:
        together = [[0, 3], [1, 4], [2], [0, 3], [1, 4]][comm.rank]
        assert part.all_gather(comm.rank).tolist() == [rank for rank in together if rank < comm.size]
    with comm.split_node(by="cache") as part, comm.split_node(by="core") as node:  # of cores nothing is known
        assert part.size == node.size == comm.size


def test_a_group_is_made_by_its_members_alone_in_the_order_given(comm: Any) -> None:
    """The others do something else meanwhile: here they wait for a message of a member."""
    members = list(range(comm.size - 1, 0, -1)) or [0]
    if comm.rank in members:
        with comm.group(members, name="some") as part:
            assert part.all_gather(comm.rank).tolist() == members
            assert part.name == "some"
        if comm.rank == members[0] and comm.size > 1:
            comm.send(np.ones(1), 0, tag=1)
    else:
        assert comm.recv(np.zeros(1), members[0], tag=1).tolist() == [1.0]


@pytest.mark.mpi(min_size=4)
def test_two_groups_may_be_made_at_the_same_time(comm: Any) -> None:
    members = [0, 2] if comm.rank % 2 == 0 else [3, 1]
    with comm.group(members) as part:
        assert part.all_gather(comm.rank).tolist() == members


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("kind", ["array", "object"])
@pytest.mark.parametrize("tag", [None, 0])
def test_no_receive_takes_what_makes_a_group_or_joins_two(comm: Any, kind: str, tag: int | None) -> None:
    """Also not where both are on a communicator made of another one, whose ranks are others."""
    odd = comm.rank % 2
    with comm.split(odd) as half, comm.split(0, key=-comm.rank) as turned:
        request, last = None, comm.size - 1
        if turned.rank == 0:
            get = turned.irecv_object if kind == "object" else turned.irecv
            request = get(1, tag) if kind == "object" else get(np.zeros(1), 1, tag)
        if turned.rank < 2:
            with turned.group([1, 0], tag=0) as pair:
                assert pair.all_gather(comm.rank).tolist() == [last - 1, last]
        first_of_the_others = last - (1 - odd)  # the rank of comm that is first of the other half, in turned
        with half.create_intercomm(0, turned, first_of_the_others, tag=0) as inter:
            assert inter.all_reduce(1) == inter.remote_size
        if turned.rank == 1:
            send = turned.send_object if kind == "object" else turned.send
            send(np.full(1, 7.0), 0, tag=0)
        if request is not None:
            assert np.asarray(request.wait(timeout=30)).tolist() == [7.0]


@pytest.mark.mpi(min_size=2)
def test_threads_make_groups_on_communicators_of_their_own(comm: Any) -> None:
    """Those were made of one another, so MPI makes their groups on one channel."""
    made: dict[int, list[int]] = {}

    def make(number: int, own: Any, members: list[int]) -> None:
        with own.group(members) as part:
            made[number] = part.all_gather(comm.rank).tolist()

    with comm.dup() as first, comm.dup() as second:
        members = [list(range(comm.size)), list(range(comm.size))[::-1]]
        threads = [Thread(target=make, args=(i, (first, second)[i], members[i])) for i in (0, 1)]
        for thread in threads[:: 1 if comm.rank else -1]:
            thread.start()
        for thread in threads:
            thread.join(30)
        assert made == dict(enumerate(members))


def test_a_group_that_cannot_be_is_refused_and_says_which_ranks_exist(comm: Any) -> None:
    for ranks, wrong in (
        ([comm.rank, 99], "99"),
        ([comm.rank, comm.rank], str(comm.rank)),
        ([-1, comm.rank], "-1"),
    ):
        with pytest.raises(hpcomm.RankError) as caught:
            comm.group(ranks)
        assert wrong in caught.value.what
        assert str(comm.size - 1) in str(caught.value.hint)
    with pytest.raises(hpcomm.RankError):
        comm.group([])


@pytest.mark.parametrize("tag", [-1, 2**40, "a", None], ids=repr)
def test_a_group_takes_the_tags_that_messages_take(comm: Any, tag: Any) -> None:
    with pytest.raises(hpcomm.UsageError, match=r"tag .* cannot be sent") as caught:
        comm.group(range(comm.size), tag=tag)
    assert f"group on communicator '{comm.name}'" in str(caught.value.where)


@pytest.mark.parametrize("given", [None, MPI.COMM_NULL, 0], ids=["None", "null", "number"])
def test_what_is_no_communicator_is_refused(given: Any) -> None:
    with pytest.raises(hpcomm.UsageError, match="is no communicator of mpi4py"):
        hpcomm.Communicator(given)


def test_a_communicator_of_hpcomm_is_not_made_into_another_one(comm: Any) -> None:
    with pytest.raises(hpcomm.UsageError) as caught:
        hpcomm.Communicator(comm)
    assert caught.value.hint == "its dup() makes another one"


def test_leaders_of_an_intercommunicator_must_be_ranks_there(comm: Any) -> None:
    for leaders in ((99, 0), (0, 99), (0.5, 0)):
        with pytest.raises(hpcomm.RankError, match=r"leader [\d.]+ is no rank of "):
            comm.create_intercomm(leaders[0], comm, leaders[1])
    with pytest.raises(hpcomm.UsageError, match="no Communicator"):
        comm.create_intercomm(0, None, 0)


def test_a_duplicate_carries_long_objects_when_what_it_was_made_of_is_closed(comm: Any) -> None:
    part = comm.split(0, -comm.rank)
    other = part.dup()
    part.close()
    thing = np.arange(50_000) + other.rank
    going = other.isend_object(thing, (other.rank + 1) % other.size)
    assert other.recv_object((other.rank - 1) % other.size)[0] == (other.rank - 1) % other.size
    going.wait()
    other.close()


@pytest.mark.skipif("Open MPI" in MPI.get_vendor(), reason="it has room for tens of thousands")
@pytest.mark.skipif(MPI.COMM_WORLD.size != 2, reason="two ranks show it: making thousands takes long")
def test_when_mpi_has_no_more_communicators_the_error_says_to_close_some(
    own_comm: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    comm = own_comm  # which keeps none for the next one
    taken, parts = [], []  # most by MPI itself, which takes less time

    def take_all() -> None:
        while True:
            taken.append(comm.mpi.Dup())

    def make_many() -> None:
        for _ in range(20):
            parts.append(comm.dup())  # noqa: PERF401  those that were made are closed below

    with pytest.raises(MPI.Exception):
        take_all()
    field = hpcomm.Field(comm, (4 * comm.size,), halo=1)
    for make in (
        lambda: hpcomm.Communicator(comm.mpi),
        lambda: comm.split(0),
        lambda: comm.group(range(comm.size)),
        lambda: comm.split_node(),
        lambda: comm.cart((-1,)),
        lambda: comm.mesh(a=-1),
        lambda: comm.graph([comm.rank], [comm.rank]),
        lambda: comm.window(3),
        field.update_halo,
    ):
        with pytest.raises(hpcomm.TransportError, match=r"no room for another comm.* a rank has 2048"):
            make()
    for _ in range(20):
        taken.pop().Free()
    with pytest.raises(hpcomm.TransportError, match="no room for another communicator") as caught:
        make_many()
    assert len(parts) >= 9  # two of MPI's for each
    shared = importlib.import_module("hpcomm.communicator.shared_array")
    monkeypatch.setattr(shared, "opened", lambda *_: None)  # as without the core
    monkeypatch.setattr(shared.native, "missing", lambda: "the core")
    told, made = [], None
    while made is None:  # where there is room for its ranks, there may be none for its memory
        taken.pop().Free()
        try:
            made = comm.shared_array(3)
        except hpcomm.TransportError as error:
            told.append(error)
    made.close()
    assert all("no room for another communicator" in str(error) for error in told)
    assert any("shared_array on" in str(error.where) for error in told)
    assert re.search(r"this rank keeps \d+, made at .*test_communicator.py:\d+ \(\d+\)", str(caught.value))
    for part in parts:
        part.close()
    for each in taken:
        each.Free()
    assert "close()" in str(caught.value.hint)
    assert f"dup on communicator '{comm.name}'" in str(caught.value.where)
    assert comm.all_reduce(1) == comm.size


@pytest.mark.mpi(min_size=2)
def test_a_rank_may_not_make_a_group_without_itself(comm: Any) -> None:
    others = [rank for rank in range(comm.size) if rank != comm.rank]
    with pytest.raises(hpcomm.RankError, match=f"rank {comm.rank} is not in"):
        comm.group(others)


def test_parts_of_parts_work_and_do_not_mix(comm: Any) -> None:
    with comm.split(comm.rank % 2) as part, part.dup("again") as twice, part.split(part.rank // 2) as quarter:
        assert twice.name == "again"
        assert part.all_reduce(1) == twice.all_reduce(1) == part.size
        assert quarter.all_reduce(1) == quarter.size
        requests = [
            c.all_reduce(np.full(2, i), async_op=True) for i, c in enumerate((part, twice, quarter), 1)
        ]
        assert [request.wait(timeout=60)[0] for request in requests] == [
            part.size,
            2 * part.size,
            3 * quarter.size,
        ]


def test_a_communicator_may_be_made_of_any_mpi4py_communicator(comm: Any) -> None:
    raw = MPI.COMM_WORLD.Split(comm.rank % 2)
    part = hpcomm.Communicator(raw, name="theirs")
    raw.Free()  # ours is a duplicate: the user may free his own
    assert part.all_reduce(1) == part.size
    part.close()


def test_the_spellings_of_mpi4py_divide_too(comm: Any) -> None:
    part = comm.Split(comm.rank % 2, comm.rank)
    again = part.Dup()
    assert again.all_reduce(1) == part.size
    again.Free()
    part.Free()
    assert (comm.Split(MPI.UNDEFINED if comm.rank == 0 else 1) != MPI.COMM_NULL) == (comm.rank > 0)


@pytest.mark.few
def test_many_communicators_may_be_open_at_once_and_made_again(comm: Any) -> None:
    """More than the node segment has call logs: the rest is not watched, but works."""
    parts = [comm.dup() for _ in range(150)]
    assert [part.all_reduce(1) for part in parts] == [comm.size] * 150
    for part in parts:
        part.close()
    for _ in range(100):
        part = comm.dup()
        assert part.all_reduce(1) == comm.size
        part.close()


# -- the end ---------------------------------------------------------------------------------------

AFTER: dict[str, Callable[[Any], Any]] = {
    "broadcast": lambda c: c.broadcast(np.ones(1)),
    "reduce": lambda c: c.reduce(np.ones(1)),
    "all_reduce": lambda c: c.all_reduce(np.ones(1)),
    "gather": lambda c: c.gather(np.ones(1)),
    "all_gather": lambda c: c.all_gather(np.ones(1)),
    "scatter": lambda c: c.scatter(np.ones(c.size)),
    "reduce_scatter": lambda c: c.reduce_scatter(np.ones(c.size)),
    "all_to_all": lambda c: c.all_to_all(np.ones(c.size)),
    "scan": lambda c: c.scan(np.ones(1)),
    "exscan": lambda c: c.exscan(np.ones(1)),
    "barrier": lambda c: c.barrier(),
    "async barrier": lambda c: c.barrier(async_op=True),
    "async all_reduce": lambda c: c.all_reduce(np.ones(1), async_op=True),
    "send": lambda c: c.send(np.ones(1), 0),
    "recv": lambda c: c.recv(np.ones(1), 0),
    "isend": lambda c: c.isend(np.ones(1), 0),
    "irecv": lambda c: c.irecv(np.ones(1), 0),
    "sendrecv": lambda c: c.sendrecv(np.ones(1), 0, 0),
    "probe": lambda c: c.probe(),
    "iprobe": lambda c: c.iprobe(),
    "probe_object": lambda c: c.probe_object(),
    "iprobe_object": lambda c: c.iprobe_object(),
    "batch_isend_irecv": lambda c: c.batch_isend_irecv([hpcomm.P2POp("send", np.ones(1), 0)]),
    "send_object": lambda c: c.send_object(1, 0),
    "recv_object": lambda c: c.recv_object(),
    "isend_object": lambda c: c.isend_object(1, 0),
    "irecv_object": lambda c: c.irecv_object(),
    "sendrecv_object": lambda c: c.sendrecv_object(1, 0, 0),
    "broadcast_object": lambda c: c.broadcast_object(1),
    "gather_object": lambda c: c.gather_object(1),
    "all_gather_object": lambda c: c.all_gather_object(1),
    "scatter_object": lambda c: c.scatter_object([1] * c.size),
    "all_to_all_object": lambda c: c.all_to_all_object([1] * c.size),
    "all_reduce_object": lambda c: c.all_reduce_object(1, "sum"),
    "send_ragged": lambda c: c.send_ragged(np.ones(1), 0),
    "recv_ragged": lambda c: c.recv_ragged(),
    "broadcast_ragged": lambda c: c.broadcast_ragged(np.ones(1)),
    "all_gather_ragged": lambda c: c.all_gather_ragged(np.ones(1)),
    "plan": lambda c: c.plan("all_reduce", np.ones(1)),
    "split": lambda c: c.split(0),
    "split_node": lambda c: c.split_node(),
    "group": lambda c: c.group(list(range(c.size))),
    "dup": lambda c: c.dup(),
    "merge": lambda c: c.merge(),
    "observe": lambda c: c.observe(object()),
}


@pytest.mark.few
@pytest.mark.once
@pytest.mark.parametrize("what", AFTER)
def test_use_after_close_is_a_usage_error(comm: Any, what: str) -> None:
    part = comm.dup("gone")
    part.all_reduce(np.ones(1))  # warm: fast paths must be closed too
    part.barrier()
    part.close()
    with pytest.raises(hpcomm.UsageError, match="'gone' is closed") as caught:
        AFTER[what](part)
    assert "close" in str(caught.value.hint)


def test_a_second_close_does_nothing_and_the_representation_says_closed(comm: Any) -> None:
    part = comm.dup("gone")
    part.close()
    part.close()
    assert repr(part) == "<Communicator 'gone', closed>"


def test_a_context_manager_closes_at_its_end(comm: Any) -> None:
    with comm.dup() as part:
        assert part.all_reduce(1) == comm.size
    with pytest.raises(hpcomm.UsageError, match="closed"):
        part.barrier()


def test_an_exception_passes_through_a_context_manager_and_waits_for_nobody(comm: Any) -> None:
    """Only one rank fails: a collective close there would hang it."""
    part = comm.dup()
    if comm.rank == 0:
        with pytest.raises(ZeroDivisionError), part:
            raise ZeroDivisionError
    comm.barrier()
    part.close()


def test_what_is_under_way_at_close_may_still_be_waited_for_and_plans_may_not_be_started(comm: Any) -> None:
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    for _ in range(3):  # those before are given back meanwhile
        part = comm.dup(name="gone")
        idle, going = part.plan("all_reduce", np.ones(2)), part.plan("all_reduce", np.ones(2))
        going.start()
        requests = [
            part.all_reduce(np.ones(20_000), async_op=True),
            part.all_gather_object("x" * 3000, async_op=True),
            part.irecv(np.empty(3), left),
            part.irecv_object(left),
            part.isend(np.full(3, 7.0), right),
            part.isend_object("y" * 100_000, right),
        ]
        part.close()
        reduced, gathered, array, text, *_ = hpcomm.wait_all(requests, timeout=30)
        assert (reduced == comm.size).all()
        assert gathered == ["x" * 3000] * comm.size
        assert array.tolist() == [7.0] * 3
        assert text == "y" * 100_000
        assert going.wait(timeout=30).tolist() == [comm.size] * 2
        with pytest.raises(hpcomm.UsageError, match="closed"):
            idle()


@pytest.mark.mpi(min_size=2)
def test_messages_alone_that_are_under_way_at_close_may_still_be_waited_for(comm: Any) -> None:
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    for n in (3, 200_000, 3):
        part = comm.dup(name="gone")
        coming, going = part.irecv(np.empty(n), left), part.isend(np.full(n, 7.0), right)
        outstanding = part.context.outstanding
        part.close()
        with comm.dup() as other:  # in memory where part had noted what kinds it sends
            other.sendrecv(np.ones(2, "int32"), right, left)
        assert outstanding._is_any()  # so MPI still has it
        assert coming.wait().tolist() == [7.0] * n
        going.wait()
        assert not outstanding._is_any()


@pytest.mark.mpi(min_size=2)
def test_of_many_messages_those_under_way_are_remembered_until_close(comm: Any) -> None:
    left, right = (comm.rank - 1) % comm.size, (comm.rank + 1) % comm.size
    part = comm.dup(name="many")
    coming, outstanding = part.irecv(np.empty(3), left, 1), part.context.outstanding
    for _ in range(300):
        part.irecv(np.empty(3), left, 2).wait() if part.rank % 2 else part.isend(np.ones(3), right, 2).wait()
        part.isend(np.ones(3), right, 2).wait() if part.rank % 2 else part.irecv(np.empty(3), left, 2).wait()
    assert len(outstanding.requests) < 300
    part.isend(np.full(3, 7.0), right, 1).wait()
    part.close()
    assert outstanding._is_any()
    assert coming.wait().tolist() == [7.0] * 3


def test_a_message_to_oneself_is_not_lost_at_close(comm: Any) -> None:
    part = comm.dup()
    part.send(np.ones(200_000), part.rank)
    assert part.recv(np.zeros(200_000), part.rank).sum() == 200_000
    part.close()


# -- checks ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", ["off", pytest.param("light", marks=pytest.mark.core), "full", "strict"])
def test_a_check_level_may_be_given_and_is_handed_down(level: str) -> None:
    with hpcomm.Communicator(MPI.COMM_WORLD, check=level) as comm:
        expected = "off" if comm.size == 1 else level  # there is nobody to agree with
        assert comm.check == expected
        with comm.dup() as twin, comm.split(0) as part:
            assert twin.check == part.check == expected
        with comm.dup(check="off") as free:
            assert free.check == "off"


@pytest.mark.core
def test_the_environment_sets_the_default_level(monkeypatch: pytest.MonkeyPatch) -> None:
    for level in ("full", "values", "strict"):
        monkeypatch.setenv("HPCOMM_CHECK", level)
        with hpcomm.Communicator(MPI.COMM_WORLD) as comm:
            assert comm.check == (level if comm.size > 1 else "off")
    with hpcomm.Communicator(MPI.COMM_WORLD, check="light") as comm:
        assert comm.check == ("light" if comm.size > 1 else "off")
    monkeypatch.delenv("HPCOMM_CHECK")
    with hpcomm.Communicator(MPI.COMM_WORLD) as comm:
        assert comm.check == ("light" if comm.size > 1 else "off")


def test_an_unknown_check_level_names_those_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(hpcomm.ConfigError, match="'strictly'") as caught:
        hpcomm.Communicator(MPI.COMM_WORLD, check="strictly")
    assert all(level in str(caught.value.hint) for level in ("off", "light", "full", "strict"))
    monkeypatch.setenv("HPCOMM_CHECK", "loud")
    with pytest.raises(hpcomm.ConfigError, match="'loud'"):
        hpcomm.Communicator(MPI.COMM_WORLD)


def test_nothing_is_left_in_shared_memory(comm: Any) -> None:
    comm.barrier()
    if os.path.isdir("/dev/shm"):  # noqa: PTH112
        mine = [name for name in os.listdir("/dev/shm") if name.startswith(f"hpcomm-{os.getpid()}-")]  # noqa: PTH208
        assert mine == []


# -- looking on ------------------------------------------------------------------------------------


class Diary:
    """Notes every call before and after."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def before(self, call: Any) -> None:
        self.lines.append(f"before {call.verb}")

    def after(self, call: Any) -> None:
        self.lines.append(f"after {call.verb}")


def test_an_observer_sees_every_call_and_changes_none(own_comm: Any) -> None:
    diary = Diary()
    detach = own_comm.observe(diary)
    left, right = (own_comm.rank - 1) % own_comm.size, (own_comm.rank + 1) % own_comm.size
    x = np.ones(3)
    own_comm.broadcast(x, out=x)
    assert own_comm.all_reduce(x).tolist() == [own_comm.size] * 3
    own_comm.barrier()
    own_comm.all_gather_object(1)
    own_comm.all_gather_ragged(x)
    own_comm.sendrecv(x, right, left)
    own_comm.all_reduce(x, lambda a, b: a + b)
    verbs = [
        "broadcast",
        "all_reduce",
        "barrier",
        "all_gather_object",
        "all_gather_ragged",
        "sendrecv",
        "all_reduce",
    ]
    assert diary.lines == [f"{when} {verb}" for verb in verbs for when in ("before", "after")]
    detach()
    diary.lines.clear()
    own_comm.all_reduce(x)
    own_comm.barrier()
    assert diary.lines == []


def test_an_observer_sees_the_end_of_a_background_call_when_it_ends(own_comm: Any) -> None:
    diary = Diary()
    own_comm.observe(diary)
    requests = [
        own_comm.all_reduce(np.ones(2), async_op=True),
        own_comm.all_gather_object(1, async_op=True),
    ]
    assert diary.lines == ["before all_reduce", "before all_gather_object"]
    for request in requests:
        request.wait(timeout=60)
    assert sorted(diary.lines[2:]) == ["after all_gather_object", "after all_reduce"]


def test_a_message_is_seen_on_both_sides(own_comm: Any) -> None:
    diary = Diary()
    own_comm.observe(diary)
    left, right = (own_comm.rank - 1) % own_comm.size, (own_comm.rank + 1) % own_comm.size
    request = own_comm.isend(np.ones(2), right)
    own_comm.recv(np.zeros(2), left)
    request.wait(timeout=60)
    assert sorted(diary.lines) == ["after recv", "after send", "before recv", "before send"]
    diary.lines.clear()
    other = own_comm.isend_object("x", right)
    own_comm.recv_object(left)
    other.wait(timeout=60)
    assert [line.split()[1] for line in sorted(diary.lines)] == [
        "recv_object",
        "send_object",
        "recv_object",
        "send_object",
    ]


@pytest.mark.parametrize("observer", [None, print, object()])
def test_what_cannot_look_on_is_refused(comm: Any, observer: Any) -> None:
    with pytest.raises(hpcomm.UsageError, match="is no observer"):
        comm.observe(observer)


def test_two_observers_come_and_go_on_their_own(own_comm: Any) -> None:
    one, two = Diary(), Diary()
    stop_one, stop_two = own_comm.observe(one), own_comm.observe(two)
    own_comm.barrier()
    stop_one()
    stop_one()
    own_comm.barrier()
    stop_two()
    own_comm.barrier()
    assert (len(one.lines), len(two.lines)) == (2, 4)


@pytest.mark.parametrize("copy", [pickle.dumps, copy.copy, copy.deepcopy])
def test_a_communicator_is_not_pickled_or_copied(comm: Any, copy: Any) -> None:
    with pytest.raises(hpcomm.UsageError, match="cannot be pickled or copied"):
        copy([comm] if copy is pickle.dumps else comm)


def test_blocks_of_communicators_made_of_one_another_share_a_channel(own_comm: Any) -> None:
    """They find the right rank, also where ranks are in another order, and when the parent is closed."""
    turned = own_comm.split(0, -own_comm.rank)
    left = (turned.rank - 1) % turned.size
    x = np.full(10_000, own_comm.rank)
    request = turned.isend_object({"x": x}, (turned.rank + 1) % turned.size)
    whole = own_comm.all_gather_object({"x": x})
    assert (turned.recv_object()["x"] == turned.size - 1 - left).all()
    request.wait(timeout=10)
    assert [each["x"][0] for each in whole] == list(range(own_comm.size))
    part = turned.split(turned.rank % 2)
    turned.close()
    whole = part.all_gather_object({"x": x})
    assert {each["x"][0] for each in whole} == {
        r for r in range(own_comm.size) if (r - own_comm.rank) % 2 == 0
    }
    part.close()


def holds_in_the_end(comm: Any, make_more: Callable[[], None], holds: Callable[[], bool]) -> bool:
    """Whether it does on all ranks after some turns: who looks on in a thread has a communicator a while."""
    for _ in range(20):
        gc.collect()
        make_more()
        if comm.all_reduce(int(holds())) == comm.size:
            return True
    return False


@pytest.mark.few
def test_dropped_communicators_are_closed_when_more_are_made_of_the_same(own_comm: Any) -> None:
    """Each rank drops them at another time; those in no part, of parts, and groups."""
    freed, kept = [], []
    members = range(min(2, own_comm.size))
    for i in range(6):
        made = [own_comm.dup(), own_comm.split(None if own_comm.rank == 1 else 0), own_comm.cart([-1])]
        made += [own_comm.group(members, tag=i % 2)] if own_comm.rank in members else []
        made.append(made[0].dup())
        freed += [each.context.mpi_handle for each in made if each is not None]
        kept += [made] * ((i + own_comm.rank) % 3 == 0)
        del made
        if i % 3 == own_comm.rank:
            gc.collect()
    kept.clear()

    def make_more() -> None:
        for i in range(20):
            own_comm.dup().close()
            if own_comm.rank in members:
                own_comm.group(members, tag=i % 2).close()

    assert holds_in_the_end(own_comm, make_more, lambda: not any(freed))


def test_what_some_ranks_close_and_others_drop_may_have_made_some_itself(own_comm: Any) -> None:
    for _ in range(20):  # more than are open before ranks ask each other
        made = own_comm.split(0)
        made.dup()
        if own_comm.rank == 0:
            made.close()
        del made
        gc.collect()
    assert own_comm.all_reduce(1) == own_comm.size


@pytest.mark.few
@pytest.mark.skipif(MPI.COMM_WORLD.size < 2, reason="two groups")
def test_dropped_communicators_of_two_groups_are_closed_when_more_are_made_of_the_same(own_comm: Any) -> None:
    half, there = own_comm.split(own_comm.rank % 2), 1 - own_comm.rank % 2
    first = half.create_intercomm(0, own_comm, there)
    freed = []
    for made in (first, first.dup(), first.merge()):
        freed.append(made.context.mpi_handle)
        del made
    tags = itertools.count()

    def make_more() -> None:
        for i in range(4):
            made = half.create_intercomm(0, own_comm, there, tag=next(tags))
            freed.extend([made.context.mpi_handle] * (len(freed) < 7))
            first.dup().close()
            if i == own_comm.rank:  # at another time on each rank
                gc.collect()

    make_more()
    first_alone = [first.context.mpi_handle]
    assert holds_in_the_end(own_comm, make_more, lambda: [h for h in freed if h] == first_alone)
    first.close()


@pytest.mark.parametrize(("name", "most"), [("dup", 85), ("split", 90), ("cart", 100)])
def test_a_communicator_is_made_again_with_few_steps(own_comm: Any, name: str, most: int) -> None:
    """What not every communicator needs is made when it is asked for, and MPI's communicators serve again."""
    # Functions, not calls: how often a rank looks for the others is up to the machine. The least counts:
    # garbage may be collected meanwhile, or others be closed.
    called: list[set[object]] = []
    given = {"dup": (), "split": (0,), "cart": ([-1],)}[name]

    def note(frame: FrameType, event: str, argument: object) -> None:
        called[-1] |= {frame.f_code} if event == "call" else set()

    traced = sys.getprofile()
    for _ in range(9):
        called.append(set())
        sys.setprofile(note)
        try:
            getattr(own_comm, name)(*given).close()
        finally:
            sys.setprofile(traced)
    assert min(map(len, called)) < (most if own_comm.context.node is not None else 150)


def test_ranks_tell_each_other_some_bytes_by_the_core(own_comm: Any) -> None:
    node = own_comm.context.node
    if node is None:
        pytest.skip("the ranks meet in MPI")
    for _ in range(3):  # each cell, and again
        told = node.tell(7, b"rank %3d" % own_comm.rank)
        assert told == [b"rank %3d" % rank for rank in range(own_comm.size)]
    assert node.tell(7, b"") == [b""] * own_comm.size
    with pytest.raises(ValueError, match="at most"):
        node.tell(7, bytes(9000))
    with pytest.raises(TypeError):
        node.tell(7, "text")


def test_the_next_duplicate_has_the_carriers_of_a_closed_one_that_no_rank_has_used(own_comm: Any) -> None:
    if own_comm.context.node is None:
        pytest.skip("the ranks meet in MPI")
    first = own_comm.dup()
    carriers = first.context.carriers
    assert first.all_reduce(np.ones(2)).tolist() == [own_comm.size] * 2  # by the core
    first.close()
    second = own_comm.dup()
    assert second.context.carriers.plain is carriers.plain
    if own_comm.rank == own_comm.size - 1:
        assert second.mpi.size == own_comm.size
    second.close()
    third = own_comm.dup()
    assert third.context.carriers.plain is not carriers.plain
    assert not carriers.plain
    third.close()
    assert third.is_closed


MAKERS: dict[str, Callable[[Any], Any]] = {
    "split": lambda comm: comm.split(comm.rank % 2, -comm.rank),
    "split_node": lambda comm: comm.split_node(key=-comm.rank),
    "cart": lambda comm: comm.cart([-1, 1], [True, False]),
    "turned": lambda comm: comm.cart([1, -1], reorder=True),
    "sub": lambda comm: comm.cart([-1, 1]).sub([0]),
}


@pytest.mark.parametrize("name", MAKERS)
def test_the_same_call_has_the_carriers_of_what_was_closed(own_comm: Any, name: str) -> None:
    if own_comm.context.node is None:
        pytest.skip("the ranks meet in MPI")
    make = MAKERS[name]
    if name == "sub":
        grid = own_comm.cart([-1, 1])
        make = lambda comm: grid.sub([0])  # noqa: E731
    first = make(own_comm)
    ranks = [own_comm.rank] if first.size == 1 else first.all_gather(own_comm.rank).tolist()  # by the core
    carriers, about = first.context.carriers, (first.rank, first.size, first.name)
    first.close()
    own_comm.split(2).close()  # another call
    second = make(own_comm)
    assert second.context.carriers.plain is carriers.plain
    assert (second.rank, second.size, second.name) == about
    assert second.all_gather(own_comm.rank).tolist() == ranks
    assert second.all_gather_object(own_comm.rank) == ranks
    if hasattr(second, "periodic"):
        assert second.neighbour_all_gather(np.full(1, second.rank)).size == len(second.sources)
        assert tuple(second.mpi.coords) == second.coords
        assert (tuple(second.mpi.dims), tuple(map(bool, second.mpi.periods))) == (
            second.shape,
            second.periodic,
        )
    if own_comm.rank == own_comm.size - 1:
        assert second.mpi.size == second.size
    second.close()
    third = make(own_comm)
    assert third.context.carriers.plain is not carriers.plain
    assert third.all_gather(own_comm.rank).tolist() == ranks
    third.close()


@pytest.mark.mpi(min_size=2)
def test_a_split_into_other_parts_has_no_carriers_of_an_earlier_one(own_comm: Any) -> None:
    """Although it is the same call on rank 0."""
    for apart in (False, True, False, True):
        with own_comm.split(apart and own_comm.rank > 0) as part:
            assert part.size == (
                own_comm.size if not apart else 1 if own_comm.rank == 0 else own_comm.size - 1
            )
            assert part.all_reduce(1) == part.mpi.allreduce(1) == part.size
    part = own_comm.split(None if own_comm.rank == 0 else 0)  # and rank 0 is in none
    assert (part is None) == (own_comm.rank == 0)
    if part is not None:
        part.close()


def test_carriers_of_a_few_calls_are_kept(own_comm: Any) -> None:
    for _ in range(2):
        for key in range(9):
            own_comm.split(0, key).close()
    assert len(own_comm.context.life.children.spares) == 4 * (own_comm.context.node is not None)


@pytest.mark.core  # MPICH gives a new communicator the context of a freed one, with what was left on it
@pytest.mark.skipif(MPI.COMM_WORLD.size < 2, reason="a message")
@pytest.mark.parametrize("send", ["send", "send_object", "send_ragged"])
def test_what_is_left_on_a_closed_communicator_does_not_come_on_the_next_one(
    own_comm: Any, send: str, capfd: pytest.CaptureFixture[str]
) -> None:
    first = own_comm.dup()
    if own_comm.rank == 0:
        getattr(first, send)(np.full(3, 5.0), 1)
    first.close()
    second = own_comm.dup()
    if own_comm.rank == 1:
        assert second.iprobe(0) is None
        said = "a message of rank 0 with tag 0 on 'own.dup', which is closed, was never received"
        assert said in capfd.readouterr().err or own_comm.context.node is None
    second.barrier()
    if own_comm.rank == 1:
        assert second.recv(np.empty(3), 0).tolist() == [7.0] * 3
    elif own_comm.rank == 0:
        second.send(np.full(3, 7.0), 1)
    second.close()


@pytest.mark.skipif(MPI.COMM_WORLD.size < 2, reason="a message")
def test_what_is_left_behind_others_is_seen_as_well(own_comm: Any, capfd: pytest.CaptureFixture[str]) -> None:
    """MPICH looks at one message at a time, of all communicators."""
    part = own_comm.split(0)
    if own_comm.rank == 0:
        for _ in range(4):
            part.send(np.ones(1), 1)
        part.send_object([1], 1)
    else:
        time.sleep(0.02)  # come last: MPI sees what arrives while this rank waits
    own_comm.barrier()
    part.close()
    own_comm.split(0).close()  # which would have its carriers
    said = capfd.readouterr().err.count("was never received")
    assert own_comm.context.node is None or said == 2 * (own_comm.rank == 1)
    own_comm.barrier()


def test_duplicates_may_be_closed_in_another_order_on_each_rank(own_comm: Any) -> None:
    both = [own_comm.dup(), own_comm.dup()]
    for each in both if own_comm.rank else reversed(both):
        each.close()
    with own_comm.dup() as third:
        third.timeout = 20
        assert third.all_gather_object(third.rank) == [*range(third.size)]
        assert third.mpi.allreduce(1) == third.size


def test_a_duplicate_outlives_its_parent(own_comm: Any) -> None:
    parent = own_comm.dup()
    parent.dup().close()  # leaves carriers
    spares = [*parent.context.life.children.spares.values()]
    child = parent.dup()
    parent.close()
    assert child.all_reduce_object(child.rank) == sum(range(child.size))
    assert child.bcast(np.arange(3), 0).tolist() == [0, 1, 2]
    child.close()
    assert len(spares) == (own_comm.context.node is not None)
    assert not any(spare.carriers.plain for spare in spares)


@pytest.mark.few
def test_what_some_rank_still_has_is_not_closed_for_it(own_comm: Any) -> None:
    one = own_comm.dup()

    def make_more() -> None:
        for _ in range(20):
            own_comm.dup().close()

    for has in (own_comm.rank == own_comm.size - 1, False):
        if not has:
            one = None
        gc.collect()
        make_more()
        assert one is None or not one.is_closed
    assert holds_in_the_end(own_comm, make_more, lambda: 0 not in own_comm.context.life.children._open)


LISTS: dict[str, tuple[list[int], list[int], str]] = {  # rank 0's destinations, rank 1's sources
    "not expected": (
        [1],
        [],
        "rank 0 names rank 1 once as a destination, and rank 1 names rank 0 not at all",
    ),
    "never sent": ([], [0], "not at all as a destination, and rank 1 names rank 0 once as a source"),
    "sent twice": ([1, 1], [0], "2 times as a destination"),
    "expected twice": ([1], [0, 0], "rank 1 names rank 0 2 times as a source"),
    "to itself": ([0], [0], "rank 0 names rank 0 once as a destination, and rank 0 names rank 0 not at all"),
}


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", LISTS)
def test_lists_of_a_graph_that_contradict_each_other_are_refused_by_all_ranks(
    own_comm: Any, name: str
) -> None:
    destinations, sources, said = LISTS[name]
    here = destinations if own_comm.rank == 0 else [], sources if own_comm.rank == 1 else []
    with pytest.raises(hpcomm.MismatchError, match=said):
        own_comm.graph(*here)
    right = (own_comm.rank + 1) % own_comm.size, (own_comm.rank - 1) % own_comm.size
    for lists in ([right[0]] * 2, [right[1]] * 2), ([own_comm.rank, right[0]], [right[1], own_comm.rank]):
        with own_comm.graph(*lists) as made:
            assert [x.tolist() for x in made.neighbour_all_gather_ragged(np.full(2, made.rank))] == [
                [source] * 2 for source in lists[1]
            ]


@pytest.mark.core
@pytest.mark.mpi(min_size=2)
def test_a_call_that_another_thread_closes_under_it_says_so(comm: Any) -> None:
    """Here an observer closes, at the moment when it would hurt."""
    dup = comm.dup()

    class Closes:
        def before(self, call: Any) -> None:
            dup.close()

        def after(self, call: Any) -> None: ...

    dup.observe(Closes())
    with pytest.raises(hpcomm.UsageError, match="was closed while this call began"):
        dup.all_reduce(np.ones(8)[::2])
    assert comm.all_reduce(1) == comm.size

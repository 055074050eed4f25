"""Collectives of ranks of one node that fail, or could: they disagree, are hindered, or memory is short."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

import numpy as np
import pytest
import torch
from contract import BY_NAME, VERBS, Verb, call
from mpi4py import MPI
from test_on_node import FORMS, Nobody, given_by, is_same, needs_core

import hpcomm
from hpcomm.communicator.payloads import payload_agreement
from hpcomm.core.request import abandon
from hpcomm.core.signature import LEFT
from hpcomm.node import native, segment

pytestmark = [pytest.mark.once, pytest.mark.mpi(min_size=2)]
WORLD = MPI.COMM_WORLD


def of_all(comm: Any, usual: dict[str, Any], other: dict[str, Any]) -> None:
    """A call that is another one on rank 0."""
    told = {"dtype": np.float64, "root": 0, "op": "sum", **usual, **(other if comm.rank == 0 else {})}
    kind = BY_NAME[told["verb"]]
    words = {"op": told["op"]} if kind.reduces else {}
    if kind.rooted:
        words["root"] = told["root"]
    x = np.ones((comm.size, told["n"]) if kind.stacked else told["n"], told["dtype"])
    getattr(comm, told["verb"])(x, **words)


@pytest.mark.parametrize("n", [2, 5000])
@pytest.mark.parametrize("verb", VERBS, ids=str)
def test_ranks_that_disagree_are_told(verb: Verb, n: int) -> None:
    """At the latest at the next call: who waits for nobody may have gone on by then."""
    usual = {"verb": verb.name, "n": n}
    wrong: list[dict[str, Any]] = [{"dtype": np.float32}, {"n": n + 1}]
    wrong.append({"verb": "scan" if verb.name == "all_reduce" else "all_reduce"})
    wrong += [{"op": "max"}] * verb.reduces + [{"root": 1}] * verb.rooted
    for other in wrong:
        with hpcomm.Communicator(WORLD, name="near") as comm:
            if comm.context.node is None and WORLD.size > 0:
                pytest.skip("in MPI they are told by the watchdog, which ends the job")
            of_all(comm, usual, {})
            with pytest.raises(hpcomm.MismatchError, match=r"disagree about call|out of step"):  # noqa: PT012
                of_all(comm, usual, other)
                comm.all_reduce(np.ones(2))
            with pytest.raises(hpcomm.MismatchError, match="out of step"):
                comm.barrier()


@pytest.mark.parametrize("disagree", ["found by the core", "heard of"])
def test_who_hears_late_of_a_disagreement_is_told_the_same(
    disagree: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rank 0 finds it, and is out of step, between the core's look and what Python looks at."""
    with hpcomm.Communicator(WORLD, name="near") as comm:
        needs_core(comm)
        comm.barrier()
        log = next((log for rank, _, log in comm.context.near.watched[1] if rank == 0), None)

        def let_rank_0_go_first() -> None:
            monkeypatch.undo()
            WORLD.send(None, 0)
            while log.posted(log.last_call()) != LEFT:
                time.sleep(1e-4)

        if comm.rank:
            monkeypatch.setattr(comm.context, "move_on", let_rank_0_go_first)
        else:
            for _ in range(1, comm.size):
                WORLD.recv()
        found = disagree == "found by the core"
        said = "disagree about call" if found or comm.rank == 0 else "out of step: ranks disagreed"
        with pytest.raises(hpcomm.MismatchError, match=said):  # noqa: PT012
            if comm.rank == 0 and not found:
                comm.context.fall_out()
                raise hpcomm.MismatchError("ranks disagree about call, as another rank told")
            comm.reduce(np.ones(2, np.float64 if comm.rank else np.float32))
            comm.all_reduce(np.ones(2))
        with pytest.raises(hpcomm.MismatchError, match="out of step"):
            comm.barrier()


@pytest.mark.parametrize(
    ("verb", "other"),
    [
        ("all_gather_object", "all_gather_ragged"),
        ("all_gather_object", "gather_object"),
        ("broadcast_object", "broadcast"),
        ("gather_ragged", "barrier"),
    ],
)
def test_ranks_that_disagree_about_objects_are_told(verb: str, other: str) -> None:
    with hpcomm.Communicator(WORLD, name="near") as comm:
        needs_core(comm)
        comm.broadcast_object(1)
        with pytest.raises(hpcomm.MismatchError, match=r"disagree about call|out of step"):  # noqa: PT012
            function = getattr(comm, other if comm.rank == 0 else verb)
            function(*[np.ones(128)] * (function.__name__ != "barrier"))
            comm.barrier()


@pytest.mark.parametrize("verb", ["broadcast", "gather", "all_gather"])
def test_who_fails_over_an_object_tells_those_who_wait_for_it(
    own_comm: Any, verb: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """There is no memory for it on rank 0; those who give something long wait until it has been read."""
    needs_core(own_comm)
    own_comm.barrier()

    def none(nbytes: int) -> Any:
        raise MemoryError

    words = {"broadcast": {"root": 1}, "gather": {"root": 0}}.get(verb, {})
    if own_comm.rank == 0:
        monkeypatch.setattr(payload_agreement, "pooled", none)
    said = ""
    try:
        getattr(own_comm, f"{verb}_object")(np.ones(5000), **words)
    except (MemoryError, hpcomm.PeerFailedError) as error:
        said = str(error) or "no memory"
    needs_rank_0 = own_comm.rank == 1 or verb != "broadcast"
    assert (
        "no memory" if own_comm.rank == 0 else "left this call by an error" if needs_rank_0 else ""
    ) in said
    monkeypatch.undo()
    WORLD.Barrier()
    for x in (1, np.ones(5000)):
        assert len(own_comm.all_gather_object(x)) == own_comm.size


def test_two_roots_are_told_at_their_next_calls() -> None:
    """No root waits for the other."""
    with hpcomm.Communicator(WORLD, name="near") as comm:
        needs_core(comm)
        x = np.ones(2)
        comm.broadcast(x, 0, out=x)
        with suppress(hpcomm.MismatchError):  # as some ranks have come before the other root, or after
            comm.broadcast(x, min(comm.rank, 1), out=x)
        with pytest.raises(hpcomm.MismatchError, match="near"):
            comm.barrier()


@pytest.mark.parametrize("first", [0, 1])
def test_a_rank_in_the_core_and_one_in_the_background_are_told(first: int) -> None:
    """The same call, but not the same way: neither finds the other there."""
    with hpcomm.Communicator(WORLD, name="near") as comm:
        needs_core(comm)
        comm.barrier()
        is_async = min(comm.rank, 1) == first
        begun = []

        def calls() -> None:
            if is_async:  # refused at once where another rank has found out before
                begun.append(comm.all_reduce(np.ones(4), async_op=True))
                comm.barrier()
            comm.all_reduce(np.ones(4))

        with pytest.raises(hpcomm.MismatchError, match=r"disagree about call|out of step"):
            calls()
        for request in begun:
            abandon(request)


@pytest.mark.core
def test_without_checks_ranks_that_disagree_go_on_as_with_mpi() -> None:
    with hpcomm.Communicator(WORLD, name="near", check="off") as comm:
        for _ in range(3):
            x = np.full(2, 3.0)
            comm.all_reduce(x, "sum" if comm.rank else "prod", out=x)
            assert x.tolist() == ([3.0 * comm.size] * 2 if comm.rank else [3.0**comm.size] * 2)
        comm.barrier()


def test_closed_communicators_and_their_kept_methods_refuse() -> None:
    comm = hpcomm.Communicator(WORLD, name="closed early")
    x = np.ones((comm.size, 2))
    kept = {verb.name: partial(getattr(comm, verb.name), x) for verb in VERBS}
    kept["barrier"] = comm.barrier
    comm.barrier()
    comm.close()
    for again in kept.values():
        with pytest.raises(hpcomm.UsageError, match="'closed early' is closed"):
            again()


def test_observers_see_calls_of_kept_methods_and_subclasses_are_not_passed_by() -> None:
    class Counting(hpcomm.Communicator):
        calls = 0

        def all_reduce(self, *args: Any, **kwargs: Any) -> Any:
            self.calls += 1
            return super().all_reduce(*args, **kwargs)

    seen: list[str] = []
    watching = Nobody()
    watching.before = lambda call: seen.append(call.verb)  # type: ignore[method-assign]
    with Counting(WORLD, name="counting") as comm:
        kept = {verb.name: getattr(comm, verb.name) for verb in VERBS}
        x = np.ones((comm.size, 2))
        stop = comm.observe(watching)
        for function in kept.values():
            function(x)
        comm.barrier()
        assert seen == [*kept, "barrier"]
        stop()
        for function in kept.values():
            function(x)
        assert seen == [*kept, "barrier"]
        assert comm.calls == 2


def test_tensors_that_are_not_in_the_hosts_memory_are_refused(own_comm: Any) -> None:
    own_comm.all_reduce(torch.ones(3))
    for verb in VERBS:
        with pytest.raises(hpcomm.LayoutError, match="meta"):
            getattr(own_comm, verb.name)(torch.ones(own_comm.size, 3, device="meta"))


@pytest.mark.parametrize("verb", ["barrier", "all_reduce", "update_halo"])
def test_mpi_moves_on_while_a_rank_waits(own_comm: Any, verb: str) -> None:
    """Another rank may need that before it can come: large messages need both their ends."""
    field, n = hpcomm.Field(own_comm.mesh(y=-1), (4 * own_comm.size, 8), halo=1), 1 << 17
    comm = field.comm  # whose messages a halo looks at
    meet = {"barrier": comm.barrier, "all_reduce": lambda: comm.all_reduce(np.ones(9))}.get(
        verb, lambda: field.update_halo()
    )
    meet()
    coming = [comm.irecv(np.empty(n), 1, 2) for _ in range(3)] if comm.rank == 0 else []
    if comm.rank == 1:
        comm.send(np.ones(1), 0, 1)
    comm.barrier()
    if comm.rank == 1:
        time.sleep(0.05)  # for rank 0 to wait already
        for request in [comm.isend(np.ones(n), 0, 2) for _ in range(3)]:
            request.wait(timeout=10)
    meet()
    for request in coming:
        request.wait()
    if comm.rank == 0:
        comm.recv(np.empty(1), 1, 1)


def test_a_sender_that_waits_in_a_collective_sends_on(own_comm: Any) -> None:
    n, right, left = 700_000, (own_comm.rank + 1) % own_comm.size, (own_comm.rank - 1) % own_comm.size
    going = own_comm.isend(np.full(n, own_comm.rank + 1.0), right) if own_comm.rank % 2 == 0 else None
    if left % 2 == 0:
        np.testing.assert_array_equal(own_comm.recv(np.empty(n), left), np.full(n, left + 1.0))
    assert own_comm.all_reduce(np.ones(1)).tolist() == [own_comm.size]
    if going is not None:
        going.wait()


@pytest.mark.parametrize("n", [2, 60_000])
def test_ctrl_c_ends_a_wait_and_the_ranks_go_on(own_comm: Any, n: int) -> None:
    """Others have the arrival of the rank that left; of a long call they need more, and are told."""
    needs_core(own_comm)
    if own_comm.rank == 0:
        timer = threading.Timer(0.3, signal.raise_signal, [signal.SIGINT])
        timer.start()
        with pytest.raises(KeyboardInterrupt):
            own_comm.all_reduce(np.ones(n))
        timer.join()
    WORLD.Barrier()
    if own_comm.rank and n == 2:
        assert own_comm.all_reduce(np.ones(n)).tolist() == [own_comm.size] * n
    elif own_comm.rank:
        with pytest.raises(hpcomm.PeerFailedError, match="needs rank 0, which gave up: it left this call"):
            own_comm.all_reduce(np.ones(n))
    for length in (2, n, 2, 60_000):
        assert (own_comm.all_reduce(np.ones(length)) == own_comm.size).all()


def test_two_threads_at_once_are_refused_in_both() -> None:
    with hpcomm.Communicator(WORLD, name="two threads") as comm:
        needs_core(comm)
        if comm.rank:
            WORLD.recv(source=0)
            comm.all_reduce(np.ones(2))
            return
        said: list[str] = []

        def second() -> None:
            time.sleep(0.05)
            try:
                comm.barrier()
            except hpcomm.UsageError as error:
                said.append(str(error))

        thread = threading.Thread(target=second)
        thread.start()
        with pytest.raises(hpcomm.UsageError, match=r"another thread|two threads"):
            comm.all_reduce(np.ones(2))
        thread.join()
        assert said
        for rank in range(1, comm.size):
            WORLD.send("come", rank)


def test_a_forked_child_makes_no_call(own_comm: Any) -> None:
    own_comm.barrier()
    child = os.fork()
    if not child:
        try:
            for verb in (own_comm.barrier, partial(own_comm.all_reduce, np.ones(2))):
                with pytest.raises(hpcomm.HpcommError, match="child of rank"):
                    verb()
            os._exit(0)
        except BaseException as error:
            os.write(2, f"{error!r}\n".encode())
        finally:
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    assert own_comm.all_reduce(1) == own_comm.size


@pytest.fixture
def room(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """room(nbytes): let new communicators of all ranks have so much memory together."""
    module, there = native.core(), segment.current
    if module is None or there is None or len(there.regions) < WORLD.size:
        pytest.skip("no native core here")

    def cut(nbytes: int) -> None:
        made = module.Segment(nbytes) if WORLD.rank == 0 else None
        name = WORLD.bcast(made and made.name)
        made = made or module.Segment(nbytes, name)
        WORLD.Barrier()
        if WORLD.rank == 0:
            made.unlink()
        monkeypatch.setattr(segment, "current", there._replace(shared=made))

    return cut


def use(comm: Any, turn: int) -> None:
    """Long and short calls; ranks bring different forms, and some would work in place."""
    for n in (3, 30_000, 700, 9000):
        form = FORMS[(turn + comm.rank + n) % 4]
        for name in ("all_to_all", "all_reduce", "scan", "broadcast"):
            verb = BY_NAME[name]
            given = given_by(comm, verb, n, "float64", turn)
            x = form(given[comm.rank])
            place = x if (comm.rank + turn) % 2 else None
            found = call(comm, verb, x, turn % comm.size, place, "blocking")
            assert is_same(found, verb.expected(given, comm.rank, turn % comm.size)), (name, n)
        assert comm.all_reduce(1, async_op=True).wait() == comm.size
        comm.barrier()


@pytest.mark.parametrize("check", ["light", "off"])
def test_without_room_for_long_calls_all_ranks_alike_go_by_mpi(room: Any, check: str) -> None:
    room(256 << 10)
    with hpcomm.Communicator(WORLD, name="short", check=check) as comm:
        assert comm.context.node is not None
        for turn in range(4):
            use(comm, turn)


def test_without_room_for_a_place_all_ranks_alike_go_by_mpi(room: Any) -> None:
    room(32 << 10)
    made = [hpcomm.Communicator(WORLD, name="none") for _ in range(3)]
    assert made[-1].context.node is None
    for comm in made:
        use(comm, 0)
    for comm in made:
        comm.close()


def test_memory_is_given_back_and_old_arrivals_are_not_seen(room: Any) -> None:
    """There is room for one at a time; another one lays its cells where old ones were."""
    room((2 if WORLD.size < 4 else 6) << 20)
    for turn in range(12):
        with hpcomm.Communicator(WORLD, name="again") as comm:
            assert comm.context.node is not None, turn
            x = np.full(40_008, turn + comm.rank)
            assert (comm.all_reduce(x) == turn * comm.size + sum(range(comm.size))).all()
            assert (comm.all_to_all(x.reshape(comm.size, -1), out=x.reshape(comm.size, -1)) >= turn).all()
            assert comm.broadcast(x[:2], turn % comm.size).tolist()[0] >= turn
            assert comm.context.node is not None, turn


@pytest.mark.parametrize("word", ["off", "no"])
def test_the_user_can_leave_all_to_mpi(word: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCOMM_NODE", word)
    native._found.cache_clear()
    try:
        if word == "no":
            with pytest.raises(hpcomm.ConfigError, match="HPCOMM_NODE is 'no'"):
                native.core()
            return
        assert native.core() is None
        monkeypatch.setattr(segment, "current", None)  # as such a job has it from its start
        with hpcomm.Communicator(WORLD, name="by MPI") as comm:
            assert (comm.context.node, comm.context.near.watched, comm.check) == (None, None, "off")
            use(comm, 1)
    finally:
        monkeypatch.undo()
        native._found.cache_clear()

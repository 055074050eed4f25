"""Which path device arrays take: the choice is a pure function, and so are the schedules' needs."""

from __future__ import annotations

from typing import Any

import pytest

from hpcomm.schedule.rank_program import program
from hpcomm.transport.device import cuda_aware
from hpcomm.transport.device.path_choice import COLLECTIVE, Facts, choose
from hpcomm.transport.scheduled.proved import proved
from hpcomm.transport.scheduled.rounds import algorithm

BEST: dict[str, Any] = {
    "all_on_devices": True, "reduces": True, "kernels": "", "converts": "", "pairs": ["", ""], "nccl": "",
    "direct": "",
}  # fmt: skip


@pytest.mark.parametrize(
    ("lack", "path"),
    [
        ({}, "nccl"),
        ({"nccl": "ranks 0 and 1 share a GPU"}, "ipc"),
        ({"nccl": "no libnccl", "pairs": ["", "rank 0: is on another node"]}, "direct"),
        ({"nccl": "no libnccl", "pairs": ["", "rank 0: elsewhere"], "direct": "not CUDA-aware"}, "schedule"),
        ({"nccl": "no", "pairs": ["rank 1: no", ""], "direct": "no", "reduces": False}, "pipeline"),
        ({"converts": "CuPy has no kernels for bfloat16"}, "pipeline"),
        ({"kernels": "torch has no kernel for the min of uint32", "nccl": "no", "direct": "no"}, "pipeline"),
        ({"all_on_devices": False}, "pipeline"),
    ],
)
def test_the_best_path_that_nothing_speaks_against_is_taken(lack: dict[str, Any], path: str) -> None:
    chosen = choose("auto", "all_reduce", Facts(**{**BEST, **lack}))
    assert chosen.path == path
    assert list(chosen.refused) == list(COLLECTIVE[: COLLECTIVE.index(path)])
    for why in (each for each in lack.values() if isinstance(each, str)):
        assert why in str(chosen)


def test_who_cannot_reach_whom_is_said() -> None:
    lack = {"nccl": "no", "pairs": ["", "rank 0: is on another node"]}
    assert "ipc: refused, rank 1 cannot copy from rank 0: is on another node" in str(
        choose("auto", "all_reduce", Facts(**{**BEST, **lack}))
    )


@pytest.mark.parametrize("path", COLLECTIVE)
def test_a_forced_path_is_taken_or_refused_with_the_reason(path: str) -> None:
    assert choose(path, "all_reduce", Facts(**BEST)).path == path
    lack = {"all_on_devices": False} if path != "pipeline" else {}
    chosen = choose(path, "all_reduce", Facts(**{**BEST, **lack}))
    assert chosen.path == ("" if lack else path)
    assert not lack or chosen.refused[path] == "some ranks bring arrays in host memory"


def test_the_temporary_of_every_schedule_fits_beside_its_work() -> None:
    verbs = ("all_reduce", "reduce", "broadcast", "scan", "exscan", "all_gather", "gather", "scatter",
             "all_to_all", "reduce_scatter")  # fmt: skip
    for verb in verbs:
        for p in (1, 2, 3, 4, 5, 8, 13):
            for nbytes in (1, 1 << 40):
                for root in (0, p - 1):
                    made = proved(verb, algorithm(verb, p, nbytes), p, root)
                    for count in (1, 101):
                        rooms = [program(made, rank, count).room for rank in range(p)]
                        assert max(rooms) <= made.slots * count, (verb, p, nbytes, count, rooms)


def test_what_mpi_says_of_itself_decides_whether_device_memory_is_tried() -> None:
    tried = {"all_reduce": "", "send": "data came out wrong"}
    assert cuda_aware.decide(True, lambda: tried)["all_reduce"] == ""
    assert cuda_aware.decide(True, lambda: tried)["send"] == "data came out wrong"
    assert cuda_aware.decide(True, lambda: tried)["scan"] == "was not tried"
    for said, why in ((False, "says that it does not read CUDA"), (None, "does not say that it reads")):
        found = cuda_aware.decide(said, lambda: pytest.fail("was tried"))
        assert all(why in each for each in found.values())


def test_an_operation_that_crashes_the_trial_is_left_and_the_others_are_tried() -> None:
    asked = []

    def run(names: list[str]) -> tuple[dict[str, str], str]:
        asked.append(names)
        told = names[: names.index("gather")] if "gather" in names else names
        return dict.fromkeys(told, ""), "exit status 139"

    report = cuda_aware.try_all(run)
    assert report == {
        **dict.fromkeys(cuda_aware.OPERATIONS, ""),
        "gather": "the trial ended: exit status 139",
    }
    assert len(asked) == 2

"""What a rank records for the others of its node: whether it lives, what it says when it is asked."""

import os
import shutil
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
from steady import steady_time

from hpcomm.node.call_log import CallLog
from hpcomm.node.segment import _NOTE, Region
from hpcomm.node.words import Words

core = pytest.importorskip("hpcomm.node._native.core")
ROOT = Path(__file__).parents[2]
OWNER = """
import os, sys
sys.path.insert(0, sys.argv[1])
from hpcomm.node.segment import Region
region = Region(None, os.open(sys.argv[2], os.O_RDWR), int(sys.argv[3]))
region.hold()
child = os.fork()  # which is no rank: it may outlive one
if child == 0:
    sys.stdin.read()
    os._exit(0)
print(child, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("space", ["the same", "another"])
def test_a_rank_lives_as_long_as_its_process_whatever_number_that_has(tmp_path: Path, space: str) -> None:
    """In another PID namespace, as containers have them, the number is another one."""
    if space == "another" and (os.geteuid() or not shutil.which("unshare")):
        pytest.skip("unshare, or leave to use it, is missing")
    file = tmp_path / "node_segment"
    file.write_bytes(bytes(2))
    ways = ["unshare", "--pid", "--fork", "--kill-child"] if space == "another" else []
    words = [*ways, sys.executable, "-c", OWNER, str(ROOT), str(file), "1"]
    with (
        file.open("r+b") as opened,
        subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as owner,
    ):
        memory = core.Segment(1 << 20)
        memory.unlink()
        records = Words(memory, memory.reserve_words(8))
        region, nobody = (Region(records, opened.fileno(), byte) for byte in (1, 0))
        assert owner.stdout is not None
        assert int(owner.stdout.readline()) > 1
        for each in (region, nobody):
            each.look()
        assert not region.gone
        assert not nobody.gone, "an end is seen only of a rank that was seen to live"
        owner.kill()
        owner.wait()
        deadline = steady_time() + 10  # whom unshare takes with it ends a moment later
        while not region.gone and steady_time() < deadline:
            time.sleep(0.01)
        assert region.gone


@pytest.fixture
def region() -> Region:
    memory = core.Segment(1 << 20)
    memory.unlink()
    return Region(Words(memory, memory.reserve_words(5000)), memory.fileno(), 0)


def test_a_question_is_answered_once_by_the_newest_text(region: Region) -> None:
    assert region.question is None
    first, second = region.ask(), region.ask()
    assert (first, second, region.question) == (1, 2, 2)
    assert region.answer_to(first) is None
    region.answer(2, "all_reduce at line 7")
    assert region.answer_to(first) == region.answer_to(second) == "all_reduce at line 7"
    assert region.question is None
    region.answer(region.ask(), "ä" * 5000)  # cut in a letter, perhaps
    assert region.answer_to(3) == "ä" * 2048
    region.note = "host b is silent"
    region.note = "none"
    assert (region.note, region.ended, region.failed, region.gone) == ("none", False, False, False)
    region.failed = 1
    region.end()
    assert region.ended
    assert region.failed
    assert region.gone


def test_a_text_that_its_writer_left_half_written_is_no_text(region: Region) -> None:
    region.note = "half"
    region._words[_NOTE] += 1
    assert region.note == ""


class Slow:
    """The memory, in which another thread has its turn between any two accesses."""

    def __init__(self, memory: Any) -> None:
        self._memory = memory

    def load(self, at: int) -> int:
        value = self._memory.load(at)
        time.sleep(1e-5)
        return value

    def store(self, at: int, value: int) -> None:
        self._memory.store(at, value)

    def store_bytes(self, at: int, data: bytes) -> None:
        for i in range(0, len(data), 8):
            self._memory.store_bytes(at + i, data[i : i + 8])
            time.sleep(1e-5)


def test_threads_that_answer_at_once_leave_texts_that_others_can_read(region: Region) -> None:
    """The watchdog answers beside the main thread; each of them may have looked the record up anew."""
    memory, at = region._words._memory, region._words._at
    texts, seen = {"a" * 64, "b" * 64}, set()

    def answers(text: str) -> None:
        mine = Region(Words(Slow(memory), at), 0, 0)
        for _ in range(50):
            mine.answer(0, text)

    threads = [threading.Thread(target=answers, args=(text,)) for text in texts]
    for thread in threads:
        thread.start()
    while any(thread.is_alive() for thread in threads):
        seen.add(region.answer_to(0))
    assert seen <= texts | {""}
    assert region.answer_to(0) in texts


def test_a_text_that_an_exception_has_cut_off_is_followed_by_whole_ones(region: Region) -> None:
    words = region._words
    words[_NOTE] += 1  # and no more came of it
    region.note = "whole"
    assert region.note == "whole"


def test_the_memory_of_call_logs_serves_others_when_all_ranks_have_left() -> None:
    memory = core.Segment(1 << 20)
    memory.unlink()
    place = memory.reserve(2)
    nodes = [core.Node(memory, place, rank) for rank in range(2)]
    (mine, beside), (seen, other) = ([CallLog(node, rank, memory) for rank in range(2)] for node in nodes)
    assert mine.post(77) == 1
    assert (seen.last_call(), seen.posted(1), seen.posted(2)) == (1, 77, None)
    mine.refuse(2, "no such root")
    assert (seen.refusal(2), seen.refusal(1)) == ("no such root", "")
    other.kinds[3] = -1
    assert (beside.kinds[3], seen.kinds[3]) == (-1, 0)
    nodes[0].close()
    assert memory.reserve(2) != place
    nodes[1].close()
    assert (seen.last_call(), seen.posted(1)) == (0, None)
    assert memory.reserve(2) == place

"""Shared memory of jobs that are gone is told from that of jobs that run."""

import mmap
import os
import time
from pathlib import Path

import pytest

from hpcomm.supervise import YOUNG_S, stale_segments


@pytest.fixture
def segment():
    """segment(name) -> a file of a page in /dev/shm, looking a minute old; gone when the test is."""
    made = []

    def make(name, age_s=60.0):
        path = Path("/dev/shm", f"{name}_hpcomm_test_{os.getpid()}")
        made.append(path)
        path.write_bytes(bytes(mmap.PAGESIZE))
        os.utime(path, (time.time() - age_s,) * 2)
        return path

    if not Path("/dev/shm").is_dir():
        pytest.skip("this system has no /dev/shm")
    yield make
    for path in made:
        path.unlink(missing_ok=True)


@pytest.mark.parametrize("name", ["mpich_shm_1", "sm_segment.1", "vader_segment.1"])
def test_a_segment_that_nobody_uses_is_stale(segment, name):
    assert segment(name) in stale_segments()


def test_a_segment_in_use_is_not_stale(segment):
    path = segment("mpich_shm_2")
    with path.open("r+b") as file, mmap.mmap(file.fileno(), 0):
        os.utime(path, (time.time() - 60.0,) * 2)
        assert path not in stale_segments()
    assert path in stale_segments()


def test_a_segment_just_made_may_belong_to_a_job_that_comes_up(segment):
    assert segment("mpich_shm_3", age_s=YOUNG_S / 2) not in stale_segments()


def test_files_of_others_are_none_of_our_business(segment):
    assert segment("data") not in stale_segments()

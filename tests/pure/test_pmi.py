"""The launcher's part for ranks that torchrun has started: who is let in, what is told, and what is left."""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from hpcomm import ConfigError
from hpcomm.job import pmi_server

SECRET = bytes(range(32))
SPACE = "hpcomm_test_of_pmi"


@contextlib.contextmanager
def server(
    size: int, seconds: float = 20.0, host: str = "127.0.0.1", file: str | None = None
) -> Iterator[int]:
    """The port of one; it has ended when this does."""
    told = {
        "host": host,
        "secret": SECRET.hex(),
        "size": size,
        "seconds": seconds,
        "space": SPACE,
        "file": file,
    }
    port = pmi_server.start(told)
    process = pmi_server._kept.pop()
    try:
        yield port
    finally:
        process.stdin.close()
        assert process.wait(10) == 0


def come(port: int, rank: int, size: int, secret: bytes = SECRET) -> socket.socket:
    return pmi_server.connect("127.0.0.1", port, secret, rank, size, 10.0)


def ask(connection: socket.socket, *lines: str) -> list[str]:
    with connection.makefile("rw", newline="\n") as file:
        answers = []
        for line in lines:
            file.write(line + "\n")
            file.flush()
            answers.append(file.readline().strip())
        return answers


def test_ranks_exchange_keys_and_meet_while_strangers_hold_the_door() -> None:
    """More connections than it keeps of those who say nothing, and some that lie: to them it says nothing."""
    with server(2) as port, ThreadPoolExecutor() as pool:
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        for liar in silent[-3:]:
            liar.sendall(b"cmd=init pmi_version=1 pmi_subversion=1\ncmd=put kvsname=x key=x value=y\n" * 9)
        first, second = pool.map(lambda rank: come(port, rank, 2), (0, 1))
        said = ask(first, "cmd=init pmi_version=1", "cmd=get_my_kvsname", "cmd=put kvsname=k key=a value=b")
        assert said[1:] == [f"cmd=my_kvsname kvsname={SPACE}", "cmd=put_result rc=0 msg=success"]
        both = pool.map(lambda each: ask(each, "cmd=barrier_in"), (first, second))
        assert list(both) == [["cmd=barrier_out"]] * 2
        keys = ask(second, *(f"cmd=get kvsname=k key={key}" for key in ("a", "x", "PMI_process_mapping")))
        assert "value=b" in keys[0]
        assert "key_not_found" in keys[1]
        assert "value=(vector,(0,1,2))" in keys[2]
        for liar in silent[-3:]:
            liar.settimeout(5)
            with contextlib.suppress(ConnectionResetError):
                assert len(liar.recv(1000)) in (0, 32)  # nothing but a nonce
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", port))  # nobody else has a place
        for each in (first, second):
            assert ask(each, "cmd=finalize") == ["cmd=finalize_ack"]
        for each in (*silent, first, second):
            each.close()


def test_who_does_not_know_the_secret_is_refused_on_either_side() -> None:
    with server(1) as port, pytest.raises(ConnectionError, match="closed"):
        come(port, 0, 1, bytes(32))
    with socket.create_server(("127.0.0.1", 0)) as liar:

        def lie() -> None:
            with liar.accept()[0] as connection:
                connection.sendall(bytes(64))
                time.sleep(0.2)

        thread = threading.Thread(target=lie)
        thread.start()
        with pytest.raises(ConnectionError, match="does not know the secret of the job"):
            come(liar.getsockname()[1], 0, 1)
        thread.join()


def test_it_listens_where_it_was_told_to() -> None:
    with server(1) as port:
        rows = [line.split() for line in Path("/proc/net/tcp").read_text().splitlines()]
        assert f"0100007F:{port:04X}" in [row[1] for row in rows if row[3] == "0A"]


def test_who_is_late_is_named_to_those_who_came() -> None:
    with (
        server(3, seconds=1.0) as port,
        pytest.raises(ConfigError, match=r"ranks 0, 2 did not come within 1 s"),
    ):
        come(port, 1, 3)


@pytest.mark.parametrize(("rank", "size"), [(0, 3), (2, 2)])
def test_a_rank_that_the_job_does_not_have_is_told_so(rank: int, size: int) -> None:
    with (
        server(2) as port,
        pytest.raises(ConfigError, match=f"rank {rank} of {size} comes to a job of 2 ranks"),
    ):
        come(port, rank, size)


def test_who_leaves_early_is_named() -> None:
    with server(3) as port, ThreadPoolExecutor() as pool:
        waiting = pool.submit(come, port, 0, 3)
        theirs = socket.create_connection(("127.0.0.1", port))
        nonce = pmi_server._take(theirs, 32)
        proof = pmi_server._mac(SECRET, b"rank", nonce, bytes(32), b"\0\0\0\1\0\0\0\3", bytes(32))
        theirs.sendall(pmi_server._HELLO.pack(1, 3, bytes(32), bytes(32), proof))
        pmi_server._take(theirs, 32)
        theirs.close()
        with pytest.raises(ConfigError, match="rank 1 has ended before all had come"):
            waiting.result(10)


def test_what_ranks_leave_that_were_killed_is_removed(tmp_path: Path) -> None:
    """And nothing of another job."""
    left, other = (Path("/dev/shm", pmi_server._segment(space)) for space in (SPACE, "of another job"))
    secret = tmp_path / "secret"
    for file in (left, other, secret):
        file.touch()
    try:
        with server(2, file=str(secret)) as port, ThreadPoolExecutor() as pool:
            first, second = pool.map(lambda rank: come(port, rank, 2), (0, 1))
            assert not secret.exists()
            first.close()  # as the system does for who is killed
            assert ask(second, "cmd=barrier_in") == [""]
            second.close()
        assert not left.exists()
        assert other.exists()
    finally:
        for file in (left, other):
            file.unlink(missing_ok=True)


def test_how_ranks_lie_on_nodes() -> None:
    a, b, c = (os.urandom(32) for _ in range(3))
    assert pmi_server._mapping([a, a, b, b, c, c]) == "(vector,(0,3,2))"
    assert pmi_server._mapping([a, b, a, b]) == "(vector,(0,2,1),(0,2,1))"
    assert pmi_server._mapping([a, a, a, b]) == "(vector,(0,1,3),(1,1,1))"

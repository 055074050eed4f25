"""PMI-1 server: an MPI launcher's part for ranks that somebody else has started, as MPICH speaks it.

A process of its own (main below) gathers the ranks, tells each where the others are, and keeps the keys
that they exchange while MPI comes up. A connection is nobody's until it has shown that it knows the secret
of the job, and so has the server; MPICH then finds it in PMI_FD and makes none of its own.

    rank                                    server
                                   <------  a nonce
    rank, size, node, a nonce, MAC  ----->
                                   <------  MAC
                                   <------  a line: "go" once all ranks have come, or what is wrong
    cmd=init pmi_version=1 ...      ----->  cmd=response_to_init rc=0 ...
    cmd=put kvsname=k key=a value=b ----->  cmd=put_result rc=0 msg=success
    cmd=barrier_in                  ----->  cmd=barrier_out, once all ranks are in
    cmd=get kvsname=k key=a         ----->  cmd=get_result rc=0 msg=success value=b
    cmd=finalize                    ----->  cmd=finalize_ack

The server ends when its ranks have. Needs the standard library only.

Source: MPICH's PMI-1 (Balaji et al., "PMI: a scalable parallel process-management interface", 2010).
"""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import selectors
import socket
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any

from ..errors import ConfigError, named
from .host import host_mark
from .launcher import call

_SHM = Path("/dev/shm")
_HELLO = struct.Struct("!II32s32s32s")  # rank, size, node, nonce, MAC
_NONCE = 32  # bytes, as a MAC has
_PROVE_S = 30.0  # for a connection to show that it knows the secret
_STRANGERS = 64  # connections that have not; the oldest goes when one more comes
_LINE = 1 << 16  # bytes of a line at most
_ANSWER_S = 30.0  # for a rank to take an answer


def node() -> bytes:
    """What ranks have in common that may share memory and a loopback address: kernel, network, /dev/shm."""
    return hashlib.sha256(host_mark("net", str(_SHM)).encode()).digest()


def start(told: dict[str, object]) -> int:
    """Begin a server in a process of its own, since MPI comes up without letting threads run. Its port.

    Args:
        told: host (where to listen), secret (hexadecimal), size, seconds (for all ranks to come), file (to be
            removed then), space (the name of the job's keys, after which MPICH names its memory).
    """
    # In a session of its own: whoever kills all processes of a failed rank must leave this one, to clear up.
    server = subprocess.Popen(
        call("job.pmi_server"), stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
    )
    assert server.stdin is not None
    assert server.stdout is not None
    server.stdin.write(json.dumps(told).encode() + b"\n")
    server.stdin.flush()
    port = server.stdout.readline()
    server.stdout.close()
    _kept.append(server)
    if not port:
        raise ConfigError("the process that tells the ranks of each other has not started", hint="see above")
    return int(port)


_kept: list[Any] = []  # the server, which sees by its standard input that rank 0 has ended


def connect(host: str, port: int, secret: bytes, rank: int, size: int, seconds: float) -> socket.socket:
    """A connection to the server that has heard of all ranks, for PMI_FD.

    Raises:
        OSError: nobody is there who knows the secret.
        ConfigError: the server says why the ranks cannot begin.
    """
    connection = socket.create_connection((host, port), timeout=min(seconds, _PROVE_S))
    try:
        theirs, mine = _take(connection, _NONCE), os.urandom(_NONCE)
        proof = _mac(secret, b"rank", theirs, mine, struct.pack("!II", rank, size), node())
        connection.sendall(_HELLO.pack(rank, size, node(), mine, proof))
        if not hmac.compare_digest(_take(connection, _NONCE), _mac(secret, b"server", mine, theirs)):
            raise ConnectionError(f"whoever listens on {host}:{port} does not know the secret of the job")
        connection.settimeout(seconds + _PROVE_S)  # the server is the one that says who is late
        said = b""
        while not said.endswith(b"\n"):
            said += _take(connection, 1)
    except BaseException:
        connection.close()
        raise
    if said != b"go\n":
        connection.close()
        raise ConfigError(said.decode().strip(), "init_process_group", "start all ranks, each once")
    connection.settimeout(None)
    return connection


def _take(connection: socket.socket, nbytes: int) -> bytes:
    found = b""
    while len(found) < nbytes:
        part = connection.recv(nbytes - len(found))
        if not part:
            raise ConnectionError("the other side has closed the connection")
        found += part
    return found


def _mac(secret: bytes, *words: bytes) -> bytes:
    return hmac.new(secret, b"\0".join((b"hpcomm-pmi", *words)), hashlib.sha256).digest()


def main(words: list[str]) -> None:
    """Serve a job: what start() was told stands on standard input, the port goes to standard output."""
    told = json.loads(sys.stdin.buffer.readline())
    with listen(told["host"]) as listening:
        print(listening.getsockname()[1], flush=True)
        sys.stdout.close()
        os.close(1)
        server = _Server(listening, told)
        try:
            server.run()
        finally:
            server.clear_up()


def listen(host: str) -> socket.socket:
    """A port of host's address, or of all addresses where that is not one of this host's own."""
    try:
        return socket.create_server((host, 0), backlog=1024)
    except OSError:
        return socket.create_server(("", 0), backlog=1024)


class _Connection:
    def __init__(self, connection: socket.socket) -> None:
        connection.settimeout(_ANSWER_S)
        self.socket, self.inbox, self.nonce = connection, b"", os.urandom(_NONCE)
        self.since = time.monotonic()
        self.rank = -1  # until it has proved itself
        self.node = b""

    def say(self, what: bytes) -> None:
        with suppress(OSError):  # its end will be read
            self.socket.sendall(what)


class _Server:
    def __init__(self, listening: socket.socket, told: Mapping[str, Any]) -> None:
        self.size, self.secret = int(told["size"]), bytes.fromhex(told["secret"])
        self.space, self.file = str(told["space"]), told["file"]
        self.seconds = float(told["seconds"])
        self.begin = time.monotonic()
        self.keys: dict[str, str] = {}
        self.strangers: list[_Connection] = []
        self.ranks: dict[int, _Connection] = {}
        self.waiting: list[_Connection] = []  # in a barrier
        self.finalized = 0
        self.has_all = self.has_lost = self.is_orphan = False
        self.failed = ""  # why the ranks cannot begin
        self.listening = listening
        self.selector = selectors.DefaultSelector()
        self.selector.register(listening, selectors.EVENT_READ, self._accept)
        self.selector.register(0, selectors.EVENT_READ, self._orphaned)

    def run(self) -> None:
        while not self._is_over():
            for key, _ in self.selector.select(1.0):
                deed: Callable[[], None] = key.data
                deed()
            now = time.monotonic()
            for late in [each for each in self.strangers if now - each.since > _PROVE_S]:
                self._close(late)
            if not (self.has_all or self.failed) and now - self.begin > self.seconds:
                missing = named({*range(self.size)} - self.ranks.keys())
                self._give_up(f"{missing} did not come within {self.seconds:.0f} s")

    def _is_over(self) -> bool:
        """Whether all ranks have gone, or the one that has begun us before all had come."""
        return not self.ranks if self.has_all else self.is_orphan and 0 not in self.ranks

    def clear_up(self) -> None:
        """Remove what ranks that have not come to their own end may have left."""
        self._remove_file()
        if self.finalized < self.size:
            with suppress(OSError):
                (_SHM / _segment(self.space)).unlink()

    def _remove_file(self) -> None:
        if self.file:
            with suppress(OSError):
                os.unlink(self.file)  # noqa: PTH108
            self.file = None

    def _accept(self) -> None:
        try:
            made = _Connection(self.listening.accept()[0])
        except OSError:
            return
        if len(self.strangers) >= _STRANGERS:
            self._close(self.strangers[0])
        self.strangers.append(made)
        self.selector.register(made.socket, selectors.EVENT_READ, partial(self._read, made))
        made.say(made.nonce)

    def _orphaned(self) -> None:
        """Rank 0, which has begun us, has ended; its connection tells the rest."""
        self.selector.unregister(0)
        self.is_orphan = True

    def _read(self, by: _Connection) -> None:
        if by.socket.fileno() < 0:  # closed for what another one said just before
            return
        try:
            part = by.socket.recv(_LINE)
        except OSError:
            part = b""
        by.inbox += part
        if not part or len(by.inbox) > _LINE:
            self._leave(by)
        elif by.rank < 0:
            self._meet(by)
        else:
            *lines, by.inbox = by.inbox.split(b"\n")
            for line in lines:
                self._answer(by, line.decode(errors="replace"))

    def _meet(self, by: _Connection) -> None:
        """Let a connection be a rank's if it shows that it knows the secret."""
        if len(by.inbox) < _HELLO.size:
            return
        rank, size, there, theirs, proof = _HELLO.unpack(by.inbox[: _HELLO.size])
        wanted = _mac(self.secret, b"rank", by.nonce, theirs, struct.pack("!II", rank, size), there)
        if not hmac.compare_digest(proof, wanted):
            self._close(by)
            return
        by.say(_mac(self.secret, b"server", theirs, by.nonce))
        why = self.failed
        if size != self.size or rank >= self.size or rank in self.ranks:
            why = f"rank {rank} of {size} comes to a job of {self.size} ranks that lacks no such"
        if why:
            by.say(f"{why}\n".encode())
            self._close(by)
            return
        self.strangers.remove(by)
        by.rank, by.node, by.inbox = rank, there, by.inbox[_HELLO.size :]
        self.ranks[rank] = by
        if len(self.ranks) == self.size:
            self._begin()

    def _begin(self) -> None:
        """All have come: nobody else is let in."""
        self.has_all = True
        self.selector.unregister(self.listening)
        self.listening.close()
        for stranger in list(self.strangers):
            self._close(stranger)
        self._remove_file()
        self.keys["PMI_process_mapping"] = _mapping([self.ranks[rank].node for rank in range(self.size)])
        for rank in self.ranks.values():
            rank.say(b"go\n")

    def _give_up(self, why: str) -> None:
        self.failed = why
        for rank in list(self.ranks.values()):
            rank.say(f"{why}\n".encode())
            self._close(rank)

    def _leave(self, by: _Connection) -> None:
        """A connection has ended; if it was a rank's, before its time: barriers with it can be no more.

        Ranks of its node see that by themselves; those of others are told, and hear no more.
        """
        self._close(by)
        if by.rank < 0:
            return
        self.has_lost = True
        if not self.has_all:
            self._give_up(f"rank {by.rank} has ended before all had come")
        for other in list(self.ranks.values()):
            if other in self.waiting or other.node != by.node:
                other.say(f"cmd=lost rank={by.rank}\n".encode())
                self._close(other)

    def _close(self, by: _Connection) -> None:
        for places in (self.strangers, self.waiting):
            if by in places:
                places.remove(by)
        with suppress(KeyError, ValueError):  # closed before
            self.selector.unregister(by.socket)
        by.socket.close()
        if self.ranks.get(by.rank) is by:
            del self.ranks[by.rank]

    def _answer(self, by: _Connection, line: str) -> None:
        words = dict(word.partition("=")[::2] for word in line.split())
        command = words.get("cmd", "endcmd" if "endcmd" in words else "")
        if command == "barrier_in":
            self._meet_in_barrier(by)
        elif command == "put":
            self.keys[words.get("key", "")] = words.get("value", "")
            by.say(b"cmd=put_result rc=0 msg=success\n")
        elif command == "get":
            value = self.keys.get(words.get("key", ""))
            found = (
                "rc=-1 msg=key_not_found value=unknown"
                if value is None
                else f"rc=0 msg=success value={value}"
            )
            by.say(f"cmd=get_result {found}\n".encode())
        else:
            answer = _FIXED.get(command, "").format(size=self.size, space=self.space)
            by.say(f"{answer}\n".encode() if answer else b"")
        if command == "finalize":
            self.finalized += 1
            self._close(by)

    def _meet_in_barrier(self, by: _Connection) -> None:
        if self.has_lost:
            self._close(by)
            return
        self.waiting.append(by)
        if len(self.waiting) == self.size:
            for rank in self.waiting:
                rank.say(b"cmd=barrier_out\n")
            self.waiting.clear()


_FIXED = {
    "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
    "get_maxes": "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024",
    "get_appnum": "cmd=appnum appnum=0",
    "get_my_kvsname": "cmd=my_kvsname kvsname={space}",
    "get_universe_size": "cmd=universe_size size={size}",
    "finalize": "cmd=finalize_ack",
    "endcmd": "cmd=spawn_result rc=-1 msg=not_supported",  # the end of mcmd=spawn
    "publish_name": "cmd=publish_result rc=-1 msg=not_supported",
    "unpublish_name": "cmd=unpublish_result rc=-1 msg=not_supported",
    "lookup_name": "cmd=lookup_result rc=-1 msg=not_supported",
}


def _mapping(nodes: list[bytes]) -> str:
    """Which ranks share a node, as MPICH reads it: (vector,(first node, nodes, ranks on each),...)."""
    numbers: dict[bytes, int] = {}
    blocks: list[list[int]] = []
    for there, group in groupby(nodes):
        number, count = numbers.setdefault(there, len(numbers)), len(list(group))
        if blocks and [blocks[-1][0] + blocks[-1][1], blocks[-1][2]] == [number, count]:
            blocks[-1][1] += 1
        else:
            blocks.append([number, 1, count])
    return "(vector," + ",".join(f"({first},{many},{each})" for first, many, each in blocks) + ")"


def _segment(space: str) -> str:
    """MPICH's memory in /dev/shm, which it names after the space of the job's keys (by FNV-1a)."""
    found = 0x811C9DC5
    for byte in space.encode():
        found = (found ^ byte) * 0x01000193 & 0xFFFFFFFF
    return f"mpich_shm_{found:x}_0"

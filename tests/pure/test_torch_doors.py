"""Who says which rank of how many a process is, and whether there is a job of MPI's: by the environment."""

from __future__ import annotations

import json
import os

import pytest

from hpcomm import ConfigError
from hpcomm.torch_backend import rendezvous, torchrun

TORCHRUN = {
    "RANK": "3",
    "WORLD_SIZE": "8",
    "MASTER_ADDR": "h",
    "MASTER_PORT": "1",
    "TORCHELASTIC_RUN_ID": "x",
}
OTHER = {name: value for name, value in TORCHRUN.items() if name != "TORCHELASTIC_RUN_ID"}
MPIRUN = {"OMPI_COMM_WORLD_RANK": "1", "OMPI_COMM_WORLD_SIZE": "2"}


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in os.environ:
        if name.startswith(("OMPI_", "PMI_", "PMIX_", "HPCOMM_", "SLURM_")) or name in TORCHRUN:
            monkeypatch.delenv(name)


@pytest.mark.parametrize(
    ("variables", "without", "with_mpich"),
    [
        ({}, False, False),
        (MPIRUN, True, True),
        ({"PMIX_RANK": "0"}, True, True),
        (TORCHRUN, False, True),
        (OTHER, False, True),
        # a launcher that has started one torchrun, or the like, on each node
        ({**TORCHRUN, "PMIX_RANK": "0", "SLURM_STEP_NUM_TASKS": "2"}, False, True),
        ({**OTHER, "PMI_RANK": "0", "PMI_SIZE": "2"}, False, False),
        ({**MPIRUN, "RANK": "1", "WORLD_SIZE": "2"}, True, True),
    ],
)
def test_whether_a_job_of_mpi_is_at_hand(
    variables: dict[str, str], without: bool, with_mpich: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    for can, expected in ((False, without), (True, with_mpich)):
        monkeypatch.setattr(torchrun, "can", lambda can=can: can)
        assert rendezvous.at_hand() == expected


def test_arguments_come_before_a_url_and_that_before_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    assert rendezvous.given_numbers()[:2] == (None, None)
    monkeypatch.setenv("RANK", "3")
    monkeypatch.setenv("WORLD_SIZE", "8")
    assert rendezvous.given_numbers() == (3, 8, "RANK and WORLD_SIZE")
    assert rendezvous.given_numbers(url="tcp://h:1?rank=2&world_size=4")[:2] == (2, 4)
    assert rendezvous.given_numbers(1, 2, "tcp://h:1?rank=2&world_size=4")[:2] == (1, 2)
    monkeypatch.setenv("HPCOMM_TOLD", "3/8/")  # of hpcomm's own making, in the rank that started this process
    assert rendezvous.given_numbers()[:2] == (None, None)
    monkeypatch.setenv("RANK", "three")
    with pytest.raises(ConfigError, match="RANK and WORLD_SIZE say 'three', which is no number"):
        rendezvous.given_numbers()


@pytest.mark.timeout(60)
def test_a_secret_that_others_can_read_is_not_taken(tmp_path) -> None:
    class Store:
        def wait(self, keys: object, timeout: object) -> None: ...

        def get(self, key: str) -> bytes:
            return json.dumps({"host": "127.0.0.1", "port": 1, "file": str(secret)}).encode()

    secret = tmp_path / "secret"
    secret.write_bytes(bytes(32))
    for mode, words in ((0o640, "is not a file of this user's alone"), (0o600, "Connection refused")):
        secret.chmod(mode)
        with pytest.raises(ConfigError, match=words):
            torchrun._connect(Store(), "key", 0, 2, 0.1)

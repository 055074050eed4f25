"""Files that were damaged, or forged: whoever reads one says which it is, what is wrong and what to do."""

from __future__ import annotations

import json
import zlib
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from hpcomm.errors import ConfigError, UsageError
from hpcomm.fields.files import checkpoints, file_folder, npy
from hpcomm.grids.weights import Weights
from hpcomm.mpmd import jobs
from hpcomm.mpmd.record import Recorder
from hpcomm.mpmd.spec.spec_reader import read as read_spec
from hpcomm.schedule import registry
from hpcomm.schedule.cost.machine_model import machine
from hpcomm.tools import tune
from hpcomm.transport.device import cuda_aware
from hpcomm.transport.scheduled import tuned

if TYPE_CHECKING:
    from collections.abc import Callable

FIELD: Any = SimpleNamespace(name="T", points=np.arange(3), shape=(), dtype=np.dtype(float))


def manifest(path: Path) -> object:
    """As a program meets it: what fails on rank 0 is everybody's TransportError."""
    (path.parent / "manifest.json").write_bytes(path.read_bytes())
    failed = file_folder.attempt(lambda: checkpoints._manifest(path.parent))
    assert failed
    raise ConfigError(f"load of {path} failed: {failed}", hint="whether the file is whole")


def header(path: Path) -> object:
    failed = file_folder.attempt(lambda: npy._read_header(path))
    assert failed
    raise ConfigError(f"load of {path} failed: {failed}", hint="whether the file is whole")


def recorded(path: Path) -> object:
    recorder = Recorder(path.parent, path.name.split(".")[0], 0, True)
    try:
        return recorder.verdict(0) if path.name.endswith("verdicts") else recorder.next(FIELD)
    finally:
        for file in recorder._files.values():
            file.close()


READERS: dict[str, Callable[[Path], object]] = {
    "tuned": tuned.kept,
    "machine": lambda path: machine(str(path)),
    "spec": read_spec,
    "manifest": manifest,
    "npy": header,
    "recorded": recorded,
    "verdicts": recorded,
    "weights": Weights.load,
    "port": lambda path: jobs._read(path, jobs._ENTRY, "connect"),
    "schedules": lambda path: registry.load(str(path)),
}
NAMES = {"recorded": "a.0.T", "verdicts": "a.0..verdicts", "schedules": "own.py"}
DAMAGE = {
    "nothing in it": b"",
    "zeros": bytes(1 << 12),
    "noise": bytes(range(255, 127, -1)) * 4,
    "a cut text": b'{"mpi": "x", "ranks": {"2": ',
    "a number": b"3",
    "a list": b"[[1, 2], 3]",
    "a table of nothing": b'{"nothing": {}}',
    "brackets without end": b"[" * 100_000,
    "an archive": b"PK\x03\x04" + bytes(100),
}


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_file_is_an_error_with_its_name_and_what_to_do(
    tmp_path: Path, reader: str, damage: str
) -> None:
    path = tmp_path / NAMES.get(reader, "damaged.file")
    path.write_bytes(DAMAGE[damage])
    if reader == "schedules" and damage in ("nothing in it", "a number", "a list", "a table of nothing"):
        return  # right Python that registers nothing
    with pytest.raises((ConfigError, UsageError)) as told:
        READERS[reader](path)
    assert path.name in str(told.value)
    assert "try:" in str(told.value)


def tables(rows: object) -> str:
    return json.dumps({"mpi": "x", "ranks": {"2": {"scan": rows}}})


TUNED = {
    json.dumps({"mpi": 3, "ranks": {}}): "it has no .mpi.",
    json.dumps({"mpi": "x", "ranks": []}): '"ranks" is \\[\\], no table',
    json.dumps({"mpi": "x", "ranks": {"2": [1]}}): "'2' ranks is \\[1\\], no table",
    tables([[8]]): "scan of 2 ranks has \\[8\\], not \\[bytes, algorithm\\]",
    tables([[8, "ring", 1]]): "has \\[8, 'ring', 1\\]",
    tables([["8", "ring"]]): "has \\['8', 'ring'\\]",
    tables([[8, 9]]): "has \\[8, 9\\]",
    tables([8]): "has 8, not",
    tables([]): "has \\[\\], not",
    tables("ring"): "has 'ring', not",
    json.dumps({"mpi": "x", "ranks": {}, "records": [{"verb": "scan"}]}): "a record is {'verb': 'scan'}",
}


@pytest.mark.parametrize("text", TUNED)
def test_each_row_of_a_tuned_table_is_checked(tmp_path: Path, text: str) -> None:
    path = tmp_path / "tuned.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=f"cannot be read: {path}: .*{TUNED[text]}") as told:
        tuned.kept(path)
    assert told.value.hint == "remove it; hpcomm tune writes a new one"
    with pytest.raises(ConfigError, match=TUNED[text]):  # before it measures
        tune.main(["-o", str(path)])


def test_a_damaged_table_in_the_cache_is_replaced_by_what_was_measured(tmp_path: Path, capsys: Any) -> None:
    path = tmp_path / "tuned.json"
    path.write_text("{")
    row: Any = {"verb": "scan", "bytes": 8, "ranks": 2, "algorithm": "", "seconds": 1.0, "chosen": True}
    for ranks in (2, 3):
        tune._keep(path, {"mpi": "x", "path": "", "records": [row | {"ranks": ranks}]}, ranks)
    assert "it is replaced" in capsys.readouterr().err
    assert tuned.kept(path) == json.loads(path.read_text())
    assert len(json.loads(path.read_text())["records"]) == 2


RIGHT = {
    "format": 1,
    "step": 3,
    "metadata": {},
    "fields": {"T": {"shape": [3], "dtype": "f", "checksum": "0"}},
}
FORGED: dict[str, tuple[dict[str, object], str]] = {
    "no format": ({"format": None}, "it has format None, this hpcomm reads 1"),
    "no step": ({"step": "3"}, "its manifest has no step"),
    "no metadata": ({"metadata": 3}, "its manifest has no metadata"),
    "no fields": ({"fields": []}, "its manifest has no fields"),
    "no entry": ({"fields": {"T": 3}}, "field 'T' in its manifest has no shape"),
    "no shape": ({"fields": {"T": {"shape": 3}}}, "field 'T' in its manifest has no shape"),
    "no checksum": (
        {"fields": {"T": {"shape": [3], "dtype": "f"}}},
        "field 'T' in its manifest has no checksum",
    ),
}


@pytest.mark.parametrize("case", FORGED)
def test_a_forged_manifest_says_what_it_lacks(tmp_path: Path, case: str) -> None:
    changed, words = FORGED[case]
    for made, expected in ((RIGHT, ""), (RIGHT | changed, words)):
        text = json.dumps(made)
        (tmp_path / "manifest.json").write_text(f"{text}\n{zlib.crc32(text.encode()):08x}\n")
        assert file_folder.attempt(lambda: checkpoints._manifest(tmp_path)) == expected


MACHINES = {
    '{"curve": [[1, 2, 3]]}': "curve is",
    '{"curve": 3}': "curve is 3",
    '{"families": [1]}': "families is",
    '{"families": {"ring": 3}}': "the family 'ring' is 3",
    '{"families": {"ring": {"nod": 3}}}': "the family 'ring' is {'nod': 3}",
    '{"families": {"ring": {"node": 0}}}': "node is 0",
    '{"nodewise": 3}': "nodewise is 3",
    '{"name": 3}': "name is 3",
    '{"overhead": Infinity}': "overhead is inf",
    '{"overhead": NaN}': "overhead is nan",
}


@pytest.mark.parametrize("text", MACHINES)
def test_each_value_of_a_machine_is_checked(tmp_path: Path, text: str) -> None:
    path = tmp_path / "mine.json"
    path.write_text(text)
    with pytest.raises(ConfigError, match=MACHINES[text]):
        machine(str(path))


@pytest.mark.parametrize("text", ["", "{", "[1]", "[[1, 2]]", '{"send": ""}', '{"send": 3}', "[" * 100_000])
def test_a_damaged_cache_of_trials_is_tried_again(tmp_path: Path, monkeypatch: Any, text: str) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    tried = dict.fromkeys(cuda_aware.OPERATIONS, "")
    calls: list[object] = []
    monkeypatch.setattr(cuda_aware, "try_all", lambda run: calls.append(run) or tried)
    assert cuda_aware._kept_or_tried() == cuda_aware._kept_or_tried() == tried
    (kept,) = (tmp_path / "hpcomm").iterdir()
    kept.write_text(text)
    assert cuda_aware._kept_or_tried() == cuda_aware._kept_or_tried() == tried
    assert len(calls) == 2


HEADS = {
    (1 << 40, 1 << 40): "it has 128 bytes, 9,671,406,556,917,033,397,649,536 are needed",
    (-3,): r"its shape is \(-3,\)",
    (17,): "it has 128 bytes, 264 are needed: it was cut off",
}


@pytest.mark.parametrize("shape", HEADS)
def test_the_shape_in_an_npy_file_is_checked_before_memory_is_made(tmp_path: Path, shape: Any) -> None:
    path = tmp_path / "x.npy"
    with path.open("wb") as file:
        np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": shape})
    said = file_folder.attempt(lambda: npy._read_header(path))
    assert HEADS[shape].replace("\\", "") in said


def test_elements_that_no_field_has_are_named(tmp_path: Path) -> None:
    for kind in ("U3", "M8[s]", "i4,f4"):
        np.save(tmp_path / "x.npy", np.zeros(3, kind))
        assert not file_folder.attempt(lambda: npy._read_header(tmp_path / "x.npy"))
    for kind in ("O", "i4,O"):
        np.save(tmp_path / "x.npy", np.zeros(3, kind))
        assert "which no field does" in file_folder.attempt(lambda: npy._read_header(tmp_path / "x.npy"))

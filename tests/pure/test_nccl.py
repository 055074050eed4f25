"""The calls of hpcomm/device/nccl.py, against a stand-in for libnccl that a C compiler makes of libnccl.c."""

from __future__ import annotations

import os
import re
import site
import subprocess
import sys
from ctypes import POINTER, c_int, c_size_t, c_uint64, c_void_p
from pathlib import Path

import pytest
from test_cuda import compiled

import hpcomm
from hpcomm.device import nccl

HERE = Path(__file__).parent
RANK = """
import sys
from pathlib import Path
import numpy as np
import hpcomm
from hpcomm.device.cuda import CudaDriver
from hpcomm.device.nccl import Collective
from hpcomm.core.dtypes import BY_NAME

rank, p, unique = int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3])
device = CudaDriver(sys.argv[4] or None).device(0)
group = device.nccl().group(unique, p, rank)
n, stream, base = 5, device.stream(), device.allocate(4096)
host = device.pinned(4096)
at = int(host.__array_interface__["data"][0])


def on_device(array):
    host[: array.nbytes] = array.reshape(-1).view(np.uint8)
    device.copy(base, at, array.nbytes, stream)


def back(shape, dtype, offset=0):
    device.copy(at, base + offset, int(np.prod(shape)) * np.dtype(dtype).itemsize, stream)
    return host.view(dtype)[: int(np.prod(shape))].reshape(shape).copy()


for dtype in ("float32", "int64", "complex64", "uint8"):
    kind = BY_NAME[dtype]
    x = [(np.arange(p * n).reshape(p, n) + 10 * r).astype(dtype) for r in range(p)]
    for op, fold in (("SUM", np.add), ("MAX", np.maximum)):
        if dtype == "complex64" and op == "MAX":
            continue
        on_device(x[rank][0])
        group.carry(Collective("all_reduce", n, kind, op, 0), base, stream)
        assert (back((n,), dtype) == fold.reduce([each[0] for each in x])).all()
    on_device(x[rank][0])
    group.carry(Collective("reduce", n, kind, "SUM", p - 1), base, stream)
    assert rank != p - 1 or (back((n,), dtype) == sum(each[0] for each in x)).all()
    on_device(x[rank])
    group.carry(Collective("reduce_scatter", n, kind, "SUM", 0), base, stream)
    assert (back((n,), dtype, rank * x[0][0].nbytes) == sum(each[rank] for each in x)).all()
    on_device(x[rank][0])
    group.carry(Collective("broadcast", n, kind, None, p - 1), base, stream)
    assert (back((n,), dtype) == x[p - 1][0]).all()
    whole = np.stack([each[r] for r, each in enumerate(x)])
    for verb in ("all_gather", "gather"):
        on_device(x[rank])
        group.carry(Collective(verb, n, kind, None, 0), base, stream)
        assert (verb == "gather" and rank) or (back((p, n), dtype) == whole).all(), verb
    on_device(x[rank])
    group.carry(Collective("scatter", n, kind, None, p - 1), base, stream)
    assert (back((n,), dtype, rank * x[0][0].nbytes) == x[p - 1][rank]).all()
    on_device(x[rank])
    group.carry(Collective("all_to_all", n, kind, None, 0), base, stream)
    assert (back((p, n), dtype, x[0].nbytes) == np.stack([each[rank] for each in x])).all()

on_device(x[rank])
for peer, first, count in (((rank + 1) % 2, 0, 1), ((rank + 1) % 2, 1, 2)) if p == 2 else ():
    part = base + first * x[0][0].nbytes, count * x[0][0].nbytes, peer, stream
    group.send(*part) if rank == 0 else group.recv(*part)
if p == 2 and rank == 1:
    assert (back((p, n), dtype) == x[0]).all()

for name, arguments in {
    "calls that do not match": (Collective("all_reduce", n + (rank == 1), kind, "SUM", 0), base, stream),
    "no stream": (Collective("all_reduce", n, kind, "SUM", 0), base, 0),
    "host memory": (Collective("all_reduce", n, kind, "SUM", 0), at, stream),
    "no such root": (Collective("broadcast", n, kind, None, p), base, stream),
}.items() if p > 2 else ():
    try:
        group.carry(*arguments)
        raise SystemExit(f"{name}: not told")
    except hpcomm.TransportError as error:
        assert "invalid usage" in str(error) if "match" in name else "invalid argument" in str(error), error
group.close()
print("right by", device.nccl().library.by.replace(",", " ").split()[0])
"""


@pytest.fixture(scope="module")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("nccl")
    cuda = compiled(folder / "libcuda.so.1")
    library = compiled(folder / "libnccl.so.2", source=HERE / "libnccl.c")
    return {"FAKE_LIBCUDA": str(cuda), "HPCOMM_NCCL": str(library)}


@pytest.mark.parametrize("by", ["ctypes", "nccl4py"])
@pytest.mark.parametrize("p", [2, 3])  # messages want a group of two
def test_every_verb_gives_what_it_should_and_mistakes_are_told(
    libraries: dict[str, str], p: int, by: str
) -> None:
    environ, path = {**os.environ, **libraries}, libraries["FAKE_LIBCUDA"]
    if by == "nccl4py":
        pytest.importorskip("nccl.bindings", reason="nccl4py is not installed")
        if list(Path(site.getsitepackages()[0]).glob("nvidia/**/libnccl.so*")):
            pytest.skip("nccl4py takes the NCCL of a wheel instead of the stand-in")
        environ["LD_LIBRARY_PATH"], path = str(Path(path).parent), ""  # where it looks for both libraries
        del environ["HPCOMM_NCCL"]
    unique = nccl.Nccl(libraries["HPCOMM_NCCL"]).unique().hex()
    ranks = [
        subprocess.Popen(
            [sys.executable, "-c", RANK, str(rank), str(p), unique, path],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
            env={**environ, "PYTHONPATH": str(HERE.parents[1])},
        )
        for rank in range(p)
    ]  # fmt: skip
    said = [rank.communicate(timeout=60)[0] for rank in ranks]
    assert said == [f"right by {by}\n"] * p


def test_a_library_that_is_not_there_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HPCOMM_NCCL", "libnccl-that-is-not-there.so")
    with pytest.raises(hpcomm.ConfigError, match="NCCL cannot be loaded"):
        nccl.Nccl()
    with pytest.raises(hpcomm.ConfigError, match="has no nccl"):
        nccl.Nccl("libc.so.6")


TYPES = {
    "int": c_int, "ncclResult_t": c_int, "size_t": c_size_t, "uint64_t": c_uint64, "ncclComm_t": c_void_p,
    "void *": c_void_p, "ncclUniqueId": nccl.UniqueId, "int *": POINTER(c_int),
    "ncclUniqueId *": POINTER(nccl.UniqueId), "ncclComm_t *": POINTER(c_void_p),
}  # fmt: skip


def test_every_signature_has_the_types_of_its_twin_in_c() -> None:
    pattern = r"^(?:ncclResult_t|const char \*) ?(nccl\w+)\(([^)]*)\)"
    twins = dict(re.findall(pattern, (HERE / "libnccl.c").read_text(), re.MULTILINE))
    assert {
        name: [
            TYPES[re.sub(r"\w+$", "", each.strip()).strip()]
            for each in arguments.split(",")
            if each != "void"
        ]
        for name, arguments in twins.items()
    } == nccl.SIGNATURES

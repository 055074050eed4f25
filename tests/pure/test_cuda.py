"""The calls of hpcomm/device/cuda.py, against a stand-in for libcuda that a C compiler makes of libcuda.c.

It faults where the host touches device memory, needs a current context where CUDA does, and hands memory
and events from process to process.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_uint, c_uint64, c_void_p
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import hpcomm
from hpcomm.device import cuda, driver
from hpcomm.device.cuda import CudaDriver

BOUND = bool(os.environ.get("FAKE_CUDA_BOUND"))  # this is the run by NVIDIA's bindings
SOURCE = Path(__file__).with_name("libcuda.c")
HEADERS = [Path("/usr/local/cuda/include"), Path("/opt/cuda/include"), Path("/usr/include")]


def compiled(target: Path, *options: str, source: Path = SOURCE) -> Path:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    done = subprocess.run(
        [compiler, "-shared", "-fPIC", "-w", *options, "-o", str(target), str(source)],
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return target


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if BOUND:
        return Path(os.environ["LD_LIBRARY_PATH"], "libcuda.so.1")
    return compiled(tmp_path_factory.mktemp("cuda") / "libcuda.so.1")


@pytest.fixture(scope="module")
def known(library: Path) -> CudaDriver:
    driver = CudaDriver(None if BOUND else str(library))
    assert driver.library.by.startswith("cuda-bindings" if BOUND else "ctypes")
    return driver


def python(library: Path, code: str, *words: str, **environ: str) -> subprocess.CompletedProcess[str]:
    """Run code in another process, with `known` as the driver."""
    path = None if BOUND else str(library)
    head = f"import sys; from hpcomm.device.cuda import CudaDriver; known = CudaDriver({path!r})\n"
    return subprocess.run(
        [sys.executable, "-c", head + code, *words], capture_output=True, text=True, timeout=60, check=False,
        env={**environ, "PYTHONPATH": str(SOURCE.parents[2]), "LD_LIBRARY_PATH": str(library.parent)},
    )  # fmt: skip


def test_all_of_this_goes_by_nvidias_bindings_as_well(library: Path) -> None:
    """In a process of its own, which finds the stand-in where it looks for the driver."""
    pytest.importorskip("cuda.bindings", reason="cuda-bindings are not installed")
    if BOUND:
        pytest.skip("this is it")
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", __file__],
        capture_output=True, text=True, timeout=100, check=False,
        env={**os.environ, "FAKE_CUDA_BOUND": "1", "LD_LIBRARY_PATH": str(library.parent)},
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr


def address(array: np.ndarray) -> int:
    return int(array.__array_interface__["data"][0])


def test_the_stand_in_has_the_signatures_of_cudas_own_header(tmp_path: Path) -> None:
    found = next((each for each in HEADERS if (each / "cuda.h").exists()), None)
    if found is None:
        pytest.skip("there is no cuda.h here to compare with")
    compiled(tmp_path / "library.so", "-DWITH_CUDA_H", f"-I{found}")


def test_memory_goes_there_and_back_in_any_thread_with_any_context(known: CudaDriver) -> None:
    device = known.device(1)
    assert (device.name, device.identity()) == ("stand-in 1", bytes([41]) * 16)
    given, back = device.pinned(1000), device.pinned(1000)
    given[:] = np.arange(1000) % 251
    there, elsewhere = device.allocate(1000), device.allocate(1000)
    stream, event = device.stream(), device.event()
    device.copy(there, address(given), 1000, stream)
    device.copy(elsewhere, there, 1000, stream)
    device.record(event, stream)
    device.wait(driver.DEFAULT_STREAM, event)
    device.copy(address(back), elsewhere, 1000, stream)
    device.synchronize(event)
    assert device.query(event)
    assert back.tolist() == given.tolist()
    assert known.device_of(there + 5) == 1
    assert device.range(there + 5) == (there, 2 << 20)
    assert device.serial(there + 5) == device.serial(there) != device.serial(elsewhere)
    assert not device.is_capturing(stream)
    device.destroy_event(event)
    device.unpin(back)
    device.free(there)
    serials = set()
    for _ in range(8):  # Linux gives the same addresses again, as CUDA may
        again = device.allocate(2 << 20)
        serials.add(device.serial(again))
        device.free(again)
    assert len(serials) == 8
    with pytest.raises(
        hpcomm.TransportError, match="cuMemGetAddressRange_v2 failed: CUDA_ERROR_INVALID_VALUE"
    ):
        device.range(there)


def test_an_address_of_the_host_is_refused(known: CudaDriver) -> None:
    for array in (np.zeros(3), known.device(0).pinned(3)):
        with pytest.raises(hpcomm.LayoutError, match="no memory of a CUDA device"):
            known.device_of(address(array))


def test_what_cannot_be_exported_says_so(known: CudaDriver) -> None:
    device = known.device(0)
    assert device.can_export(device.allocate(1000))
    assert not device.can_export(device.allocate(6 << 20))  # the stand-in's word for memory of a pool


def test_the_host_faults_on_device_memory(library: Path) -> None:
    code = "import ctypes; ctypes.string_at(known.device(0).allocate(8), 8)"
    assert python(library, code).returncode == -signal.SIGSEGV


def test_another_process_opens_memory_and_events_by_handle(known: CudaDriver, library: Path) -> None:
    device = known.device(0)
    there, stream, host = device.allocate(100), device.stream(), device.pinned(100)
    host[:] = 7
    device.copy(there, address(host), 100, stream)
    event = device.event(interprocess=True)
    with pytest.raises(hpcomm.TransportError, match="cuEventQuery failed"):
        device.query(event)
    code = """
device = known.device(0)
there, event = device.open(bytes.fromhex(sys.argv[1])), device.open_event(bytes.fromhex(sys.argv[2]))
host, stream = device.pinned(100), device.stream()
at = host.__array_interface__["data"][0]
device.copy(at, there, 100, stream)
host += 1
device.copy(there, at, 100, stream)
device.record(event, stream)
device.close(there)
"""
    handles = device.export(there).hex(), device.export_event(event).hex()
    done = python(library, code, *handles)
    assert done.returncode == 0, done.stderr
    assert device.query(event)
    device.copy(address(host), there, 100, stream)
    assert set(host.tolist()) == {8}
    with pytest.raises(hpcomm.TransportError, match="INVALID_HANDLE"):
        device.open(bytes.fromhex(handles[0]))  # its own


def test_a_driver_that_is_too_old_or_not_there_says_so(library: Path) -> None:
    assert "the driver speaks CUDA 11.8" in python(library, "", FAKE_CUDA_VERSION="11080").stderr
    with pytest.raises(hpcomm.ConfigError, match="cannot be loaded"):
        CudaDriver("libcuda-that-is-not-there.so")
    with pytest.raises(hpcomm.ConfigError, match="has no cu"):
        CudaDriver("libc.so.6")
    busy = "d = known.device(0); e = d.event(); d.record(e, d.stream()); print(d.query(e))"
    assert python(library, busy, FAKE_CUDA_BUSY="1").stdout == "False\n"


TYPES = {  # as C spells them
    "int": c_int, "unsigned int": c_uint, "size_t": c_size_t, "char *": c_char_p, "const char **": c_char_p,
    "void *": c_void_p, "void **": c_void_p, "int *": c_int, "size_t *": c_size_t, "CUresult": c_int,
    "CUdevice": c_int, "CUdeviceptr": c_uint64, "CUcontext": c_void_p, "CUstream": c_void_p,
    "CUevent": c_void_p, "CUpointer_attribute": c_int, "CUstreamCaptureStatus": c_int, "CUuuid": cuda.Uuid,
    "CUipcMemHandle": cuda.Handle, "CUipcEventHandle": cuda.Handle,
}  # fmt: skip


def type_of(argument: str) -> Any:
    """`CUdeviceptr *at` -> the type that ctypes hands over."""
    spelt = re.sub(r"\w+$", "", argument.strip()).strip()
    if spelt in ("char *", "void *"):
        return TYPES[spelt]
    return POINTER(TYPES.get(spelt) or TYPES[spelt.rstrip(" *")]) if "*" in spelt else TYPES[spelt]


def test_every_signature_has_the_types_of_its_twin_in_c() -> None:
    twins = dict(re.findall(r"^CUresult (\w+)\(([^)]*)\)", SOURCE.read_text(), re.MULTILINE))
    types = {name: [type_of(each) for each in arguments.split(",")] for name, arguments in twins.items()}
    assert types["cuPointerGetAttribute"][0] is c_void_p
    types["cuPointerGetAttribute"][0] = POINTER(c_uint64)  # it writes what depends on what is asked for
    assert types == cuda.SIGNATURES


def test_a_thread_without_a_context_may_ask_for_and_wait_for_everything(known: CudaDriver) -> None:
    device = known.device(0)
    there, event, stream = device.allocate(8), device.event(interprocess=True), device.stream()
    device.record(event, stream)
    said: list[Any] = []

    def ask() -> None:
        said.extend([known.device_of(there), device.query(event), device.can_export(there)])
        device.synchronize(event)
        device.export_event(event)
        device.destroy_event(event)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert said == [1, True, True]


def test_what_is_exported_shares_nothing_else(known: CudaDriver) -> None:
    """CUDA exports whole blocks of 2 MiB, of which it carves small allocations."""
    device = known.device(0)
    there = device.allocate(1000)
    assert device.range(there)[1] == 2 << 20
    assert device.export(there)
    with pytest.raises(hpcomm.TransportError, match="cuIpcGetMemHandle failed"):
        device.export(there + 8)  # no allocation begins there

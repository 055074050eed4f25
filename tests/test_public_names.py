"""What hpcomm offers: every name is there, documented, sorted, and spelt by the house's law."""

from __future__ import annotations

import importlib
import inspect
import pkgutil
import re
import subprocess
import sys
from pathlib import Path

import pytest

import hpcomm

PROMISED = {
    "ANY_SOURCE",
    "ANY_TAG",
    "PROC_NULL",
    "ROOT",
    "Algorithm",
    "Box",
    "Communicator",
    "ConfigError",
    "DtypeError",
    "Field",
    "Halo",
    "HpcommError",
    "LayoutError",
    "Mesh",
    "MismatchError",
    "Op",
    "P2POp",
    "Partition",
    "PeerFailedError",
    "Plan",
    "Points",
    "RankError",
    "Redistribution",
    "Request",
    "Status",
    "TransportError",
    "UsageError",
    "WaitTimeoutError",
    "as_buffer",
    "as_process_group",
    "batch_isend_irecv",
    "from_torch",
    "join",
    "premul_sum",
    "self_",
    "trace",
    "wait_all",
    "wait_any",
    "world",
}
PUBLIC_MODULES = {
    *("checkpoint", "compat", "differentiable", "hdf5", "io", "machine", "mpmd", "regrid", "simulate", "zarr")
}
NEEDS_MPI = {"ANY_SOURCE", "ANY_TAG", "PROC_NULL", "ROOT", "self_", "world"}
COLLECTIVES = {
    "broadcast",
    "reduce",
    "all_reduce",
    "gather",
    "all_gather",
    "scatter",
    "reduce_scatter",
    "all_to_all",
    "scan",
    "exscan",
    "barrier",
    "all_reduce_loc",
    "same",
}
P2P = {"send", "recv", "isend", "irecv", "sendrecv", "probe", "iprobe", "batch_isend_irecv"}
OBJECTS = {
    f"{verb}_object"
    for verb in (
        "send",
        "recv",
        "isend",
        "irecv",
        "sendrecv",
        "probe",
        "iprobe",
        "broadcast",
        "gather",
        "all_gather",
        "scatter",
        "all_to_all",
        "reduce",
        "all_reduce",
    )
}
RAGGED = {
    f"{verb}_ragged"
    for verb in (
        "send",
        "recv",
        "isend",
        "irecv",
        "broadcast",
        "gather",
        "all_gather",
        "scatter",
        "all_to_all",
        "reduce_scatter",
    )
}
MAKING = {
    "split",
    "split_node",
    "group",
    "dup",
    "create_intercomm",
    "merge",
    "close",
    "observe",
    "plan",
    "shared_array",
    "window",
    "counter",
    "pool",
} | {
    "mesh",
    "cart",
    "graph",
    "spawn",
    "as_process_group",
    "shrink",
    "agree",
    "revoke",
}
ATTRIBUTES = {
    "rank",
    "size",
    "name",
    "mpi",
    "is_inter",
    "remote_size",
    "check",
    "timeout",
    "order",
    "is_closed",
    "context",
}
ALIASES = {
    "allreduce",
    "bcast",
    "allgather",
    "alltoall",
    "Split",
    "Dup",
    "Free",
    "Get_rank",
    "Get_size",
    "Get_name",
    "Barrier",
    "Abort",
    "reduce_scatter_block",
}
FORBIDDEN = re.compile(r"Manager|Helper|Utils?\b|Base\b|Impl\b")
MODULES = [
    found.name
    for found in pkgutil.walk_packages(hpcomm.__path__, "hpcomm.")
    if not found.name.startswith(("hpcomm.apps", "hpcomm.__main__"))
]


def test_all_holds_every_promised_name_and_is_sorted_as_ruff_sorts() -> None:
    assert set(hpcomm.__all__) >= PROMISED
    constants = [name for name in hpcomm.__all__ if name.isupper()]
    classes = [name for name in hpcomm.__all__ if name[0].isupper() and not name.isupper()]
    functions = [name for name in hpcomm.__all__ if not name[0].isupper()]
    assert hpcomm.__all__ == sorted(constants) + sorted(classes) + sorted(functions)


@pytest.mark.parametrize("name", sorted(set(hpcomm.__all__) - NEEDS_MPI))
def test_a_public_name_exists_and_is_documented(name: str) -> None:
    found = getattr(hpcomm, name)
    assert inspect.getdoc(found)
    assert name in dir(hpcomm)


def test_the_package_shows_its_public_names_and_nothing_else() -> None:
    shown = {name for name in dir(hpcomm) if not name.startswith("_")}
    assert shown == {*hpcomm.__all__, "errors"} | PUBLIC_MODULES


def test_names_that_need_mpi_are_found_without_bringing_it_up() -> None:
    code = (
        "import sys, hpcomm; assert {'world', 'self_', 'PROC_NULL'} <= set(dir(hpcomm));"
        "assert 'mpi4py.MPI' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60)


def test_an_unknown_name_is_an_attribute_error_like_any_modules() -> None:
    with pytest.raises(AttributeError, match="module 'hpcomm' has no attribute 'wrold'"):
        hpcomm.wrold  # noqa: B018
    with pytest.raises(ImportError):
        from hpcomm import wrold  # noqa: F401


def test_a_communicator_shows_its_verbs_and_attributes_and_nothing_else() -> None:
    shown = {name for name in dir(hpcomm.Communicator) if not name.startswith("_")}
    assert shown == COLLECTIVES | P2P | OBJECTS | RAGGED | MAKING | ALIASES | ATTRIBUTES
    text = inspect.getdoc(hpcomm.Communicator) or ""
    assert [name for name in ATTRIBUTES if not re.search(rf"\b{name}\b.*:", text)] == []


@pytest.mark.parametrize("name", sorted(COLLECTIVES | P2P | OBJECTS | RAGGED | MAKING | ALIASES))
def test_what_a_communicator_does_is_a_method(name: str) -> None:
    assert next(iter(inspect.signature(getattr(hpcomm.Communicator, name)).parameters)) == "self"


@pytest.mark.parametrize("name", sorted(COLLECTIVES | P2P | OBJECTS | RAGGED | MAKING))
def test_a_verb_is_documented_and_its_options_may_be_left_away(name: str) -> None:
    verb = getattr(hpcomm.Communicator, name)
    text = inspect.getdoc(verb)
    assert text
    assert text.splitlines()[0].endswith((".", ":"))
    parameters = inspect.signature(verb).parameters
    for option in ("out", "async_op", "status", "dtype", "shape"):
        first = (option == "out" and name in ("recv", "irecv")) or (
            option == "shape" and name in ("cart", "shared_array", "window")
        )
        if option in parameters and not first:
            assert parameters[option].default is not inspect.Parameter.empty, option


def test_the_reference_has_every_public_name() -> None:
    pages = (Path(__file__).parent.parent / "docs/reference").glob("*.md")
    found = {
        name
        for page in pages
        for name in re.findall(r"^\.\. [\w:]+:: ([\w.]+)", page.read_text(), re.MULTILINE)
    }
    verbs = {f"Communicator.{name}" for name in COLLECTIVES | P2P | OBJECTS | RAGGED | MAKING}
    assert ({*hpcomm.__all__} | verbs) - found == set()


def test_aliases_are_the_verbs_themselves() -> None:
    c = hpcomm.Communicator
    for alias, verb in (c.allreduce, c.all_reduce), (c.bcast, c.broadcast), (c.allgather, c.all_gather):
        assert alias.__wrapped__ is verb  # type: ignore[attr-defined]  # which looks at what it was given before
    assert c.alltoall.__wrapped__ is c.all_to_all  # type: ignore[attr-defined]
    assert c.Barrier is c.barrier


@pytest.mark.parametrize("name", MODULES)
def test_a_module_says_in_one_sentence_what_it_is(name: str) -> None:
    if name.startswith("hpcomm.transport.mpi"):
        pytest.skip("importing it brings MPI up; its __all__ is read with the others under MPI")
    module = importlib.import_module(name)
    assert module.__doc__
    names = getattr(module, "__all__", [])
    assert all(hasattr(module, each) for each in names)
    assert len(set(names)) == len(names)
    public = [
        each
        for each, value in vars(module).items()
        if not each.startswith("_") and inspect.isclass(value) and value.__module__ == name
    ]
    assert [each for each in public if FORBIDDEN.search(each)] == []


def test_the_version_is_one_that_installers_understand() -> None:
    assert re.fullmatch(r"\d+\.\d+\.\d+([ab.]\w+)?", hpcomm.__version__)


def test_modules_of_the_package_come_when_they_are_asked_for() -> None:
    """In a fresh process: others may have imported them here."""
    code = "import hpcomm; print(*(hasattr(getattr(hpcomm, name), '__path__') for name in hpcomm._MODULES))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    public = {each.name for each in pkgutil.iter_modules(hpcomm.__path__) if not each.name.startswith("_")}
    assert (
        public
        >= set(hpcomm._MODULES)
        >= {"checkpoint", "hdf5", "io", "machine", "regrid", "simulate", "zarr"}
    )

"""What hpcomm offers: every name is there, documented, sorted, and spelt by the house's law."""

from __future__ import annotations

import ast
import importlib
import inspect
import pkgutil
import pydoc
import re
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from textwrap import dedent

import pytest

import hpcomm

DOCS = Path(__file__).parent.parent / "docs"
sys.path.insert(0, str(DOCS))
import _signatures  # noqa: E402

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


def directives() -> list[tuple[str, str, str, str]]:
    """What the reference describes: what it is, its name, "()" of a class that no user calls, options."""
    form = re.compile(r"^\.\. [\w:]*?(\w+):: ([\w.]+)(\(\))?((?:\n   .*)*)", re.MULTILINE)
    return [each for page in (DOCS / "reference").glob("*.md") for each in form.findall(page.read_text())]


def documented() -> dict[type, set[str]]:
    """What the reference shows of each class: members, attributes, arguments of those that are called."""
    found: dict[type, set[str]] = {}
    for what, name, closed, options in directives():
        if what not in ("autoclass", "autoexception", "automethod"):
            continue
        name, _, method = name.rpartition(".") if what == "automethod" else (name, "", "")
        kind = pydoc.locate(name if name.startswith("hpcomm.") else f"hpcomm.{name}")
        assert isinstance(kind, type)
        of = found.setdefault(kind, set())
        of |= {method, *re.findall(r"\w+", options.partition(":members:")[2])}
        attributes = (inspect.getdoc(kind) or "").partition("Attributes:\n")[2].partition("\n\n")[0]
        of |= {x for names in re.findall(r"^ {4}(\w[\w, ]*):", attributes, re.M) for x in names.split(", ")}
        with suppress(ValueError):  # of a class that is one of Python's but in name
            of |= {*inspect.signature(kind).parameters} if not closed else set()
    return found


def public_names(kind: type) -> set[str]:
    """What completion shows of an object of the class: names in it and its bases, and what methods set."""
    found: set[str] = set()
    for base in kind.__mro__:
        if base.__module__.startswith("hpcomm"):
            (tree,) = ast.parse(dedent(inspect.getsource(base))).body
            methods = [each for each in ast.iter_child_nodes(tree) if isinstance(each, ast.FunctionDef)]
            found |= {*vars(base), *inspect.get_annotations(base)} | {
                node.attr
                for method in methods
                for node in ast.walk(method)
                if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
                if isinstance(node.value, ast.Name) and node.value.id == "self"
            }
    return {name for name in found if not name.startswith(("_", "neighbor")) and name not in ALIASES}


def test_an_object_shows_what_the_reference_shows_of_its_class_and_nothing_else() -> None:
    shown = documented()
    assert len(shown) > 35
    extra = {}
    for kind in shown:
        known = {name for base in kind.__mro__ for name in shown.get(base, ())}
        if names := public_names(kind) - known:
            extra[f"{kind.__module__}.{kind.__name__}"] = names
    assert extra == {}


SIGNATURES = {  # parameters, of long ones a part, and what comes back
    "Communicator.all_reduce": (
        "(x: ArrayLike, op: Operator = 'sum', out: ArrayLike",
        "Array | Request[Array]",
    ),
    "Communicator.recv": ("dtype: object = None, shape: Shape | int | None", "Array | Request[Array]"),
    "Communicator.gather": ("root: int = 0, ", "Array | None | Request[Array | None]"),
    "Communicator.probe": ("(source: int | None = None, tag: int | None = None)", "Status"),
    "Field.sum": ("(*, deterministic: bool = False)", "np.float64 | np.complex128 | Any"),
    "Field": ("(ranks: Ranks, whole: Whole, *, split: Sequence[Split] | None = None, dtype: ", None),
    "Halo": ("(*fields: Field)", None),
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_signatures_on_the_site_have_types(name: str) -> None:
    of = pydoc.locate(f"hpcomm.{name}")
    what = "method" if "." in name else "class"
    text, back = _signatures.typed(None, what, name, of, None, "(x)", None) or ("", None)
    assert SIGNATURES[name][0] in text
    assert SIGNATURES[name][1] == back


def test_the_site_asks_for_signatures_and_calls_no_class_that_no_user_calls() -> None:
    assert '("autodoc-process-signature", _signatures.typed)' in (DOCS / "conf.py").read_text()
    assert _signatures.typed(None, "class", "Request", hpcomm.Request, None, "()", None) is None


def test_the_reference_has_every_public_name() -> None:
    found = {name for _, name, *_ in directives()}
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

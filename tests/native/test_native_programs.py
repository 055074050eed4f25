"""The core in programs of C: threads as ranks under sanitizers, deaths at each store, a model.

TEST_NATIVE=long tries more: more ranks and calls, every signal on both ways of long calls, larger models, and
each compiler at each level.
"""

import importlib.util
import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

HERE = Path(__file__).parent
CORE = HERE.parents[1] / "hpcomm/node/_native"
SOURCES = ["segment", "wait", "arrive", "reduce", "layout", "collective", "long", "direct", "request"]
SOURCES += ["share", "channel", "mail"]
FLAGS = [
    "-std=c11",
    "-g1",  # lines of stacks
    "-Wall",
    "-Wextra",
    "-Werror",
    "-fno-strict-aliasing",
    "-ffp-contract=off",
    "-pthread",
]
SMALL = ["-DMAIL_SLOTS=4", "-DMAIL_LONGS=2", "-DMAIL_EAGER=2000"]  # queues that are often full
FIVE_BITS = ["-O1", "-DNODE_NUMBER_BITS=5", "-DNODE_PLAIN", "-DNODE_STOPS"]
LONG = os.environ.get("TEST_NATIVE") == "long"
CALLS = "600" if LONG else "100"
BUILDS = {
    "thread": ("gcc", "threads", ["-O1", "-fsanitize=thread", "-DNODE_PLAIN", "-DNODE_STOPS", *SMALL]),
    "address": (
        "gcc",
        "threads",
        ["-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover", "-DNODE_PLAIN"],
    ),
    "five-bits": ("gcc", "threads", FIVE_BITS),
    "messages-thread": (
        "gcc",
        "messages",
        ["-O1", "-fsanitize=thread", "-DNODE_PLAIN", "-DNODE_STOPS", *SMALL],
    ),
    "messages-address": (
        "gcc",
        "messages",
        ["-O0", "-fsanitize=address,undefined", "-fno-sanitize-recover", "-DNODE_PLAIN"],
    ),
    "stops": ("gcc", "stops", FIVE_BITS),
    "aarch64": ("aarch64-linux-gnu-gcc", "threads", ["-O2", "-static"]),
}

pytestmark = pytest.mark.once


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Programs by the name of their build; those without their compiler are missing.

    All are compiled at once, and the core once for each list of flags.
    """
    folder = tmp_path_factory.mktemp("programs")
    sources = [str(CORE / f"{source}.c") for source in SOURCES]
    builds = {name: build for name, build in BUILDS.items() if shutil.which(build[0])}
    starts = {name: (compiler, *FLAGS, *flags, f"-I{CORE}") for name, (compiler, _, flags) in builds.items()}
    cores = {start: tmp_path_factory.mktemp("core") for start in starts.values()}
    at_once([[*start, "-c", *sources] for start in cores], [*cores.values()])
    at_once(
        [
            [*start, "-o", str(folder / name), str(HERE / f"{builds[name][1]}.c"), *cores[start].glob("*.o")]
            for name, start in starts.items()
        ]
    )
    return {name: str(folder / name) for name in builds}


def run(*command, timeout=100):
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stdout[-2000:]}{done.stderr[-4000:]}"
    return done.stdout


def at_once(commands, folders=None):
    """Compile side by side, each in its folder."""
    under_way = [
        subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True)
        for command, folder in zip(commands, folders or [None] * len(commands), strict=True)
    ]
    for process in under_way:
        said = process.communicate(timeout=400)[1]
        assert process.returncode == 0, f"{process.args}: {said}"


def need(built, name):
    if name not in built:
        pytest.skip(f"there is no {BUILDS[name][0]}")
    return built[name]


WAYS = [[], ["direct"], ["synchronous"]] + [["synchronous", "direct"]] * LONG


@pytest.mark.parametrize("way", WAYS, ids=" ".join)
@pytest.mark.parametrize("build", ["thread", "address", "five-bits"])
@pytest.mark.parametrize("ranks", [2, 3, 8] if LONG else [2, 3])
def test_random_calls_of_threads_as_ranks_are_right(built, build, ranks, way):
    run(need(built, build), str(ranks), CALLS, str(ranks * 1000 + len(way)), *way)


@pytest.mark.parametrize("way", [[], ["pieces"]], ids=" ".join)
@pytest.mark.parametrize("build", ["messages-thread", "messages-address"])
def test_random_messages_of_threads_as_ranks_are_right(built, build, way):
    for ranks in (2, 3, 8) if LONG else (3,):
        run(need(built, build), str(ranks), CALLS, str(ranks), *way)


# Where ranks run ahead, a call that was late on one rank may have passed on others.
STRIKES = [f"{signal} {way}" for signal in ("KILL", "INT") for way in ("", "ahead", "direct", "direct ahead")]


@pytest.mark.parametrize("strike", [*STRIKES, "STOP", "STOP direct"])
def test_a_rank_may_end_or_stand_still_or_be_interrupted_at_any_store(built, strike):
    every = "10" if "STOP" in strike and not LONG else "1"
    run(need(built, "stops"), "3", *strike.split(), every)
    if LONG:
        run(need(built, "stops"), "4", *strike.split())


def test_the_same_on_aarch64(built):
    program = need(built, "aarch64")
    emulator = shutil.which("qemu-aarch64-static") or shutil.which("qemu-aarch64")
    if not emulator:
        pytest.skip("there is no qemu for programs of aarch64")
    run(emulator, program, "3", "2000" if LONG else "100", "5")
    run(emulator, program, "2", "500" if LONG else "50", "6", "synchronous")


MODELS = [
    "-DP=2 -DCALLS=4 -DCELLS=2",
    "-DP=3 -DCALLS=4 -DCELLS=3 -DSYNC=0",
    "-DP=2 -DCALLS=4 -DCELLS=3 -DPENDING=2",
]
if LONG:
    MODELS += ["-DP=3 -DCALLS=3 -DCELLS=2", "-DP=2 -DCALLS=5 -DCELLS=3", "-DP=2 -DCALLS=7 -DCELLS=4 -DSYNC=0"]
    MODELS += ["-DP=2 -DCALLS=5 -DCELLS=4 -DSYNC=0 -DPENDING=2"]


def checked(folder, options, change=("", ""), model="protocol.pml"):
    if not shutil.which("spin"):
        pytest.skip("there is no spin")
    text = (CORE / model).read_text()
    assert change[0] in text
    (folder / model).write_text(text.replace(*change) if change[0] else text)
    subprocess.run(["spin", "-a", *options.split(), model], cwd=folder, check=True, timeout=30)
    level = "-O0" if change[0] else "-O2" if LONG else "-O1"  # compiling takes longer than most runs
    command = ["gcc", "-w", level, "-DSAFETY", "-DCOLLAPSE", "-o", "pan", "pan.c"]
    subprocess.run(command, cwd=folder, check=True, timeout=60)
    return subprocess.run(
        ["./pan", "-m1000000"], cwd=folder, capture_output=True, text=True, timeout=200
    ).stdout


@pytest.mark.parametrize("options", MODELS)
def test_the_model_of_the_protocol_has_no_error(tmp_path, options):
    assert "errors: 0" in checked(tmp_path, options)


# The one that is tried always shows that an error would be seen.
LEFT_OUT = [
    ("-DP=2 -DCALLS=5 -DSYNC=0", ("LAP(k) (((k) / CELLS) & 1)", "LAP(k) 0")),
    ("-DP=3 -DCALLS=1", ("(P > 2 -> 2 : 1)", "1")),  # pass without a second look
    # wait for one call less of those behind; take any signature for the call's
    (
        "-DP=2 -DCALLS=4 -DCELLS=2 -DSYNC=0",
        ("seen + CELLS < published + 1 + PENDING", "seen + CELLS < published + PENDING"),
    ),
    # count on calls that are in the background
    ("-DP=2 -DCALLS=5 -DCELLS=3 -DSYNC=0 -DPENDING=2", ("published + 1 + PENDING", "published + 2")),
]


@pytest.mark.parametrize(("options", "change"), LEFT_OUT if LONG else LEFT_OUT[:1])
def test_the_model_finds_a_step_that_is_left_out(tmp_path, options, change):
    assert "errors: 0" not in checked(tmp_path, options, change)


MESSAGES = ["-DP=2 -DM=2", "-DP=2 -DM=6 -DONE_WAY=1 -DSLOTS=4"]
MESSAGES += ["-DP=2 -DM=6 -DONE_WAY=1 -DWAITS=0", "-DP=2 -DM=3", "-DP=2 -DM=3 -DWAITS=0"] * LONG
MESSAGES += ["-DP=3 -DM=2 -DONE_WAY=1"] * LONG


@pytest.mark.parametrize("options", MESSAGES)
def test_the_model_of_messages_has_no_error(tmp_path, options):
    assert "errors: 0" in checked(tmp_path, options, model="messages.pml")


MESSAGES_LEFT_OUT = [
    ("-DP=2 -DM=2", ("seen = bell[me];\n        move();", "move();\n        seen = bell[me];")),
    ("-DP=2 -DM=2", ("taken[r] % HALF == 0 ->", "false ->")),  # let a sender wait for room unheard
    # take nothing while one sends; let many lie at a time
    ("-DP=2 -DM=3", ("IN.put == taken[r] -> break", "IN.put == taken[r] || begun < M -> break")),
    (
        "-DP=2 -DM=6 -DONE_WAY=1 -DWAITS=0",
        ("&& OUT.read == longs[r] ->\n           atomic", "->\n           atomic"),
    ),
]


@pytest.mark.parametrize(("options", "change"), MESSAGES_LEFT_OUT if LONG else MESSAGES_LEFT_OUT[:1])
def test_the_model_of_messages_finds_a_step_that_is_left_out(tmp_path, options, change):
    said = checked(tmp_path, options, change, "messages.pml")
    assert "errors: 1" in said


def same_layout(tmp_path, header, folder, alike):
    """The structures of array.c lie as in a header; alike: {"theirs, ours": members, or pairs of them}."""
    if not (Path(folder) / header).exists() or not shutil.which("gcc"):
        pytest.skip(f"no {header}, or no compiler")
    lines = [f'#include "{CORE}/array.c"', f"#include <{header}>"]
    for types, members in alike.items():
        theirs, ours = types.split(", ")
        for member in members:
            there, here = member if isinstance(member, tuple) else (member, member)
            lines.append(
                f'_Static_assert(offsetof({theirs}, {there}) == offsetof({ours}, {here}), "{here}");'
            )
    source = tmp_path / "layout.c"
    source.write_text("\n".join(lines))
    include = sysconfig.get_path("include")
    run("gcc", "-std=c11", "-fsyntax-only", f"-I{folder}", f"-I{include}", f"-I{CORE}", str(source))


def test_the_structures_of_dlpack_are_laid_out_as_in_torchs_header(tmp_path):
    if not (found := importlib.util.find_spec("torch")):  # which starts slowly
        pytest.skip("no torch")
    folder = Path(found.origin).parent / "include"
    if "DLPackExchangeAPI" not in (folder / "ATen/dlpack.h").read_text():
        pytest.skip("this torch has no exchange table")
    members = ["data", "device", "ndim", "dtype", "shape", "strides", "byte_offset"]
    alike = {
        "DLTensor, dl_tensor": members,
        "DLPackExchangeAPI, dl_exchange": [("dltensor_from_py_object_no_sync", "look")],
    }
    same_layout(tmp_path, "ATen/dlpack.h", folder, alike)


def test_the_structures_of_numpy_are_laid_out_as_in_its_header(tmp_path):
    numpy = pytest.importorskip("numpy")
    fields = [("dimensions", "shape"), ("strides", "steps"), ("descr", "dtype")]
    alike = {
        "PyArrayObject_fields, struct ndarray": ["data", *fields, "flags"],
        "PyArray_Descr, struct descr": [("byteorder", "order"), ("type_num", "number")],
    }
    same_layout(tmp_path, "numpy/ndarraytypes.h", numpy.get_include(), alike)


# The package, which other tests try, is built at -O3, mostly by gcc. -O0 keeps every store.
LEVELS = [("gcc", 0), ("clang", 3)]
if LONG:
    LEVELS = [(compiler, level) for compiler in ("gcc", "clang") for level in range(4)]
# What each build has to do: every operator on every type, every verb on short and long arrays, words, boxes,
# messages.
ESSENTIAL = (
    "(fold or folds or inputs_own or notice or definition_says and 2-0 or words or boxes or wrap or kept"
    " or told_apart) and not torch"  # whose arrays go the same way; its start takes longer than all the rest
)
WITH_ANOTHER_CORE = """
import importlib.machinery, importlib.util, sys, pytest
name, path, *words = "hpcomm.node._native.core", *sys.argv[1:]
loader = importlib.machinery.ExtensionFileLoader(name, path)
sys.modules[name] = importlib.util.module_from_spec(importlib.util.spec_from_loader(name, loader))
loader.exec_module(sys.modules[name])
from hpcomm.node._native import core
assert core.__file__ == path
sys.exit(pytest.main(words))
"""


@pytest.fixture(scope="module")
def modules(tmp_path_factory):
    """The module, by compiler and level; without the loops for wider vectors, which take most of the time."""
    folder = tmp_path_factory.mktemp("modules")
    commands = {}
    for compiler, level in LEVELS:
        if shutil.which(compiler):
            to = str(folder / f"{compiler}{level}.so")
            flags = [*FLAGS, f"-O{level}", "-DNODE_PLAIN", "-shared", "-fPIC", "-fvisibility=hidden"]
            sources = sorted(map(str, CORE.glob("*.c")))
            commands[to] = [compiler, *flags, f"-I{sysconfig.get_path('include')}", "-o", to, *sources]
    at_once([*commands.values()])
    return {Path(to).stem: to for to in commands}


@pytest.mark.parametrize(("compiler", "level"), LEVELS)
def test_the_core_is_right_whatever_compiler_and_level_built_it(modules, compiler, level):
    if f"{compiler}{level}" not in modules:
        pytest.skip(f"there is no {compiler}")
    tests = [str(HERE / "test_core.py"), str(HERE / "test_reductions_of_the_core.py")]
    words = ["-q", "-x", "-p", "no:cacheprovider", "-k", ESSENTIAL, *tests]
    done = run(sys.executable, "-c", WITH_ANOTHER_CORE, modules[f"{compiler}{level}"], *words, timeout=400)
    assert " passed" in done

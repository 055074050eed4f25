"""Registry of algorithms by name, for calls, proofs, simulation, drawing and tuning."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from functools import lru_cache, wraps
from inspect import signature
from pathlib import Path
from runpy import run_path
from traceback import extract_tb
from typing import Any

import numpy as np

from ..core.limits import SCHEDULE_PIECE
from ..errors import HpcommError, UsageError
from . import butterfly, ring, tree
from .combine import later, pipeline, reverse, sequence, turn
from .hierarchy import divide, two_level
from .stream import Schedule, Stream, ranks

Maker = Callable[..., Schedule]
_MADE: dict[str, dict[str, Maker]] = {}
_MOST_PIECES = 64
_EARLIER = {  # parameters of a Stream in definitions written before they had the field's words
    "first": "chunk", "advance": "chunk_step", "into": "dest_chunk", "drift": "dest_chunk_step",
    "march": "source_step", "hop": "dest_step", "times": "count", "land": "dest_stride",
    "base": "offset", "lodge": "dest_offset", "fold": "reduce",
}  # fmt: skip
_PIPELINES = {"double_tree": ("all_reduce", "broadcast", "reduce"), "ring": ("broadcast", "reduce")}


def register(name: str, verb: str) -> Callable[[Maker], Maker]:
    """Make an algorithm known under a name, for one verb.

    The function takes the number of ranks p, other parameters by keyword with defaults, and returns a
    Schedule, that of root 0. For rooted verbs it may take root, too; else other roots get that of root 0
    with the ranks renamed (combine.turn). It is proved at its first use at each p.

    Raises:
        UsageError: verb has an algorithm of this name. What was prepared from it on this rank or another
            would go on running; give a changed schedule a new name.

    Example:
        >>> @register("star", "all_reduce")
        ... def star(p):
        ...     others = np.arange(1, p)
        ...     up = Stream(others, np.zeros_like(others), reduce=AFTER)
        ...     down = Stream(np.zeros_like(others), others, begin=1, end=2)
        ...     return Schedule("all_reduce", p, (up, down))
    """

    def known(maker: Maker) -> Maker:
        if name in _MADE.setdefault(verb, {}):
            raise UsageError(
                f"{verb} has an algorithm {name!r} already", hint=f"another name, as {name + '_2'!r}"
            )
        _MADE[verb][name] = maker
        return maker

    return known


def algorithms(verb: str) -> list[str]:  # in the order in which they became known
    """Names of the algorithms for verb."""
    return list(_MADE.get(verb, {}))


def verbs() -> list[str]:
    """Verbs that have algorithms."""
    return list(_MADE)


@lru_cache(maxsize=256)
def build(verb: str, algorithm: str, p: int, root: int = 0) -> Schedule:
    """The schedule of an algorithm for p ranks.

    Args:
        algorithm: a name, with parameters if it has any: "double_tree:chunks=16",
            "hierarchical:node=4,outer=ring".

    Raises:
        UsageError: there is none of this name, it has no such parameter, or a parameter no such value; there
            are no ranks, or root is none of them; the function returned no schedule for p ranks, or uses an
            earlier word for a Stream.
    """
    known_verb(verb)
    name, _, rest = algorithm.partition(":")
    maker = _MADE[verb].get(name)
    if maker is None:
        raise UsageError(
            f"there is no algorithm {name!r} for {verb}", hint="one of " + ", ".join(algorithms(verb))
        )
    if p < 1 or not 0 <= root < p:
        raise UsageError(f"{p} ranks have no rank {root}", hint="1 rank or more, and a root among them")
    options = _options(verb, name, rest)
    if "root" in (takes := signature(maker).parameters):
        options["root"] = root
    try:
        made = maker(p, **options)
    except (AttributeError, TypeError, ValueError) as error:
        _refuse_earlier_words(verb, name, error)
        raise
    if not isinstance(made, Schedule) or made.size != p:
        raise UsageError(
            f"{name} for {verb} returned no schedule for {p} ranks", hint=f"return Schedule({verb!r}, p, ...)"
        )
    return replace(made if "root" in takes else turn(made, root), verb=verb, name=algorithm)


def _refuse_earlier_words(verb: str, name: str, error: Exception) -> None:
    """Say today's word where a definition has failed with one of earlier times for a Stream."""
    for word in re.findall(r"'(\w+)'", str(error)):
        if word in _EARLIER:
            what = f"{name} for {verb}: a Stream has no {word!r}"
            raise UsageError(what, hint=f"{_EARLIER[word]!r}, which is its name now") from error


def _options(verb: str, name: str, text: str) -> dict[str, int | str]:
    """Parameters as they are written behind a name; a number where the default is one."""
    options: dict[str, Any] = {}
    takes = signature(_MADE[verb][name]).parameters
    for word in filter(None, text.split(",")):
        key, _, value = word.partition("=")
        if key not in parameters(verb, name) or key == "root":
            raise UsageError(f"{name} for {verb} has no such parameter: {word}", hint=_offer(verb, name))
        default = takes[key].default
        if not isinstance(default, int):
            options[key] = int(value) if value.isdecimal() and not isinstance(default, str) else value
        elif value.isdecimal() and int(value) >= min(default, 1):
            options[key] = int(value)
        else:
            raise UsageError(
                f"{name} for {verb}: {key} is {value!r}", hint=f"a whole number, {min(default, 1)} or more"
            )
    return options


def _offer(verb: str, name: str) -> str:
    takes = ", ".join(key for key in parameters(verb, name) if key != "root")
    return f"it takes {takes}" if takes else f"{name} alone: it takes none"


def known_verb(verb: str) -> None:
    """Raise UsageError where no algorithm is for verb."""
    if verb not in _MADE:
        raise UsageError(f"there are no algorithms for {verb!r}", hint="one of " + ", ".join(verbs()))


def named(verb: str, text: str) -> list[str]:
    """The algorithms that a command line names: "all", or "ring,hierarchical:node=4,inner=ring,tree".

    A word with = belongs to the algorithm before it. Semicolons serve as commas, too.
    """
    known_verb(verb)
    if text == "all":
        return algorithms(verb)
    names: list[str] = []
    for part in text.split(";"):
        for i, word in enumerate(part.split(",")):
            if i and "=" in word and ":" not in word:
                names[-1] += f",{word}"
            else:
                names.append(word)
    return names


def load(path: str) -> None:
    """Run a Python file that registers algorithms."""
    if not Path(path).is_file():
        raise UsageError(f"there is no file {path}", hint="a Python file that calls register")
    try:
        run_path(path)
    except HpcommError:
        raise
    except Exception as error:
        import shlex

        lines = [each.lineno for each in extract_tb(error.__traceback__) if each.filename == path]
        line = f", line {lines[-1]}" if lines else ""
        what = f"{path}{line} does not run: {type(error).__name__}: {error}"
        raise UsageError(what, hint=f"{shlex.join(['python', path])} runs it alone") from error


def cut(verb: str, algorithm: str, nbytes: int) -> str:
    """algorithm with the number of chunks into which a pipeline cuts x, where the caller does not say it.

    Executor, simulator and pictures all ask here.

    Args:
        nbytes: of x.
    """
    name = algorithm.partition(":")[0]
    if verb not in _PIPELINES.get(name, ()) or "chunks=" in algorithm:
        return algorithm
    trees = 2 if name == "double_tree" else 1  # each has as many
    pieces = trees * max(1, min(_MOST_PIECES, nbytes // SCHEDULE_PIECE) // trees)
    return f"{algorithm}{',' if ':' in algorithm else ':'}chunks={pieces}"


def parameters(verb: str, name: str) -> list[str]:
    """What an algorithm takes besides p."""
    maker = _MADE.get(verb, {}).get(name)
    return [] if maker is None else [key for key in signature(maker).parameters if key != "p"]


def _explained(by: Callable[..., object], first: str = "") -> Callable[[Maker], Maker]:
    """Give a function the docstring of another one, below a first line of its own."""

    def explained(maker: Maker) -> Maker:
        maker.__doc__ = f"{first}\n\n    {by.__doc__}" if first else by.__doc__
        return maker

    return explained


def _both_ways(gather: Maker) -> Maker:
    """The all_reduce that reduces along an all_gather backwards and then gathers."""

    @_explained(gather, "all_reduce: reduce_scatter (all_gather backwards), then all_gather.")
    def all_reduce(p: int) -> Schedule:
        forth = gather(p)
        back = reverse("reduce_scatter", forth)
        return sequence("all_reduce", back, forth, slots=1, chunks=p)

    return all_reduce


@_explained(ring.ring, "all_reduce: reduce_scatter, then all_gather, both to the right.")
def ring_all_reduce(p: int) -> Schedule:
    back = reverse("reduce_scatter", ring.ring(p, -1))  # so that both halves go the same way round
    return sequence("all_reduce", back, ring.ring(p), slots=1, chunks=p)


@_explained(ring.ring, "reduce_scatter: around the ring, backwards.")
def ring_reduce_scatter(p: int) -> Schedule:
    return reverse("reduce_scatter", ring.ring(p, -1))


def _backwards(verb: str, maker: Maker) -> Maker:
    @_explained(maker, f"{verb}: the other way round.")
    @wraps(maker)  # its parameters are those of maker
    def made(p: int, **options: object) -> Schedule:
        return reverse(verb, maker(p, **options))

    return made


def tree_all_reduce(p: int, chunks: int = 1) -> Schedule:
    """all_reduce: up a binomial tree to rank 0 and down again.

        1 -> 0, 3 -> 2      2 -> 0      0 -> 2      0 -> 1, 2 -> 3

    Cost: 2 ceil(log2 p) rounds of n bytes (folklore).
    """
    down = tree.binomial(p)
    both = sequence("all_reduce", reverse("reduce", down), down)
    return pipeline(both, chunks) if chunks > 1 and p > 1 else both


def _divides(node: int, p: int) -> bool:
    """Whether p ranks are several nodes of several ranks."""
    if node < 1 or p % node:
        raise UsageError(f"{p} ranks do not divide into nodes of {node}", hint=f"node={divide(p)}")
    return 1 < node < p


@_explained(tree.double_tree)
def double_tree(p: int, chunks: int = 2, node: int = 1) -> Schedule:
    if _divides(node, p):
        return tree.chained(p, node, tree.double_tree(p // node, chunks))
    return tree.double_tree(p, chunks)


@_explained(tree_all_reduce)
def single_tree(p: int, chunks: int = 1, node: int = 1) -> Schedule:
    if _divides(node, p):
        return tree.chained(p, node, tree_all_reduce(p // node, chunks))
    return tree_all_reduce(p, chunks)


def _butterfly(by: Callable[..., Schedule], *partner: butterfly.Partner, words: str = "") -> Maker:
    """An all_reduce of butterfly.py, with its own partners or others."""

    def all_reduce(p: int) -> Schedule:
        return by(p, *partner)

    all_reduce.__doc__ = words or by.__doc__
    return all_reduce


_SWING = f"""all_reduce: recursive halving with other partners. {butterfly.swing.__doc__}
        p = 8:   0 <-> 1, 2 <-> 3 ...      0 <-> 7, 2 <-> 1 ...      0 <-> 3, 2 <-> 5 ...

    Cost: that of rabenseifner, over shorter ways."""
_BINE = f"""all_reduce: recursive doubling with other partners. {butterfly.bine.__doc__}
        p = 8:   0 <-> 3, 2 <-> 5 ...      0 <-> 7, 2 <-> 1 ...      0 <-> 1, 2 <-> 3 ...

    Cost: that of recursive_doubling, over shorter ways."""


@_explained(two_level)
def hierarchical(p: int, node: int = 0, inner: str = "ring", outer: str = "circulant") -> Schedule:
    if not node:
        node = divide(p)
    _divides(node, p)
    if inner in algorithms("all_gather") and inner != "tree":
        within = build("all_gather", inner, node)
    else:
        within = build("broadcast", inner, node)
    return two_level(p, within, build("all_reduce", outer, p // node))


def scatter_ring(p: int) -> Schedule:
    """broadcast: scatter by a tree, then all_gather around the ring.

        0 -> 2  {2, 3}      0 -> 1, 2 -> 3      0 -> 1 -> 2 -> 3 -> 0  one block each, p-1 times

    Cost: log2 p + p-1 rounds, 2n(p-1)/p bytes (Barnett et al. 1994, "InterCom"). For large x.
    """
    return sequence("broadcast", tree.binomial_scatter(p), ring.ring(p), slots=1, chunks=p)


def ring_gather(p: int) -> Schedule:
    """reduce: reduce_scatter around the ring, then gather by a tree: scatter_ring backwards.

        0 -> 1 -> 2 -> 3 -> 0  one block each, p-1 times      1 -> 0, 3 -> 2      2 -> 0  {2, 3}

    Cost: log2 p + p-1 rounds, at most 2n(p-1)/p bytes (Barnett et al. 1994, "InterCom"). For large x.
    """
    around = reverse("reduce", ring.ring(p, -1))
    return sequence("reduce", around, reverse("gather", tree.binomial_scatter(p)), slots=1, chunks=p)


def gather_then_broadcast(p: int) -> Schedule:
    """all_gather: gather by a tree, then broadcast by one.

        1 -> 0, 3 -> 2      2 -> 0  {2, 3}      0 -> 2  all      0 -> 1, 2 -> 3  all

    Cost: 2 ceil(log2 p) rounds, of all p blocks on the way down (folklore).
    """
    gather = reverse("gather", tree.binomial_scatter(p))
    wide = tuple(s._replace(width=p) for s in tree.binomial(p).streams)
    return sequence("all_gather", gather, replace(gather, streams=wide))


def reduce_then_scatter(p: int) -> Schedule:
    """reduce_scatter: reduce by a tree to rank 0, then scatter by one. Keeps the order of ranks.

        1 -> 0, 3 -> 2  all      2 -> 0  all      0 -> 2  {2, 3}      0 -> 1, 2 -> 3

    Cost: 2 ceil(log2 p) rounds, of all p blocks on the way up (folklore).
    """
    wide = tuple(s._replace(width=p) for s in reverse("reduce", tree.binomial(p)).streams)
    scatter = tree.binomial_scatter(p)
    return sequence("reduce_scatter", replace(scatter, streams=wide), scatter)


def ordered_reduce(p: int, root: int = 0) -> Schedule:
    """reduce: up the tree of rank 0, which keeps the order of ranks, and from there to root.

        root 3:   1 -> 0, 3 -> 2      2 -> 0      0 -> 3

    Cost: ceil(log2 p) rounds of n bytes, and one more where root is not rank 0 (folklore).
    """
    up = reverse("reduce", tree.binomial(p))
    if root == 0:
        return replace(up, root=root)
    end = up.iterations
    return replace(up, streams=(*up.streams, Stream([0], [root], begin=end, end=end + 1)), root=root)


def _after_shift(scan: Maker) -> Maker:
    """The exscan that gives x to the right first, and then scans without rank 0."""

    @_explained(scan, "exscan: x goes one rank up, then a scan.")
    @wraps(scan)
    def exscan(p: int, **options: object) -> Schedule:
        if p < 2:
            return Schedule("exscan", p, ())
        rest = scan(p - 1, **options)
        r = ranks(p - 1)
        shift = Stream(r, r + 1, width=rest.chunks)
        up = (s._replace(source=np.add(s.source, 1), dest=np.add(s.dest, 1)) for s in rest.streams)
        return Schedule("exscan", p, (shift, *later(up, 1)), chunks=rest.chunks)

    return exscan


def tree_barrier(p: int) -> Schedule:
    """barrier: up a binomial tree and down again.

        1 -> 0, 3 -> 2      2 -> 0      0 -> 2      0 -> 1, 2 -> 3

    Cost: 2 ceil(log2 p) rounds (folklore).
    """
    return replace(tree_all_reduce(p), verb="barrier")


_GATHERS = {
    "ring": ring.ring, "bruck": ring.bruck, "circulant": ring.circulant,
    "pat": ring.parallel_trees, "pairwise": ring.pairwise,
}  # fmt: skip
_DOWNWARDS = {
    "tree": tree.binomial, "ring": ring.chain,
    "double_tree": tree.double_tree_broadcast, "bine": butterfly.butterfly_broadcast,
}  # fmt: skip
_SCATTERS = {"tree": tree.binomial_scatter, "pairwise": tree.direct_scatter}
_SCANS: dict[str, Maker] = {"tree": ring.prefix, "ring": ring.chain_scan}


def _all_backwards(verb: str, makers: dict[str, Maker]) -> dict[str, Maker]:
    return {name: _backwards(verb, maker) for name, maker in makers.items()}


_MADE.update({
    "all_gather": {**_GATHERS, "tree": gather_then_broadcast},
    "reduce_scatter": {
        **_all_backwards("reduce_scatter", _GATHERS),
        "ring": ring_reduce_scatter, "tree": reduce_then_scatter,
    },
    "all_reduce": {
        "ring": ring_all_reduce, "tree": single_tree,
        "recursive_doubling": _butterfly(butterfly.recursive_doubling),
        "rabenseifner": _butterfly(butterfly.recursive_halving),
        "bruck": _both_ways(ring.bruck), "circulant": _both_ways(ring.circulant), "double_tree": double_tree,
        "pat": _both_ways(ring.parallel_trees),
        "swing": _butterfly(butterfly.recursive_halving, butterfly.swing, words=_SWING),
        "bine": _butterfly(butterfly.recursive_doubling, butterfly.bine, words=_BINE),
        "hierarchical": hierarchical,
    },
    "broadcast": {**_DOWNWARDS, "scatter_ring": scatter_ring},
    "reduce": {
        **_all_backwards("reduce", _DOWNWARDS), "ring_gather": ring_gather, "ordered_tree": ordered_reduce,
    },
    "scatter": _SCATTERS,
    "gather": _all_backwards("gather", _SCATTERS),
    "all_to_all": {"pairwise": ring.pairwise_exchange, "bruck": ring.bruck_exchange},
    "scan": _SCANS,
    "exscan": {name: _after_shift(maker) for name, maker in _SCANS.items()},
    "barrier": {"bruck": ring.dissemination, "ring": ring.ring_barrier, "tree": tree_barrier},
})  # fmt: skip

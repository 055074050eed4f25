"""The collective verbs and what tells them apart: the only table of them.

The node core has it as node/_native/verbs.h, which setup.py writes from this file.

verb            x of a rank     result of a rank   whose x, whose result   elements are reduced
broadcast       n               n                  root's, all             no
scatter         p blocks of n   n                  root's, all             no
gather          n               p blocks of n      all, root's             no
reduce          n               n                  all, root's             yes
all_gather      n               p blocks of n      all, all                no
all_to_all      p blocks of n   p blocks of n      all, all                no
all_reduce      n               n                  all, all                yes
reduce_scatter  p blocks of n   n                  all, all                yes
scan, exscan    n               n                  lower ranks', each      yes
barrier         nothing         nothing
"""

from __future__ import annotations

from typing import NamedTuple


class Verb(NamedTuple):
    """mpi: MPI's function, as mpi4py calls it, of buffers.

    x_blocks, result_blocks: one for each rank; root: "sends", "receives" or "" for none.

    is_prefix: what a rank gets depends on the ranks below it. is_ragged: there are verbs of the same
    name for objects, and for arrays whose lengths differ from rank to rank.
    """

    mpi: str
    x_blocks: bool = False
    result_blocks: bool = False
    root: str = ""
    reduces: bool = False
    is_prefix: bool = False
    is_ragged: bool = False


TABLE = {
    "broadcast": Verb("Bcast", root="sends", is_ragged=True),
    "scatter": Verb("Scatter", x_blocks=True, root="sends", is_ragged=True),
    "gather": Verb("Gather", result_blocks=True, root="receives", is_ragged=True),
    "reduce": Verb("Reduce", root="receives", reduces=True),
    "all_gather": Verb("Allgather", result_blocks=True, is_ragged=True),
    "all_to_all": Verb("Alltoall", x_blocks=True, result_blocks=True, is_ragged=True),
    "all_reduce": Verb("Allreduce", reduces=True),
    "reduce_scatter": Verb("Reduce_scatter_block", x_blocks=True, reduces=True),
    "scan": Verb("Scan", reduces=True, is_prefix=True),
    "exscan": Verb("Exscan", reduces=True, is_prefix=True),
    "barrier": Verb("Barrier"),
}

INPUT_BLOCKS = frozenset(name for name, verb in TABLE.items() if verb.x_blocks)
OUTPUT_BLOCKS = frozenset(name for name, verb in TABLE.items() if verb.result_blocks)
SCATTERING = INPUT_BLOCKS - OUTPUT_BLOCKS  # x is p times as long as the result,
GATHERING = OUTPUT_BLOCKS - INPUT_BLOCKS  # or the other way round
ROOT_SENDS = frozenset(name for name, verb in TABLE.items() if verb.root == "sends")
ROOT_RECEIVES = frozenset(name for name, verb in TABLE.items() if verb.root == "receives")
ROOTED = ROOT_SENDS | ROOT_RECEIVES
REDUCTIONS = frozenset(name for name, verb in TABLE.items() if verb.reduces)
PREFIXES = frozenset(name for name, verb in TABLE.items() if verb.is_prefix)
MUTUAL = frozenset(TABLE) - ROOTED - PREFIXES  # nobody gets through before all have begun
RAGGED = frozenset(name for name, verb in TABLE.items() if verb.is_ragged)

_RECEIVE = ("recv", "irecv", "sendrecv", "probe")


def receives(verb: str) -> bool | None:
    """Whether verb receives objects or ragged arrays, which travel apart, or plain arrays; None: nothing."""
    plain = verb.removesuffix("_object").removesuffix("_ragged")
    return plain != verb if plain in _RECEIVE else None

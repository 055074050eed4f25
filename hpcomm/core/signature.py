"""Signature of a collective call: what all ranks must agree about, in one 63-bit number.

    bits 0-5 verb   6-10 operator   11-18 dtype   19-30 root   31 background   32-62 number of elements

To the number of elements of an opaque dtype a checksum of that is added. What a root has beyond 12 bits,
where there are so many ranks, flips the highest 8 bits of the number of elements: so two calls that differ in
their roots alone, or in their lengths alone, never look the same.

It fits one word of shared memory, is made with a shift and an or, and can be read back, so that a
rank can say what another one called even when that one has gone on.
"""

from __future__ import annotations

from zlib import crc32

from .reduction import NAMES
from .verbs import RAGGED, REDUCTIONS, ROOTED, TABLE

NEIGHBOURS = ["neighbour_all_gather", "neighbour_all_to_all"]
# Of these the number of elements is a checksum of what has to be equal.
MAKERS = [
    *("split", "split_node", "dup", "create_intercomm", "merge", "cart", "graph", "mesh", "sub", "window"),
    "spawn",
]
VERBS = [  # the first ones by their positions, which are the numbers BY_... of node/_native/verbs.h
    "?",
    *sorted(TABLE),
    "plan",
    *(f"{verb}_object" for verb in sorted(RAGGED)),
    *(f"{verb}_ragged" for verb in sorted(RAGGED)),
    *NEIGHBOURS,
    *(f"{verb}_ragged" for verb in NEIGHBOURS),
    *MAKERS,
]
_CODES = {verb: i for i, verb in enumerate(VERBS)}


def head(verb: str, op: int = 0, dtype: int = 0, root: int = 0) -> int:
    """All but the number of elements; `^ count << 32`."""
    root = (root & 0xFFF) << 19 | (root >> _LOW & 0xFF) << _HIGH
    return _CODES[verb] | (op & 31) << 6 | (dtype & 255) << 11 | root


REFUSED = 1 << 6  # of no verb: in place of a call that its rank refuses,
LEFT = 2 << 6  # and after the last call of a rank that is out of step
_NO_CALL = {REFUSED: "a call that it refuses", LEFT: "no call any more: it is out of step"}
_MANY = 1 << 30  # what the number of elements of a call from 2^31 on has set
_LOW, _HIGH = 12, 55  # bits of a root that stand together; where the others stand
ROOTS = 1 << 20  # ranks that are told apart as roots
VERB, ROOT = 63, 0xFFF << 19 | 0xFF << _HIGH  # the bits of each
DTYPE = 11  # where the bits of the dtype begin
SCHEDULED = (
    1 << 17
)  # in another order, or by an own schedule: the bits of the root then hold a checksum as well


def marked(code: int, algorithm: str) -> int:
    """The code of a call that an algorithm other than the library's choice carries out."""
    return (code | SCHEDULED) ^ (crc32(algorithm.encode()) & 0xFFF) << 19


BACKGROUND = 1 << 31  # MPI does not match blocking with nonblocking calls


def signature(head: int, count: int) -> int:
    """The whole number. Counts from 2^31 on are folded, and never taken for one below 2^30."""
    if count >> 31:
        count = (count ^ count >> 30) & _MANY - 1 | _MANY
    return count << 32 ^ head


def operator(code: int) -> str:
    """`op='max'`: which operator a code or signature means."""
    op = code >> 6 & 31
    return f"op={NAMES[op]!r}" if op < len(NAMES) else "op=a function"


def words_of(verb: str, code: int) -> dict[str, object]:
    """What a code of verb has besides, by the names of the verb's arguments, and the order."""
    op = code >> 6 & 31
    return {
        "op": (NAMES[op] if op < len(NAMES) else "a function") if verb in REDUCTIONS else None,
        "root": code >> 19 & 0xFFF if verb in ROOTED else None,
        "order": "fast" if verb in REDUCTIONS and code & SCHEDULED else None,
        "async_op": bool(code & BACKGROUND),
    }


def verb_of(signature: int) -> str:
    """The verb of a call with this signature; "?" of none that we know."""
    return dict(enumerate(VERBS)).get(signature & VERB, "?")


def describe(signature: int, size: int = 0) -> str:
    """`all_reduce(float64, 4 elements, op='max')`.

    size: of the communicator; where it is large, roots have more bits and lengths fewer.
    """
    if signature in _NO_CALL:
        return _NO_CALL[signature]
    verb = verb_of(signature)
    dtype, root = signature >> 11 & 255, signature >> 19 & 0xFFF
    scheduled = dtype < 128 and signature & SCHEDULED
    is_rooted = verb.removesuffix("_object").removesuffix("_ragged") in ROOTED
    if size > 1 << _LOW and is_rooted:
        root |= signature >> _HIGH << _LOW
        signature &= (1 << _HIGH) - 1
    dtype &= ~(SCHEDULED >> 11) if scheduled else 255
    parts = (
        _elements(dtype, signature >> 32),
        operator(signature) if verb in REDUCTIONS else "",
        "algorithm=... or order='fast'" if scheduled else f"root={root}" if is_rooted else "",
        "async_op=True" if signature & BACKGROUND else "",
    )
    return f"{verb}({', '.join(filter(None, parts))})"


def _elements(code: int, count: int) -> str:
    """`float64, 4 elements`."""
    from .dtypes import BY_NAME

    name = next((dtype.name for dtype in BY_NAME.values() if dtype.code == code), "")
    if not code or not name:
        return "opaque" if code else ""
    return f"{name}, {count} elements" if count < _MANY else f"{name}, 2**30 elements or more"

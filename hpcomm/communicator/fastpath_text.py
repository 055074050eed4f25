"""Source text of fast paths: what each operation does, and how to look at arrays of a kind.

A verb is a few lines, in which `@name x, y` stands for a fragment (fastpath_compile.py), such as how to look
at an array of numpy or torch. How the ranks agree comes from agreement.py.
"""

from __future__ import annotations

from ..core.verbs import GATHERING, INPUT_BLOCKS, ROOT_RECEIVES, ROOTED, SCATTERING

__all__ = [
    "ALIKE",
    "APART",
    "BODIES",
    "IN_PLACE",
    "MEET",
    "NUMPY",
    "ON_HOST",
    "TORCH",
    "WITHIN",
    "out_of_place",
]

_BARRIER = """
def fast():
    mine = code
    @meet
    @call function()
"""

_ALL_REDUCE = """
def fast(x, out):
    global last, mine, turns  # the last call's, mostly this one's too
    if out is x:
        @writable x
        @window x
        @sign
        @small x, x
        @within x, x
        @described x
        @call function(IN_PLACE, x_spec, operator)
        return x
    @readable x
    @window x
    if out is None:
        @new out, x
    else:
        @same out, x
        @writable_too out
        @same_size out, x
        @apart x, out
    @window out
    @apart_in_memory x, out
    @sign
    @small_apart x, out
    @within_apart x, out
    @described x
    @described out
    @carry x, out
    return out
"""

MEET = """
@post
meet(mine)
return None
"""

# Longer ones, and those of other verbs: see node_collectives.py.
WITHIN = """
if within_from <= mine < within_to:
    way, rival = ways.get(mine) or way_of(mine, ROOT)
    if way is None:
        return NotImplemented
    leaves = 0 if rival is None else rival.turn()
    if leaves > 1:  # it is timed
        return NotImplemented
    if not leaves:
        @flats X, Y
        @post
        way(X_flat, Y_flat, mine)
        @look
        return Y
"""

_BROADCAST = """
def fast(x, out, root):
    global last, signs
    @root
    if x is out:
        @writable x
    elif out is None:
        @readable x
        @window x
        @fresh x
    else:
        return NotImplemented
    @window x
    @sign
    @small x, x
    @within x, x
    @described x
    @call function(x_spec, root)
    return x
"""


def out_of_place(verb: str, folds: bool, first: bool) -> str:
    """Every other collective, from one plain array into another.

    Shapes as prepare.py has them, but only the stacked form: block r is x[r] or out[r].

    first: for rank 0, to which exscan brings nothing.
    """
    last = (", operator" if folds else "") + (", root" if verb in ROOTED else "")
    lines = ["def fast(x, out, root):", *["    @root"] * (verb in ROOTED), "    if x is out:"]
    lines += ["        return NotImplemented", "    shape = x.shape"]
    if verb in INPUT_BLOCKS:
        lines += ["    if not shape or shape[0] != p:", "        return NotImplemented"]
    lines += ["    @readable x", "    @spec x"]
    if verb in GATHERING:
        lines += ["    shape = (p, *shape)"]
    elif verb in SCATTERING:
        lines += ["    shape = shape[1:]"]
    if verb in ROOT_RECEIVES:
        lines += ["    if rank != root:", "        @sign", "        @within_given x"]
        lines += [f"        @call function(x_spec, None{last})", "        return None"]
    lines += [
        "    if out is None:",
        "        out = empty(shape, dtype=dtype)",
        "        @made out",
        "    else:",
    ]
    lines += ["        if type(out) is not type(x) or out.dtype is not dtype or out.shape != shape:"]
    lines += ["            return NotImplemented", "        @writable_too out", "        @apart x, out"]
    lines += ["    @spec out", "    @apart_in_memory x, out", "    @sign"]
    lines += ["    @within_apart x, out"]
    if verb == "scatter":  # on the others x only told the shape
        lines += ["    if rank != root:", "        x_spec = None"]
    lines += ["    @carry x, out" if verb == "all_gather" else f"    @call function(x_spec, out_spec{last})"]
    lines += ["    @neutral out"] if verb == "exscan" and first else []
    lines += ["    return out"]
    return "\n".join(lines)


NUMPY = {
    # n: elements, of one block if there is one for each rank
    "readable": """
n, X_flags = X.size CUT, X.flags
if n > most or not X_flags.c_contiguous:
    return NotImplemented
""",
    "writable": """
n, X_flags = X.size, X.flags
if n > most or not X_flags.carray:
    return NotImplemented
""",
    "writable_too": "X_flags = X.flags\nif not X_flags.carray:\n    return NotImplemented",
    "same": """
if type(X) is not ndarray or X.dtype is not dtype or X.size != n:
    return NotImplemented
axes = X.ndim
if axes != Y.ndim or (axes != 1 and X.shape != Y.shape):
    return NotImplemented
""",
    "same_size": "",
    "apart": """
if not (X_flags.owndata and Y_flags.owndata) and may_share_memory(X, Y):
    return NotImplemented
""",
    "apart_in_memory": "",
    "new": "X = empty(Y.shape, dtype)",  # empty_like would keep the order of Y's axes
    "fresh": "X = X.copy() if rank == root else empty(X.shape, dtype)",
    "made": "",
    "neutral": "X[...] = neutral",
    "place": "Y[...] = X",
    "place_own": "Y[rank] = X",
    "window": "",
    "described": "X_spec = (X, n, kind)",
    "spec": "X_spec = (X, n, kind)",
    "sign": "mine = n << 32 ^ code",
    "changed": "n != last",
    "which": "n",
    "lay": "elements[...] = X_flat",
    "fetch": "X_flat[...] = elements",
    "flat": "X_flat = X if X.ndim == 1 else X.reshape(-1)",
    "amount": "n",
    "bytes": "n * itemsize",
    "item": "X_flat.item()",
    "elements": "X_flat",
}

# mpi4py takes microseconds to look into a tensor, and a tenth of one for an address. Windows are what it
# wants to know of an address, kept because the same memory comes again and again.

ON_HOST = "    if not X.is_cpu:\n        return NotImplemented\n"  # for a torch that knows devices
TORCH = {
    "readable": f"""
try:
{ON_HOST}    X_size = X.nbytes
    if X.is_neg() or not X_size if X_size < least else not X.is_contiguous():
        return NotImplemented
except RuntimeError:  # sparse tensors have no memory of their own
    return NotImplemented
""",
    "same": """
if type(X) is not tensor or X.dtype is not dtype:
    return NotImplemented
axes = X.dim()
if axes != Y.dim():
    return NotImplemented
""",
    "same_size": "if X_size != Y_size or (axes != 1 and X.shape != Y.shape):\n    return NotImplemented",
    "apart": "",
    "apart_in_memory": "if X_at < Y_seen[5] and Y_at < X_seen[5]:\n    return NotImplemented",
    "new": "X = empty_like(Y)\nX_size = Y_size",
    "fresh": "X = X.detach().clone() if rank == root else empty_like(X)",
    "made": "X_size = X.nbytes",
    "neutral": "X.fill_(neutral)",
    "place": "Y_seen[4][:] = X_seen[4]",
    "place_own": "Y_seen[4][rank * X_size : (rank + 1) * X_size] = X_seen[4]",
    "described": "X_spec = X_seen[1]",
    "spec": """
try:
    X_at = X.data_ptr()
    X_seen = windows_X[X_at]
    if X_seen[0] != X_size:
        X_seen = window_X(X_at, X_size)
except KeyError:
    X_seen = window_X(X_at, X_size)
except RuntimeError:  # of torch.func
    return NotImplemented
if X_seen is None:  # too long, or freed
    return NotImplemented
X_spec = X_seen[1]
""",
    "sign": "mine = x_seen[2] ^ code",
    "changed": "x_seen is not last",
    "which": "x_seen",
    "lay": "there[:] = X_seen[4]",  # half of what numpy takes
    "fetch": "X_seen[4][:] = there",
    "flat": "X_flat = X_seen[3]",
    "amount": "X_size",
    "bytes": "X_size",
    "elements": "X_seen[6]",
}
TORCH["writable"] = TORCH["writable_too"] = TORCH["readable"]
TORCH["window"] = TORCH["spec"].replace("X_spec = X_seen[1]\n", "")

_ROOT = """
if type(root) is not int:
    return NotImplemented
try:
    code = codes[root]
except KeyError:
    return NotImplemented
"""

ALIKE = {  # for arrays of all kinds
    "root": _ROOT,
    "flats": "@flat X\n@flat Y",
    "fold": "fold(X_flat)",
}

# In place on all ranks, as transport/mpi.py says; own schedules begin with a copy of their own.
IN_PLACE = {
    "all_reduce": "@place X, Y\n@call function(IN_PLACE, Y_spec, operator)",
    "all_gather": "@place_own X, Y\n@call function(IN_PLACE, Y_spec)",
}
APART = "@call function(X_spec, Y_spec, operator)"

BODIES = {"all_reduce": _ALL_REDUCE, "barrier": _BARRIER, "broadcast": _BROADCAST}

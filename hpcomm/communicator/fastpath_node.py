"""Source text of small shared-memory collectives in fast paths.

Step by step the same as collective_steps.py; see fastpath_text.py for the notation.
"""

from __future__ import annotations

__all__ = ["VERBS", "in_place", "signed", "step"]

# What turns a call takes is found when it is signed.
_SMALL = {
    "all_reduce": """
if turns is not None:
    @flats X, Y
    @come X
    if other[0] != flag:
        look(other, flag, mine)
    @rest
    @fold Y
    return Y
""",
    "broadcast": """
if turns is not None:
    @flat X
    @come X
    if root_line is not None:
        if root_line[0] != flag:
            look(root_line, flag, mine)
        @fetch X
    small.owed = owed
    @look
    return X
""",
}
# A call is recorded in the node segment while its flag is on the way; but before this rank waits for others
# to come to an earlier one, since who waits is looked at.
_COME = """
if small.owed:
    @post
    small.settle(mine)
    @raise X
else:
    @raise X
    @post
"""
_REST = """
for other in others:
    if other[0] != flag:
        look(other, flag, mine)
"""
# Mostly a call is like the last one. What is known of that one changes at once, whatever interrupts a call.
_SIGN = {
    "all_reduce": """
if CHANGED:
    signed = SIGNED
    @turns
    last, mine, turns = WHICH, signed, found
""",
    "broadcast": """
if CHANGED:
    last, signs = WHICH, {}
found = signs.get(root)
if found is None:
    if not 0 <= root < p:
        return NotImplemented
    code = codes[root]
    signed = SIGNED
    @turns
    found = signs[root] = signed, found
mine, turns = found
""",
}
_TURNS = {
    "all_reduce": "found = known.get(signed) or turns_of(signed) if 0 < AMOUNT < small_to else None",
    "broadcast": "found = known.get(signed) or turns_of(signed, root) if 0 < AMOUNT < small_to else None",
}
_NO_TURNS = "found = None"
_RAISE = {
    "all_reduce": """
flag, elements, there, line, other, others, fold = turns[number()]
@lay X
line[0] = flag
""",
    "broadcast": """
flag, elements, there, line, root_line, owed = turns[number()]
if root_line is None:
    @lay X
line[0] = flag
""",
}
_IS_ROOT = "if type(root) is not int:\n    return NotImplemented"  # and the rest when it is signed
_LARGEST = float.fromhex("0x1.fffffep127")  # of float32

VERBS = tuple(_SMALL)


def signed(verb: str, fragments: dict[str, str]) -> dict[str, str]:
    """How calls are signed that are mostly like the last one."""
    text = _SIGN[verb].replace("SIGNED", fragments["sign"].removeprefix("mine = "))
    for word in ("changed", "which"):
        text = text.replace(word.upper(), fragments[word])
    return {"sign": text, "turns": _NO_TURNS}


def step(
    verb: str, fragments: dict[str, str], unit: int, few: int, is_narrow: bool, size: int
) -> dict[str, str]:
    """The fragments that a small call takes.

    Args:
        unit: what fast paths know of the length of one element.
        few: how many elements Python's own arithmetic serves sooner, at most; see collective_steps.py.
        is_narrow: they are float32, of which Python makes more.
        size: number of ranks.
    """
    found = {
        "small_apart": _SMALL[verb],
        "small": in_place(_SMALL[verb]),
        "come": _COME,
        "raise": _RAISE[verb],
    }
    found["rest"] = _REST if size > 2 else ""
    if verb == "broadcast":
        found |= signed(verb, fragments) | {"root": _IS_ROOT}
    found["turns"] = _TURNS[verb].replace("AMOUNT", fragments["amount"].replace("X", "x"))
    amount = fragments["amount"]
    is_numpy = "item" in fragments
    if few and is_numpy:  # bytes of tensors are written as quickly as one element
        for name, one in (
            ("lay", f"elements[0] = {fragments['item']}"),
            ("fetch", "X_flat[0] = elements[0]"),
        ):
            found[name] = f"if {amount} == 1:\n    {one}\nelse:\n    {fragments[name]}"
    if few and verb == "all_reduce":
        texts = [_fold(fragments["elements"], n, is_narrow, is_numpy, size) for n in range(1, few + 1)]
        ways = [f"if {amount} == {n * unit}:\n{one}" for n, one in enumerate(texts, 1)]
        found["fold"] = "\nel".join([*ways, "se:\n    fold(X_flat)"])
    return found


def _fold(elements: str, count: int, is_narrow: bool, is_numpy: bool, size: int) -> str:
    """What reduces so few elements one by one, indented."""
    known = list(enumerate("abcd"[:count]))
    lines = ["first, second, others, whole = fold"]
    lines += [f"{x} = first[{i}] + second[{i}]" for i, x in known]
    if size > 2:
        lines += ["for part in others:"]
        for i, x in known:  # rounded at every step, as numpy does
            lines += [f"    narrow[0] = {x}", f"    {x} = narrow[0]"] * is_narrow
            lines += [f"    {x} += part[{i}]"]
    written = [f"    {elements}[{i}] = {x}" for i, x in known]
    if is_narrow and is_numpy:  # who would warn
        lines += [f"if {' and '.join(f'{-_LARGEST!r} <= {x} <= {_LARGEST!r}' for _, x in known)}:", *written]
        lines += ["else:", "    whole(X_flat)"]
    else:
        lines += ["try:", *written, "except (OverflowError, ValueError):  # where numpy's whole numbers wrap"]
        lines += ["    whole(X_flat)"]
    return "\n".join(f"    {line}" for line in lines)


def in_place(text: str) -> str:
    """A text about X and Y, where they are one array."""
    return text.replace("@flats X, Y", "@flat X").replace("Y", "X")

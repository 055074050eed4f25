"""Signatures of the API: parameters with their types, and what comes back, as the code words them."""

import inspect
import re
from typing import Any, get_overloads

_KNOWN_AS = {  # names of the code's own, by what a reader of the pages knows
    "Array": re.compile(r"NDArray\[\w+\]|AnyArray|NpArray|torch\.Tensor"),
    "Field": re.compile(r"(?:OwnPart|Numbers)\[Any\]"),
    "T": re.compile(r"\bT_co\b"),
    "": re.compile(r"\bhpcomm\.(?:\w+\.)+"),
}
_UNREADABLE = re.compile(r"<.+? at 0x\w+>|<factory>|mappingproxy\({}\)|Ellipsis")  # defaults


class _Word(str):
    """An annotation that a signature shows as it is written, without quotes."""

    __slots__ = ()
    __repr__ = str.__str__


def typed(
    _app: Any, kind: str, _name: str, of: Any, _options: object, text: str | None, _returns: object
) -> tuple[str, str | None] | None:
    """For Sphinx's autodoc-process-signature. None: as it is, as the `()` of a class that no user calls."""
    is_class = inspect.isclass(of)
    if kind not in ("class", "exception", "function", "method") or not text or (is_class and text == "()"):
        return None
    try:
        full = inspect.signature(of)
    except ValueError:  # of a class made of one of Python's own
        return None
    kept = [each for each in full.parameters.values() if each.name not in ("self", "cls")]
    shown = full.replace(
        parameters=[each.replace(annotation=_word(each.annotation)) for each in kept],
        return_annotation=full.empty,
    )
    return _UNREADABLE.sub("...", str(shown)), None if is_class else _returned(
        of, _word(full.return_annotation)
    )


def _returned(of: Any, word: Any) -> str | None:
    """What comes back. Where that depends on what goes in, all that the overloads say."""
    if word in ("object", "Any") or "[Any]" in str(word):
        found = dict.fromkeys(_word(each.__annotations__["return"]) for each in get_overloads(of))
        word = " | ".join(found) or word
    return None if word is inspect.Signature.empty else word


def _word(annotation: Any) -> Any:
    if annotation is inspect.Signature.empty:
        return annotation
    word = getattr(annotation, "__forward_arg__", annotation)  # of a NamedTuple
    word = word if isinstance(word, str) else inspect.formatannotation(word)
    for known, pattern in _KNOWN_AS.items():
        word = pattern.sub(known, word)
    return _Word(word)

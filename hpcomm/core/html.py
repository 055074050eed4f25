"""What notebooks show of an object: a small table, made of what this rank knows; nothing is communicated."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

_CELL = 'style="text-align:left;padding:1px 8px"'
_PLACE = 'style="text-align:center;border:1px solid #999;padding:3px 9px;{}"'
_HERE = "background:#d8ecd8;font-weight:bold"


def sheet(title: str, rows: Iterable[tuple[str, object]], below: str = "") -> str:
    """A title, rows of what and how it is, and something below them (HTML)."""
    from html import escape  # and not in each rank's start

    lines = [
        f"<tr><th {_CELL}>{escape(name)}</th><td {_CELL}>{escape(str(what))}</td></tr>" for name, what in rows
    ]
    return f"<div><b>{escape(title)}</b><table>{''.join(lines)}</table>{below}</div>"


def grid(cells: Iterable[Sequence[object]], here: tuple[int, int] | None = None) -> str:
    """Places in rows; this rank's one is marked."""
    from html import escape

    rows = [
        "".join(
            f"<td {_PLACE.format(_HERE if here == (i, j) else '')}>{escape(str(cell))}</td>"
            for j, cell in enumerate(row)
        )
        for i, row in enumerate(cells)
    ]
    return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"

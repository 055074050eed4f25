"""Reports of traces: who waited for whom and how long, by hand-written records whose times are known."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from processes import finish

from hpcomm.communicator.trace import RECORD, RECORDS, ROWS
from hpcomm.errors import ConfigError
from hpcomm.tools import report
from hpcomm.tools.trace_reader import Trace, read

US = 1000
BROWSER = shutil.which("chromium-headless-shell") or shutil.which("chromium")


def written(
    folder: Path, name: str, rank: int, rows: list[dict[str, Any]], records: list[Any], size: int = 3,
    clock: str = "a", ahead: int = 0,
) -> None:  # fmt: skip
    """The files of a rank. records: (begin, end) in us, number of the row, and what more there is."""
    about = {"ranks": size, "host": clock, "clock": clock, "wall": 10**18, "monotonic": 0}
    common = {"of": "", "on": "world", "comm": 7, "rank": rank, "size": size, "line": "a.py:1"}
    said = [about, *({**common, "call": f"{row['verb']}()", **row} for row in rows)]
    (folder / f"{name}{ROWS}").write_text("".join(json.dumps(line) + "\n" for line in said))
    data = bytearray()
    for begin, end, row, *more in records:
        nbytes, peer, tag, of = (*more, *(0, -1, -1, 0)[len(more) :])
        data += RECORD.pack(begin * US + ahead, end * US + ahead, nbytes, row, peer, tag, of)
    (folder / f"{name}{RECORDS}").write_bytes(data + bytes(RECORD.size * 2) + b"\1")


def lost(trace: Trace) -> list[tuple[int, int, int]]:
    """(rank, us, for whom) of each record."""
    return [(int(e["rank"]), int(e["lost"]) // US, int(e["whom"])) for e in trace.events]


@pytest.mark.parametrize(
    ("verb", "root", "want"),
    [
        ("all_reduce", -1, [(0, 20, 1), (1, 0, -1), (2, 10, 1)]),
        ("all_gather_object", -1, [(0, 20, 1), (1, 0, -1), (2, 10, 1)]),
        ("broadcast", 2, [(0, 10, 2), (1, 0, -1), (2, 0, -1)]),
        ("gather", 0, [(0, 20, 1), (1, 0, -1), (2, 0, -1)]),
        ("scan", -1, [(0, 0, -1), (1, 0, -1), (2, 10, 1)]),
    ],
)
def test_a_rank_waits_for_those_of_whom_it_gets_something(
    verb: str, root: int, want: list[Any], tmp_path: Path
) -> None:
    for rank, begin in enumerate((10, 30, 20)):
        written(tmp_path, str(rank), rank, [{"verb": verb}], [(begin, 40, 1, 8, root)])
    trace = read(tmp_path)
    assert lost(trace) == want
    (line,) = report.lines(trace)
    assert (line.calls, line.nbytes) == (3, 24)
    assert line.time_s == pytest.approx(60e-6)
    assert line.waiting_s == pytest.approx(sum(each[1] for each in want) * 1e-6)


def test_messages_meet_in_order_and_a_wait_belongs_to_its_call(tmp_path: Path) -> None:
    send, recv = {"verb": "isend"}, {"verb": "recv"}
    wait = {"verb": "wait", "call": "wait"}
    written(
        tmp_path, "0", 0, [send, wait], [(50, 51, 1, 8, 1, 5), (40, 41, 1, 16, 1, 4), (60, 70, 2, 0, 1, 5, 1)]
    )
    written(
        tmp_path, "1", 1, [recv, {"verb": "range"}], [(10, 45, 1, 16, 0, 4), (46, 55, 1, 8, 0, 5), (0, 9, 2)]
    )
    trace = read(tmp_path)
    assert lost(trace) == [(0, 0, -1), (0, 0, -1), (0, 0, -1), (1, 0, -1), (1, 30, 0), (1, 4, 0)]
    assert trace.moved.tolist() == [[0, 24], [0, 0]]
    sends = next(line for line in report.lines(trace) if line.call.startswith("isend"))
    assert (sends.calls, sends.nbytes) == (2, 24)
    assert sends.time_s == pytest.approx(12e-6)
    ranks = report.by_rank(trace)
    assert ranks[0]["others_waited_s"] == pytest.approx(34e-6)
    assert ranks[1]["computing_s"] == pytest.approx(1e-6)


def test_a_record_of_a_call_that_is_not_there_is_no_wait(tmp_path: Path) -> None:
    rows = [{"verb": "all_reduce"}, {"verb": "wait"}]
    written(tmp_path, "0", 0, rows, [(0, 5, 1, 0, -1, -1, of) for of in (9, 0x80000001)], size=1)
    assert [int(of) for of in read(tmp_path).events["of"]] == [-1, -1]


def test_bytes_count_once_where_a_receive_does_not_say_more(tmp_path: Path) -> None:
    """From any source, it is not known of whom it gets them; in the background it has no bytes of its own."""
    sends, recv = [{"verb": "send_object"}, {"verb": "send"}], {"verb": "irecv_object"}
    written(tmp_path, "0", 0, sends, [(10, 11, 1, 300, 1, 4), (12, 13, 2, 8, 2, 0)])
    written(tmp_path, "1", 1, [recv], [(10, 20, 1, 0, 0, 4)])
    written(tmp_path, "2", 2, [{"verb": "recv"}], [(10, 20, 1, 8, -1, -1)])
    trace = read(tmp_path)
    assert trace.moved.tolist() == [[0, 300, 8], [0, 0, 0], [0, 0, 0]]
    assert trace.events["nbytes"].tolist() == [300, 8, 300, 8]


def test_a_wait_in_the_background_is_for_who_began_last(tmp_path: Path) -> None:
    rows = [{"verb": "all_reduce"}, {"verb": "wait", "call": "wait"}]
    for rank, begin in enumerate((10, 30)):
        written(
            tmp_path, str(rank), rank, rows, [(begin, begin + 2, 1), (20 + rank * 15, 40, 2, 0, -1, -1, 1)], 2
        )
    assert lost(read(tmp_path)) == [(0, 0, -1), (0, 10, 1), (1, 0, -1), (1, 0, -1)]


def test_halos_wait_for_neighbours_and_a_field_for_the_other_program(tmp_path: Path) -> None:
    for rank, begin in enumerate((10, 12, 30)):
        near = {0: [1], 1: [0, 2], 2: [1]}[rank]
        put = {"verb": "put", "of": "Program", "call": "Program.put(heat float64)", "on": "ocean"}
        rows = [{"verb": "__call__", "of": "Halo", "near": near, "sends": {str(n): 100 for n in near}}, put]
        written(tmp_path, f"ocean.{rank}", rank, rows, [(begin, 35, 1), (50, 51, 2)])
    get = {"verb": "get", "of": "Link", "call": "Link.get(heat float64)", "on": "air", "comm": 8, "size": 1}
    written(tmp_path, "air.0", 0, [get], [(45, 60, 1)], 1)
    trace = read(tmp_path)
    assert trace.names == ["air 0", "ocean 0", "ocean 1", "ocean 2"]
    halos = [each for each, e in zip(lost(trace), trace.events, strict=True) if e["nbytes"]]
    assert halos == [(1, 2, 2), (2, 18, 3), (3, 0, -1)]
    assert lost(trace)[0][:2] == (0, 5)
    assert trace.moved[1:, 1:].tolist() == [[0, 100, 0], [100, 0, 100], [0, 100, 0]]


@pytest.mark.parametrize("drift", [0.0, 1e-4])
def test_clocks_of_hosts_are_aligned_by_the_calls_between_them(tmp_path: Path, drift: float) -> None:
    """The error that is said holds, and is that of a call's duration."""
    rng = np.random.default_rng(3)
    begin = np.cumsum(rng.integers(100, 300, 2000))
    last = begin + 50
    for rank in range(2):
        mine = begin + 50 * rng.integers(0, 2, 2000)
        mine[:: 2 - rank] = last[:: 2 - rank]
        ahead = (5_000_000, 0)[rank]
        records = [
            (b + drift * rank * b, e + drift * rank * e, 1)
            for b, e in zip(mine.tolist(), (last + 4).tolist(), strict=True)
        ]
        whole = [(round(b), round(e), row) for b, e, row in records]
        written(tmp_path, str(rank), rank, [{"verb": "barrier"}], whole, 2, "ab"[rank], ahead)
    trace = read(tmp_path)
    first, second = (trace.events["end"][trace.events["rank"] == rank] for rank in range(2))
    assert trace.error_s is not None
    assert trace.error_s < 20e-6
    assert np.abs(first - second).max() / 1e9 <= trace.error_s + 2e-6 + drift * begin[-1] * 1e-6 / 32
    assert "aligned within" in report.text(trace, report.lines(trace))


@pytest.mark.once
@pytest.mark.skipif(BROWSER is None, reason="no headless chromium")
def test_a_browser_draws_every_call_of_the_page(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    for rank in range(2):
        rows = [{"verb": "all_reduce", "call": "all_reduce('</script>')"}, {"verb": "range", "call": "step"}]
        written(
            tmp_path / "t", str(rank), rank, rows, [(10 * i, 10 * i + 5, 1 + i % 2) for i in range(50_000)]
        )
    page = tmp_path / "page.html"
    assert report.main([str(tmp_path / "t"), "-o", str(page)]) == 0
    text = page.read_text()
    assert "http" not in text
    point = "c.onmousemove({offsetX: 90, offsetY: 40, clientX: 0, clientY: 0})"
    page.write_text(text.replace("</html>", f"<script>{point}</script></html>"))
    command = [BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", page.as_uri()]
    done = finish(command, 60, tmp_path)
    assert 'data-drawn="100000"' in done.stdout
    assert "all_reduce('&lt;/script&gt;') on world\na.py:1\n5 us, begun at 0 us" in done.stdout


def test_a_report_of_one_rank_and_one_call_says_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    written(tmp_path, "0", 0, [{"verb": "barrier"}], [(0, 5, 1)], size=1)
    assert report.main([str(tmp_path)]) == 0
    assert re.match(r"1 rank, [\d.]+ us, 1 call\n", capsys.readouterr().out)


def test_a_folder_without_a_trace_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no trace"):
        report.main([str(tmp_path)])
    written(tmp_path, "0", 0, [], [])
    with pytest.raises(ConfigError, match="has no trace"):
        report.main([str(tmp_path)])
    with pytest.raises(ConfigError, match="there is no folder"):
        report.main([str(tmp_path / "nowhere")])

"""Apps refuse numbers that make no sense, with their usage, before MPI is started."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from hpcomm.apps._arguments import memory_limits

WRONG = [
    ("p2p_ring", "--count", "0"),
    ("softmax_demo", "--length", "-3"),
    ("softmax_demo", "--spread", "nan"),
    ("softmax_demo", "--spread", "1e101"),
    ("softmax_demo", "--spread", "1e-300"),
    ("softmax_demo", "--spread", "wide"),
    ("stats_demo", "--bins", "0"),
    ("stats_demo", "--bins", "1e12"),
    ("stats_demo", "--bins", "1000000000000"),
    ("heat2d", "--every", "0"),
    ("heat2d", "--steps", "-1"),
    ("algorithms_demo", "--bytes", "8,64"),
    ("algorithms_demo", "--bytes", "x"),
    ("gpu_demo", "--most", "-5"),
    ("gpu_demo", "--most", "100"),
    ("fft_demo", "--shape", "0 4 4"),
    ("matmul_demo", "--panel", "none"),
    ("overlap_demo", "--bytes", "-1"),
]


@pytest.mark.parametrize(("app", "option", "number"), WRONG, ids=lambda each: each)
def test_a_number_without_sense_is_refused(
    app: str, option: str, number: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        importlib.import_module(f"hpcomm.apps.{app}").main([option, *number.split()])
    assert caught.value.code == 2
    said = capsys.readouterr().err
    assert f"usage: {app}" in said
    assert f"argument {option}: " in said
    assert "invalid" not in said  # argparse's own word for what a function of ours has not told


@pytest.mark.parametrize(
    ("own", "mounted", "wanted"),
    [
        (
            "0::/job/step",
            {"job/memory.max": "2000", "job/step/memory.max": "max", "memory.max": "9000"},
            [2000, 9000],
        ),
        (
            "4:cpu,memory:/job\n1:cpu:/far\n",
            {"memory/job/memory.limit_in_bytes": "700", "far/memory.max": "1", "memory.max": "2"},
            [700],
        ),
        ("0::/not/seen/from/here", {"memory.max": "500"}, [500]),
        ("0::/", {}, []),
        (None, {"memory.max": "500"}, []),
    ],
)
def test_limits_of_control_groups_are_read(
    tmp_path: Path, own: str | None, mounted: dict[str, str], wanted: list[int]
) -> None:
    if own is not None:
        (tmp_path / "own").write_text(own)
    (tmp_path / "cgroup").mkdir()
    for name, text in mounted.items():
        (tmp_path / "cgroup" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "cgroup" / name).write_text(text + "\n")
    assert sorted(memory_limits(tmp_path / "own", tmp_path / "cgroup").values()) == wanted

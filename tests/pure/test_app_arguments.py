"""Apps refuse numbers that make no sense, with their usage, before MPI is started."""

from __future__ import annotations

import importlib

import pytest

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

"""Modules that are looked at only once they have been imported."""

from __future__ import annotations

import sys
import threading
from pathlib import Path

import pytest

from hpcomm._lazy import LazyModule, loaded


def test_a_module_that_another_thread_is_importing_does_not_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "slow_to_come.py").write_text("import threading\nbegun.set()\ngo_on.wait(20)\nDONE = True\n")
    begun, go_on = threading.Event(), threading.Event()
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr("builtins.begun", begun, raising=False)
    monkeypatch.setattr("builtins.go_on", go_on, raising=False)
    thread = threading.Thread(target=lambda: __import__("slow_to_come"))
    assert loaded("slow_to_come") is None
    thread.start()
    assert begun.wait(20)
    assert "slow_to_come" in sys.modules
    assert loaded("slow_to_come") is None
    go_on.set()
    thread.join()
    assert loaded("slow_to_come").DONE
    del sys.modules["slow_to_come"]


def test_who_looks_at_a_lazy_module_that_a_thread_is_just_making_does_not_fail() -> None:
    """It has no name yet: a RecursionError."""
    half_made = LazyModule.__new__(LazyModule)
    assert getattr(half_made, "waits_for", None) is None

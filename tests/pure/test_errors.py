"""Every error says what happened, where, and what to do, in that order."""

from __future__ import annotations

import pickle
import sys
from types import SimpleNamespace
from typing import Any

import pytest

import hpcomm
from hpcomm import errors

COMM: Any = SimpleNamespace(name="tp", rank=1, size=4)


@pytest.mark.parametrize(
    ("child", "parent"),
    [
        ("UsageError", "HpcommError"),
        ("LayoutError", "UsageError"),
        ("DtypeError", "UsageError"),
        ("RankError", "UsageError"),
        ("ConfigError", "UsageError"),
        ("MismatchError", "HpcommError"),
        ("TransportError", "HpcommError"),
        ("WaitTimeoutError", "HpcommError"),
        ("PeerFailedError", "HpcommError"),
    ],
)
def test_the_tree_of_errors_is_as_drawn(child: str, parent: str) -> None:
    assert issubclass(getattr(hpcomm, child), getattr(hpcomm, parent))
    assert getattr(hpcomm, child) in getattr(hpcomm, parent).__subclasses__()


def test_what_is_wrong_with_a_call_is_not_what_is_wrong_with_a_rank() -> None:
    others = (errors.MismatchError, errors.TransportError, errors.WaitTimeoutError, errors.PeerFailedError)
    assert not any(issubclass(other, errors.UsageError) for other in others)


def test_what_is_missing_is_caught_as_pythons_own_import_error_too() -> None:
    assert issubclass(errors.MissingError, ImportError)
    assert issubclass(errors.MissingError, errors.ConfigError)
    assert "pip install" in str(errors.MissingError("torch is not installed", "here", "pip install torch"))


@pytest.mark.parametrize(
    "call",
    [
        lambda: hpcomm.premul_sum("x"),
        lambda: hpcomm.Partition(4, {"p": -1}),
        lambda: hpcomm.Partition((4,), {"p": 2}).owner((9,)),
    ],
)
def test_who_cannot_say_more_says_which_line_called(call: Any) -> None:
    with pytest.raises(hpcomm.UsageError) as caught:
        call()
    assert "\n  where: test_errors.py:" in str(caught.value)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_every_error_is_an_exception_and_none_a_bare_one() -> None:
    for name in errors.__all__:
        assert issubclass(getattr(errors, name), Exception)
    assert errors.HpcommError.__bases__ == (Exception,)


def test_a_timeout_is_caught_by_those_who_know_only_pythons_own() -> None:
    with pytest.raises(TimeoutError):
        raise errors.WaitTimeoutError("too long")


def test_a_message_has_three_lines_in_this_order() -> None:
    error = errors.LayoutError(
        "x is odd", "all_reduce on communicator 'tp' (rank 1 of 4) at train.py:41", "x.even()"
    )
    assert str(error).split("\n") == [
        "x is odd",
        "  where: all_reduce on communicator 'tp' (rank 1 of 4) at train.py:41",
        "  try:   x.even()",
    ]
    assert (error.what, error.where, error.hint) == (
        "x is odd",
        "all_reduce on communicator 'tp' (rank 1 of 4) at train.py:41",
        "x.even()",
    )


def test_a_line_that_is_not_known_is_left_away() -> None:
    assert str(errors.RankError("no such rank")) == "no such rank"
    assert str(errors.RankError("no such rank", hint="0 to 3")) == "no such rank\n  try:   0 to 3"


def test_placing_an_error_names_the_verb_the_communicator_and_the_callers_line() -> None:
    error = errors.placed(errors.DtypeError("x is odd"), "all_reduce", COMM)
    line = sys._getframe().f_lineno - 1
    assert error.where == f"all_reduce on communicator 'tp' (rank 1 of 4) at test_errors.py:{line}"


def test_placing_an_error_never_overwrites_a_place_that_is_known_better() -> None:
    error = errors.placed(errors.DtypeError("x is odd", "deep inside"), "all_reduce", COMM)
    assert error.where == "deep inside"


def test_a_place_without_a_communicator_names_verb_and_line() -> None:
    assert errors.where("doctor", None).startswith("doctor at test_errors.py:")


def test_the_callers_line_is_the_innermost_outside_of_the_package() -> None:
    """hpcomm's own frames are skipped, its apps' are not: they are users like others."""
    inner = compile("def call(f):\n    return f()\n", errors._PACKAGE + "collectives.py", "exec")
    app = compile("def call(f):\n    return f()\n", errors._PACKAGE + "apps/demo.py", "exec")
    ours: dict[str, Any] = {}
    theirs: dict[str, Any] = {}
    exec(inner, ours)
    exec(app, theirs)
    assert errors.is_ours(inner)
    assert not errors.is_ours(app)

    def innermost() -> Any:
        return errors.calling_frame(sys._getframe(1))

    line = sys._getframe().f_lineno + 1
    frame = ours["call"](innermost)
    assert frame.f_code.co_filename == __file__
    assert frame.f_lineno >= line
    assert theirs["call"](innermost).f_code.co_filename.endswith("apps/demo.py")


def test_a_place_is_short_enough_for_a_narrow_screen() -> None:
    code = compile("pass", "/a/very/long/path/to/train.py", "exec")
    assert errors.source_line(code, 41) == "train.py:41"


def test_a_transport_error_holds_mpis_own_number() -> None:
    error = errors.TransportError("MPI failed", "send", "doctor", 17)
    assert error.error_class == 17
    assert str(error) == "MPI failed\n  where: send\n  try:   doctor"


def test_a_peer_failure_names_the_ranks() -> None:
    assert errors.PeerFailedError("gone", ranks=[3, 1]).ranks == (3, 1)
    assert errors.PeerFailedError("gone").ranks == ()


@pytest.mark.parametrize("name", errors.__all__)
def test_an_error_travels_between_processes_unharmed(name: str) -> None:
    """multiprocessing and futures pickle what was raised."""
    error = getattr(errors, name)("what", "where", "try")
    if name == "PeerFailedError":
        error = errors.PeerFailedError("what", "where", "try", ranks=[2])
    if name == "TransportError":
        error = errors.TransportError("what", "where", "try", 17)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is type(error)
    assert str(copy) == str(error)
    assert vars(copy) == vars(error)


@pytest.mark.parametrize(
    ("ranks", "text"),
    [
        ([2], "rank 2"),
        ({5, 2}, "ranks 2, 5"),
        ([0, 1, 2, 3, 8], "ranks 0-3, 8"),
        ([1, 3, 5], "ranks 1, 3 and others"),
    ],
)
def test_ranks_are_named_with_runs_drawn_together(ranks: Any, text: str) -> None:
    assert errors.named(ranks, 2) == text

"""Arrays on devices in payloads, as far as no device is needed: where they go, and how stages move on."""

from __future__ import annotations

import sys
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from hpcomm.communicator.payloads import device_payload
from hpcomm.core import dtypes
from hpcomm.transport.progress import Moving


@pytest.mark.parametrize("library", ["cupy", "jax"])
def test_without_a_device_or_a_known_library_an_array_comes_to_the_host(
    monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    """A rank of CPUs may have CuPy loaded, which raises where it is to make an array."""
    module = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, library, module)
    room = device_payload._room(library, dtypes.BY_NAME["float32"], (2, 3))
    assert type(room.give()) is np.ndarray
    assert (room.shape, room.array.dtype) == ((2, 3), np.float32)


def test_a_tensor_comes_as_a_tensor_of_the_host_where_torch_has_no_cuda() -> None:
    torch = pytest.importorskip("torch")
    if torch.cuda.is_available():
        pytest.skip("this torch has CUDA")
    made = device_payload._room("torch", dtypes.BY_NAME["bfloat16"], (3,)).give()
    assert (made.dtype, tuple(made.shape), made.is_cpu) == (torch.bfloat16, (3,), True)


class Turns:
    """Is over when it has been asked so many times."""

    def __init__(self, turns: int) -> None:
        self.turns = turns

    def Test(self, status: Any = None) -> bool:  # noqa: N802
        self.turns -= 1
        return self.turns <= 0


def test_stages_that_move_give_what_they_return_and_raise_what_they_raise() -> None:
    def stages(error: Exception | None = None) -> Any:
        yield [Turns(3), Turns(2)]
        if error is not None:
            raise error
        yield [Turns(1)]
        return "there"

    moving = Moving(stages())
    assert not moving.Test()
    moving.Wait()
    assert moving.Test()
    assert moving.result == "there"
    failing = Moving(stages(ValueError("no")))
    with pytest.raises(ValueError, match="no"):
        failing.Wait()
    with pytest.raises(ValueError, match="no"):
        failing.Test()

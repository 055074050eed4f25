"""Torch's part in mapping fields where they lie, on its CPU: the calls of a device's are the same."""

from __future__ import annotations

import weakref
from typing import Any

import numpy as np
import pytest

from hpcomm import regrid
from hpcomm.core.patience import until
from hpcomm.device.libraries import LIBRARIES
from hpcomm.mpmd.coupling.device_operations import DeviceOperations, Mapped

torch = pytest.importorskip("torch")
pytest.importorskip("scipy")


class OnCpu(DeviceOperations):
    """Where tensors lie that have no device; so without streams."""

    def __init__(self) -> None:
        self._library, self.ways, self.like = "torch", LIBRARIES["torch"], torch.zeros(1)

    def holds(self, values: Any) -> bool:
        return isinstance(values, torch.Tensor)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
@pytest.mark.parametrize("mapping", ["nearest", "idw", "bilinear", "conservative"])
def test_a_mapping_gives_the_same_numbers_as_on_the_host(mapping: str, dtype: Any) -> None:
    source, target = regrid.LatLon(10, 20), regrid.LatLon(8, 18)
    weights = regrid.weights(source, target, mapping, given=np.arange(30, 200))
    x = np.random.default_rng(3).standard_normal((weights.columns, 2)).astype(dtype)
    there = OnCpu()
    mapped = Mapped(there, weights, 2)
    made = mapped.apply(torch.from_numpy(x))
    np.testing.assert_array_equal(made.numpy(), weights.apply(x)[mapped.rows])
    assert sorted(mapped.rows) == weights.rows.tolist()
    out = torch.full((target.size, 2), -1.0, dtype=torch.float32, requires_grad=True)
    with torch.no_grad():
        mapped.fill(out, 2.0 * made + 1.0)
    expected = np.full((target.size, 2), -1.0, np.float32)
    expected[mapped.rows] = 2 * weights.apply(x)[mapped.rows] + 1
    np.testing.assert_array_equal(out.detach().numpy(), expected)
    on_host = np.full((target.size, 2), -1.0, np.float32)
    mapped.fill(on_host, 2.0 * made + 1.0)  # where the program has moved it there
    np.testing.assert_array_equal(on_host, expected)


class Looked:
    """A work that is complete at the first look, or never."""

    def __init__(self, ends: bool) -> None:
        self.ends, self.looks = ends, 0

    def poll(self) -> bool:
        self.looks += 1
        return self.ends


def looked_at(poller: Any, ends: bool) -> Looked:
    poller.add(work := Looked(ends))
    assert until(lambda: work.looks, 30)
    return work


def test_a_poller_keeps_nothing_while_nothing_is_under_way() -> None:
    """It could keep the tensors of the last call until the next one began."""
    from hpcomm.torch_backend.worker import Poller

    poller = Poller("a poller of a test")
    for _ in range(12):  # each is waited for as soon as it has begun, so that looks become rare
        poller.under_way.discard(looked_at(poller, ends=False))  # type: ignore[arg-type]
    kept = weakref.ref(looked_at(poller, ends=True))
    assert until(lambda: kept() is None, 30)

"""Tensors that do not lie in host memory: copies and order with torch's streams.

CUDA's are handed to the Communicator, which has ways of its own for them (docs/gpu.md), in order with torch's
streams. Those of other devices, and calls that a Communicator carries through host memory anyway, travel by
copies: out by the caller before the call begins, on the device's current stream, so that work enqueued before
is in it; back before the call is complete.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import Tensor

from ..device.driver import possible
from ..errors import HpcommError, LayoutError
from .calls import array, flat
from .torch_errors import as_torch

Look = TypeVar("Look", bound=Callable[..., object])

streams: Any = torch.cuda  # who has Stream, stream and current_stream
_NAMES = {  # of torch's calls, where they are not the functions' own
    "all_gather_into": "all_gather_into_tensor",
    "all_to_all_uneven": "all_to_all_single",
    "reduce_scatter_into": "reduce_scatter_tensor",
}
_sides: dict[Any, Any] = {}  # the stream of background calls, by device


def is_onboard(x: Tensor) -> bool:
    """Whether x lies where a Communicator's own paths reach."""
    return bool(x.is_cuda) and possible()


def staged(output: str, *, takes_devices: bool = False, takes_sparse: bool = False) -> Callable[[Look], Look]:
    """For a function that looks at tensors and returns what is to run: hand it host copies instead.

    Args:
        output: the parameter whose tensors are filled.
        takes_devices: what is to run is made of verbs that take tensors where they lie.
        takes_sparse: it takes tensors of torch.sparse_coo.
    """

    def decorate(look: Look) -> Look:
        names = list(inspect.signature(look).parameters)
        place = names.index(output)

        @functools.wraps(look)
        def looked(*arguments: Any) -> Any:
            by = arguments[0]
            try:
                return staging(*arguments)
            except Exception as error:  # raised before any rank has been met
                by.refuse()
                if isinstance(error, HpcommError):
                    raise as_torch(
                        error, _NAMES.get(look.__name__, look.__name__.lstrip("_")), by.entry.where
                    ) from None
                raise

        def staging(*arguments: Any) -> Any:
            by, *rest = arguments
            for x in flat(rest):
                check_layout(x, takes_sparse)
            if all(map(_is_here, rest)):
                return look(*arguments)
            by_device = takes_devices and getattr(by, "comm", by).context.devices is not None
            if by_device and all(map(_is_there, rest)):
                return on_device(by, rest)
            hosts = [_host(argument) for argument in arguments]
            return _then(
                look(*hosts), lambda run: _after(run, lambda: _copy_back(arguments[place], hosts[place]))
            )

        def on_device(by: Any, rest: list[Any]) -> Any:
            there = rest[place - 1]
            whole = there.contiguous() if hasattr(there, "contiguous") else there
            rest[place - 1] = whole
            made = look(getattr(by, "comm", by), *rest)
            if whole is not there and not there.is_contiguous():
                made = _then(made, lambda run: _after(run, lambda: there.copy_(whole)))
            return _then(made, lambda run: _after(by.arrive, run)) if hasattr(by, "arrive") else made

        return looked  # type: ignore[return-value]  # it takes the same

    return decorate


def check_layout(x: Any, takes_sparse: bool = False) -> None:
    """Refuse a tensor whose elements do not lie in memory, each in its place.

    Raises:
        LayoutError: it is sparse or nested, or has no elements.
    """
    if getattr(x, "is_meta", False):
        raise LayoutError(f"{array(x)} has no elements", hint="torch.empty_like(tensor, device='cpu')")
    if getattr(x, "is_nested", False):
        raise LayoutError("the tensor is nested", hint="tensor.to_padded_tensor(0.0), or each of unbind()")
    layout = getattr(x, "layout", torch.strided)
    if layout is not torch.strided and not (takes_sparse and layout is torch.sparse_coo):
        verbs = f"takes dense tensors{' and those of torch.sparse_coo' * takes_sparse}"
        raise LayoutError(f"{array(x)} is sparse: the call {verbs}", hint="give it tensor.to_dense()")


def _then(made: object, change: Callable[[Any], Any]) -> Any:
    return (change(made[0]), *made[1:]) if isinstance(made, tuple) else change(made)


def _after(first: Callable[[], None], then: Callable[[], None]) -> Callable[[], None]:
    def run() -> None:
        first()
        then()

    return run


def _is_here(argument: object) -> bool:
    return all(map(_is_here, argument)) if isinstance(argument, list) else getattr(argument, "is_cpu", True)


def _is_there(argument: Any) -> bool:
    if isinstance(argument, list):
        return all(map(_is_there, argument))
    return not hasattr(argument, "is_cuda") or (argument.layout is torch.strided and is_onboard(argument))


def _host(argument: object) -> Any:
    if isinstance(argument, torch.Tensor):
        return argument.detach().cpu()
    if isinstance(argument, list):
        return [_host(each) for each in argument]
    return argument


def _copy_back(target: Any, source: Any) -> None:
    if isinstance(target, torch.Tensor):
        target.detach().copy_(source)
        torch.accelerator.synchronize(target.device)
    elif target is not None:
        for each, host in zip(target, source, strict=True):
            _copy_back(each, host)


class Aside:
    """A background call's stream: after what was enqueued before the call, before whoever waits for it."""

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._device = tensors[0].device
        self._stream = _sides.get(self._device) or _sides.setdefault(
            self._device, streams.Stream(self._device)
        )
        self._ready = streams.current_stream(self._device).record_event()
        self._over: Any = None
        for x in tensors:
            x.record_stream(self._stream)  # its memory is not given away before

    def run(self, deed: Callable[[], None]) -> None:
        with streams.stream(self._stream):
            self._stream.wait_event(self._ready)
            deed()
            self._over = self._stream.record_event()

    def fill(self, give: Callable[[], None]) -> None:
        """Fill a future, whose callbacks then come after the call."""
        with streams.stream(self._stream):
            give()

    def future(self) -> Any:
        return torch.futures.Future(devices=[self._device])

    def join(self) -> None:
        """Let the current stream wait for the call, once it has run."""
        if self._over is not None:
            streams.current_stream(self._device).wait_event(self._over)

    def done(self) -> bool:
        return self._over is None or bool(self._over.query())

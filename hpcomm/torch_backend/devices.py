"""Tensors that do not lie in host memory travel by way of it.

The copy out is made by the caller before the call begins, on the device's current stream, so that work
enqueued before is in it; the copy back is complete before the call is.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch

__all__ = ["staged"]


def staged(output: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """For a function that looks at tensors and returns what is to run: hand it host copies instead.

    Args:
        output: the parameter whose tensors are filled.
    """

    def decorate(look: Callable[..., Any]) -> Callable[..., Any]:
        names = list(inspect.signature(look).parameters)
        place = names.index(output)

        @functools.wraps(look)
        def looked(*arguments: Any) -> Any:
            if all(map(_is_here, arguments[1:])):  # the first is no tensor, but who carries the call out
                return look(*arguments)
            hosts = [_host(argument) for argument in arguments]
            made = look(*hosts)
            run = made[0] if isinstance(made, tuple) else made

            def run_and_return() -> None:
                run()
                _copy_back(arguments[place], hosts[place])

            return (run_and_return, *made[1:]) if isinstance(made, tuple) else run_and_return

        return looked

    return decorate


def _is_here(argument: Any) -> bool:
    if isinstance(argument, torch.Tensor):
        return argument.is_cpu
    return not isinstance(argument, list) or all(map(_is_here, argument))


def _host(argument: Any) -> Any:
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

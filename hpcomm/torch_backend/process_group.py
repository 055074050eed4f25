"""Process group: torch.distributed's calls, each carried out by a Communicator."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import torch

from ..communicator import trace
from ..communicator.fingerprint import torch_call
from ..errors import HpcommError
from . import group_calls, store_reports
from .calls import (
    OPERATORS,
    Call,
    by_name,
    fitting,
    in_turn,
    is_even,
    lengths,
    made_options,
    nothing,
    operator,
)
from .message_work import MessageWork, NodeMessageWork, message_words
from .names import options
from .process_group_base import CommProcessGroup
from .profile import recording
from .torch_errors import as_torch
from .work import Work

_AllreduceOptions = options.AllreduceOptions
_AllgatherOptions = options.AllgatherOptions
_ReduceScatterOptions = options.ReduceScatterOptions


class ProcessGroupMPI(CommProcessGroup):
    """A process group of torch.distributed over a Communicator of its own.

    Calls return a Work; blocking ones that the core made at once None, as torch allows."""

    # -- collective calls ----------------------------------------------------------------------------
    def allreduce(self, tensors: Any = None, opts: Any = None, *more: object, **named: object) -> Work | None:
        if named:
            tensors, opts = by_name(named, tensors, opts, tensor=0, op=1)
        if type(opts) is _AllreduceOptions and len(tensors) == 1:
            x = tensors[0]
            made = self._by_core(opts, "all_reduce", x, x, OPERATORS.get(hash(opts.reduceOp)))
            if made is not NotImplemented:
                return made
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        opts = made_options(opts, options.AllreduceOptions, *more, named.get("timeout"))
        x = tensors[0]
        op = operator(opts.reduceOp)
        run = in_turn(self._by, [group_calls.all_reduce(self._by, each, op) for each in tensors])
        count = lengths(tensors)
        return self._call(
            Call("all_reduce", x, op=op, elements=count, opts=opts), run, tensors, inputs=tensors
        )

    def allreduce_coalesced(self, tensors: list[torch.Tensor], opts: Any = None) -> Work:
        opts = made_options(opts, options.AllreduceCoalescedOptions)
        op = operator(opts.reduceOp)
        run = group_calls.all_reduce_coalesced(self._by, tensors, op)
        return self._call(
            Call("all_reduce", tensors[0], op=op, elements=lengths(tensors), opts=opts),
            run,
            tensors,
            inputs=tensors,
        )

    def broadcast(self, tensors: Any = None, opts: Any = None, *more: object, **named: object) -> Work | None:
        if named:
            tensors, opts = by_name(named, tensors, opts, tensor=0, root=1)
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        opts = made_options(opts, options.BroadcastOptions, *more, named.get("timeout"))
        root, x = opts.rootRank, tensors[0]
        if len(tensors) == 1 and (made := self._by_core(opts, "broadcast", x, x, root)) is not NotImplemented:
            return made
        run = in_turn(self._by, [group_calls.broadcast(self._by, x, root) for x in tensors])
        return self._call(
            Call("broadcast", tensors[0], root=root, elements=lengths(tensors), opts=opts), run, tensors
        )

    def reduce(
        self, tensors: Any = None, opts: Any = None, op: Any = None, *more: object, **named: object
    ) -> Work:
        tensors, opts = by_name(named, tensors, opts, tensor=0, root=1)
        if isinstance(tensors, torch.Tensor):
            tensors = [tensors]
        opts = made_options(opts, options.ReduceOptions, op, *more, named.get("timeout"))
        root, op = opts.rootRank, operator(opts.reduceOp)
        run = group_calls.reduce(self._by, tensors[0], op, root)
        return self._call(Call("reduce", tensors[0], op=op, root=root, opts=opts), run, tensors)

    def allgather(
        self, output_tensors: Any, input_tensors: Any = None, opts: Any = None, *more: object, **named: object
    ) -> Work:
        outputs, inputs = output_tensors, by_name(named, input_tensors, input_tensor=0)[0]
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = made_options(opts, options.AllgatherOptions, *more, named.get("timeout"))
        places, x = outputs[0], inputs[0]
        by = self._by
        run, odd = fitting(by, x, places, lambda: group_calls.all_gather(by, places, x), self._rank)
        count = odd or (None if is_even(places) else lengths(places))
        return self._call(Call("all_gather", x, elements=count, opts=opts), run, outputs)

    def all_gather_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        opts: object = None,
        *more: object,
    ) -> Work | None:
        x = input
        if type(opts) is _AllgatherOptions:
            made = self._by_core(opts, "all_gather", x, output)
            if made is not NotImplemented:
                return made
        opts = made_options(opts, options.AllgatherOptions, *more)
        run = group_calls.all_gather_into(self._by, output, x)
        return self._call(Call("all_gather", x, opts=opts), run, [output])

    _allgather_base = all_gather_single

    def all_gather_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: object = None
    ) -> Work:
        return self._all_gather_each(group_calls.all_gather_into, outputs, inputs, outputs, opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced

    def allgather_coalesced(
        self, output_lists: list[list[torch.Tensor]], input_list: list[torch.Tensor], opts: object = None
    ) -> Work:
        """output_lists[rank][i] receives input_list[i] of rank."""
        columns = [list(column) for column in zip(*output_lists, strict=True)]
        return self._all_gather_each(group_calls.all_gather, columns, input_list, output_lists, opts)

    def _all_gather_each(
        self, look: Any, places: list[Any], inputs: list[torch.Tensor], outputs: object, opts: object
    ) -> Work:
        """Several calls as one: look(by, place, x) is what is to run for each input."""
        by = self._by
        run = in_turn(by, [look(by, place, x) for place, x in zip(places, inputs, strict=True)])
        call = Call("all_gather", inputs[0], elements=lengths(inputs), opts=opts)
        return self._call(call, run, outputs, inputs=inputs)

    def gather(
        self, output_tensors: Any, input_tensors: Any = None, opts: Any = None, *more: object, **named: object
    ) -> Work:
        outputs = output_tensors
        inputs, opts = by_name(named, input_tensors, opts, input_tensor=0, root=1)
        if isinstance(inputs, torch.Tensor):
            outputs, inputs = [outputs] if outputs else [], [inputs]
        opts = made_options(opts, options.GatherOptions, *more, named.get("timeout"))
        by, x, root = self._by, inputs[0], opts.rootRank
        here = outputs[0] if outputs and self._rank == root else []
        run, count = fitting(by, x, here, lambda: group_calls.gather(by, here, x, root))
        return self._call(
            Call("gather", x, root=root, elements=count, opts=opts), run, outputs, inputs=inputs
        )

    def scatter(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        *more: object,
        **named: object,
    ) -> Work:
        outputs, opts = by_name(named, output_tensors, opts, output_tensor=0, root=1)
        inputs = input_tensors
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs] if inputs else []
        opts = made_options(opts, options.ScatterOptions, *more, named.get("timeout"))
        by, x, root = self._by, outputs[0], opts.rootRank
        here = inputs[0] if inputs and self._rank == root else []
        run, count = fitting(by, x, here, lambda: group_calls.scatter(by, x, here, root))
        return self._call(Call("scatter", x, root=root, elements=count, opts=opts), run, outputs, others=here)

    def reduce_scatter(
        self,
        output_tensors: Any = None,
        input_tensors: Any = None,
        opts: Any = None,
        *more: object,
        **named: object,
    ) -> Work:
        outputs, inputs, opts = by_name(named, output_tensors, input_tensors, opts, output=0, input=1, op=2)
        if isinstance(outputs, torch.Tensor):
            outputs, inputs = [outputs], [inputs]
        opts = made_options(opts, options.ReduceScatterOptions, *more, named.get("timeout"))
        by, op, out, blocks = self._by, operator(opts.reduceOp), outputs[0], inputs[0]
        run, odd = fitting(
            by, out, blocks, lambda: group_calls.reduce_scatter(by, out, blocks, op), self._rank
        )
        each = lengths(blocks)
        count = odd or (sum(each) if is_even(blocks) else each)
        return self._call(
            Call("reduce_scatter", out, op=op, elements=count, opts=opts), run, outputs, inputs=inputs[0]
        )

    def reduce_scatter_single(
        self,
        outputTensor: torch.Tensor,  # noqa: N803  torch's names
        inputTensor: torch.Tensor,  # noqa: N803
        opts: Any = None,
        *more: object,
    ) -> Work | None:
        output, x = outputTensor, inputTensor
        if type(opts) is _ReduceScatterOptions:
            made = self._by_core(opts, "reduce_scatter", x, output, OPERATORS.get(hash(opts.reduceOp)))
            if made is not NotImplemented:
                return made
        opts = made_options(opts, options.ReduceScatterOptions, *more)
        op = operator(opts.reduceOp)
        run = group_calls.reduce_scatter_into(self._by, output, x, op)
        return self._call(Call("reduce_scatter", x, op=op, opts=opts), run, [output])

    _reduce_scatter_base = reduce_scatter_single

    def reduce_scatter_single_coalesced(
        self, outputs: list[torch.Tensor], inputs: list[torch.Tensor], opts: Any = None
    ) -> Work:
        opts = made_options(opts, options.ReduceScatterOptions)
        by, op = self._by, operator(opts.reduceOp)
        pairs = zip(outputs, inputs, strict=True)
        run = in_turn(by, [group_calls.reduce_scatter_into(by, out, x, op) for out, x in pairs])
        call = Call("reduce_scatter", inputs[0], op=op, elements=lengths(inputs), opts=opts)
        return self._call(call, run, outputs, others=inputs)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced

    def all_to_all_single(
        self,
        output: torch.Tensor,
        input: torch.Tensor,
        output_split_sizes: Any = None,
        input_split_sizes: Any = None,
        opts: Any = None,
        *more: object,
        **named: object,
    ) -> Work | None:
        if named:
            by_name(named)
        x, output_sizes, input_sizes = input, output_split_sizes, input_split_sizes
        opts = made_options(opts, options.AllToAllOptions, *more, named.get("timeout"))
        is_even = not output_sizes and not input_sizes
        if is_even and x.dim() == 1:
            made = self._by_core(opts, "all_to_all", x, output)
            if made is not NotImplemented:
                return made
        if is_even:
            run, count = group_calls.all_to_all_single(self._by, output, x), None
        else:
            run, count = group_calls.all_to_all_uneven(self._by, output, x, output_sizes, input_sizes)
        return self._call(Call("all_to_all", x, elements=count, opts=opts), run, [output])

    alltoall_base = all_to_all_single

    def alltoall(self, output_tensors: Any, input_tensors: Any, opts: Any = None, *more: object) -> Work:
        outputs, inputs = output_tensors, input_tensors
        opts = made_options(opts, options.AllToAllOptions, *more)
        run = group_calls.all_to_all(self._by, outputs, inputs)
        return self._call(
            Call("all_to_all", inputs[0], elements=lengths(inputs), opts=opts), run, outputs, inputs=inputs
        )

    def barrier(self, opts: object = None, timeout: timedelta | None = None) -> Work:
        opts = made_options(opts, options.BarrierOptions, timeout)
        return self._call(Call("barrier", opts=opts), nothing, ())

    def monitored_barrier(
        self, timeout: timedelta | float | None = None, wait_all_ranks: bool = False
    ) -> None:
        """Meet; rank 0 names those that do not come in time, and all raise. See torch's own."""
        self._drain(self.seconds)
        store_reports.monitored_barrier(self, timeout, wait_all_ranks)

    # -- messages --------------------------------------------------------------------------------------
    def send(self, tensors: list[torch.Tensor], dstRank: int, tag: int = 0) -> Work:  # noqa: N803
        return self._message("send", tensors, dstRank, tag)

    def recv(self, tensors: list[torch.Tensor], srcRank: int, tag: int = 0) -> Work:  # noqa: N803
        return self._message("recv", tensors, srcRank, tag)

    def recv_anysource(self, tensors: list[torch.Tensor], tag: int = 0) -> Work:
        return self._message("recv", tensors, None, tag)

    def _message(self, verb: str, tensors: list[torch.Tensor], peer: int | None, tag: int) -> Work:
        x, mail = tensors[0], self._mail
        request: Any = NotImplemented
        if self._is_short and mail is not None and not recording():
            begin: Any = mail.isend if verb == "send" else mail.irecv
            try:
                request = begin(x, peer, tag)
            except (OSError, ValueError):
                request = NotImplemented  # and is told in words below
        if request is NotImplemented:
            return self._message_with_words(verb, tensors, peer, tag)
        if request is None:
            return self._keep(self._sent)
        return self._under_way(NodeMessageWork(self, verb, x, peer, tag, request))

    def _message_with_words(self, verb: str, tensors: list[torch.Tensor], peer: int | None, tag: int) -> Work:
        """The same where somebody wants to know of it, by a Communicator, or with an error to be told."""
        x, mail = tensors[0], self._mail
        end, words = self._observed(verb, x, peer, tag), message_words(verb, x, peer)
        try:
            request, give = group_calls.message(self.comm if mail is None else mail, verb, x, peer, tag)
        except HpcommError as error:
            raise as_torch(error, words, self.where) from None
        if request is None:
            if end is not None:
                end()
            return self._keep(self._sent)
        work = (MessageWork if mail is None else NodeMessageWork)(self, verb, x, peer, tag, request)
        if give is not None or end is not None:
            work.give, work.close = give, end
        return self._under_way(work)

    def _observed(self, verb: str, x: torch.Tensor, peer: int | None, tag: int) -> Callable[[], None] | None:
        """What ends the records of a message, as profiles and traces have them; None: nobody has one."""
        end = self._recorded(verb if peer is not None else "recvAnySource", [x])
        words = message_words(verb, x, peer)
        if self._has_prints:
            ends = (x, None) if verb == "send" else (None, x)
            end = torch_call(self.comm, verb, peer, f"{words} with tag {tag}", ends, end or nothing)
        if self._is_traced:
            end = trace.torch_call(self.comm, verb, peer, words, [x], end or nothing)
        return end

    def _under_way(self, work: Work) -> Work:
        if not work.poll():
            self._poller.add(work)
        return self._keep(work)

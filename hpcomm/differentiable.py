"""Communication that torch.autograd can differentiate."""

from .fields.autograd import (
    all_gather,
    all_reduce,
    all_to_all,
    broadcast,
    gradcheck,
    recv,
    redistribute,
    reduce_scatter,
    send,
    update_halo,
)

__all__ = [
    "all_gather",
    "all_reduce",
    "all_to_all",
    "broadcast",
    "gradcheck",
    "recv",
    "redistribute",
    "reduce_scatter",
    "send",
    "update_halo",
]

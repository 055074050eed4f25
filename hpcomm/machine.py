"""Machines as data. Public names of schedule/cost/machine.py."""

from .schedule.cost.machine import Machine, lower_bound, machine, machines

__all__ = [
    "Machine",
    "lower_bound",
    "machine",
    "machines",
]

"""Machines as data. Public names of schedule/cost/machine_model.py."""

from .schedule.cost.machine_model import Machine, lower_bound, machine, machines

__all__ = [
    "Machine",
    "lower_bound",
    "machine",
    "machines",
]

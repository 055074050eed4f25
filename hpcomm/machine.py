"""Models of machines, as data."""

from .schedule.cost.machine_model import Machine, lower_bound, machine, machines

__all__ = [
    "Machine",
    "lower_bound",
    "machine",
    "machines",
]

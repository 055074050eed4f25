"""What a schedule costs on a machine."""

from .schedule.cost.simulator import Simulation, meant, predict, simulate

__all__ = [
    "Simulation",
    "meant",
    "predict",
    "simulate",
]

"""What a schedule costs on a machine. Public names of schedule/cost/simulate.py."""

from .schedule.cost.simulate import Simulation, meant, predict, simulate

__all__ = [
    "Simulation",
    "meant",
    "predict",
    "simulate",
]

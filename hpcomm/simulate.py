"""What a schedule costs on a machine. Public names of schedule/cost/simulator.py."""

from .schedule.cost.simulator import Simulation, meant, predict, simulate

__all__ = [
    "Simulation",
    "meant",
    "predict",
    "simulate",
]

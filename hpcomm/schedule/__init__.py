"""Algorithms of collectives as pure functions of (size, rank): build, combine, prove, interpret.

Begin with stream.py (the representation), then ring.py or tree.py. Imports no MPI; cost/ prices schedules.
"""

"""How a Call is carried out: by the MPI library, by own schedules, between devices.

Begin with mpi.py (`run`, `start`, `prepare`). scheduled/ runs schedules, device/ moves memory of GPUs.
"""

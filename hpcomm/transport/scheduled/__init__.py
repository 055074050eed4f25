"""Schedules executed over MPI or threads. Begin with schedule_transport.py, then executor.py."""

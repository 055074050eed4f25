"""Commands for people: doctor, tune, fit, draw, sim. Each file is a command; mpi_probe.py serves doctor."""

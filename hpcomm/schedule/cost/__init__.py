"""Cost models of schedules: LogGP with ports and shared links. Begin with simulator.py."""

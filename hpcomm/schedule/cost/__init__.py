"""Cost models of schedules: LogGP with ports and shared links. Begin with simulate.py."""

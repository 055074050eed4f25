"""Start of the programs of a spec. Begin with start.py; rank_supervisor.py stands beside each rank."""

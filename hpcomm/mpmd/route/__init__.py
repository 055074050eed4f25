"""Routes between programs: which rank sends which points to which rank. Begin with coupled_route.py."""

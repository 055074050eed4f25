"""Which rank of one program sends which points to which rank of another. Begin with coupled_route.py."""

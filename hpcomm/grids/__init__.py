"""Grids and mappings between them: geometry, weights, and what carries them out. Begin with grid.py."""

"""Grids and mappings between them: geometry, weights, remapping. Begin with README.md, then grid.py."""

"""Collective algorithms as pure functions of (size, rank). Begin with README.md, then stream.py."""

"""Calls whose arrays lie on devices. Begin with dispatch.py; each path is a file of its own name."""

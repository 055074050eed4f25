"""Programs of a spec: reading and checking what is to be started. Begin with programs.py."""

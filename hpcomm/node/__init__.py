"""Ranks of one node: shared memory, and what goes through it without MPI. Begin with README.md."""

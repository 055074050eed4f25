"""What ranks of one node share: a segment of memory, and what goes through it without MPI.

Begin with segment.py (who has which part of the memory), then node_collectives.py. Imports core/ only.
"""

"""Fields in files, through MPI-IO. Public names of fields/files/npy.py."""

from .fields.files.npy import found, load, move, opened, read_into, read_raw, save, values, write_raw

__all__ = [
    "found",
    "load",
    "move",
    "opened",
    "read_into",
    "read_raw",
    "save",
    "values",
    "write_raw",
]

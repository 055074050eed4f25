"""Fields in files, through MPI-IO. Public names of fields/files/npy.py."""

from .fields.files.npy import append, found, load, move, opened, read_into, read_raw, save, values, write_raw

__all__ = [
    "append",
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

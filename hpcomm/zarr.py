"""Fields in zarr stores, each chunk written by its owner. Needs zarr 3. Public names of
fields/files/zarr_stores.py."""

from .fields.files.zarr_stores import load, read_into, save

__all__ = [
    "load",
    "read_into",
    "save",
]

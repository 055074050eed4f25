"""Fields in HDF5 files, written and read by all ranks together. Needs h5py. Public names of
fields/files/hdf5_files.py."""

from .fields.files.hdf5_files import explain, load, read_into, save

__all__ = [
    "explain",
    "load",
    "read_into",
    "save",
]

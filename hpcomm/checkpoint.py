"""Checkpoints. Public names of fields/files/checkpoints.py."""

from .fields.files.checkpoints import Checkpoint, load, save, steps

__all__ = [
    "Checkpoint",
    "load",
    "save",
    "steps",
]

"""torch.distributed with backend="mpi" on the stock torch wheel.

After installation `import torch` finds this by itself (entry point group `torch.backends`); without it
`import hpcomm.torch_backend` does the same. Neither brings MPI up: `init_process_group` does.
"""

from __future__ import annotations

from importlib import import_module

__all__ = ["autoload"]


def autoload() -> None:
    """Make "mpi" a backend of torch.distributed; torch calls this when it is imported. May be repeated."""
    import_module("hpcomm.torch_backend.install").install()


autoload()

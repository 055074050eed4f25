"""torch.distributed with backend="mpi" on the stock torch wheel.

After installation `import torch` finds this by itself (entry point group `torch.backends`); without it
`import hpcomm.torch_backend` does the same. Neither brings MPI up: `init_process_group` does.
"""

from __future__ import annotations

from importlib import import_module

from ..errors import ConfigError

__all__ = ["autoload"]


def autoload() -> None:
    """Make "mpi" a backend of torch.distributed; torch calls this when it is imported. May be repeated.

    Raises:
        ConfigError: there is no torch.
    """
    try:
        import_module("hpcomm.torch_backend.seam").install()
    except ModuleNotFoundError as error:
        if str(error.name).partition(".")[0] != "torch":
            raise
        what, hint = "torch is not installed", "pip install 'hpcomm[torch]'"
        raise ConfigError(what, "hpcomm.torch_backend", hint) from None


autoload()

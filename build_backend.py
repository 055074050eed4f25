"""Build backend: setuptools', and where there is no C compiler one from a wheel builds the node core.

That wheel (ziglang) becomes a build requirement only where it can be had: installing never fails for want
of a compiler. Without one everything is installed but the core, and all goes by MPI.
"""

import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
from importlib.util import find_spec
from pathlib import Path

if sys.version_info < (3, 11):  # noqa: UP036  pip asks this file before it looks which Python we need
    sys.exit(f"hpcomm needs Python 3.11 or later, this is {sys.version.split()[0]}.\n"
             "  try:   python3.11 -m venv .venv, or one that is newer; then pip install in it")  # fmt: skip

from itertools import pairwise

from setuptools import build_meta
from setuptools.build_meta import *  # noqa: F403

_WHEEL = "ziglang"
_LIMIT_S = 60  # to hear whether it can be had
_SAID = ("-i", "--index-url", "--extra-index-url", "-f", "--find-links")  # options with a value


def get_requires_for_build_wheel(config_settings=None):
    return build_meta.get_requires_for_build_wheel(config_settings) + _needed()


def get_requires_for_build_editable(config_settings=None):
    return build_meta.get_requires_for_build_editable(config_settings) + _needed()


def compiler():
    """The command of a C compiler: $CC, the one of this Python, any other; None: there is none."""
    if "CC" in os.environ:
        return os.environ["CC"]
    for command in (sysconfig.get_config_var("CC") or "cc", "cc", "gcc", "clang"):
        if shutil.which(shlex.split(command)[0]):
            return command
    if not find_spec(_WHEEL):
        return None
    return shlex.join([sys.executable, "-m", _WHEEL, "cc", "-mcpu=baseline"])  # not for this processor alone


def _needed():
    return [_WHEEL] if not compiler() and _can_be_had() else []


def _can_be_had():
    """Whether who installs us finds that wheel: what cannot be had would end the installation."""
    asked = [sys.executable, "-m", "pip", "index", "versions", "--retries=0", "--timeout=10", _WHEEL]
    if uv := os.environ.get("UV"):
        asked = [uv, "pip", "compile", "--quiet", "--no-deps", "-"]
    # The isolated environment, which PYTHONPATH makes, has no pip.
    environ = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    try:
        subprocess.run(
            [*asked, *_options()], env=environ, input=_WHEEL, text=True, timeout=_LIMIT_S, check=True
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return True


def _options():
    """What the command line of who installs us says of indexes; its settings we have anyway."""
    try:
        words = Path(f"/proc/{os.getppid()}/cmdline").read_text().split("\0")
    except OSError:
        return []
    said = []
    for word, value in pairwise(words):
        if word in ("--no-index", "--offline") or word.startswith(tuple(f"{option}=" for option in _SAID)):
            said.append(word)
        elif word in _SAID:
            said += [word, value]
    return said

"""Build backend: setuptools', and a word where pip runs under an older Python than we need.

The node core is built by a C compiler where there is one (setup.py); without one, all else is installed.
"""

import sys

if sys.version_info < (3, 11):  # noqa: UP036  pip asks this file before it looks which Python we need
    sys.exit(f"hpcomm needs Python 3.11 or later, this is {sys.version.split()[0]}.\n"
             "  try:   python3.11 -m venv .venv, or one that is newer; then pip install in it")  # fmt: skip

from setuptools.build_meta import *  # noqa: F403

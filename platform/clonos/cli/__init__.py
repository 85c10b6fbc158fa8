"""The ``clonos`` command."""

from clonos.cli.app import main

__all__ = ["main"]

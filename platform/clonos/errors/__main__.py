"""Prints the generated part of `docs/errors.md`."""

from __future__ import annotations

import sys

from clonos.errors.catalogue import markdown

sys.stdout.write(markdown())

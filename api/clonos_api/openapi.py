"""Writes the API's OpenAPI document: ``python -m clonos_api.openapi > api/openapi.json``."""

from __future__ import annotations

import json
import sys

from clonos_api.app import create_app


def document() -> str:
    """Return the OpenAPI document as formatted JSON."""
    described = create_app().openapi()
    return json.dumps(described, indent=2, ensure_ascii=False, sort_keys=True) + "\n"


if __name__ == "__main__":
    sys.stdout.write(document())

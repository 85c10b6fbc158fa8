"""Whether what a container runs is well, by exit code: ``healthy.py control-plane`` or ``healthy.py agent``."""

from __future__ import annotations

import os
import ssl
import sys
from http.client import HTTPConnection, HTTPException, HTTPSConnection
from pathlib import Path

_PATIENCE_S = 4.0


def control_plane() -> bool:
    """It answers, over TLS as everybody else is answered, and has its database."""
    port = int(os.environ.get("CLONOS_API__PORT", "8484"))
    connection = HTTPConnection("127.0.0.1", port, timeout=_PATIENCE_S)
    if os.environ.get("CLONOS_API__TLS_CERT"):
        context = ssl.create_default_context(cafile=os.environ.get("CLONOS_API_CA"))
        connection = HTTPSConnection("127.0.0.1", port, timeout=_PATIENCE_S, context=context)
    try:
        connection.request("GET", "/health/ready")
        return connection.getresponse().status == 200
    except (OSError, HTTPException) as error:
        print(error)
        return False


def agent() -> bool:
    """It holds its folder and has had orders. Whether the control plane is there just now is not its fault."""
    held = {line.split()[5].split(":")[-1] for line in Path("/proc/locks").read_text().splitlines() if "FLOCK" in line}
    folders = list((Path(os.environ["CLONOS_HOME"]) / "agent").glob("*"))
    return any(
        str((folder / "lock").stat().st_ino) in held and (folder / "orders.json").exists()
        for folder in folders
        if (folder / "lock").exists()
    )


if __name__ == "__main__":
    sys.exit(0 if {"control-plane": control_plane, "agent": agent}[sys.argv[1]]() else 1)

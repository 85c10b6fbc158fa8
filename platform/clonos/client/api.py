"""The client: one group of calls for each resource."""

from __future__ import annotations

from pathlib import Path
from types import TracebackType
from typing import Self

from clonos.client.hosts import Hosts, Standbys
from clonos.client.jobs import JobCheckpoints, Jobs, Savepoints
from clonos.client.service import Artifacts, Audit, Connectors, Events, HealthChecks, Operations, Tokens
from clonos.client.transport import Transport


class Client:
    """A control plane, as whoever `token` belongs to.

    Args:
        api: Its address, such as ``http://127.0.0.1:8484``.
        token: ``clonos_…``; None where nobody is asked for one.
        patience_s: For so long a control plane that is away or busy is asked again, where that does no harm.
        timeout_s: For one answer.
        ca: PEM file with the authorities to trust; default those of this machine.
    """

    def __init__(
        self,
        api: str,
        token: str | None = None,
        *,
        patience_s: float = 5.0,
        timeout_s: float = 30.0,
        ca: Path | None = None,
    ) -> None:
        transport = Transport(api, token, patience_s=patience_s, timeout_s=timeout_s, ca=ca)
        self._transport = transport
        self.api = transport.api
        self.artifacts = Artifacts(transport)
        self.jobs = Jobs(transport)
        self.checkpoints = JobCheckpoints(transport)
        self.savepoints = Savepoints(transport)
        self.operations = Operations(transport)
        self.events = Events(transport)
        self.hosts = Hosts(transport)
        self.standbys = Standbys(transport)
        self.connectors = Connectors(transport)
        self.tokens = Tokens(transport)
        self.audit = Audit(transport)
        self.health = HealthChecks(transport)

    def close(self) -> None:
        """Give the connections back."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

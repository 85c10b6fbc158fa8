"""`Client`: one group of calls for each resource."""

from __future__ import annotations

from pathlib import Path
from typing import Self

from clonos.client.hosts import Clusters, Hosts, Standbys
from clonos.client.jobs import JobCheckpoints, Jobs, Savepoints
from clonos.client.service import Artifacts, Audit, Connectors, Events, HealthChecks, Operations, Sessions, Tokens
from clonos.client.transport import Transport


class Client:
    """A connection to a control plane. Close it, or use it as a context manager.

    Args:
        api: Address of the control plane, such as ``http://127.0.0.1:8484``.
        token: API token (``clonos_…``); None for a control plane without authentication.
        patience_s: Retry an unavailable or busy control plane for this many seconds; 0: no retries.
        timeout_s: Longest wait for one response, in seconds.
        ca: PEM file with the certificate authorities to trust; default: ``SSL_CERT_FILE``, else certifi's.

    Attributes:
        api: Address of the control plane.
        artifacts: Uploaded code.
        jobs: Jobs.
        checkpoints: Checkpoints of jobs.
        savepoints: Savepoints.
        operations: Long-running requests, such as stops.
        events: The event stream.
        hosts: Hosts.
        standbys: Standbys of all jobs.
        clusters: Spark clusters that jobs can use.
        connectors: Sources and sinks that jobs can use.
        tokens: API tokens.
        sessions: Browsers that are signed in to the dashboard.
        audit: The audit log.
        health: Health of the control plane.

    Example:
        >>> with Client("http://127.0.0.1:8484", token) as client:  # doctest: +SKIP
        ...     client.operations.wait(client.jobs.restart("wordcount"), timeout_s=60)

    Raises:
        ClonosError: (from a call) The control plane refused the request; the class has the error's slug.
        ControlPlaneUnavailable: (from a call) No response within `patience_s`.
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
        self.clusters = Clusters(transport)
        self.connectors = Connectors(transport)
        self.tokens = Tokens(transport)
        self.sessions = Sessions(transport)
        self.audit = Audit(transport)
        self.health = HealthChecks(transport)

    def close(self) -> None:
        """Close all connections to the control plane."""
        self._transport.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_exc: object) -> None:
        self.close()

"""The parts of an agent that the supervisors of all its runs share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from clonos.agent.artifacts import Artifacts
from clonos.agent.memory import MemoryLimits
from clonos.agent.settings import AgentSettings
from clonos.agent.warm_pool import WarmPool


@dataclass(frozen=True)
class HostContext:
    """The settings and objects of an agent that the supervisors of all its runs share.

    Attributes:
        settings: Settings of the agent.
        artifacts: The agent's copies of job code.
        memory: Memory limits of drivers.
        pool: The agent's pool drivers.
        changed: Called when there is a change to report at once.
        failed: Called in its place when a driver failed that another may replace.
        is_isolated: Returns whether the control plane has been unreachable for longer than the host's lease.
    """

    settings: AgentSettings
    artifacts: Artifacts
    memory: MemoryLimits
    pool: WarmPool
    changed: Callable[[], None]
    failed: Callable[[], None]
    is_isolated: Callable[[], bool]

"""The agent: one process on each host. It supervises the host's drivers and reports their state.

The control plane assigns runs to the host (`Work`); the agent starts, restarts and stops their drivers to match. Its
directory holds the last work and a record of each run. So drivers outlive their agent, and the next agent adopts them.
The package must not import the control plane, the command line or the sources and sinks.
"""

from clonos.agent.agent import Agent
from clonos.agent.settings import AgentSettings

__all__ = ["Agent", "AgentSettings"]

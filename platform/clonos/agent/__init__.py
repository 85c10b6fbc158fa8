"""The agent: one a host; keeps the drivers running that the control plane ordered, and tells what they do."""

from clonos.agent.agent import Agent
from clonos.agent.settings import AgentSettings

__all__ = ["Agent", "AgentSettings"]

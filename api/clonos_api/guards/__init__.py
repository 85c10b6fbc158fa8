"""What every request passes before a route sees it."""

from clonos_api.guards.installing import GuardSettings, install

__all__ = ["GuardSettings", "install"]

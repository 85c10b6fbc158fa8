"""The REST API: one module for each resource of the table in docs/control-plane.md."""

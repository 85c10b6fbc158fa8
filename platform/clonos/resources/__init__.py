"""The request and response bodies of the REST API, version 1, which control plane, agents and command line share.

Each resource has a module. Times are RFC 3339 in UTC, durations are milliseconds (`_ms`), sizes are bytes, and ids are
UUIDv7 as text.
"""

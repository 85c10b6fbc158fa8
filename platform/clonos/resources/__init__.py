"""What control plane, agents and command line say to each other: the bodies of the REST API, version 1.

One module for each resource. Times are RFC 3339 in UTC, durations milliseconds (`_ms`), sizes bytes, ids UUIDv7 as
text.
"""

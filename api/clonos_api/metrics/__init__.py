"""Metrics of the control plane: the endpoint for Prometheus, and traces of recoveries.

- `queries` reads the figures of all jobs and hosts from the store (`MetricsSample`).
- `families` turns a sample into Prometheus metric families, without side effects.
- `recovery_traces` sends one OpenTelemetry trace per completed recovery; only the leader sends.

Counters come from the store, so they survive restarts of drivers and replicas. All replicas export the same values.
This package must not import routes or the reconciler.
"""

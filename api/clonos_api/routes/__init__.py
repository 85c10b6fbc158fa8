"""The REST API: one module per resource (docs/control-plane.md has the table).

A route checks the caller's role (`access`), validates the request (`clonos_api.admission`), and reads or writes the
store in one transaction. Requests that take a while write the desired state and create an operation; the reconciler
executes them and finishes the operation (README.md in this folder). Every error is an RFC 9457 problem
(`clonos_api.http.problems`); `documented` describes these in OpenAPI.

Routes hold no state between requests and never talk to agents or drivers: agents poll (`host_agents`). They must not
import `clonos_api.reconcile` or `clonos_api.dashboard`.
"""

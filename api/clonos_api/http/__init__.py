"""HTTP formats: problems (RFC 9457), JSON and YAML bodies, uploaded archives, and server-sent events.

Nothing here reads or writes the store. `bodies` limits and parses requests, and builds pages and ETags; `problems`
maps every error class to a status and removes secrets from its text; `archives` receives an upload through a temporary
file; `query_parameters` refuses undeclared query parameters; `sse` encodes events. It must not import
`clonos_api.routes`, `clonos_api.store` or `clonos_api.reconcile`.
"""

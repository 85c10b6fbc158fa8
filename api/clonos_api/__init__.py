"""The control plane: a FastAPI service with the REST API, the dashboard and the reconciler.

See `routes`, `store`, `reconcile`.
"""

"""A typed, blocking client of the control plane's REST API.

Example::

    from clonos.client import Client
    from clonos.client.submission import read_submission
    from clonos.resources.jobs import JobCreate

    with Client("http://127.0.0.1:8484", token) as client:
        submission = read_submission(Path("examples/wordcount"))
        artifact = client.artifacts.upload(submission.packed)
        job = client.jobs.create(JobCreate(spec=submission.spec, artifact=artifact.id))
        client.operations.wait(client.jobs.stop(job.id))

Each resource of the API has an attribute of `Client` with its calls; resources are the models of `clonos.resources`.

An error response names its error by a slug, such as ``not-found``. It raises the class of `clonos.errors` with this
slug; an unknown slug raises `ApiError`. While the control plane is unreachable or busy, a call retries for
`patience_s` seconds and then raises `ControlPlaneUnavailable`. A retry changes nothing twice: requests that are not
idempotent carry an idempotency key, or are repeated only if the control plane cannot have received them.

Streams (`Events.follow`, `Jobs.follow_logs`) reconnect after a lost connection and repeat nothing.

Modules: `transport` (blocking requests) and `agent_api` (the host agent's asynchronous requests) share `responses`;
`sse` follows streams; `packing` and `submission` read a job from disk. The package must not import the command line,
the agent or the driver.
"""

from clonos.client.api import Client

__all__ = ["Client"]

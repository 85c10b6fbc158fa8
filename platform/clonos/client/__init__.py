"""A typed client of the control plane's REST API.

::

    from clonos.client import Client

    with Client("http://127.0.0.1:8484", token) as client:
        artifact = client.artifacts.upload(pack(Path("examples/wordcount")))
        job = client.jobs.create(JobCreate(spec=spec, artifact=artifact.id))
        client.operations.wait(client.jobs.stop(job.id))

It blocks. What the API refuses is the typed error of the same slug (`clonos.errors`); what it cannot answer is
asked again for `patience_s` seconds, where asking twice does no harm.
"""

from clonos.client.api import Client

__all__ = ["Client"]

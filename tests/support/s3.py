"""A stand-in for Amazon S3 on loopback: the server of ``moto``, with one bucket."""

from __future__ import annotations

import logging
import threading
from typing import Any, Final, Self

import boto3
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import BaseWSGIServer, WSGIRequestHandler, make_server

_BUCKET: Final = "clonos"
_KEY: Final = "test"
_REGION: Final = "us-east-1"


class _Handler(WSGIRequestHandler):
    """Sends one ``100 Continue``: werkzeug and its base class both send it, which Amazon's client does not expect."""

    def handle_expect_100(self) -> bool:
        return True


class S3:
    """The server, in threads of this process."""

    def __init__(self) -> None:
        application: Any = DomainDispatcherApplication(create_backend_app)
        self._server: BaseWSGIServer = make_server("127.0.0.1", 0, application, threaded=True, request_handler=_Handler)
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self.endpoint = f"http://127.0.0.1:{self._server.server_port}"

    @property
    def url(self) -> str:
        """The URL of the bucket for Hadoop."""
        return f"s3a://{_BUCKET}"

    @property
    def conf(self) -> dict[str, str]:
        """The Spark settings of a job that uses it."""
        return {
            "spark.hadoop.fs.s3a.endpoint": self.endpoint,
            "spark.hadoop.fs.s3a.endpoint.region": _REGION,
            "spark.hadoop.fs.s3a.path.style.access": "true",
            "spark.hadoop.fs.s3a.access.key": _KEY,
            "spark.hadoop.fs.s3a.secret.key": _KEY,
        }

    def __enter__(self) -> Self:
        logging.getLogger("werkzeug").setLevel(logging.WARNING)
        self._thread.start()
        self._client = boto3.client(
            "s3",
            endpoint_url=self.endpoint,
            region_name=_REGION,
            aws_access_key_id=_KEY,
            aws_secret_access_key=_KEY,
        )
        self._client.create_bucket(Bucket=_BUCKET)
        return self

    def names(self, folder: str) -> list[str]:
        """The names of the files and folders in a folder, of up to 1000."""
        prefix = folder.removeprefix(self.url).strip("/") + "/"
        answer = self._client.list_objects_v2(Bucket=_BUCKET, Prefix=prefix, Delimiter="/")
        keys = [item["Key"] for item in answer.get("Contents", ())]
        keys += [item["Prefix"] for item in answer.get("CommonPrefixes", ())]
        return sorted(name for key in keys if (name := key.removeprefix(prefix).strip("/")))

    def read(self, file: str) -> str:
        """The content of a file."""
        key = file.removeprefix(self.url).lstrip("/")
        return str(self._client.get_object(Bucket=_BUCKET, Key=key)["Body"].read().decode())

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()

"""The commands and settings of a Spark standalone cluster, without its processes."""

from __future__ import annotations

import stat
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from clonos.embedded.standalone_spark import MasterReport, StandaloneSpark, WorkerSize

_REPORT = b"""{"url": "spark://127.0.0.1:7077", "status": "ALIVE",
 "workers": [{"id": "a", "state": "ALIVE"}, {"id": "b", "state": "DEAD"}], "activeapps": [{"id": "app-1"}]}"""


def cluster(folder: Path, *, ui_port: int = 8080) -> StandaloneSpark:
    spark = StandaloneSpark(folder, port=7077, ui_port=ui_port, size=WorkerSize(cores=3, memory_mb=700))
    spark.prepare()
    return spark


def test_the_secret_is_private_and_on_no_command_line(tmp_path: Path) -> None:
    spark = cluster(tmp_path / "spark")
    assert len(spark.secret) == 64
    commands = [*spark.master_command(), *spark.worker_command("worker-1"), *spark.environment().values()]
    assert not any(spark.secret in text for text in commands)
    for name in ("secret", "spark.properties"):
        assert stat.S_IMODE((tmp_path / "spark" / name).stat().st_mode) == 0o600
    assert f"spark.authenticate.secret={spark.secret}" in (tmp_path / "spark" / "spark.properties").read_text()


def test_a_new_start_keeps_the_secret_and_forgets_the_applications(tmp_path: Path) -> None:
    spark = cluster(tmp_path)
    secret, kept = spark.secret, tmp_path / "recovery" / "app_1"
    kept.write_text("")
    assert cluster(tmp_path).secret == secret
    assert not kept.exists()


def test_a_worker_offers_its_size_to_the_master(tmp_path: Path) -> None:
    command = cluster(tmp_path).worker_command("worker-1")
    assert command[command.index("--cores") + 1] == "3"
    assert command[command.index("--memory") + 1] == "700m"
    assert command[-1] == "spark://127.0.0.1:7077"


def test_the_environment_has_no_settings_of_another_spark(tmp_path: Path) -> None:
    environment = cluster(tmp_path).environment({"SPARK_MASTER_OPTS": "-Dx", "PYSPARK_GATEWAY_PORT": "1", "LANG": "C"})
    assert environment["LANG"] == "C"
    assert not {"SPARK_MASTER_OPTS", "PYSPARK_GATEWAY_PORT"} & environment.keys()
    assert (Path(environment["JAVA_HOME"]) / "bin" / "java").is_file()


def test_a_process_with_a_host_name_of_its_own(tmp_path: Path) -> None:
    settings = {"spark.ui.reverseProxy": "true"}
    spark = StandaloneSpark(tmp_path, port=7077, ui_port=8080, host="w-1", master="spark://m:7077", settings=settings)
    spark.prepare(secret="5ecret")
    assert spark.secret == "5ecret"
    kept = tmp_path / "recovery" / "app_1"
    kept.write_text("")
    spark.prepare(forget=False)
    assert kept.exists()
    assert "spark.ui.reverseProxy=true" in (tmp_path / "spark.properties").read_text().splitlines()
    command = spark.worker_command("worker", ui_port=8081)
    assert [command[command.index(option) + 1] for option in ("--host", "--webui-port")] == ["w-1", "8081"]
    assert command[-1] == "spark://m:7077"
    environment = spark.environment({})
    assert environment["SPARK_LOCAL_HOSTNAME"] == "w-1"
    assert "SPARK_LOCAL_IP" not in environment, "it listens on its own address"


class _Master(BaseHTTPRequestHandler):
    body = _REPORT

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: object) -> None:
        """Write no line to stderr."""


@pytest.fixture
def ui_port() -> Iterator[int]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Master)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server.server_address[1]
    server.shutdown()
    server.server_close()
    thread.join()


def test_only_workers_that_are_alive_count(tmp_path: Path, ui_port: int) -> None:
    assert cluster(tmp_path, ui_port=ui_port).report() == MasterReport("ALIVE", 1, ("app-1",))


@pytest.mark.parametrize("body", [b"", b"<html>", b"[]", b"{}"])
def test_an_answer_of_another_server_is_not_a_report(
    tmp_path: Path, ui_port: int, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_Master, "body", body)
    assert cluster(tmp_path, ui_port=ui_port).report() is None


def test_a_master_that_does_not_run_has_no_report(tmp_path: Path) -> None:
    assert cluster(tmp_path, ui_port=1).report() is None

"""A canary goes in under many names and shapes, and must not come out."""

from __future__ import annotations

import io
import json
import logging
import subprocess
import sys
import time

import pytest

from clonos.telemetry.redaction import HIDDEN, looks_secret, redact, redact_text

CANARY = "c4n4ry-Zx81Kq77"
TOKEN = f"clonos_0123456789abcdef_{'ab' * 32}"
PEM = f"-----BEGIN RSA PRIVATE KEY-----\n{CANARY}\n-----END RSA PRIVATE KEY-----"


@pytest.mark.parametrize(
    "name",
    [
        "password", "sasl.password", "PGPASSWORD", "dbPassword", "ssl.key.password", "passphrase", "client_secret",
        "AWS_SECRET_ACCESS_KEY", "spark.hadoop.fs.s3a.secret.key", "fs.s3a.access.key", "api-key", "apiKey", "APIKey",
        "x-api-key", "accessToken", "token", "Authorization", "sasl.jaas.config", "credentials", "privateKey", "Cookie",
    ],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert looks_secret(name)
    assert CANARY not in str(redact({"spec": [{name: CANARY}]}))
    assert CANARY not in redact_text(f"{name}={CANARY}")
    assert CANARY not in redact_text(f'sent: "{name}": "{CANARY} with spaces", more')
    assert CANARY not in redact_text(f"{name}: '{CANARY}'")


@pytest.mark.parametrize(
    "name",
    ["orders", "primary_key", "keys", "tokens", "sasl.mechanism", "token_id", "password_length", "monkey", "passenger",
     "compass", "secretary", "author", "max.poll.records", "token.expiry"],
)  # fmt: skip
def test_names_of_other_things(name: str) -> None:
    assert not looks_secret(name)
    assert redact({name: "shown"}) == {name: "shown"}


@pytest.mark.parametrize(
    "text",
    [
        f"sent {TOKEN} to the service",
        f"Authorization: Bearer {TOKEN}",
        f"Authorization: Basic {'QWxhZGRpbjpvcGVu'}",
        PEM,
        PEM[:60],
        f"postgresql+psycopg://ada:{CANARY}@db:5432/clonos",
        f"https://ada:{CANARY}@registry/",
        f"--password={CANARY} --other",
        f"password = {CANARY}",
        f"{{'sasl.password': '{CANARY}', 'x': 1}}",
        f'username="ada" password="{CANARY}";',
    ],
)
def test_shapes_of_secrets(text: str) -> None:
    shown = redact_text(text)
    assert HIDDEN in shown
    assert not [secret for secret in (CANARY, "ab" * 32, "QWxhZGRpbjpvcGVu") if secret in shown]


@pytest.mark.parametrize(
    "text",
    [
        "password: ${secret:db}",
        "token=17 state=RUNNING",
        "http://127.0.0.1:8484/api/v1/jobs",
        "hdfs://namenode:8020/a@b",
        "The token is not valid.",
        "",
    ],
)
def test_other_texts_are_not_redacted(text: str) -> None:
    assert redact_text(text) == text


def test_other_values_are_not_redacted() -> None:
    value = {"token": 17, "password": None, "secret": True, "tokens": [1, 2], "spec": {"password": "${secret:db}"}}
    assert redact(value) == value


@pytest.mark.parametrize("text", ["a" * 300_000, "a.b-" * 80_000, "x://" * 80_000, '"' * 300_000, "password=" * 30_000])
def test_long_texts_take_little_time(text: str) -> None:
    begun = time.process_time()
    redact_text(text)
    assert time.process_time() - begun < 5, "quadratic time would be minutes"


LOGGING = f"""
import logging, structlog
from clonos.telemetry.logs import configure_logs
configure_logs(FORMAT, "info")
log = structlog.get_logger()
log.info("asked", password="{CANARY}", spec={{"params": {{"api_key": "{CANARY}"}}}}, url="x://ada:{CANARY}@db")
log.info("token is {TOKEN}")
logging.getLogger("other").warning("password=%s", "{CANARY}", extra={{"secret": "{CANARY}"}})
try:
    raise ValueError("password={CANARY}")
except ValueError:
    log.exception("failed", token="{TOKEN}")
    logging.getLogger("other").exception("failed too")
log.info("a long one", password="x" * 40_000 + "{CANARY}")
log.info("state", token=17, job="orders")
"""


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_log_lines(log_format: str) -> None:
    script = LOGGING.replace("FORMAT", repr(log_format))
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert CANARY not in done.stderr
    assert "ab" * 32 not in done.stderr
    assert "ValueError" in done.stderr
    assert "orders" in done.stderr
    if log_format == "json":
        last = json.loads(done.stderr.splitlines()[-1])
        assert (last["token"], last["job"]) == (17, "orders")


def test_this_test_can_fail() -> None:
    """Without redaction the canary is there."""
    out = io.StringIO()
    handler = logging.StreamHandler(out)
    logger = logging.Logger("plain")
    logger.addHandler(handler)
    logger.warning("password=%s", CANARY)
    assert CANARY in out.getvalue()

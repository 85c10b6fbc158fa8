"""The background task that reports alerts. Only the leader's task does anything."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Awaitable, Callable
from typing import Final

import httpx
import structlog
from prometheus_client import CollectorRegistry, Counter, Gauge

from clonos.errors import DatabaseUnavailable
from clonos_api.alerts.watching import Watch
from clonos_api.alerts.webhook_request import TIMEOUT_S, post
from clonos_api.fleet import Boards
from clonos_api.settings import ApiSettings, Webhook
from clonos_api.store import deliveries, lookups
from clonos_api.store.db.database import Database
from clonos_api.store.tables import DeliveryRow

_EVERY_S: Final = 1.0
_RETRY_S: Final = 30.0
_log = structlog.get_logger("clonos.api")


def webhook_metrics(registry: CollectorRegistry) -> tuple[Counter, Gauge]:
    """Return the number of attempts by outcome, and the length of the queues, as new metrics of `registry`."""
    attempts = Counter(
        "clonos_webhook_deliveries",
        "Messages to webhooks by outcome: delivered, failed (sent again later) or dropped.",
        ["webhook", "outcome"],
        registry=registry,
    )
    queue = Gauge("clonos_webhook_queue", "Messages that a webhook has not received.", ["webhook"], registry=registry)
    return attempts, queue


class Sender:
    """Sends the messages about alerts to the webhooks of the settings.

    Args:
        registry: Receives the metrics ``clonos_webhook_deliveries_total`` and ``clonos_webhook_queue``.
    """

    def __init__(self, database: Database, boards: Boards, settings: ApiSettings, registry: CollectorRegistry) -> None:
        self._database = database
        self._boards = boards
        self._settings = settings
        self._deliveries, self._queue = webhook_metrics(registry)
        for webhook in settings.webhooks:
            for outcome in ("delivered", "failed", "dropped"):
                self._deliveries.labels(webhook.name, outcome)

    async def run(self) -> None:
        """Report alerts while this replica leads, until cancelled."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._watch())
            for webhook in self._settings.webhooks:
                group.create_task(self._send(webhook))

    async def _watch(self) -> None:
        watch: Watch | None = None

        async def observe() -> None:
            nonlocal watch
            if not await self._leads():
                watch = None
                self._queue.clear()
                return
            if watch is None:
                watch = Watch(self._database, self._settings.webhooks, public_url=self._settings.public_url)
                async with self._database.transaction() as session:
                    await deliveries.forget_others(session, [webhook.name for webhook in self._settings.webhooks])
            self._count_dropped(await watch.observe(await self._boards.newest()))
            async with self._database.reading() as session:
                depths = await deliveries.depths(session)
            for webhook in self._settings.webhooks:
                self._queue.labels(webhook.name).set(depths.get(webhook.name, 0))

        while True:
            await _unless_unavailable(observe)
            await asyncio.sleep(_EVERY_S)

    async def _send(self, webhook: Webhook) -> None:
        while (verify := _trusted(webhook)) is None:
            await asyncio.sleep(_RETRY_S)
        # No proxy and no credentials of the environment: the address of the settings is all that counts.
        async with httpx.AsyncClient(verify=verify, timeout=TIMEOUT_S, trust_env=False) as client:

            async def send_all() -> None:
                while (row := await self._next(webhook.name)) is not None:
                    await self._attempt(client, webhook, row)

            while True:
                await _unless_unavailable(send_all)
                await asyncio.sleep(_EVERY_S)

    async def _next(self, webhook: str) -> DeliveryRow | None:
        if not await self._leads():
            return None
        async with self._database.reading() as session:
            return await deliveries.next_due(session, webhook)

    async def _attempt(self, client: httpx.AsyncClient, webhook: Webhook, row: DeliveryRow) -> None:
        problem = await post(client, webhook, row.id, row.body)
        self._deliveries.labels(webhook.name, "failed" if problem else "delivered").inc()
        if problem:
            _log.warning("A webhook did not accept an alert", webhook=webhook.name, why=problem, id=row.id)
        async with self._database.transaction() as session:
            if problem:
                await deliveries.retry(session, row)
                self._count_dropped({webhook.name: await deliveries.trim(session, webhook.name)})
            else:
                await deliveries.delivered(session, row)

    async def _leads(self) -> bool:
        async with self._database.reading() as session:
            return await lookups.leads(session, self._settings.replica)

    def _count_dropped(self, dropped: dict[str, int]) -> None:
        for webhook, number in dropped.items():
            if number:
                self._deliveries.labels(webhook, "dropped").inc(number)
                _log.error("Alerts were dropped", webhook=webhook, number=number)


def _trusted(webhook: Webhook) -> ssl.SSLContext | None:
    """Return the authorities that a webhook trusts; None if their file cannot be read: other webhooks continue."""
    try:
        return ssl.create_default_context(cafile=webhook.ca)
    except OSError as error:
        _log.error("A webhook's authorities cannot be read", webhook=webhook.name, why=type(error).__name__)
        return None


async def _unless_unavailable(work: Callable[[], Awaitable[None]]) -> None:
    """Do the work; if the database is unavailable, the next round does it."""
    try:
        await work()
    except DatabaseUnavailable as error:
        _log.warning("Alerts wait for the database", why=error.what)

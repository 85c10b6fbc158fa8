"""Compares each board with the alerts in the store, and adds messages about what began and ended."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy.ext.asyncio import AsyncSession

from clonos_api.alerts.webhook_request import alert_body, ended, message
from clonos_api.fleet import Board
from clonos_api.fleet.alerts import Alert, alerts_of, recovery_alert
from clonos_api.settings import Webhook
from clonos_api.store import deliveries
from clonos_api.store.db.database import Database


class Watch:
    """Reports alerts while this replica leads. The alerts that have begun are in the store, for the next leader."""

    def __init__(self, database: Database, webhooks: Sequence[Webhook], *, public_url: str = "") -> None:
        self._database = database
        self._public_url = public_url
        self._webhooks = webhooks
        self._since: datetime | None = None
        self._first_seen: dict[str, float] = {}
        self._recoveries: dict[str, str] = {}  # job → its newest recovery that this process has seen

    async def observe(self, board: Board) -> dict[str, int]:
        """Add messages about the changes since the last board; return the number of dropped ones by webhook."""
        current, moment = alerts_of(board), time.monotonic()
        self._first_seen = {key: self._first_seen.get(key, moment) for key in current}
        lasting = [alert for key, alert in current.items() if moment - self._first_seen[key] >= alert.hold_s]
        async with self._database.reading() as session:
            known = await deliveries.open_alerts(session)
        began = [alert for alert in lasting if alert.key not in known]
        over = [row for key, row in known.items() if key not in current]
        missed = [alert for alert in self._missed(board) if alert.key not in known]
        if not (began or over or missed):
            return {}
        async with self._database.transaction() as session:
            for row in over:
                await deliveries.end(session, row)
                await self._add(session, ended(row.body, board.at))
            for alert in began:
                body = alert_body(alert, self._public_url)
                if await deliveries.begin(session, alert.key, body, alert.since):
                    await self._add(session, body)
            for alert in missed:
                body = alert_body(alert, self._public_url)
                await self._add(session, body)
                await self._add(session, ended(body, board.at))
            return {webhook.name: await deliveries.trim(session, webhook.name) for webhook in self._webhooks}

    def _missed(self, board: Board) -> list[Alert]:
        """Return the recoveries that began and ended between two boards."""
        if self._since is None:
            self._since = board.at
        missed = []
        for line in board.lines:
            if line.last is None or self._recoveries.get(line.id) == line.last.id:
                continue
            self._recoveries[line.id] = line.last.id
            alert = recovery_alert(line, line.last)
            if alert is not None and not line.last.open and line.last.at > self._since:
                missed.append(alert)
        return missed

    async def _add(self, session: AsyncSession, alert: dict[str, Any]) -> None:
        critical = alert["labels"]["severity"] == "critical"
        names = [webhook.name for webhook in self._webhooks if critical or webhook.severity == "warning"]
        await deliveries.add(session, names, message(alert))

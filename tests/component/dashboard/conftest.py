"""A control plane for page tests."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator
from datetime import UTC, datetime, timedelta

import httpx
import pytest
from sqlalchemy.ext.asyncio import AsyncSession

from clonos.resources.service import Role
from clonos_api.store.lease import NAME as LEADER
from clonos_api.store.tables import LeaseRow
from support.serving import Served, served, write


@pytest.fixture(scope="module")
def api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A replica without a reconciler; another replica leads."""

    async def lead(session: AsyncSession) -> None:
        later = datetime.now(UTC) + timedelta(days=1)
        session.add(LeaseRow(name=LEADER, holder="another", fencing_token=1, expires_at=later))

    with served(tmp_path_factory.mktemp("api")) as service:
        write(service, lead)
        yield service


@pytest.fixture
def browser(api: Served) -> Callable[..., httpx.Client]:
    """Signs clients in as browsers: with a cookie and an origin."""

    def sign_in(role: Role = Role.ADMIN, subject: str = "ada") -> httpx.Client:
        token = api.admin
        if role is not Role.ADMIN:
            with api.client() as admin:
                body = {"name": f"{role.value}-{secrets.token_hex(4)}", "role": role, "subject": subject}
                token = admin.post("/tokens", json=body).raise_for_status().json()["token"]
        headers = {"Authorization": f"Bearer {token}", "Origin": api.url}
        answer = httpx.post(
            f"{api.url}/session", headers=headers, timeout=60, trust_env=False, verify=False
        ).raise_for_status()
        headers = {"Accept": "text/html", "Origin": api.url}
        return httpx.Client(
            base_url=api.url, headers=headers, cookies=answer.cookies, timeout=60, trust_env=False, verify=False
        )

    return sign_in

"""The fake control planes have no route that the real one does not have."""

from __future__ import annotations

import re
from pathlib import Path

from fastapi import FastAPI
from fastapi.routing import iter_route_contexts

from clonos_api.app import create_app
from clonos_api.settings import ApiSettings
from component.agent.api import FakeApi
from component.cli.service import ACTIONS, FakeService


def routes(app: FastAPI) -> set[tuple[str, str]]:
    """Methods and paths; the names of parameters do not count."""
    known = iter_route_contexts(app.routes)
    return {(method, re.sub(r"\{[^}]*\}", "{}", route.path)) for route in known for method in route.methods or ()}


def test_each_route_of_a_fake_control_plane_is_one_of_the_real_one(tmp_path: Path, service: FakeService) -> None:
    real, fake = routes(create_app(ApiSettings(home=tmp_path))), routes(service.app)
    assert len(real) > 50
    fake.remove(("POST", "/api/v1/jobs/{}/{}"))
    fake |= {("POST", f"/api/v1/jobs/{{}}/{action}") for action in ACTIONS}
    assert fake | routes(FakeApi().app()) <= real

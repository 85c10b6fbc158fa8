"""The form to submit a job: code and specification, validated by the API as the user types."""

from __future__ import annotations

from typing import Final

from fastapi import APIRouter, Request, Response

from clonos_api.dashboard.rendering import Page, render
from clonos_api.routes.access import Operator

router = APIRouter(include_in_schema=False)

EXAMPLE: Final = """\
apiVersion: clonos/v1
kind: Job
metadata:
  name: my-job
spec:
  main: job.py
  params: {}
  standby:
    replicas: 1
"""


@router.get("/submit")
async def submit(caller: Operator, request: Request) -> Response:
    """Show the form to submit a job."""
    return render(request, Page("submit.html", "Submit a job"), {"example": EXAMPLE})

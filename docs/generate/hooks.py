"""Hooks of MkDocs: the pages that are generated from code, links to files of the repository, and scripts as files.

`mkdocs.yml` names this module. A generated page is never written to the working tree.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

sys.path.insert(0, str(Path(__file__).parent))  # MkDocs loads this file by its path

import alerts
import commands
import error_pages
import events
import links
import metrics
import policy
import python_api
import rest
import settings_pages
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.plugins import event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

from clonos.documents import json_schema
from clonos.jobs.cluster import ClusterSpec
from clonos.jobs.spec import JobSpec

ROOT: Final = Path(__file__).parents[2]
_SHIM: Final = "assets/iframe-worker.js"
_SCRIPTS: Final = policy.InlineScripts()


def _generated() -> Mapping[str, str]:
    """Return the text of each generated page, by its path in the site."""
    return {
        "reference/python.md": python_api.page(),
        "reference/cli.md": commands.page(),
        "reference/rest.md": rest.page(ROOT / "api/openapi.json"),
        "reference/job-yaml.md": settings_pages.job_page(),
        "reference/cluster-yaml.md": settings_pages.cluster_page(),
        "reference/settings.md": settings_pages.settings_page(),
        "reference/events.md": events.page(),
        "reference/metrics.md": metrics.page(),
        "runbook/index.md": alerts.index(ROOT),
        "adr/index.md": links.decisions(ROOT),
        **error_pages.pages(),
        **links.repository_pages(ROOT),
    }


@event_priority(-100)
def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Replace the only script of another origin. Search in pages that are opened as files needs it."""
    config.extra["polyfills"] = [_SHIM]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the generated pages."""
    for path, text in _generated().items():
        files.append(File.generated(config, path, content=text))
    for name, model in (("job", JobSpec), ("cluster", ClusterSpec)):
        files.append(File.generated(config, f"schema/{name}.json", content=json.dumps(json_schema(model), indent=2)))
    for path, source in (
        ("img/icon.svg", ROOT / "api/clonos_api/dashboard/static/icon.svg"),
        (_SHIM, Path(__file__).parent / "vendor/iframe-worker.js"),
    ):
        files.append(File.generated(config, path, abs_src_path=str(source)))
    return files


@event_priority(100)
def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Turn links to files of the repository into links of the site; add what a page takes from code."""
    path = page.file.src_uri
    if path == "errors.md":
        markdown = error_pages.with_links(markdown)
    if path.startswith("runbook/") and path != "runbook/index.md":
        markdown = alerts.with_rule(ROOT, path, markdown)
    return links.in_site(markdown, path, ROOT)


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Adapt docstrings to Markdown."""
    return python_api.with_plain_colons(html) if page.file.src_uri == "reference/python.md" else html


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """Move inline scripts to files, so that the policy of the site needs no exception for them."""
    return _SCRIPTS.moved(output, page.file.dest_uri)


def on_post_template(output_content: str, template_name: str, **_: Any) -> str:
    """Return the same for pages without a source, such as 404.html."""
    return _SCRIPTS.moved(output_content, template_name) if template_name.endswith(".html") else output_content


def on_post_build(config: MkDocsConfig) -> None:
    """Write the scripts that were moved."""
    _SCRIPTS.write(Path(config.site_dir))

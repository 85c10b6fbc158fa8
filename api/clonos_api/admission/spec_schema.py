"""Adds the limits of `spec_checks` to the JSON Schema of specifications in OpenAPI.

The models do not have them, because `clonos run` has no such limits.
"""

from __future__ import annotations

from typing import Any, Final

from clonos.jobs import cluster
from clonos.resources.base import PLAIN
from clonos_api.admission import spec_checks

_NO_CONTROLS: Final = PLAIN.strip("^*$")
_LOCATION: Final = {"minLength": 1, "maxLength": spec_checks.MAX_LOCATION, "pattern": r"^[^\x00-\x1f\x7f-\x9f\\?#]+$"}


def narrow(schemas: dict[str, Any]) -> None:
    """Add the limits to the schemas of specifications, of descriptions of clusters, and of `SavepointCreate`."""
    for metadata in ("Metadata", "ClusterMetadata"):
        labels = schemas[metadata]["properties"]["labels"]
        labels["maxProperties"] = spec_checks.MAX_LABELS
        labels["propertyNames"] = {"pattern": f"^{spec_checks.LABEL.pattern}$"}
        labels["additionalProperties"] |= {"maxLength": spec_checks.MAX_LABEL, "pattern": PLAIN}
    schemas["ClusterMetadata"]["properties"]["name"]["pattern"] = schemas["Metadata"]["properties"]["name"]["pattern"]
    settings = schemas["ClusterSettings"]["properties"]
    settings["master"]["pattern"] = f"^({cluster.MASTER.pattern})$"
    settings["sharedLocations"]["items"]["pattern"] = f"^{cluster.LOCATION.pattern}$"
    fields = schemas["Spec"]["properties"]
    fields["master"]["pattern"] = f"^({spec_checks.LOCAL.pattern})$"
    fields["cluster"]["pattern"] = f"^({schemas['Metadata']['properties']['name']['pattern'].strip('^$')})?$"
    fields["main"] |= {"maxLength": 255, "pattern": r"^[^\x00-\x1f\x7f-\x9f\\:]*$"}
    setting = f"^{spec_checks.SPARK_KEY.pattern}$"
    for field, key in (
        (fields["params"], f"^{_NO_CONTROLS}{{1,{spec_checks.MAX_PARAM_NAME}}}$"),
        (fields["sparkConf"], setting),
        (settings["sparkConf"], setting),
    ):
        field["maxProperties"] = spec_checks.MAX_ENTRIES
        field["propertyNames"] = {"pattern": key}
        field["additionalProperties"]["maxLength"] = spec_checks.MAX_LENGTH
    for field in (fields["sparkConf"], settings["sparkConf"]):
        field["additionalProperties"]["pattern"] = f"^{_NO_CONTROLS}*$"
    for location in (fields["checkpoint"], schemas["SavepointCreate"]["properties"]["location"]):
        text = next(choice for choice in location["anyOf"] if choice["type"] == "string")
        text |= _LOCATION

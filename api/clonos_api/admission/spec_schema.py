"""Adds the limits of `spec_checks` to the JSON Schema of specifications in OpenAPI.

The models do not have them, because `clonos run` has no such limits.
"""

from __future__ import annotations

from typing import Any, Final

from clonos_api.admission import masters, spec_checks

_NO_CONTROLS: Final = r"[^\x00-\x1f\x7f]"
_LOCATION: Final = {"minLength": 1, "maxLength": spec_checks.MAX_LOCATION, "pattern": r"^[^\x00-\x1f\x7f\\?#]+$"}


def narrow(schemas: dict[str, Any]) -> None:
    """Add the limits to the schemas of the components `Metadata`, `Spec` and `SavepointCreate`."""
    labels = schemas["Metadata"]["properties"]["labels"]
    labels["maxProperties"] = spec_checks.MAX_LABELS
    labels["propertyNames"] = {"pattern": f"^{spec_checks.LABEL.pattern}$"}
    labels["additionalProperties"]["maxLength"] = spec_checks.MAX_LABEL
    fields = schemas["Spec"]["properties"]
    fields["master"]["pattern"] = f"^({spec_checks.LOCAL.pattern}|{masters.CLUSTER.pattern})$"
    fields["main"] |= {"maxLength": 255, "pattern": r"^[^\x00-\x1f\x7f\\:]*$"}
    for name, key in (
        ("params", f"^{_NO_CONTROLS}{{1,{spec_checks.MAX_PARAM_NAME}}}$"),
        ("sparkConf", f"^{spec_checks.SPARK_KEY.pattern}$"),
    ):
        fields[name]["maxProperties"] = spec_checks.MAX_ENTRIES
        fields[name]["propertyNames"] = {"pattern": key}
        fields[name]["additionalProperties"]["maxLength"] = spec_checks.MAX_LENGTH
    fields["sparkConf"]["additionalProperties"]["pattern"] = f"^{_NO_CONTROLS}*$"
    for location in (fields["checkpoint"], schemas["SavepointCreate"]["properties"]["location"]):
        text = next(choice for choice in location["anyOf"] if choice["type"] == "string")
        text |= _LOCATION

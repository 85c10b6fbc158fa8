"""Records as Spark columns and back: JSON, Avro, Protobuf, with or without a Schema Registry.

`ctx.decode` and `ctx.encode` take one of these. Avro, Protobuf and a registry need the extra ``clonos[formats]``.
"""

from clonos.formats.as_avro import Avro
from clonos.formats.as_json import Json
from clonos.formats.as_protobuf import Protobuf
from clonos.formats.codec import Format

__all__ = ["Avro", "Format", "Json", "Protobuf"]

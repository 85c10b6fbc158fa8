"""Formats: records as Spark columns and back, in JSON, Avro and Protobuf, with or without a Schema Registry.

`ctx.decode` and `ctx.encode` take a format (`Json`, `Avro`, `Protobuf`, or another `Format`). Avro, Protobuf and a
registry need the extra ``clonos[formats]``.

A format has two halves (`codec`):

- The driver's half (`Format.reader`, `Format.writer`) chooses the schemas, once, while the job function builds its
  columns. A registry answer that may change, such as the latest version of a subject, is *pinned* in the epochs' plans.
- The task's half (`Reader.open`, `Writer.open`) reads and writes bytes. It is pickled, and holds no credentials.

Invariants:

- A replay decodes and encodes as the first attempt did: schemas are pinned, schema ids never change, and an id that the
  registry lacked is a determinant in the causal log.
- Tasks never register schemas.
- A record that cannot be decoded is *poison* (`poison`). The job's policy fails, drops and counts, or publishes it to a
  dead-letter topic. The cause has no text that differs between runs.

The package must not import `clonos.jobs`, `clonos.extend` or anything above them.
"""

from clonos.formats.as_avro import Avro
from clonos.formats.as_json import Json
from clonos.formats.as_protobuf import Protobuf
from clonos.formats.codec import Format

__all__ = ["Avro", "Format", "Json", "Protobuf"]

package clonos;

import java.io.ByteArrayOutputStream;
import java.io.DataOutputStream;
import java.io.IOException;
import java.io.UncheckedIOException;
import java.nio.charset.StandardCharsets;
import java.util.Base64;

/**
 * A typed error of {@code clonos.errors} on its way to the driver's Python, as {@code clonos.carried_errors} encodes it:
 * Spark passes only the text of an exception.
 */
final class CarriedError extends RuntimeException {
  private static final long serialVersionUID = 1;
  private static final int ARRAY_OF_FOUR = 0x94; // msgpack
  private static final int TEXT = 0xdb;

  /**
   * @param type name of the Python class
   * @param kept what was kept safe; empty: the class's own text
   * @param hint what to do next; empty: the class's own text
   */
  CarriedError(String type, String what, String kept, String hint) {
    super(what + "\nclonos-error:" + encoded(type, what, kept, hint));
  }

  private static String encoded(String... parts) {
    ByteArrayOutputStream bytes = new ByteArrayOutputStream();
    try (DataOutputStream out = new DataOutputStream(bytes)) {
      out.writeByte(ARRAY_OF_FOUR);
      for (String part : parts) {
        byte[] text = part.getBytes(StandardCharsets.UTF_8);
        out.writeByte(TEXT);
        out.writeInt(text.length);
        out.write(text);
      }
    } catch (IOException impossible) {
      throw new UncheckedIOException(impossible);
    }
    return Base64.getEncoder().encodeToString(bytes.toByteArray());
  }
}

package clonos;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.security.NoSuchAlgorithmException;
import java.util.Arrays;
import java.util.HexFormat;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.spark.sql.catalyst.plans.logical.LogicalPlan;
import org.apache.spark.sql.execution.datasources.HadoopFsRelation;
import org.apache.spark.sql.execution.datasources.LogicalRelation;

/** The files that a static DataFrame reads: the other side of a stream-static join. */
public final class StaticFiles {
  private StaticFiles() {}

  /**
   * Returns the files that a leaf of a plan reads, or null if the leaf reads no files.
   *
   * @param leaf a leaf of an analyzed plan
   */
  public static String[] of(LogicalPlan leaf) {
    return leaf instanceof LogicalRelation logical && logical.relation() instanceof HadoopFsRelation files
        ? files.location().inputFiles()
        : null;
  }

  /**
   * Returns a hash of the files' paths, lengths and times of modification.
   *
   * @param files URIs
   * @throws IOException a file system does not answer; a missing file is part of the hash
   */
  public static String fingerprint(String[] files, Configuration configuration) throws IOException {
    String[] sorted = files.clone();
    Arrays.sort(sorted);
    StringBuilder text = new StringBuilder();
    for (String file : sorted) {
      text.append(file).append(' ').append(status(file, configuration)).append('\n');
    }
    try {
      byte[] hash = MessageDigest.getInstance("SHA-256").digest(text.toString().getBytes(StandardCharsets.UTF_8));
      return HexFormat.of().formatHex(hash, 0, 16);
    } catch (NoSuchAlgorithmException impossible) {
      throw new AssertionError(impossible);
    }
  }

  private static String status(String file, Configuration configuration) throws IOException {
    Path path = new Path(file);
    try {
      FileStatus status = path.getFileSystem(configuration).getFileStatus(path);
      return status.getLen() + " " + status.getModificationTime();
    } catch (FileNotFoundException missing) {
      return "missing";
    }
  }
}

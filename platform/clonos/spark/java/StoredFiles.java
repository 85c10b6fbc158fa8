package clonos;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;
import java.util.concurrent.Future;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.FSDataInputStream;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.LocatedFileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.RemoteIterator;
import org.apache.hadoop.io.IOUtils;

/** Lists and copies many files of Hadoop's file systems in one call from Python ({@code clonos.spark.stored_files}). */
public final class StoredFiles {
  private static final int THREADS = 8;
  private static final int BUFFER_BYTES = 1 << 16;

  private StoredFiles() {}

  /** A line for each file below a folder: its length, a space, its path in the folder. */
  public static String list(Path folder, Configuration conf) throws IOException {
    FileSystem files = folder.getFileSystem(conf);
    int prefix = files.makeQualified(folder).toUri().getPath().length() + 1;
    StringBuilder lines = new StringBuilder();
    try {
      RemoteIterator<LocatedFileStatus> found = files.listFiles(folder, true);
      while (found.hasNext()) {
        LocatedFileStatus file = found.next();
        String path = file.getPath().toUri().getPath();
        lines.append(file.getLen()).append(' ').append(path.substring(prefix)).append('\n');
      }
    } catch (FileNotFoundException absent) {
      // The folder does not exist, or one below it was removed during the listing.
    }
    return lines.toString();
  }

  /**
   * Copies files from one folder into another, several at a time; replaces existing ones.
   *
   * @param names The paths in the folder, one in each line.
   * @return The names of the files that do not exist, one in each line.
   */
  public static String copy(Path source, Path target, String names, Configuration conf)
      throws IOException, InterruptedException {
    FileSystem from = source.getFileSystem(conf);
    FileSystem to = target.getFileSystem(conf);
    ExecutorService threads = Executors.newFixedThreadPool(THREADS);
    try {
      List<Future<String>> copies = new ArrayList<>();
      for (String name : names.split("\n")) {
        if (!name.isEmpty()) {
          copies.add(threads.submit(() -> copyFile(from, new Path(source, name), to, new Path(target, name)) ? "" : name));
        }
      }
      StringBuilder missing = new StringBuilder();
      for (Future<String> copy : copies) {
        String name = copy.get();
        if (!name.isEmpty()) {
          missing.append(name).append('\n');
        }
      }
      return missing.toString();
    } catch (ExecutionException failed) {
      throw new IOException(failed.getCause());
    } finally {
      threads.shutdownNow();
    }
  }

  private static boolean copyFile(FileSystem from, Path source, FileSystem to, Path target) throws IOException {
    try (FSDataInputStream content = from.open(source)) {
      try (FSDataOutputStream copy = to.create(target, true)) {
        IOUtils.copyBytes(content, copy, BUFFER_BYTES, false);
      }
      return true;
    } catch (FileNotFoundException removed) {
      to.delete(target, false);
      return false;
    }
  }
}

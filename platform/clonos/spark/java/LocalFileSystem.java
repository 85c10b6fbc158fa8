package clonos;

import java.io.FileNotFoundException;
import java.io.IOException;
import java.nio.file.FileAlreadyExistsException;
import java.nio.file.Files;
import java.nio.file.attribute.PosixFilePermissions;
import java.util.ArrayList;
import java.util.List;
import org.apache.hadoop.fs.FileStatus;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathFilter;
import org.apache.hadoop.fs.RawLocalFileSystem;
import org.apache.hadoop.fs.permission.FsPermission;

/**
 * Hadoop's local file system, which sets permissions by a system call instead of a process, copies what never changes
 * by linking to it, renames no file onto another, and reads the attributes of only those files that a filter accepts.
 */
public final class LocalFileSystem extends org.apache.hadoop.fs.LocalFileSystem {
  /** RocksDB's tables: most of a state's bytes, written once. */
  private static final String UNCHANGING = ".sst";

  public LocalFileSystem() {
    super(new Raw());
  }

  @Override
  public void copyFromLocalFile(boolean delSrc, Path src, Path dst) throws IOException {
    if (delSrc || !linked(src, dst)) {
      super.copyFromLocalFile(delSrc, src, dst);
    }
  }

  @Override
  public void copyToLocalFile(boolean delSrc, Path src, Path dst) throws IOException {
    if (delSrc || !linked(src, dst)) {
      super.copyToLocalFile(delSrc, src, dst);
    }
  }

  /**
   * Like Hadoop's, but a filter by name excludes files before their attributes are read. A partition's folder of state
   * has the changelogs of more than a hundred epochs, and Spark looks for the few snapshots among them.
   */
  @Override
  public FileStatus[] listStatus(Path folder, PathFilter filter) throws IOException {
    String[] names = pathToFile(folder).list();
    if (names == null) {
      return super.listStatus(folder, filter); // a file, or an error that Hadoop reports
    }
    Path qualified = makeQualified(folder);
    List<FileStatus> accepted = new ArrayList<>();
    for (String name : names) {
      if (name.startsWith(".") && name.endsWith(".crc")) {
        continue; // the checksums of a file
      }
      Path path = new Path(qualified, new Path(null, null, name));
      if (filter.accept(path)) {
        try {
          accepted.add(getFileStatus(path));
        } catch (FileNotFoundException removed) {
          // Hadoop's listing omits it too.
        }
      }
    }
    return accepted.toArray(new FileStatus[0]);
  }

  private boolean linked(Path src, Path dst) throws IOException {
    if (!src.getName().endsWith(UNCHANGING) || !dst.getName().endsWith(UNCHANGING)) {
      return false;
    }
    // A copy would write into the existing file, and so into all files linked to it.
    Files.deleteIfExists(pathToFile(dst).toPath());
    try {
      Files.createDirectories(pathToFile(dst).toPath().getParent());
      Files.createLink(pathToFile(dst).toPath(), pathToFile(src).toPath());
      return true;
    } catch (IOException | UnsupportedOperationException error) {
      return false; // another disk, or one without links
    }
  }

  private static final class Raw extends RawLocalFileSystem {
    /**
     * Like HDFS, never replaces an existing file. Spark checks for the file and then renames. Between both steps a
     * paused driver can be superseded: its rename would replace a file of its successor.
     */
    @Override
    public boolean rename(Path src, Path dst) throws IOException {
      java.nio.file.Path from = pathToFile(src).toPath();
      java.nio.file.Path to = pathToFile(dst).toPath();
      // A file of checksums follows its data file.
      if (!Files.isRegularFile(from) || Files.isDirectory(to) || dst.getName().endsWith(".crc")) {
        return super.rename(src, dst);
      }
      try {
        Files.createLink(to, from);
      } catch (FileAlreadyExistsException error) {
        return false;
      } catch (IOException | UnsupportedOperationException error) {
        return super.rename(src, dst); // a disk without links
      }
      Files.delete(from);
      return true;
    }

    @Override
    public void setPermission(Path path, FsPermission permission) throws IOException {
      if (permission.getStickyBit()) {
        super.setPermission(path, permission); // the JDK cannot express it
      } else {
        Files.setPosixFilePermissions(
            pathToFile(path).toPath(), PosixFilePermissions.fromString(permission.toString()));
      }
    }
  }
}

package clonos;

import java.io.IOException;
import org.apache.hadoop.conf.Configuration;
import org.apache.hadoop.fs.CommonPathCapabilities;
import org.apache.hadoop.fs.FSDataOutputStream;
import org.apache.hadoop.fs.FSDataOutputStreamBuilder;
import org.apache.hadoop.fs.FileAlreadyExistsException;
import org.apache.hadoop.fs.FileSystem;
import org.apache.hadoop.fs.Options.CreateFileOptionKeys;
import org.apache.hadoop.fs.Path;
import org.apache.hadoop.fs.PathIOException;
import org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager;

/**
 * Creates the files of a checkpoint, each complete or not at all (docs/adr/0032-shared-storage.md).
 *
 * <p>On file systems with an atomic rename, such as a local one or HDFS, it is Spark's own manager: it writes a temporary
 * file and renames it. Local files are those of {@link LocalFileSystem} on a cluster too, whose configuration cannot name
 * the class: executors read it before they have the class.
 *
 * <p>On a store of objects (S3) a rename is a copy. There a file appears when its stream is closed, and an entry of a log
 * is created on the condition that it does not exist: a driver that was paused before the close cannot replace an entry
 * of its successor.
 */
public final class CheckpointFiles extends FileSystemBasedCheckpointFileManager {
  private static final String ONCE = CreateFileOptionKeys.FS_OPTION_CREATE_CONDITIONAL_OVERWRITE;

  private final FileSystem files;
  private final boolean objects;

  /** Spark calls this constructor. */
  public CheckpointFiles(Path path, Configuration conf) throws IOException {
    super(path, withLocalFiles(path, conf));
    files = fs();
    objects = files.hasPathCapability(path, CommonPathCapabilities.ABORTABLE_STREAM);
  }

  private static Configuration withLocalFiles(Path path, Configuration conf) throws IOException {
    boolean local = path.getFileSystem(conf).getUri().getScheme().equals("file");
    if (!local || conf.get("fs.file.impl") != null) {
      return conf;
    }
    Configuration own = new Configuration(conf);
    own.setClassLoader(LocalFileSystem.class.getClassLoader());
    own.setClass("fs.file.impl", LocalFileSystem.class, FileSystem.class);
    own.setBoolean("fs.file.impl.disable.cache", true); // the cached one is of another class
    return own;
  }

  @Override
  public CancellableFSDataOutputStream createAtomic(Path path, boolean overwriteIfPossible) {
    if (!objects) {
      return super.createAtomic(path, overwriteIfPossible);
    }
    try {
      FSDataOutputStreamBuilder<?, ?> builder = files.createFile(path).recursive().overwrite(true);
      if (!overwriteIfPossible) {
        if (!files.hasPathCapability(path, ONCE)) {
          throw new PathIOException(path.toString(), "the store cannot create a file on a condition");
        }
        builder.must(ONCE, true);
      }
      return new Whole(builder.build(), path, files, overwriteIfPossible);
    } catch (IOException error) {
      throw new java.io.UncheckedIOException(error);
    }
  }

  /** A file that appears when it is closed, or never. */
  private static final class Whole extends CancellableFSDataOutputStream {
    private final FSDataOutputStream stream;
    private final Path path;
    private final FileSystem files;
    private final boolean replaces;
    private boolean ended;

    Whole(FSDataOutputStream stream, Path path, FileSystem files, boolean replaces) {
      super(stream);
      this.stream = stream;
      this.path = path;
      this.files = files;
      this.replaces = replaces;
    }

    @Override
    public synchronized void close() throws IOException {
      if (ended) {
        return;
      }
      ended = true;
      try {
        super.close();
      } catch (IOException error) {
        if (!replaces && files.exists(path)) {
          FileAlreadyExistsException exists = new FileAlreadyExistsException(path + " exists");
          exists.initCause(error);
          throw exists; // Spark expects this error
        }
        throw error;
      }
    }

    @Override
    public synchronized void cancel() {
      if (!ended) {
        ended = true;
        stream.abort();
      }
    }
  }
}

import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.HashMap;
import java.util.Map;
import java.util.concurrent.TimeUnit;
import org.apache.curator.framework.CuratorFramework;
import org.apache.curator.framework.CuratorFrameworkFactory;
import org.apache.curator.framework.recipes.locks.InterProcessLock;
import org.apache.curator.framework.recipes.locks.InterProcessMutex;
import org.apache.curator.framework.recipes.locks.InterProcessReadWriteLock;
import org.apache.curator.retry.RetryNTimes;

/**
 * Curator's locks, controlled by lines: `mutex PATH MS`, `read PATH MS` or `write PATH MS` acquires
 * within that many milliseconds, `release` releases the lock that was acquired last. Answers `held`,
 * `busy`, `released` or `error ...`, a line each.
 */
class Peer {
  public static void main(String[] args) throws Exception {
    CuratorFramework client = CuratorFrameworkFactory.newClient(args[0], new RetryNTimes(3, 100));
    client.start();
    client.blockUntilConnected();
    Map<String, InterProcessLock> locks = new HashMap<>();
    InterProcessLock held = null;
    BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
    System.out.println("ready");
    for (String line = lines.readLine(); line != null; line = lines.readLine()) {
      String[] words = line.split(" ");
      try {
        if (words[0].equals("release")) {
          held.release();
          System.out.println("released");
          continue;
        }
        String key = words[0] + " " + words[1];
        if (!locks.containsKey(key)) {
          InterProcessReadWriteLock both = new InterProcessReadWriteLock(client, words[1]);
          switch (words[0]) {
            case "mutex": locks.put(key, new InterProcessMutex(client, words[1])); break;
            case "read": locks.put(key, both.readLock()); break;
            case "write": locks.put(key, both.writeLock()); break;
          }
        }
        InterProcessLock lock = locks.get(key);
        if (lock.acquire(Long.parseLong(words[2]), TimeUnit.MILLISECONDS)) {
          held = lock;
          System.out.println("held");
        } else {
          System.out.println("busy");
        }
      } catch (Exception e) {
        System.out.println("error " + e);
      }
    }
    client.close();
  }
}

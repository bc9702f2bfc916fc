// Writes to a stopped server's log that a node has had as many children as its argument says:
// DATA PATH COUNT. Only 2^31 claims would do the same.

import java.io.File;
import org.apache.zookeeper.ZooDefs;
import org.apache.zookeeper.server.persistence.FileTxnLog;
import org.apache.zookeeper.txn.CreateTxn;
import org.apache.zookeeper.txn.TxnHeader;

public class Numbers {
    public static void main(String[] args) throws Exception {
        FileTxnLog log = new FileTxnLog(new File(args[0], "version-2"));
        long zxid = log.getLastLoggedZxid() + 1;
        TxnHeader header =
            new TxnHeader(1, 1, zxid, System.currentTimeMillis(), ZooDefs.OpCode.create);
        log.append(
            header,
            new CreateTxn(
                args[1] + "/other",
                new byte[0],
                ZooDefs.Ids.OPEN_ACL_UNSAFE,
                false,
                Integer.parseInt(args[2])),
            null);
        log.commit();
        log.close();
    }
}

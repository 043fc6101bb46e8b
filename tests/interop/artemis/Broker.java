import java.io.BufferedReader;
import java.io.File;
import java.io.InputStreamReader;
import java.util.List;
import javax.transaction.xa.Xid;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;
import org.apache.activemq.artemis.core.transaction.impl.XidImpl;

/** ActiveMQ Artemis with the configuration in the file that is named; says "ready", and ends with its standard input. It
 *  answers each line with the number of branches that are prepared, after an operator has completed them all where the line
 *  is "commit" or "rollback". It answers "replicated" with whether its backup has all that it has. */
public class Broker {
    public static void main(String[] arguments) throws Exception {
        EmbeddedActiveMQ broker = new EmbeddedActiveMQ();
        broker.setConfigResourcePath(new File(arguments[0]).toURI().toString());
        broker.start();
        System.out.println("ready");
        BufferedReader lines = new BufferedReader(new InputStreamReader(System.in));
        for (String line = lines.readLine(); line != null; line = lines.readLine()) {
            var server = broker.getActiveMQServer();
            if (line.equals("replicated")) {
                System.out.println(server.isReplicaSync());
                continue;
            }
            List<Xid> prepared = server.getResourceManager().getPreparedTransactions();
            for (Xid xid : prepared) {
                String name = XidImpl.toBase64String(xid);
                if (line.equals("commit")) {
                    server.getActiveMQServerControl().commitPreparedTransaction(name);
                } else if (line.equals("rollback")) {
                    server.getActiveMQServerControl().rollbackPreparedTransaction(name);
                }
            }
            System.out.println(prepared.size());
        }
        broker.stop();
        System.exit(0);
    }
}

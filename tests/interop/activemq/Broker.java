import java.io.File;
import org.apache.activemq.broker.BrokerService;
import org.apache.activemq.security.AuthenticationUser;
import org.apache.activemq.security.SimpleAuthenticationPlugin;
import org.apache.activemq.broker.BrokerPlugin;
import org.apache.activemq.store.kahadb.KahaDBPersistenceAdapter;
import java.util.List;

/** ActiveMQ Classic with its data in the folder that is named first, at the address that is named second; with a user and a
 *  password where these are named. KahaDB forces every commit, as by default. It says "ready", prints the branches that are
 *  prepared when it is asked for them ("prepared"), and ends with its standard input. */
public class Broker {
    public static void main(String[] arguments) throws Exception {
        BrokerService broker = new BrokerService();
        broker.setBrokerName("interop");
        broker.setUseJmx(false);
        broker.setUseShutdownHook(false);
        broker.setSchedulerSupport(false);
        broker.getSystemUsage().getStoreUsage().setLimit(1L << 30);
        broker.getSystemUsage().getTempUsage().setLimit(1L << 28);
        KahaDBPersistenceAdapter store = new KahaDBPersistenceAdapter();
        store.setDirectory(new File(arguments[0], "kahadb"));
        store.setJournalMaxFileLength(8 * 1024 * 1024);
        broker.setDataDirectoryFile(new File(arguments[0]));
        broker.setPersistenceAdapter(store);
        if (arguments.length > 3) {
            AuthenticationUser user = new AuthenticationUser(arguments[2], arguments[3], "users");
            broker.setPlugins(new BrokerPlugin[] {new SimpleAuthenticationPlugin(List.of(user))});
        }
        broker.addConnector(arguments[1]);
        broker.start();
        broker.waitUntilStarted();
        System.out.println("ready");
        int next;
        StringBuilder line = new StringBuilder();
        while ((next = System.in.read()) >= 0) {
            if (next != '\n') {
                line.append((char) next);
                continue;
            }
            if (line.toString().equals("prepared")) {
                System.out.println(broker.getBroker().getPreparedTransactions(null).length);
            }
            line.setLength(0);
        }
        broker.stop();
        System.exit(0);
    }
}

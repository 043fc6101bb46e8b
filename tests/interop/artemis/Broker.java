import java.io.File;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;

/** ActiveMQ Artemis with the configuration in the file that is named; says "ready", and ends with its standard input. */
public class Broker {
    public static void main(String[] arguments) throws Exception {
        EmbeddedActiveMQ broker = new EmbeddedActiveMQ();
        broker.setConfigResourcePath(new File(arguments[0]).toURI().toString());
        broker.start();
        System.out.println("ready");
        while (System.in.read() >= 0) {
        }
        broker.stop();
        System.exit(0);
    }
}

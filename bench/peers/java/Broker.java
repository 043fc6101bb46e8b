import java.io.File;
import java.nio.file.Files;
import java.nio.file.Path;
import org.apache.activemq.artemis.api.config.ActiveMQDefaultConfiguration;
import org.apache.activemq.artemis.cli.commands.ActionContext;
import org.apache.activemq.artemis.cli.commands.util.SyncCalculation;
import org.apache.activemq.artemis.core.io.aio.AIOSequentialFileFactory;
import org.apache.activemq.artemis.core.server.JournalType;
import org.apache.activemq.artemis.core.server.embedded.EmbeddedActiveMQ;

/**
 * ActiveMQ Artemis as `artemis create` sets it up: Broker TEMPLATE FOLDER PORT. It measures the disk as `create` does, writes
 * FOLDER/broker.xml, says "ready TYPE NANOSECONDS", and ends with its standard input.
 */
public class Broker {
    private static final int BLOCK = 4096;
    private static final int WRITES = 250;
    private static final int TRIES = 5;

    public static void main(String[] arguments) throws Exception {
        Path folder = Path.of(arguments[1]).toAbsolutePath();
        boolean asynchronous = AIOSequentialFileFactory.isSupported();
        JournalType type = asynchronous ? JournalType.ASYNCIO : JournalType.NIO;
        int depth = ActiveMQDefaultConfiguration.getDefaultJournalMaxIoAio();
        ActionContext quiet = new ActionContext(System.in, System.err, System.err);
        long milliseconds = SyncCalculation.syncTest(
            folder.toFile(), BLOCK, WRITES, TRIES, false, true, false, "journal-test.tmp", depth, type, quiet);
        long nanoseconds = SyncCalculation.toNanos(milliseconds, WRITES, false, quiet);

        Path file = folder.resolve("broker.xml");
        Files.writeString(file, Files.readString(Path.of(arguments[0]))
            .replace("@FOLDER@", folder.toString())
            .replace("@PORT@", arguments[2])
            .replace("@TYPE@", type.name())
            .replace("@NANOSECONDS@", Long.toString(nanoseconds))
            .replace("@DEPTH@", Integer.toString(asynchronous ? depth : 1)));
        EmbeddedActiveMQ broker = new EmbeddedActiveMQ();
        broker.setConfigResourcePath(file.toUri().toString());
        broker.start();
        System.out.println("ready " + type + " " + nanoseconds);
        while (System.in.read() >= 0) {
        }
        broker.stop();
        System.exit(0);
    }
}

import jakarta.jms.Connection;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Session;
import java.util.Arrays;
import java.util.List;
import java.util.Map;

/** Without prefetch a consumer gets what it asks for, and everything else is there for others. */
final class Prefetch implements Use {
    @Override
    public Object run(Broker broker) throws Exception {
        broker.send("jms.pulled", Broker.numbered("", 10));
        try (Connection connection = broker.connect("jms.prefetchPolicy.all=0"); Session session = connection.createSession()) {
            MessageConsumer consumer = session.createConsumer(session.createQueue("jms.pulled"));
            String first = Broker.text(Broker.next(consumer));
            List<String> others = broker.take("jms.pulled");
            List<Object> nothing = Arrays.asList(consumer.receiveNoWait(), consumer.receive(20));
            broker.send("jms.pulled", "later", "still later");
            String later = Broker.text(consumer.receive(Broker.PATIENCE_MS));
            return Map.of("first", first, "others", others.size(), "nothing", nothing, "later", later,
                    "last", broker.take("jms.pulled"));
        }
    }
}

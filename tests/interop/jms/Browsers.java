import jakarta.jms.Connection;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;

/** A browser sees every message once, in its order, and takes none; an empty queue is at its end at once. */
final class Browsers implements Use {
    @Override
    public Object run(Broker broker) throws Exception {
        try (Connection connection = broker.connect(); Session session = connection.createSession()) {
            Queue queue = session.createQueue("jms.browsed");
            List<String> empty = seen(session, queue);
            broker.send("jms.browsed", Broker.numbered("", 300));
            List<String> all = seen(session, queue);
            Session other = connection.createSession(Session.CLIENT_ACKNOWLEDGE);
            MessageConsumer consumer = other.createConsumer(queue);
            List<String> taken = List.of(Broker.text(Broker.next(consumer)), Broker.text(Broker.next(consumer)));
            consumer.close();
            other.close();
            return Map.of("empty", empty, "all", all.equals(List.of(Broker.numbered("", 300))), "taken", taken,
                    "left", broker.take("jms.browsed").size());
        }
    }

    private static List<String> seen(Session session, Queue queue) throws Exception {
        List<String> found = new ArrayList<>();
        try (QueueBrowser browser = session.createBrowser(queue)) {
            for (Object message : Collections.list(browser.getEnumeration())) {
                found.add(Broker.text((Message) message));
            }
        }
        return found;
    }
}

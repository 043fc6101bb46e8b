import jakarta.jms.Connection;
import jakarta.jms.MessageConsumer;
import jakarta.jms.Session;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Set;

/** A connection with an open consumer is closed: what it was sent ahead, and did not acknowledge, is there for others. */
final class Closes implements Use {
    @Override
    public Object run(Broker broker) throws Exception {
        String[] texts = Broker.numbered("", 100);
        broker.send("jms.returned", texts);
        Connection waiting = broker.connect(), holding = broker.connect();
        Session session = holding.createSession(Session.CLIENT_ACKNOWLEDGE);
        MessageConsumer consumer = session.createConsumer(session.createQueue("jms.returned"));
        for (int number = 0; number < 10; number++) {
            Broker.next(consumer);
        }
        Session other = waiting.createSession();
        MessageConsumer next = other.createConsumer(other.createQueue("jms.returned"));
        List<String> before = Broker.taken(next);
        holding.close();
        List<String> found = new ArrayList<>();
        while (found.size() < texts.length) {
            found.add(Broker.text(Broker.next(next)));
        }
        waiting.close();
        boolean all = Set.copyOf(found).equals(Set.of(texts));  // the consumers took turns while one closed: in no order
        return Map.of("before", before.size(), "allBack", all, "left", broker.take("jms.returned"));
    }
}

import jakarta.jms.Connection;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.Topic;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Topics as JMS has them: durable, shared and other subscriptions, with selectors, and what ends them. */
final class Topics implements Use {
    private static final String NAME = "jms.topic";

    @Override
    public Object run(Broker broker) throws Exception {
        Map<String, Object> found = new LinkedHashMap<>();
        try (Connection connection = broker.connect("jms.clientID=somebody"); Connection other = broker.connect()) {
            Session session = connection.createSession();
            Topic topic = session.createTopic(NAME);
            MessageConsumer consumer = session.createConsumer(topic);
            MessageConsumer selecting = session.createConsumer(topic, "colour = 'red'");
            MessageConsumer durable = session.createDurableSubscriber(topic, "durable");
            MessageConsumer shared = session.createSharedConsumer(topic, "shared");
            MessageConsumer second = session.createSharedConsumer(topic, "shared");
            MessageConsumer global = other.createSession().createSharedDurableConsumer(topic, "global");

            publish(other, "committed", true);
            publish(other, "rolled back", false);
            found.put("consumer", List.of(Broker.text(Broker.next(consumer)), Broker.taken(consumer).size()));
            found.put("selecting", Broker.taken(selecting).size());
            found.put("durable", Broker.text(Broker.next(durable)));
            List<String> both = new ArrayList<>(Broker.taken(shared));
            both.addAll(Broker.taken(second));
            found.put("shared", both);
            found.put("global", Broker.text(Broker.next(global)));

            durable.close();
            publish(other, "while it is away", true);
            found.put("again", Broker.text(Broker.next(session.createDurableSubscriber(topic, "durable"))));
            found.put("in use", Broker.refusal(() -> session.unsubscribe("durable")) != null);
            found.put("temporary", Broker.refusal(session::createTemporaryTopic) != null);
        }
        broker.send("jms.after", "still useful");
        try (Connection connection = broker.connect("jms.clientID=somebody"); Connection other = broker.connect()) {
            Session session = connection.createSession();
            session.unsubscribe("durable");
            found.put("unknown", Broker.refusal(() -> session.unsubscribe("durable")) != null);
            other.createSession().unsubscribe("global");
        }
        found.put("after", broker.take("jms.after"));
        return found;
    }

    private static void publish(Connection connection, String text, boolean commits) throws Exception {
        try (Session session = connection.createSession(Session.SESSION_TRANSACTED)) {
            MessageProducer producer = session.createProducer(session.createTopic(NAME));
            producer.send(session.createTextMessage(text));
            if (commits) {
                session.commit();
            } else {
                session.rollback();
            }
        }
    }
}

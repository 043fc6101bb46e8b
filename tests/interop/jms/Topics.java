import jakarta.jms.Connection;
import jakarta.jms.Session;
import jakarta.jms.Topic;
import java.util.LinkedHashMap;
import java.util.Map;

/** The broker has no topics: whoever asks for one hears that at once, and the connection stays useful. */
final class Topics implements Use {
    @Override
    public Object run(Broker broker) throws Exception {
        Map<String, Object> told = new LinkedHashMap<>();
        try (Connection connection = broker.connect("jms.clientID=somebody")) {
            Session session = connection.createSession();
            Topic topic = session.createTopic("jms.topic");
            told.put("consumer", Broker.refusal(() -> session.createConsumer(topic)));
            told.put("producer", Broker.refusal(() -> session.createProducer(topic)));
            told.put("durable", Broker.refusal(() -> session.createDurableConsumer(topic, "subscription")));
            told.put("shared", Broker.refusal(() -> session.createSharedConsumer(topic, "subscription")));
            told.put("shared durable", Broker.refusal(() -> session.createSharedDurableConsumer(topic, "other")));
            told.put("temporary", Broker.refusal(session::createTemporaryTopic));
            told.put("anonymous", Broker.refusal(() ->
                    session.createProducer(null).send(topic, session.createTextMessage("to nobody"))));
            session.createProducer(session.createQueue("jms.after")).send(session.createTextMessage("still useful"));
        }
        told.put("after", broker.take("jms.after"));
        return told;
    }
}

import jakarta.jms.Connection;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** Messages of one JMSXGroupID over two consumers without prefetch: who gets what before and after a rollback and a commit. */
final class Groups implements Use {
    private static final long BRIEFLY_MS = 500;

    @Override
    public Object run(Broker broker) throws Exception {
        try (Connection connection = broker.connect("jms.prefetchPolicy.all=0")) {
            Session one = connection.createSession(true, Session.SESSION_TRANSACTED);
            Session two = connection.createSession(true, Session.SESSION_TRANSACTED);
            Queue queue = one.createQueue("jms.groups");
            MessageProducer producer = one.createProducer(queue);
            for (String text : List.of("a1", "a2", "b1", "a3")) {
                TextMessage message = one.createTextMessage(text);
                message.setStringProperty("JMSXGroupID", text.substring(0, 1));
                producer.send(message);
            }
            one.commit();
            MessageConsumer first = one.createConsumer(queue);
            MessageConsumer second = two.createConsumer(queue);
            List<String> order = new ArrayList<>();
            order.add("1:" + Broker.text(Broker.next(first)));
            order.add("2:" + Broker.text(Broker.next(second)));
            order.add("2:" + text(second.receive(BRIEFLY_MS)));
            one.rollback();
            order.add("2:" + Broker.text(Broker.next(second)));
            order.add("1:" + text(first.receive(BRIEFLY_MS)));
            two.commit();
            order.add("1:" + Broker.text(Broker.next(first)));
            order.add("1:" + Broker.text(Broker.next(first)));
            one.commit();
            return Map.of("order", order, "left", broker.take("jms.groups"));
        }
    }

    private static String text(Message message) throws Exception {
        return message == null ? "nothing" : Broker.text(message);
    }
}

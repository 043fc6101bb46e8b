import jakarta.jms.Connection;
import jakarta.jms.JMSException;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.ArrayList;
import java.util.List;
import org.apache.qpid.jms.JmsConnectionFactory;

/** The broker under test, as a user of JMS reaches it. */
final class Broker {
    static final long PATIENCE_MS = 10_000;

    private final int port;

    Broker(int port) {
        this.port = port;
    }

    /** A connection that is started; the options are those of a URL of Qpid JMS. */
    Connection connect(String... options) throws JMSException {
        String url = "amqp://127.0.0.1:" + port + "?jms.requestTimeout=" + PATIENCE_MS + "&jms.connectTimeout=" + PATIENCE_MS;
        Connection connection = new JmsConnectionFactory(options.length == 0 ? url : url + "&" + String.join("&", options))
                .createConnection();
        connection.start();
        return connection;
    }

    /** Sends texts to a queue, over a connection of its own. */
    void send(String queue, String... texts) throws JMSException {
        try (Connection connection = connect(); Session session = connection.createSession()) {
            MessageProducer producer = session.createProducer(session.createQueue(queue));
            for (String text : texts) {
                producer.send(session.createTextMessage(text));
            }
        }
    }

    /** Takes the texts that a queue has now, over a connection of its own. */
    List<String> take(String queue) throws JMSException {
        try (Connection connection = connect(); Session session = connection.createSession()) {
            return taken(session.createConsumer(session.createQueue(queue)));
        }
    }

    /** Takes what a consumer can get without waiting. */
    static List<String> taken(MessageConsumer consumer) throws JMSException {
        List<String> found = new ArrayList<>();
        for (Message message = consumer.receiveNoWait(); message != null; message = consumer.receiveNoWait()) {
            found.add(((TextMessage) message).getText());
        }
        return found;
    }

    /** The next message, which has to come. */
    static Message next(MessageConsumer consumer) throws JMSException {
        Message message = consumer.receive(PATIENCE_MS);
        if (message == null) {
            throw new AssertionError("no message came");
        }
        return message;
    }

    static String text(Message message) throws JMSException {
        return ((TextMessage) message).getText();
    }

    /** What a message says of its deliveries: text, whether it is redelivered, and the how-manieth delivery it is. */
    static List<Object> delivery(Message message) throws JMSException {
        return List.of(text(message), message.getJMSRedelivered(), message.getIntProperty("JMSXDeliveryCount"));
    }

    /** The text of the exception with which something is refused; null if it is not. */
    static String refusal(Attempt attempt) {
        try {
            attempt.run();
            return null;
        } catch (JMSException error) {
            return error.getClass().getSimpleName() + ": " + error.getMessage();
        }
    }

    /** Something that the broker may refuse. */
    interface Attempt {
        void run() throws JMSException;
    }

    static String[] numbered(String text, int count) {
        String[] texts = new String[count];
        for (int number = 0; number < count; number++) {
            texts[number] = text + number;
        }
        return texts;
    }
}

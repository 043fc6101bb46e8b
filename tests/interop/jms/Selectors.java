import jakarta.jms.Connection;
import jakarta.jms.Message;
import jakarta.jms.MessageProducer;
import jakarta.jms.Queue;
import jakarta.jms.QueueBrowser;
import jakarta.jms.Session;
import jakarta.jms.TextMessage;
import java.util.ArrayList;
import java.util.Collections;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;

/** Selectors of consumers and browsers, over properties and header fields. */
final class Selectors implements Use {
    @Override
    public Object run(Broker broker) throws Exception {
        Map<String, Object> found = new LinkedHashMap<>();
        try (Connection connection = broker.connect()) {
            Session session = connection.createSession();
            Queue queue = session.createQueue("jms.selected");
            MessageProducer producer = session.createProducer(queue);
            String[] colours = {"red", "green", "blue"};
            for (int number = 0; number < 12; number++) {
                TextMessage message = session.createTextMessage(String.valueOf(number));
                message.setStringProperty("colour", colours[number % 3]);
                message.setIntProperty("number", number);
                message.setBooleanProperty("even", number % 2 == 0);
                message.setJMSCorrelationID("c" + number);
                message.setJMSType(number == 7 ? "seven" : "other");
                producer.setPriority(number == 8 ? 9 : 4);
                producer.send(message);
            }
            QueueBrowser browser = session.createBrowser(queue, "colour IN ('green', 'blue') AND NOT even");
            List<String> browsed = new ArrayList<>();
            for (Object message : Collections.list(browser.getEnumeration())) {
                browsed.add(Broker.text((Message) message));
            }
            browser.close();
            found.put("browsed", browsed);
            for (String selector : List.of("colour = 'red' AND number BETWEEN 2 AND 8", "JMSPriority > 4",
                    "JMSType = 'seven'", "JMSCorrelationID LIKE 'c1%'", "number * 2 = 4 OR nothing = 1")) {
                var consumer = session.createConsumer(queue, selector);
                found.put(selector, Broker.taken(consumer));
                consumer.close();
            }
        }
        found.put("left", broker.take("jms.selected"));
        return found;
    }
}

import jakarta.jms.BytesMessage;
import jakarta.jms.Connection;
import jakarta.jms.DeliveryMode;
import jakarta.jms.MapMessage;
import jakarta.jms.Message;
import jakarta.jms.MessageConsumer;
import jakarta.jms.MessageProducer;
import jakarta.jms.ObjectMessage;
import jakarta.jms.Queue;
import jakarta.jms.Session;
import jakarta.jms.StreamMessage;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;

/** Messages of each kind come back as they were sent, with their fields and properties; not after their time to live. */
final class Messages implements Use {
    @Override
    public Object run(Broker broker) throws Exception {
        try (Connection connection = broker.connect("jms.deserializationPolicy.allowList=java.util,java.lang")) {
            Session session = connection.createSession();
            Queue queue = session.createQueue("jms.kinds");
            MessageProducer producer = session.createProducer(queue);
            MapMessage map = session.createMapMessage();
            map.setInt("one", 1);
            map.setBytes("octets", new byte[] {0, -1});
            StreamMessage stream = session.createStreamMessage();
            stream.writeLong(1L << 40);
            stream.writeString("text");
            BytesMessage bytes = session.createBytesMessage();
            bytes.writeUTF("utf");
            ObjectMessage object = session.createObjectMessage(new ArrayList<>(List.of("a", 2)));
            Message empty = session.createMessage();
            empty.setStringProperty("text", "täxt");
            empty.setDoubleProperty("double", 0.5);
            empty.setJMSReplyTo(queue);
            for (Message message : List.of(map, stream, bytes, object, empty)) {
                producer.send(message, DeliveryMode.NON_PERSISTENT, 7, 60_000);
            }
            producer.send(session.createTextMessage("dead"), DeliveryMode.PERSISTENT, 4, 1);
            Thread.sleep(5);
            MessageConsumer consumer = session.createConsumer(queue);
            MapMessage first = (MapMessage) Broker.next(consumer);
            StreamMessage second = (StreamMessage) Broker.next(consumer);
            BytesMessage third = (BytesMessage) Broker.next(consumer);
            ObjectMessage fourth = (ObjectMessage) Broker.next(consumer);
            Message fifth = Broker.next(consumer);
            return Map.of(
                    "map", List.of(first.getInt("one"), first.getBytes("octets").length),
                    "stream", List.of(second.readLong(), second.readString()),
                    "bytes", third.readUTF(),
                    "object", fourth.getObject().toString(),
                    "properties", List.of(fifth.getStringProperty("text"), fifth.getDoubleProperty("double")),
                    "fields", List.of(fifth.getJMSPriority(), fifth.getJMSDeliveryMode() == DeliveryMode.NON_PERSISTENT,
                            fifth.getJMSReplyTo().equals(queue), fifth.getJMSMessageID().equals(empty.getJMSMessageID())),
                    "left", Broker.taken(consumer));
        }
    }
}

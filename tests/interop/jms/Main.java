import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/** java Main PORT USE: runs a use against a broker, and writes its result as one line of JSON. */
final class Main {
    private static final long TIMEOUT_MS = 30_000;

    public static void main(String[] arguments) throws Exception {
        Use use = (Use) Class.forName(arguments[1]).getDeclaredConstructor().newInstance();
        Thread main = Thread.currentThread();
        Thread watch = new Thread(() -> {
            try {
                Thread.sleep(TIMEOUT_MS);
            } catch (InterruptedException error) {
                return;
            }
            for (StackTraceElement frame : main.getStackTrace()) {
                System.err.println("timeout at " + frame);
            }
            Runtime.getRuntime().halt(1);
        });
        watch.setDaemon(true);
        watch.start();
        String result;
        try {
            result = json(use.run(new Broker(Integer.parseInt(arguments[0]))));
        } catch (Throwable error) {
            error.printStackTrace();
            System.err.flush();
            Runtime.getRuntime().halt(1);
            return;
        }
        System.out.println(result);
        System.out.flush();
        Runtime.getRuntime().halt(0);  // connections that were left open are not waited for
    }

    private static String json(Object value) {
        if (value instanceof Map<?, ?> map) {
            return map.entrySet().stream().map(entry -> json(entry.getKey()) + ": " + json(entry.getValue()))
                    .collect(Collectors.joining(", ", "{", "}"));
        }
        if (value instanceof List<?> list) {
            return list.stream().map(Main::json).collect(Collectors.joining(", ", "[", "]"));
        }
        if (value == null || value instanceof Number || value instanceof Boolean) {
            return String.valueOf(value);
        }
        return '"' + value.toString().replace("\\", "\\\\").replace("\"", "\\\"").replace("\n", " ") + '"';
    }
}

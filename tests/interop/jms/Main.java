import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.util.List;
import java.util.Map;
import java.util.stream.Collectors;

/**
 * Reads lines "PORT USE" from its input, and runs each use against the broker at the port. It writes the result as one
 * line of JSON, or a line that begins with "failed:" and says why. It ends with its input.
 */
final class Main {
    private static final long TIMEOUT_MS = 30_000;

    public static void main(String[] arguments) throws Exception {
        BufferedReader asked = new BufferedReader(new InputStreamReader(System.in));
        for (String line = asked.readLine(); line != null; line = asked.readLine()) {
            String[] words = line.split(" ");
            Thread watch = watch(Thread.currentThread());
            String result;
            try {
                Use use = (Use) Class.forName(words[1]).getDeclaredConstructor().newInstance();
                result = json(use.run(new Broker(Integer.parseInt(words[0]))));
            } catch (Throwable error) {
                error.printStackTrace();
                System.err.flush();
                result = "failed: " + error.toString().replace("\n", " ");
            }
            watch.interrupt();
            System.out.println(result);
            System.out.flush();
        }
        Runtime.getRuntime().halt(0);  // connections that were left open are not waited for
    }

    /** Ends the program when a use takes too long. */
    private static Thread watch(Thread main) {
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
        return watch;
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

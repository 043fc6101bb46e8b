import java.util.HashMap;
import java.util.Map;

import org.apache.qpid.server.SystemLauncher;
import org.apache.qpid.server.SystemLauncherListener;

/**
 * Qpid Broker-J in a process of its own, for the tests. Its configuration is the file that the first argument names; its
 * virtual host and messages are in the folder that the second one names. It prints "ready" when it listens, and ends
 * when its standard input does.
 */
public class Broker
{
    public static void main(String[] arguments) throws Exception
    {
        System.setProperty("derby.stream.error.file", arguments[1] + "/derby.log");
        Map<String, String> context = new HashMap<>();
        context.put("qpid.work_dir", arguments[1]);
        Map<String, Object> attributes = new HashMap<>();
        attributes.put("type", "JSON");
        attributes.put("storePath", arguments[1] + "/config.json");
        attributes.put("context", context);
        attributes.put("initialConfigurationLocation", arguments[0]);
        attributes.put("startupLoggedToSystemOut", "false");
        SystemLauncher launcher = new SystemLauncher(new SystemLauncherListener.DefaultSystemLauncherListener()
        {
            @Override
            public void errorOnStartup(RuntimeException error)
            {
                error.printStackTrace();
                System.exit(1);
            }
        });
        launcher.startup(attributes);
        System.out.println("ready");
        System.out.flush();
        while (System.in.read() >= 0)
        {
        }
        launcher.shutdown();
    }
}

package clonos;

import java.lang.reflect.Field;
import javax.net.SocketFactory;
import py4j.CallbackClient;
import py4j.Gateway;
import py4j.GatewayServer;
import py4j.JavaServer;
import py4j.PythonClient;
import py4j.Py4JPythonClient;

/** How the JVM calls functions of the driver's Python process. */
public final class Callbacks {
  private Callbacks() {}

  /**
   * Makes new connections to the driver's Python process present a token.
   *
   * <p>PySpark passes the port of that process with {@link Gateway#resetCallbackClient}, which loses the token: {@code
   * PythonClient.copyWith} of Py4J 0.10.9 does not copy it. Another client with a token takes its place here.
   *
   * @param server the gateway's server
   * @param port on which Python listens
   * @param token what Python requires
   */
  public static void authenticate(JavaServer server, int port, String token) throws ReflectiveOperationException {
    Gateway gateway = server.getGateway();
    Py4JPythonClient replaced = gateway.getCallbackClient();
    PythonClient client =
        new PythonClient(
            gateway,
            null,
            port,
            replaced.getAddress(),
            CallbackClient.DEFAULT_MIN_CONNECTION_TIME,
            CallbackClient.DEFAULT_MIN_CONNECTION_TIME_UNIT,
            SocketFactory.getDefault(),
            server,
            true,
            GatewayServer.DEFAULT_READ_TIMEOUT,
            token);
    Field field = Gateway.class.getDeclaredField("cbClient");
    field.setAccessible(true);
    field.set(gateway, client);
    replaced.shutdown();
  }
}

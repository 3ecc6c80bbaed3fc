// Requests of the JDK's own HTTP client, which asks for HTTP/2 by an Upgrade unless it is told not to.
// java Upgrades.java http://127.0.0.1:8000 MODEL: a line with the status and the version for each request.
import java.io.ByteArrayInputStream;
import java.net.URI;
import java.net.http.HttpClient;
import java.net.http.HttpRequest;
import java.net.http.HttpRequest.BodyPublisher;
import java.net.http.HttpRequest.BodyPublishers;
import java.net.http.HttpResponse.BodyHandlers;
import java.util.List;

public class Upgrades {
  public static void main(String[] words) throws Exception {
    String text = "{\"model\": \"" + words[1] + "\", \"input\": \"the cat sat\", \"user\": \"%s\"}";
    byte[] small = text.formatted("").getBytes();
    byte[] large = text.formatted("x".repeat(200_000)).getBytes();
    for (var client : List.of(HttpClient.newHttpClient(), plain())) {
      for (boolean asks : new boolean[] {false, true}) {
        for (byte[] body : List.of(small, large)) {
          // The first one says its length, the second one comes in chunks.
          send(client, asks, words[0], BodyPublishers.ofByteArray(body));
          send(client, asks, words[0], BodyPublishers.ofInputStream(() -> new ByteArrayInputStream(body)));
        }
      }
      var get = HttpRequest.newBuilder(URI.create(words[0] + "/v1/models")).build();
      print(client, get);
    }
  }

  static HttpClient plain() {
    return HttpClient.newBuilder().version(HttpClient.Version.HTTP_1_1).build();
  }

  static void send(HttpClient client, boolean asks, String base, BodyPublisher body) throws Exception {
    var request = HttpRequest.newBuilder(URI.create(base + "/v1/embeddings")).POST(body);
    print(client, request.header("Content-Type", "application/json").expectContinue(asks).build());
  }

  static void print(HttpClient client, HttpRequest request) throws Exception {
    var answer = client.send(request, BodyHandlers.ofString());
    System.out.println(answer.statusCode() + " " + answer.version());
  }
}

// The least that a server can do for the same bytes: one thread, epoll, one write for each chunk.
// Answers each request with as many chunks as its max_tokens says, all streams stepped together.
// Knows no HTTP beyond what the benchmarks' own client sends: a request in one piece.

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { kMostConnections = 4096, kEvents = 256, kRequestBytes = 65536 };

#define FIELDS                                                                      \
  "data: {\"id\":\"chatcmpl-00000000000000000000000000000000\","                    \
  "\"object\":\"chat.completion.chunk\",\"created\":1700000000,\"model\":\"mock\"," \
  "\"choices\":[{\"index\":0,"
#define NOTHING_YET ",\"logprobs\":null,\"finish_reason\":null}]}\n\n"

static const char kHead[] =
    "HTTP/1.1 200 OK\r\ncontent-type: text/event-stream; charset=utf-8\r\n"
    "transfer-encoding: chunked\r\n\r\n";
static const char kOpening[] =
    FIELDS "\"delta\":{\"role\":\"assistant\",\"content\":\"\"}" NOTHING_YET;
static const char kToken[] = FIELDS "\"delta\":{\"content\":\" token\"}" NOTHING_YET;
static const char kFinish[] =
    FIELDS "\"delta\":{},\"logprobs\":null,\"finish_reason\":\"length\"}]}\n\n";
static const char kDone[] = "data: [DONE]\n\n";

struct Bytes {
  char data[2048];
  size_t size;
};

static struct Bytes start, token, ending;
static int remaining[kMostConnections];  // tokens to send, by descriptor; 0: no stream
static int running[kMostConnections];    // the descriptors that have a stream
static int streams;

static void Append(struct Bytes* to, const char* data) {
  to->size += (size_t)snprintf(to->data + to->size, sizeof to->data - to->size, "%s", data);
}

static void AppendFrame(struct Bytes* to, const char* event) {
  char head[32];
  snprintf(head, sizeof head, "%zx\r\n", strlen(event));
  Append(to, head);
  Append(to, event);
  Append(to, "\r\n");
}

static void Render(void) {
  Append(&start, kHead);
  AppendFrame(&start, kOpening);
  AppendFrame(&token, kToken);
  AppendFrame(&ending, kToken);
  AppendFrame(&ending, kFinish);
  AppendFrame(&ending, kDone);
  Append(&ending, "0\r\n\r\n");
}

static void Fail(const char* what) {
  perror(what);
  exit(1);
}

// Waits for the client to make room, so nothing is ever buffered here. False: it has gone.
static int Write(int connection, const struct Bytes* bytes) {
  for (size_t sent = 0; sent < bytes->size;) {
    ssize_t count = write(connection, bytes->data + sent, bytes->size - sent);
    if (count < 0) return 0;
    sent += (size_t)count;
  }
  return 1;
}

static void Hangup(int connection) {
  remaining[connection] = 0;
  close(connection);
}

static void Accept(int poll, int listener) {
  int connection = accept(listener, NULL, NULL), on = 1;
  if (connection < 0) return;
  if (connection >= kMostConnections) {
    close(connection);
    return;
  }
  setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
  struct epoll_event event = {.events = EPOLLIN, .data.fd = connection};
  if (epoll_ctl(poll, EPOLL_CTL_ADD, connection, &event) < 0) Fail("epoll_ctl");
}

static void Receive(int connection) {
  static const char kTokens[] = "\"max_tokens\": ";
  static char request[kRequestBytes];
  ssize_t size = read(connection, request, sizeof request - 1);
  if (size <= 0) {
    Hangup(connection);
    return;
  }
  request[size] = 0;
  const char* found = strstr(request, kTokens);
  int tokens = found == NULL ? 1 : atoi(found + sizeof kTokens - 1);
  if (remaining[connection] != 0 || tokens < 1 || !Write(connection, &start)) {
    Hangup(connection);
    return;
  }
  remaining[connection] = tokens;
}

static void Step(int highest) {
  streams = 0;
  for (int connection = 0; connection <= highest; ++connection) {
    if (remaining[connection] > 0) running[streams++] = connection;
  }
  for (int at = 0; at < streams; ++at) {
    int connection = running[at];
    const struct Bytes* bytes = --remaining[connection] > 0 ? &token : &ending;
    if (!Write(connection, bytes)) Hangup(connection);
  }
}

static int Listen(int port) {
  int listener = socket(AF_INET, SOCK_STREAM, 0), on = 1;
  struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
  if (bind(listener, (struct sockaddr*)&address, sizeof address) < 0) Fail("bind");
  if (listen(listener, 1024) < 0) Fail("listen");
  return listener;
}

int main(int count, char** arguments) {
  if (count != 2) {
    fprintf(stderr, "usage: floor PORT\n");
    return 2;
  }
  signal(SIGPIPE, SIG_IGN);
  Render();
  int listener = Listen(atoi(arguments[1])), poll = epoll_create1(0), highest = 0;
  struct epoll_event event = {.events = EPOLLIN, .data.fd = listener};
  if (poll < 0 || epoll_ctl(poll, EPOLL_CTL_ADD, listener, &event) < 0) Fail("epoll");
  for (;;) {
    struct epoll_event events[kEvents];
    int ready = epoll_wait(poll, events, kEvents, streams > 0 ? 0 : -1);
    if (ready < 0 && errno != EINTR) Fail("epoll_wait");
    for (int at = 0; at < ready; ++at) {
      int connection = events[at].data.fd;
      if (connection == listener) {
        Accept(poll, listener);
        continue;
      }
      if (connection > highest) highest = connection;
      Receive(connection);
    }
    Step(highest);
  }
}

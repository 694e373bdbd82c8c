#include "transport/socket.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>

#include <fstream>
#include <string>

#include "testing/check.h"
#include "testing/faulty_files.h"

namespace sparsefleet::testing {
namespace {

const Test kParse("endpoints with a name, a v4 and a v6 address are read and written back", [] {
  for (const char* text :
       {"localhost:80", "10.0.0.7:9100", "[::1]:0", "[fe80::1]:65535", "/run/job/server-0"}) {
    ExpectEqual(RequireOk(ParseEndpoint(text)).ToString(), std::string(text));
  }
  ExpectEqual(RequireOk(ParseEndpoint("[::1]:7")).host, std::string("::1"));
});

const Test kBadEndpoints("a malformed endpoint is kInvalidArgument and is quoted", [] {
  for (const char* text : {"", "host", "host:", ":80", "host:x", "host:65536", "host:-1", "::1:80",
                           "[::1]80", "[::1]:", "[]:80", "host:80 "}) {
    const auto parsed = ParseEndpoint(text);
    ExpectCode(parsed.status(), Code::kInvalidArgument);
    Expect(parsed.status().message().find(std::string("'").append(text).append("'")) !=
           std::string::npos);
  }
});

const Test kConnect("a listener on a free port is reached; sockets do not block", [] {
  OwnedSocket listener(RequireOk(Listen({"127.0.0.1", 0})));
  const auto port = RequireOk(BoundPort(listener.fd()));
  Expect(port != 0);
  OwnedSocket client(RequireOk(ConnectTo({"127.0.0.1", port}, 5.0)));
  Expect((::fcntl(client.fd(), F_GETFL) & O_NONBLOCK) != 0);
  Expect((::fcntl(client.fd(), F_GETFD) & FD_CLOEXEC) != 0);
  pollfd entry{listener.fd(), POLLIN, 0};
  Require(::poll(&entry, 1, 5000) == 1);
  OwnedSocket accepted(::accept(listener.fd(), nullptr, nullptr));
  Expect(accepted.fd() >= 0);
});

const Test kFile("the address in a file is looked up each time", [] {
  const TemporaryDirectory place;
  const Endpoint endpoint = RequireOk(ParseEndpoint(place.path() + "/server-0"));
  ExpectCode(Resolve(endpoint).status(), Code::kPeerLost);
  for (const std::string text : {"127.0.0.1:7", "127.0.0.2:8"}) {
    std::ofstream(endpoint.host) << text << "\n";
    const auto found = RequireOk(Resolve(endpoint));
    ExpectEqual(AddressText(found.addresses.front().bytes), text);
    ExpectEqual(found.endpoint.ToString(), endpoint.host);
    ExpectCode(Resolve(endpoint, true).status(), Code::kPeerLost);
  }
  for (const std::string text : {"nothing", "/another/file"}) {
    std::ofstream(endpoint.host) << text << "\n";
    const Status refused = Resolve(endpoint).status();
    Expect(refused.message().find("must hold HOST:PORT, got '" + text) != std::string::npos);
  }
});

const Test kTaken("a port in use is kIo and names the endpoint", [] {
  OwnedSocket listener(RequireOk(Listen({"127.0.0.1", 0})));
  const auto port = RequireOk(BoundPort(listener.fd()));
  const auto second = Listen({"127.0.0.1", port});
  ExpectCode(second.status(), Code::kIo);
  Expect(second.status().message().find("127.0.0.1:" + std::to_string(port)) != std::string::npos);
});

const Test kRefused("a port nobody listens on is kPeerLost and names the endpoint", [] {
  OwnedSocket listener(RequireOk(Listen({"127.0.0.1", 0})));
  const auto port = RequireOk(BoundPort(listener.fd()));
  listener = OwnedSocket();
  const auto connected = ConnectTo({"127.0.0.1", port}, 5.0);
  ExpectCode(connected.status(), Code::kPeerLost);
  Expect(connected.status().message().find(std::to_string(port)) != std::string::npos);
});

const Test kSilent("a listener whose queue is full is kDeadlineExceeded", [] {
  OwnedSocket listener(RequireOk(Listen({"127.0.0.1", 0}, 0)));
  const auto port = RequireOk(BoundPort(listener.fd()));
  std::vector<OwnedSocket> waiting;
  Status last;
  for (int i = 0; i < 20 && last.ok(); ++i) {
    auto connected = ConnectTo({"127.0.0.1", port}, 0.05);
    last = connected.status();
    if (connected.ok()) waiting.emplace_back(connected.value());
  }
  ExpectCode(last, Code::kDeadlineExceeded);
});

const Test kNoHost("an unknown host name is kPeerLost and is named", [] {
  const auto connected = ConnectTo({"no-such-host.invalid", 1}, 5.0);
  ExpectCode(connected.status(), Code::kPeerLost);
  Expect(connected.status().message().find("no-such-host.invalid") != std::string::npos);
});

const Test kMove("an owned socket moves and is closed once", [] {
  OwnedSocket a(::socket(AF_INET, SOCK_STREAM, 0));
  const int fd = a.fd();
  OwnedSocket b(std::move(a));
  ExpectEqual(b.fd(), fd);
  b = OwnedSocket();
  Expect(::fcntl(fd, F_GETFD) < 0);
});

}  // namespace
}  // namespace sparsefleet::testing

int main(int argc, char** argv) { return sparsefleet::testing::RunTests(argc, argv); }

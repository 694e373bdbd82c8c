#include "transport/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstring>
#include <fstream>
#include <memory>
#include <system_error>

namespace sparsefleet {
namespace {

using Clock = std::chrono::steady_clock;

Result<std::vector<ResolvedEndpoint::Address>> AddressesOf(const Endpoint& endpoint, int flags) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  hints.ai_flags = AI_NUMERICSERV | flags;
  addrinfo* found = nullptr;
  const int error =
      getaddrinfo(endpoint.host.c_str(), std::to_string(endpoint.port).c_str(), &hints, &found);
  if (error != 0) {
    return Status(Code::kPeerLost,
                  "cannot find the address of host '" + endpoint.host +
                      "': " + (error == EAI_SYSTEM ? ErrnoText(errno) : gai_strerror(error)));
  }
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> list(found, &freeaddrinfo);
  std::vector<ResolvedEndpoint::Address> addresses;
  for (const addrinfo* a = list.get(); a != nullptr; a = a->ai_next) {
    if (a->ai_addrlen > sizeof(sockaddr_storage)) continue;
    ResolvedEndpoint::Address& address = addresses.emplace_back();
    std::memcpy(&address.bytes, a->ai_addr, a->ai_addrlen);
    address.size = a->ai_addrlen;
    address.protocol = a->ai_protocol;
  }
  return addresses;
}

// The address in a file, which its writer replaces as a whole.
Result<Endpoint> ReadEndpoint(const std::string& path) {
  std::ifstream file(path);
  std::string text;
  if (!std::getline(file, text)) {
    return Status(Code::kPeerLost, "cannot read the address of a server from " + path);
  }
  auto endpoint = ParseEndpoint(text);
  if (endpoint.ok() && !endpoint.value().is_file()) return endpoint;
  return Status(Code::kPeerLost, path + " must hold HOST:PORT, got '" + text + "'");
}

const sockaddr* PointerTo(const ResolvedEndpoint::Address& address) {
  return reinterpret_cast<const sockaddr*>(&address.bytes);
}

Result<OwnedSocket> OpenSocket(const ResolvedEndpoint::Address& address) {
  OwnedSocket socket(::socket(address.bytes.ss_family, SOCK_STREAM, address.protocol));
  if (socket.fd() < 0) return Status(Code::kIo, "cannot open a socket: " + ErrnoText(errno));
  if (Status s = PrepareSocket(socket.fd()); !s.ok()) return s;
  return socket;
}

int Milliseconds(Clock::duration left) {
  const auto ms = std::chrono::ceil<std::chrono::milliseconds>(left).count();
  return static_cast<int>(ms < 0 ? 0 : ms > 3'600'000 ? 3'600'000 : ms);
}

// Returns false at the deadline.
bool AwaitWritable(int fd, Clock::time_point deadline) {
  for (;;) {
    pollfd entry{fd, POLLOUT, 0};
    if (::poll(&entry, 1, Milliseconds(deadline - Clock::now())) > 0) return true;
    if (Clock::now() >= deadline) return false;
  }
}

// A peer whose machine or network path is gone sends no end of stream. The system's defaults are
// two hours for a silent connection, and a quarter of an hour for one with bytes in flight.
void NoticeDeadPeers(int fd) {
  constexpr int kIdleSeconds = 20;
  constexpr int kProbeSeconds = 5;
  constexpr int kProbes = 4;
#if defined(TCP_KEEPIDLE)
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &kIdleSeconds, sizeof(kIdleSeconds));
#elif defined(TCP_KEEPALIVE)
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPALIVE, &kIdleSeconds, sizeof(kIdleSeconds));
#endif
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &kProbeSeconds, sizeof(kProbeSeconds));
  ::setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &kProbes, sizeof(kProbes));
#ifdef TCP_USER_TIMEOUT
  // Also bounds how long a peer may accept no bytes at all: generous, for a server under load.
  constexpr unsigned kUnackedMilliseconds = 90'000;
  ::setsockopt(fd, IPPROTO_TCP, TCP_USER_TIMEOUT, &kUnackedMilliseconds,
               sizeof(kUnackedMilliseconds));
#endif
}

Status BadEndpoint(std::string_view text, std::string_view why) {
  return {Code::kInvalidArgument, "endpoint '" + std::string(text) + "': " + std::string(why) +
                                      "; expected host:port or [v6-address]:port"};
}

}  // namespace

OwnedSocket& OwnedSocket::operator=(OwnedSocket&& other) noexcept {
  if (this != &other) {
    CloseSocket(fd_);
    fd_ = other.Release();
  }
  return *this;
}

OwnedSocket::~OwnedSocket() { CloseSocket(fd_); }

std::string ErrnoText(int error) { return std::generic_category().message(error); }

void CloseSocket(int fd) {
  // Not repeated after EINTR: the descriptor is already closed, and its number may be reused.
  if (fd >= 0) ::close(fd);
}

std::string Endpoint::ToString() const {
  if (is_file()) return host;
  const bool is_v6 = host.find(':') != std::string::npos;
  return (is_v6 ? "[" + host + "]" : host) + ":" + std::to_string(port);
}

Result<Endpoint> ParseEndpoint(std::string_view text) {
  Endpoint endpoint;
  std::string_view port;
  if (text.starts_with('/')) return Endpoint{std::string(text), 0};
  if (text.starts_with('[')) {
    const auto close = text.find("]:");
    if (close == std::string_view::npos) return BadEndpoint(text, "no ']:' after '['");
    endpoint.host = text.substr(1, close - 1);
    port = text.substr(close + 2);
  } else {
    const auto colon = text.find(':');
    if (colon == std::string_view::npos) return BadEndpoint(text, "no port");
    if (text.find(':', colon + 1) != std::string_view::npos) {
      return BadEndpoint(text, "more than one ':' outside brackets");
    }
    endpoint.host = text.substr(0, colon);
    port = text.substr(colon + 1);
  }
  if (endpoint.host.empty()) return BadEndpoint(text, "no host");
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), endpoint.port);
  if (port.empty() || error != std::errc() || end != port.data() + port.size()) {
    return BadEndpoint(text, "port '" + std::string(port) + "' is not a number from 0 to 65535");
  }
  return endpoint;
}

Status PrepareSocket(int fd) {
  const int flags = ::fcntl(fd, F_GETFL);
  const int fd_flags = ::fcntl(fd, F_GETFD);
  if (flags < 0 || fd_flags < 0 || ::fcntl(fd, F_SETFL, flags | O_NONBLOCK) != 0 ||
      ::fcntl(fd, F_SETFD, fd_flags | FD_CLOEXEC) != 0) {
    return {Code::kIo, "cannot prepare a socket: " + ErrnoText(errno)};
  }
  const int on = 1;
#ifdef SO_NOSIGPIPE
  ::setsockopt(fd, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof(on));
#endif
  // Both fail on sockets that are not TCP (socket pairs), which do not need them.
  ::setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
  ::setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
  NoticeDeadPeers(fd);
  return Status::Ok();
}

Result<int> Listen(const Endpoint& endpoint, int backlog) {
  const std::string prefix = "cannot listen on " + endpoint.ToString() + ": ";
  auto addresses = AddressesOf(endpoint, AI_PASSIVE);
  if (!addresses.ok()) return Status(Code::kIo, prefix + addresses.status().message());
  Status last(Code::kIo, prefix + "the host has no address");
  for (const auto& address : addresses.value()) {
    auto opened = OpenSocket(address);
    if (!opened.ok()) {
      last = opened.status().WithPrefix(prefix);
      continue;
    }
    OwnedSocket socket = std::move(opened).value();
    const int on = 1;
    ::setsockopt(socket.fd(), SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
    if (::bind(socket.fd(), PointerTo(address), address.size) == 0 &&
        ::listen(socket.fd(), backlog) == 0) {
      return socket.Release();
    }
    last = Status(Code::kIo, prefix + ErrnoText(errno));
  }
  return last;
}

std::string AddressText(const sockaddr_storage& address) {
  char host[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET) {
    const auto& v4 = reinterpret_cast<const sockaddr_in&>(address);
    ::inet_ntop(AF_INET, &v4.sin_addr, host, sizeof(host));
    return Endpoint{host, ntohs(v4.sin_port)}.ToString();
  }
  if (address.ss_family != AF_INET6) return {};
  const auto& v6 = reinterpret_cast<const sockaddr_in6&>(address);
  // An IPv4 peer of a dual-stack socket is shown by its IPv4 address.
  if (IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr)) {
    ::inet_ntop(AF_INET, &v6.sin6_addr.s6_addr[12], host, sizeof(host));
  } else {
    ::inet_ntop(AF_INET6, &v6.sin6_addr, host, sizeof(host));
  }
  return Endpoint{host, ntohs(v6.sin6_port)}.ToString();
}

std::string AddressGroup(const sockaddr_storage& address) {
  sockaddr_storage group = address;
  if (address.ss_family == AF_INET) {
    reinterpret_cast<sockaddr_in&>(group).sin_port = 0;
  } else if (address.ss_family == AF_INET6) {
    auto& v6 = reinterpret_cast<sockaddr_in6&>(group);
    v6.sin6_port = 0;
    // All hosts on a link share the link-local network.
    const bool is_network = !IN6_IS_ADDR_V4MAPPED(&v6.sin6_addr) &&
                            !IN6_IS_ADDR_LINKLOCAL(&v6.sin6_addr) &&
                            !IN6_IS_ADDR_LOOPBACK(&v6.sin6_addr);
    if (is_network) std::memset(&v6.sin6_addr.s6_addr[8], 0, 8);
  }
  return AddressText(group);
}

std::string LocalAddress(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  return AddressText(address);
}

std::string PeerAddress(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getpeername(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) return {};
  return AddressText(address);
}

bool ConnectsToOwnHost(int fd) {
  const auto host = [](const std::string& address) {
    return address.substr(0, address.rfind(':'));
  };
  const std::string own = host(LocalAddress(fd));
  return !own.empty() && own == host(PeerAddress(fd));
}

Result<std::uint16_t> BoundPort(int fd) {
  sockaddr_storage address{};
  socklen_t size = sizeof(address);
  if (::getsockname(fd, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
    return Status(Code::kIo, "cannot read a socket's port: " + ErrnoText(errno));
  }
  if (address.ss_family == AF_INET) {
    return ntohs(reinterpret_cast<const sockaddr_in*>(&address)->sin_port);
  }
  if (address.ss_family == AF_INET6) {
    return ntohs(reinterpret_cast<const sockaddr_in6*>(&address)->sin6_port);
  }
  return Status(Code::kIo, "the socket has no port: it is not a TCP socket");
}

Result<ResolvedEndpoint> Resolve(const Endpoint& endpoint, bool only_numeric) {
  if (endpoint.is_file()) {
    if (only_numeric) return Status(Code::kPeerLost, endpoint.host + " is a file");
    auto held = ReadEndpoint(endpoint.host);
    if (!held.ok()) return held.status();
    auto found = Resolve(held.value());
    if (found.ok()) found.value().endpoint = endpoint;
    return found;
  }
  auto addresses = AddressesOf(endpoint, only_numeric ? AI_NUMERICHOST : 0);
  if (!addresses.ok()) return addresses.status();
  return ResolvedEndpoint{endpoint, std::move(addresses).value()};
}

int Dialer::Begin() {
  const ResolvedEndpoint::Address& address = to_.addresses[at_];
  auto opened = OpenSocket(address);
  if (!opened.ok()) return errno;
  socket_ = std::move(opened).value();
  if (::connect(socket_.fd(), PointerTo(address), address.size) == 0) return 0;
  // An interrupted connect continues in the background, like one in progress.
  return errno == EINTR ? EINPROGRESS : errno;
}

Result<std::optional<OwnedSocket>> Dialer::Step() {
  int error = 0;
  if (socket_.fd() >= 0) {
    pollfd entry{socket_.fd(), POLLOUT, 0};
    if (::poll(&entry, 1, 0) <= 0) return std::optional<OwnedSocket>();
    socklen_t size = sizeof(error);
    if (::getsockopt(socket_.fd(), SOL_SOCKET, SO_ERROR, &error, &size) != 0) error = errno;
    if (error != 0) ++at_;
  } else {
    error = EAGAIN;  // nothing tried yet
  }
  while (error != 0 && at_ < to_.addresses.size()) {
    error = Begin();
    if (error == EINPROGRESS) return std::optional<OwnedSocket>();
    if (error != 0) ++at_;
  }
  if (error == 0) return std::optional<OwnedSocket>(std::move(socket_));
  const std::string address =
      to_.endpoint.is_file() ? " (" + AddressText(to_.addresses.back().bytes) + ")" : "";
  return Status(Code::kPeerLost,
                "cannot connect to " + to_.endpoint.ToString() + address + ": " + ErrnoText(error));
}

Result<int> ConnectTo(const Endpoint& endpoint, double timeout_s) {
  const auto deadline = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                           std::chrono::duration<double>(timeout_s));
  auto to = Resolve(endpoint);
  if (!to.ok()) return to.status().WithPrefix("cannot connect to " + endpoint.ToString() + ": ");
  Dialer dialer(std::move(to).value());
  for (;;) {
    auto step = dialer.Step();
    if (!step.ok()) return step.status();
    if (step.value()) return step.value()->Release();
    if (!AwaitWritable(dialer.fd(), deadline)) {
      return Status(Code::kDeadlineExceeded,
                    "cannot connect to " + endpoint.ToString() + ": no answer in time");
    }
  }
}

}  // namespace sparsefleet

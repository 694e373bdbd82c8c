// A lower bound for a request over loopback: two processes, blocking sockets, the same bytes.
//
//   echo_bench REQUEST_BYTES REPLY_BYTES ROUNDS    prints the median round trip in microseconds
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

namespace {

bool ReadAll(int fd, char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t n = recv(fd, data, size, 0);
    if (n <= 0) return false;
    data += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

bool WriteAll(int fd, const char* data, std::size_t size) {
  while (size > 0) {
    const ssize_t n = send(fd, data, size, 0);
    if (n <= 0) return false;
    data += n;
    size -= static_cast<std::size_t>(n);
  }
  return true;
}

void NoDelay(int fd) {
  const int on = 1;
  setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
}

int Serve(int listener, std::size_t request_bytes, std::size_t reply_bytes) {
  const int fd = accept(listener, nullptr, nullptr);
  if (fd < 0) return 1;
  NoDelay(fd);
  std::vector<char> request(request_bytes), reply(reply_bytes, 'r');
  while (ReadAll(fd, request.data(), request_bytes)) {
    if (!WriteAll(fd, reply.data(), reply_bytes)) return 1;
  }
  return 0;
}

double MedianRoundTripUs(int fd, std::size_t request_bytes, std::size_t reply_bytes, int rounds) {
  std::vector<char> request(request_bytes, 'q'), reply(reply_bytes);
  std::vector<double> took;
  for (int i = 0; i < rounds; ++i) {
    const auto start = std::chrono::steady_clock::now();
    if (!WriteAll(fd, request.data(), request_bytes)) return -1;
    if (!ReadAll(fd, reply.data(), reply_bytes)) return -1;
    const std::chrono::duration<double, std::micro> us = std::chrono::steady_clock::now() - start;
    took.push_back(us.count());
  }
  std::nth_element(took.begin(), took.begin() + took.size() / 2, took.end());
  return took[took.size() / 2];
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 4) {
    std::fprintf(stderr, "usage: echo_bench REQUEST_BYTES REPLY_BYTES ROUNDS\n");
    return 2;
  }
  const auto request_bytes = static_cast<std::size_t>(std::atoll(argv[1]));
  const auto reply_bytes = static_cast<std::size_t>(std::atoll(argv[2]));
  const int rounds = std::atoi(argv[3]);

  const int listener = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof(address);
  auto* generic = reinterpret_cast<sockaddr*>(&address);
  if (bind(listener, generic, length) != 0 || listen(listener, 1) != 0 ||
      getsockname(listener, generic, &length) != 0) {
    std::perror("echo_bench");
    return 1;
  }
  const pid_t child = fork();
  if (child == 0) _exit(Serve(listener, request_bytes, reply_bytes));
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  if (child < 0 || connect(fd, generic, length) != 0) {
    std::perror("echo_bench");
    return 1;
  }
  NoDelay(fd);
  const double us = MedianRoundTripUs(fd, request_bytes, reply_bytes, rounds);
  close(fd);
  int status = 0;
  waitpid(child, &status, 0);
  std::printf("%.3f\n", us);
  return us > 0 && status == 0 ? 0 : 1;
}

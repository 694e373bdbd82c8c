// A durable server in a separate process that can be killed at any moment. Header only.
//
// The test program runs itself again: its main() must start with ServeIfAsked().
#pragma once

#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

#include "server/server.h"
#include "testing/check.h"
#include "testing/test_server.h"

extern char** environ;  // NOLINT: declared by POSIX

namespace sparsefleet::testing {

// program --serve DIRECTORY PORT DURABILITY SNAPSHOT_BYTES: serves until it is killed.
inline void ServeIfAsked(int argc, char** argv) {
  if (argc != 6 || std::strcmp(argv[1], "--serve") != 0) return;
  ServerOptions options;
  options.security = TestSecurity(TransportKind::kAuto);
  options.log_dir = argv[2];
  options.port = static_cast<std::uint16_t>(std::atoi(argv[3]));
  options.durability = static_cast<Durability>(std::atoi(argv[4]));
  options.snapshot_bytes = static_cast<std::uint64_t>(std::atoll(argv[5]));
  options.peer_timeout_s = 5;
  auto server = Server::Start(std::move(options));
  if (!server.ok()) {
    std::fprintf(stderr, "server: %s\n", server.status().message().c_str());
    std::_Exit(1);
  }
  const std::uint16_t port = server.value()->port();
  if (::write(STDOUT_FILENO, &port, sizeof(port)) != sizeof(port)) std::_Exit(1);
  while (!server.value()->WaitForShutdownRequest(1.0)) {
  }
  std::_Exit(server.value()->failure().ok() ? 0 : 3);
}

class DurableProcess {
 public:
  DurableProcess(std::string directory, Durability durability,
                 std::uint64_t snapshot_bytes = 1ull << 30)
      : directory_(std::move(directory)), durability_(durability), snapshot_bytes_(snapshot_bytes) {
    Start();
  }
  ~DurableProcess() { Kill(); }
  DurableProcess(const DurableProcess&) = delete;

  std::uint16_t port() const { return port_; }
  std::string endpoint() const { return "127.0.0.1:" + std::to_string(port_); }

  void Kill() {
    if (pid_ <= 0) return;
    ::kill(pid_, SIGKILL);
    int status = 0;
    ::waitpid(pid_, &status, 0);
    pid_ = -1;
  }

  // On its previous port.
  void Start() {
    const int from = Spawn();
    std::uint16_t port = 0;
    const bool is_told = ::read(from, &port, sizeof(port)) == sizeof(port);
    ::close(from);
    Require(is_told, "the server did not start");
    if (port_ == 0) port_ = port;  // other threads read it while the server restarts
  }

  void Restart() {
    Kill();
    Start();
  }

  // Starts it again and kills it after this time, while it recovers or shortly after.
  void KillWhileItStarts(std::chrono::microseconds after) {
    Kill();
    const int from = Spawn();
    std::this_thread::sleep_for(after);
    Kill();
    ::close(from);
  }

 private:
  // Returns where the server writes its port.
  int Spawn() {
    int ends[2];
    Require(::pipe(ends) == 0, "no pipe");
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addclose(&actions, ends[0]);
    std::string arguments[] = {"server",
                               "--serve",
                               directory_,
                               std::to_string(port_),
                               std::to_string(static_cast<int>(durability_)),
                               std::to_string(snapshot_bytes_)};
    char* argv[7] = {};
    for (int i = 0; i < 6; ++i) argv[i] = arguments[i].data();
    const int failed = ::posix_spawn(&pid_, "/proc/self/exe", &actions, nullptr, argv, environ);
    posix_spawn_file_actions_destroy(&actions);
    ::close(ends[1]);
    Require(failed == 0, "the server did not start");
    return ends[0];
  }

  const std::string directory_;
  const Durability durability_;
  const std::uint64_t snapshot_bytes_;
  std::uint16_t port_ = 0;
  pid_t pid_ = -1;
};

}  // namespace sparsefleet::testing

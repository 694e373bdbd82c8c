// A server in the test's own process, with helpers for tests.
#pragma once

#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "server/server.h"
#include "testing/check.h"
#include "testing/wire_client.h"

namespace sparsefleet::testing {

inline SecurityOptions TestSecurity(TransportKind kind, char fill = 'k') {
  return {kind, std::string(32, fill)};
}

// Log lines as they arrive, for tests that wait for one.
class LogLines {
 public:
  void Add(const std::string& line) {
    {
      std::lock_guard lock(mutex_);
      lines_.push_back(line);
    }
    changed_.notify_all();
  }
  // The first line that contains `part`; fails the test if none appears within 20 s.
  std::string Await(const std::string& part) {
    std::unique_lock lock(mutex_);
    std::string found;
    const bool came = changed_.wait_for(lock, std::chrono::seconds(20), [&] {
      for (const std::string& line : lines_) {
        if (line.find(part) != std::string::npos) found = line;
      }
      return !found.empty();
    });
    Require(came, "no log line with '" + part + "'");
    return found;
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::vector<std::string> lines_;
};

struct TestServer {
  explicit TestServer(ServerOptions options = {}) {
    if (options.security.job_key.empty()) options.security = TestSecurity(TransportKind::kPlain);
    security = options.security;
    options.log = [lines = log](int, const std::string& line) { lines->Add(line); };
    server = RequireOk(Server::Start(std::move(options)));
  }

  std::unique_ptr<WireClient> Connect() const {
    auto client = std::make_unique<WireClient>(server->port(), security);
    RequireOk(client->handshake());
    return client;
  }
  // Connects and says hello.
  std::unique_ptr<WireClient> Join(std::uint64_t id, const std::string& name,
                                   bool control = false) const {
    auto client = Connect();
    RequireOk(client->Hello(id, name, control).status);
    return client;
  }

  std::shared_ptr<LogLines> log = std::make_shared<LogLines>();
  SecurityOptions security;
  std::unique_ptr<Server> server;
};

}  // namespace sparsefleet::testing

// Servers in the test's own process, and clients connected to all of them.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "client/client.h"
#include "server/server.h"
#include "testing/channel_pair.h"
#include "testing/check.h"

namespace sparsefleet::testing {

class Fleet {
 public:
  explicit Fleet(std::uint32_t num_servers, TransportKind kind = TransportKind::kTls,
                 std::uint64_t max_frame_bytes = 256ull << 20)
      : kind_(kind) {
    for (std::uint32_t i = 0; i < num_servers; ++i) {
      ServerOptions options;
      options.security = Security(kind);
      options.index = i;
      options.num_servers = num_servers;
      options.max_frame_bytes = max_frame_bytes;
      options.num_threads = 2;
      servers_.push_back(RequireOk(Server::Start(options)));
    }
  }
  ClientOptions Options() const {
    ClientOptions options;
    for (const auto& server : servers_) {
      options.endpoints.push_back("127.0.0.1:" + std::to_string(server->port()));
    }
    options.security = Security(kind_);
    return options;
  }
  std::unique_ptr<Client> NewClient(std::string name = "client") const {
    ClientOptions options = Options();
    options.name = std::move(name);
    return RequireOk(Client::Connect(options));
  }
  Server& server(std::size_t i) { return *servers_[i]; }
  // The number of requests of a type received by all servers.
  double Requests(const std::string& type) const {
    double sum = 0;
    for (const auto& server : servers_) {
      const auto stats = server->Stats();
      const auto found = stats.find("server.requests." + type);
      if (found != stats.end()) sum += found->second;
    }
    return sum;
  }

 private:
  const TransportKind kind_;
  std::vector<std::unique_ptr<Server>> servers_;
};

}  // namespace sparsefleet::testing

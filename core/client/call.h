// One call to one or more servers: requests, replies, retries and deadlines.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "client/client_core.h"
#include "client/exchange.h"
#include "status/status.h"
#include "transport/frame.h"
#include "transport/messages.h"

namespace sparsefleet {

// The kind of a call, and how its errors begin: "table 'ads': " "pull from" " server 2
// (host:port)".
struct CallSpec {
  MessageType type = MessageType::kHeartbeat;
  std::string subject;
  std::string action;
  double timeout_s = 0;
  // The server may take all of timeout_s to answer: a try has no separate deadline.
  bool is_long = false;
  // A part that was applied but whose answer is gone (kAnswerLost) counts as done.
  bool may_lose_answers = false;
};

// One server's share of a call. Must not move while the call runs.
struct ServerPart {
  ServerPart() = default;
  ServerPart(std::uint32_t to, GatheredBody body) : server(to), request(std::move(body)) {}
  ServerPart(std::uint32_t to, Body body) : server(to) {
    request.heads = std::move(body);
    request.bytes = request.heads.size();
    if (request.bytes > 0) request.pieces.push_back({request.heads.data(), request.heads.size()});
  }

  std::uint32_t server = 0;
  GatheredBody request;
  ReplyBuffer reply;
  std::uint64_t reply_bytes = 0;  // the expected size, if known
  bool is_answer_lost = false;    // see CallSpec::may_lose_answers
};

// Sends every part and collects the replies. A lost connection or an unanswered try is retried
// under the same sequence until the deadline; a request that the server rejects is not, unless its
// disk is full. Time in which a server is unreachable or has a full disk does not count, for up to
// failover_wait_s. Errors name the server. After an error, a part may or may not have run.
// Thread-safe.
Status RunCall(ClientCore& core, const CallSpec& spec, std::span<ServerPart> parts);

// How long the calls of this thread have waited for unavailable servers in total.
SteadyClock::duration AwayTime();

// Sends the same request to all servers.
Result<std::vector<Body>> CallAll(ClientCore& core, const CallSpec& spec, const Body& body);
// Sends a request to one server.
Result<Body> CallOne(ClientCore& core, const CallSpec& spec, std::uint32_t server, Body body);

}  // namespace sparsefleet

#include "transport/channel.h"

#include <sys/socket.h>

#include "transport/channel_kinds.h"

namespace sparsefleet {
namespace {

constexpr std::string_view kHint =
    "SPARSEFLEET_JOB_KEY differs between the two sides, or only one of them uses transport 'plain'";

std::string InParentheses(std::string_view detail) {
  return detail.empty() ? std::string() : " (" + std::string(detail) + ")";
}

}  // namespace

std::span<std::byte> Channel::Reserve(std::size_t) { return {}; }

void Channel::Shutdown() { ::shutdown(fd(), SHUT_RDWR); }

Status KeyNotProven(std::string_view detail) {
  return {Code::kAuthFailed,
          "the peer did not prove the job key: " + std::string(kHint) + InParentheses(detail)};
}

Status EndedInHandshake(Side side, bool heard_peer, std::string_view detail) {
  if (side == Side::kServer || heard_peer) {
    return {Code::kPeerLost, "the peer disconnected during the handshake" + InParentheses(detail)};
  }
  return {Code::kAuthFailed,
          "the server closed the connection during the handshake, as it does for "
          "a client with another key, or when flooded by unauthenticated peers: " +
              std::string(kHint) + InParentheses(detail)};
}

Result<std::unique_ptr<ChannelFactory>> ChannelFactory::Create(const SecurityOptions& options) {
  if (options.job_key.size() < kMinJobKeyBytes) {
    return Status(Code::kInvalidArgument,
                  "the job key has " + std::to_string(options.job_key.size()) +
                      " bytes, expected at least " + std::to_string(kMinJobKeyBytes));
  }
  switch (options.transport) {
    case TransportKind::kTls:
    case TransportKind::kAuto:
      return MakeTlsFactory(options.job_key, options.tls_records_per_key);
    case TransportKind::kPlain:
      return MakePlainFactory(options.job_key);
  }
  return Status(Code::kInvalidArgument,
                "unknown transport " + std::to_string(static_cast<int>(options.transport)));
}

}  // namespace sparsefleet

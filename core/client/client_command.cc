// Commands to the programs around the servers.
#include <string>
#include <utility>

#include "client/call.h"
#include "client/client.h"
#include "client/client_core.h"

namespace sparsefleet {

Result<std::vector<std::byte>> Client::Command(std::uint32_t server, std::string_view name,
                                               std::span<const std::byte> body, double timeout_s) {
  if (name.empty() || name.size() > kMaxCommandNameBytes) {
    return Status(Code::kInvalidArgument, "command name of " + std::to_string(name.size()) +
                                              " bytes, wanted 1 to " +
                                              std::to_string(kMaxCommandNameBytes));
  }
  const std::string subject = "command '" + std::string(name) + "': ";
  if (server >= core_->num_servers()) {
    return Status(Code::kInvalidArgument, subject + "server " + std::to_string(server) +
                                              " was asked, there are " +
                                              std::to_string(core_->num_servers()));
  }
  ServerPart part(server, Gather(CommandRequest{name, body}));
  const CallSpec spec{MessageType::kCommand, subject, "asking", timeout_s, true};
  if (Status s = RunCall(*core_, spec, {&part, 1}); !s.ok()) return s;
  return std::move(part.reply.body);
}

}  // namespace sparsefleet

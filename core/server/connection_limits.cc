#include "server/connection_limits.h"

#include <dirent.h>
#include <sys/resource.h>

#include <algorithm>
#include <memory>

#include "transport/socket.h"

namespace sparsefleet {
namespace {

// A quarter of all descriptors is reserved for files, within these bounds.
constexpr std::uint64_t kLeastFiles = 32;
constexpr std::uint64_t kMostFiles = 1024;
constexpr std::uint64_t kFewestConnections = 8;
// A handshake takes milliseconds, so only a few are in progress even when a whole fleet reconnects.
// Each may take 80 KiB.
constexpr std::uint64_t kLeastUnproven = 4;
constexpr std::uint64_t kMostUnproven = 512;

struct DirDeleter {
  void operator()(DIR* directory) const { ::closedir(directory); }
};

std::uint64_t NumOpenFiles() {
  const std::unique_ptr<DIR, DirDeleter> directory(::opendir("/dev/fd"));
  if (directory == nullptr) return 0;
  std::uint64_t count = 0;
  while (::readdir(directory.get()) != nullptr) ++count;
  return count > 3 ? count - 3 : 0;  // ".", ".." and the directory itself
}

// Raises the soft limit to `wanted` if it is lower and the hard limit allows; returns it.
Result<std::uint64_t> RaiseOpenFileLimit(std::uint64_t wanted) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) {
    return Status(Code::kIo, "cannot read the open file limit: " + ErrnoText(errno));
  }
  const rlim_t before = limit.rlim_cur;
  if (before == RLIM_INFINITY) return UINT64_MAX;
  if (before >= wanted) return before;
  limit.rlim_cur = std::min<rlim_t>(wanted, limit.rlim_max);
  // macOS has a lower limit of its own and rejects higher values.
  return ::setrlimit(RLIMIT_NOFILE, &limit) == 0 ? limit.rlim_cur : before;
}

std::uint64_t FileReserve(std::uint64_t open_files) {
  return std::clamp(open_files / 4, kLeastFiles, kMostFiles);
}

}  // namespace

Result<ConnectionLimits> PlanConnections(std::uint32_t max_connections, std::uint32_t max_unproven,
                                         std::uint32_t max_unproven_per_address) {
  const std::uint64_t used = NumOpenFiles();
  const std::uint64_t most_unproven = max_unproven > 0 ? max_unproven : kMostUnproven;
  auto raised = RaiseOpenFileLimit(used + kMostFiles + max_connections + most_unproven);
  if (!raised.ok()) return raised.status();
  ConnectionLimits limits;
  limits.open_files = raised.value();
  const std::uint64_t kept = used + FileReserve(limits.open_files);
  const std::uint64_t room = limits.open_files > kept ? limits.open_files - kept : 0;
  if (room < kFewestConnections) {
    return Status(Code::kIo,
                  "this process may open " + std::to_string(limits.open_files) +
                      " files, of which " + std::to_string(used) +
                      " are in use: too few for a server; raise the limit with ulimit -n "
                      "(or LimitNOFILE= in systemd)");
  }
  limits.unproven = max_unproven > 0
                        ? max_unproven
                        : std::clamp(std::min<std::uint64_t>(room, max_connections) / 4,
                                     kLeastUnproven, kMostUnproven);
  if (limits.unproven >= room) {
    return Status(Code::kInvalidArgument,
                  "ServerOptions.max_unproven is " + std::to_string(limits.unproven) +
                      ", expected fewer than the " + std::to_string(room) +
                      " connections that the limit of " + std::to_string(limits.open_files) +
                      " open files allows");
  }
  limits.proven = std::min<std::uint64_t>(max_connections, room - limits.unproven);
  const std::size_t half = std::max<std::size_t>(1, limits.unproven / 2);
  limits.unproven_per_address =
      max_unproven_per_address > 0
          ? std::min<std::size_t>(max_unproven_per_address, limits.unproven)
          : half;
  return limits;
}

std::string ConnectionLimits::FullText() const {
  return "the server is full: all " + std::to_string(proven) +
         " connections are in use; raise --max-connections or the open file limit (" +
         std::to_string(open_files) + ")";
}

}  // namespace sparsefleet

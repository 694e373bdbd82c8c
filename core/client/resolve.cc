#include "client/resolve.h"

#include <chrono>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <utility>

#include "client/seconds.h"
#include "sync/mutex.h"

namespace sparsefleet {
namespace {

constexpr auto kPause = std::chrono::milliseconds(500);

// Shared with the threads, which may outlive the call.
struct Lookups {
  Mutex mutex;
  CondVar changed;
  bool is_over GUARDED_BY(mutex) = false;      // nobody waits for the outcome
  std::size_t num_open GUARDED_BY(mutex) = 0;  // names without an address
  std::vector<ResolvedEndpoint> found GUARDED_BY(mutex);
  std::vector<Status> last GUARDED_BY(mutex);  // the last failure of each
};

void LookUp(const std::shared_ptr<Lookups>& lookups, std::size_t i, const Endpoint& endpoint) {
  for (;;) {
    auto found = Resolve(endpoint);
    MutexLock lock(lookups->mutex);
    if (found.ok()) {
      lookups->found[i] = std::move(found).value();
      --lookups->num_open;
      lookups->changed.notify_all();
      return;
    }
    lookups->last[i] = found.status();
    if (lookups->changed.WaitFor(lookups->mutex, kPause,
                                 [&]() REQUIRES(lookups->mutex) { return lookups->is_over; }))
      return;
  }
}

}  // namespace

Result<std::vector<ResolvedEndpoint>> ResolveAll(std::span<const Endpoint> endpoints,
                                                 double timeout_s) {
  const auto deadline = std::chrono::steady_clock::now() + ToDuration(timeout_s);
  const auto lookups = std::make_shared<Lookups>();
  MutexLock lock(lookups->mutex);
  lookups->found.resize(endpoints.size());
  lookups->last.resize(endpoints.size());
  for (std::size_t i = 0; i < endpoints.size(); ++i) {
    if (auto numeric = Resolve(endpoints[i], true); numeric.ok()) {
      lookups->found[i] = std::move(numeric).value();
      continue;
    }
    ++lookups->num_open;
    try {
      std::thread([lookups, i, endpoint = endpoints[i]] { LookUp(lookups, i, endpoint); }).detach();
    } catch (const std::system_error& error) {
      lookups->is_over = true;
      lookups->changed.notify_all();
      return Status(Code::kIo, std::string("cannot start a thread: ") + error.what());
    }
  }
  lookups->changed.WaitUntil(lookups->mutex, deadline,
                             [&]() REQUIRES(lookups->mutex) { return lookups->num_open == 0; });
  lookups->is_over = true;
  lookups->changed.notify_all();
  if (lookups->num_open == 0) return std::move(lookups->found);
  std::size_t late = 0;
  while (!lookups->found[late].addresses.empty()) ++late;
  const std::string& cause = lookups->last[late].message();
  return Status(Code::kDeadlineExceeded,
                "connecting to server " + std::to_string(late) + " (" + endpoints[late].ToString() +
                    ") timed out after " + ShowSeconds(timeout_s) + ": " +
                    (cause.empty() ? "the name lookup has not finished" : cause));
}

}  // namespace sparsefleet

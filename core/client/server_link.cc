#include "client/server_link.h"

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "sync/mutex.h"

namespace sparsefleet {
namespace {

constexpr auto kLookUpInterval = std::chrono::seconds(1);

}  // namespace

ServerLink::ServerLink(std::uint32_t index, ResolvedEndpoint address, LinkOptions options)
    : index_(index),
      endpoint_(address.endpoint),
      whereabouts_(std::make_shared<Whereabouts>()),
      options_(std::move(options)),
      last_heard_(SteadyClock::now().time_since_epoch()) {
  MutexLock lock(whereabouts_->mutex);
  whereabouts_->address = std::move(address);
}

ResolvedEndpoint ServerLink::address() const {
  MutexLock lock(whereabouts_->mutex);
  return whereabouts_->address;
}

void ServerLink::LookUpAgain() {
  const auto now = SteadyClock::now();
  {
    MutexLock lock(whereabouts_->mutex);
    if (whereabouts_->is_asking || now - whereabouts_->asked < kLookUpInterval) return;
    whereabouts_->asked = now;
    if (Resolve(endpoint_, true).ok()) return;  // a number, not a name
    whereabouts_->is_asking = true;
  }
  try {
    std::thread([shared = whereabouts_, endpoint = endpoint_] {
      auto found = Resolve(endpoint);
      MutexLock lock(shared->mutex);
      shared->is_asking = false;
      if (found.ok()) shared->address = std::move(found).value();
    }).detach();
  } catch (const std::system_error&) {
    MutexLock lock(whereabouts_->mutex);
    whereabouts_->is_asking = false;
  }
}

std::string ServerLink::Describe() const {
  return "server " + std::to_string(index_) + " (" + endpoint_.ToString() + ")";
}

std::unique_ptr<Connection> ServerLink::TakeIdle() {
  MutexLock lock(mutex_);
  if (idle_.empty()) return nullptr;
  // The most recently used: its memory is warm, and surplus connections age out at the other end.
  auto connection = std::move(idle_.back());
  idle_.pop_back();
  return connection;
}

std::unique_ptr<Connection> ServerLink::OpenNew(bool control) {
  return std::make_unique<Connection>(*this, control);
}

void ServerLink::GiveBack(std::unique_ptr<Connection> connection) {
  MutexLock lock(mutex_);
  // A connection made before the lane was known is not reused.
  const bool is_slow = lane_ && !lane_->empty() && !connection->is_on_lane();
  lane_was_used_ = lane_was_used_ || connection->is_on_lane();
  if (idle_.size() < kMaxIdle && !is_slow) {
    idle_.push_back(std::move(connection));
    return;
  }
  lock.unlock();
  connection.reset();
}

void ServerLink::CloseIdle() {
  std::vector<std::unique_ptr<Connection>> closing;
  MutexLock lock(mutex_);
  closing.swap(idle_);
}

ServerLink::FrameLimit ServerLink::frame_limit() const {
  const std::uint64_t theirs = server_max_frame_bytes_;
  const std::uint64_t ours = std::min(options_.max_frame_bytes, kMaxBodyBytes);
  return theirs < ours ? FrameLimit{theirs, true} : FrameLimit{ours, false};
}

void ServerLink::Heard() { last_heard_ = SteadyClock::now().time_since_epoch(); }

SteadyClock::duration ServerLink::Silence() const {
  return SteadyClock::now().time_since_epoch() - last_heard_.load();
}

Result<std::unique_ptr<Channel>> ServerLink::MakeChannel(int fd, bool on_lane) {
  return (on_lane ? options_.lane_channels : options_.channels)->Connect(fd);
}

std::optional<std::string> ServerLink::lane() const {
  MutexLock lock(mutex_);
  return lane_ && !lane_->empty() ? lane_ : std::nullopt;
}

bool ServerLink::has_lane() const {
  MutexLock lock(mutex_);
  return lane_ && !lane_->empty();
}

bool ServerLink::AsksForLane(int fd) const {
  if (!options_.lane_channels || !ConnectsToOwnHost(fd)) return false;
  MutexLock lock(mutex_);
  return !lane_.has_value();
}

void ServerLink::SetLane(std::string name) {
  MutexLock lock(mutex_);
  lane_ = std::move(name);
}

// A lane that has worked is worth asking for again, if the server is still there.
void ServerLink::LaneFailed() {
  MutexLock lock(mutex_);
  lane_ = std::exchange(lane_was_used_, false) ? std::nullopt : std::optional<std::string>("");
}

Body ServerLink::MakeHello(bool control) const {
  HelloRequest hello;
  hello.client_id = options_.client_id;
  hello.server_index = index_;
  hello.num_servers = options_.num_servers;
  hello.control = control;
  hello.client_name = options_.client_name;
  return Encode(hello);
}

Status ServerLink::Greeted(const HelloReply& reply) {
  if (reply.incarnation == 0) return {Code::kProtocol, "hello reply without an incarnation"};
  Heard();
  std::uint64_t known = 0;
  if (incarnation_.compare_exchange_strong(known, reply.incarnation)) {
    server_max_frame_bytes_ = reply.max_frame_bytes;
    if (reply.peer_timeout_s > 0) server_patience_s_ = reply.peer_timeout_s;
    return Status::Ok();
  }
  if (known == reply.incarnation) return Status::Ok();
  return {Code::kServerRestarted,
          "the server was restarted and has lost its tables: define and load them again with a new "
          "client"};
}

}  // namespace sparsefleet

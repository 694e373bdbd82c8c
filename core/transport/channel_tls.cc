// The TLS 1.3 channel: the job key is the pre-shared key, there are no certificates.

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>
#include <utility>
#include <vector>

#include "transport/channel.h"
#include "transport/channel_kinds.h"
#include "transport/socket.h"
#include "transport/stream_io.h"
#include "transport/tls_context.h"

namespace sparsefleet {
namespace {

constexpr std::size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;  // 16 KiB
// Encrypted before the first byte is sent: more saves calls, less lets the peer start sooner.
constexpr std::size_t kBatchBytes = 4 * kRecordBytes;
constexpr std::size_t kBatchOverhead = 1024;  // TLS overhead for that many records

// Shared by the channels of a factory.
struct TlsShared {
  std::shared_ptr<const TlsContext> context;
  std::uint64_t records_per_key = kTlsRecordsPerKey;
  std::atomic<std::uint64_t> key_updates{0};
};

struct SslDeleter {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};

class TlsChannel final : public Channel {
 public:
  TlsChannel(OwnedSocket socket, std::shared_ptr<TlsShared> shared, Side side)
      : owned_socket_(std::move(socket)), shared_(std::move(shared)), side_(side) {
    socket_.fd = owned_socket_.fd();
    socket_.hide_first_alert = side == Side::kServer;
  }
  ~TlsChannel() override;

  Status Start();
  Result<Ready> Handshake() override;
  bool HasAnswered() const override { return !socket_.hide_first_alert; }
  Result<Progress> Read(std::span<std::byte> out) override;
  Result<Progress> Write(std::span<const iovec> buffers) override;
  bool HasBufferedInput() const override { return !drained_ && SSL_has_pending(ssl_.get()) == 1; }
  int fd() const override { return socket_.fd; }

 private:
  // Remembers the failure, so that every later call returns it again.
  Status Break(Status status) {
    broken_ = status;
    return status;
  }
  Status Lost(std::string_view doing, int ssl_error);
  Result<bool> Flush();
  Result<std::size_t> WriteBatch(std::span<const iovec> buffers, std::size_t done);
  Result<bool> RenewKeyIfDue();

  OwnedSocket owned_socket_;
  TlsSocket socket_;
  const std::shared_ptr<TlsShared> shared_;
  const Side side_;
  std::unique_ptr<SSL, SslDeleter> ssl_;
  Status broken_;
  bool established_ = false;
  std::size_t sent_ = 0;           // bytes of socket_.outbox
  std::size_t unreported_ = 0;     // the caller's bytes that are in it
  std::uint64_t records_ = 0;      // sent with the current key
  bool is_record_unsent_ = false;  // OpenSSL holds part of one
  // The last Read() left at most the beginning of a record.
  bool drained_ = false;
};

Status TlsChannel::Start() {
  auto ssl = shared_->context->NewConnection(side_, socket_);
  if (!ssl.ok()) return ssl.status();
  ssl_.reset(ssl.value());
  return Status::Ok();
}

TlsChannel::~TlsChannel() {
  if (established_ && broken_.ok() && socket_.outbox.empty()) {
    // One attempt to signal a clean end; skipped if the socket is full.
    ERR_clear_error();
    SSL_shutdown(ssl_.get());
    ERR_clear_error();
  }
}

Result<Ready> TlsChannel::Handshake() {
  if (established_) return Ready::kDone;
  if (!broken_.ok()) return broken_;
  ERR_clear_error();
  const int result = SSL_do_handshake(ssl_.get());
  if (result == 1) {
    if (SSL_session_reused(ssl_.get()) != 1)
      return Break(KeyNotProven("the session does not use the key"));
    socket_.hide_first_alert = false;
    established_ = true;
    return Ready::kDone;
  }
  const int error = SSL_get_error(ssl_.get(), result);
  if (error == SSL_ERROR_WANT_READ) return Ready::kWantRead;
  if (error == SSL_ERROR_WANT_WRITE) return Ready::kWantWrite;
  const bool is_ours = IsOwnOpenSslFailure();
  const std::string reason = TakeOpenSslError();
  if (is_ours) {
    return Break(
        {Code::kInternal, "the TLS handshake failed on this side, whatever the key: " + reason});
  }
  if (socket_.error != 0) {
    return Break(EndedInHandshake(side_, socket_.heard_peer, ErrnoText(socket_.error)));
  }
  if (socket_.ended) return Break(EndedInHandshake(side_, socket_.heard_peer, ""));
  return Break(KeyNotProven(reason));
}

Status TlsChannel::Lost(std::string_view doing, int ssl_error) {
  const std::string reason = TakeOpenSslError();
  const std::string prefix = "connection broke while " + std::string(doing) + ": ";
  if (socket_.error != 0) return {Code::kPeerLost, prefix + ErrnoText(socket_.error)};
  if (socket_.ended) return {Code::kPeerLost, prefix + "the peer closed it unexpectedly"};
  return {Code::kPeerLost,
          prefix + (reason.empty() ? "TLS error " + std::to_string(ssl_error) : reason)};
}

Result<Progress> TlsChannel::Read(std::span<std::byte> out) {
  std::size_t total = 0;
  while (total < out.size()) {
    if (!broken_.ok()) break;
    ERR_clear_error();
    std::size_t moved = 0;
    // Returns at most one record at a time.
    if (SSL_read_ex(ssl_.get(), out.data() + total, out.size() - total, &moved) == 1) {
      total += moved;
      drained_ = false;
      continue;
    }
    const int error = SSL_get_error(ssl_.get(), 0);
    if (error == SSL_ERROR_ZERO_RETURN) break;
    if (error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE) {
      drained_ = true;
      if (total > 0) break;
      return Progress{error == SSL_ERROR_WANT_READ ? Ready::kWantRead : Ready::kWantWrite, 0};
    }
    broken_ = Lost("reading", error);
  }
  if (total == 0 && !broken_.ok()) return broken_;
  return Progress{Ready::kDone, total};
}

// The next up to kRecordBytes of `buffers` past `done`, in place if contiguous, otherwise copied to
// `scratch`: a small frame is one record, a large buffer is never copied.
std::span<const std::byte> NextRecord(std::span<const iovec> buffers, std::size_t done,
                                      std::span<std::byte, kRecordBytes> scratch) {
  std::size_t filled = 0;
  for (std::size_t i = 0; i < buffers.size() && filled < kRecordBytes; ++i) {
    const std::size_t size = buffers[i].iov_len;
    if (done >= size) {
      done -= size;
      continue;
    }
    const auto* from = static_cast<const std::byte*>(buffers[i].iov_base) + done;
    const std::size_t take = std::min(size - done, kRecordBytes - filled);
    done = 0;
    const bool is_last = i + 1 == buffers.size();
    if (filled == 0 && (take == kRecordBytes || is_last)) return {from, take};
    std::memcpy(scratch.data() + filled, from, take);
    filled += take;
  }
  return scratch.first(filled);
}

// True when the outbox is empty, false while the socket accepts no more.
Result<bool> TlsChannel::Flush() {
  while (sent_ < socket_.outbox.size()) {
    const iovec rest{socket_.outbox.data() + sent_, socket_.outbox.size() - sent_};
    const IoResult io = SendSome(socket_.fd, {&rest, 1});
    if (io.outcome == IoOutcome::kNotReady) return false;
    if (io.outcome != IoOutcome::kMoved) {
      socket_.error = io.error;
      return Break(Lost("writing", SSL_ERROR_SYSCALL));
    }
    sent_ += io.bytes;
  }
  sent_ = 0;
  socket_.outbox.clear();
  return true;
}

// Returns true if the sending key has been used for its number of records; OpenSSL then sends a
// KeyUpdate before the next record and switches to a new key. The peer follows, and renews the key
// of the other direction by its own count.
Result<bool> TlsChannel::RenewKeyIfDue() {
  // OpenSSL refuses while part of a record is unsent.
  if (records_ < shared_->records_per_key || is_record_unsent_) return false;
  ERR_clear_error();
  if (SSL_key_update(ssl_.get(), SSL_KEY_UPDATE_NOT_REQUESTED) != 1) {
    return Break(Lost("renewing its key", SSL_ERROR_SSL));
  }
  records_ = 0;
  shared_->key_updates.fetch_add(1, std::memory_order_relaxed);
  return true;
}

// Encrypts the next bytes past `done`, up to a batch; returns how many. What the socket does not
// accept immediately stays in the outbox.
Result<std::size_t> TlsChannel::WriteBatch(std::span<const iovec> buffers, std::size_t done) {
  std::array<std::byte, kRecordBytes> scratch;
  std::size_t total = 0;
  for (;;) {
    const auto record = NextRecord(buffers, done + total, scratch);
    const auto renews = RenewKeyIfDue();
    if (!renews.ok()) return renews.status();
    // A single record goes straight to the socket.
    socket_.gathers = total > 0 || record.size() == kRecordBytes || renews.value();
    if (socket_.gathers) socket_.outbox.reserve(kBatchBytes + kBatchOverhead);
    ERR_clear_error();
    std::size_t moved = 0;
    const int result = SSL_write_ex(ssl_.get(), record.data(), record.size(), &moved);
    socket_.gathers = false;
    if (result != 1) {
      const int error = SSL_get_error(ssl_.get(), 0);
      is_record_unsent_ = error == SSL_ERROR_WANT_READ || error == SSL_ERROR_WANT_WRITE;
      if (is_record_unsent_) return total;
      return Break(Lost("writing", error));
    }
    is_record_unsent_ = false;
    ++records_;
    total += moved;
    if (record.size() < kRecordBytes || total >= kBatchBytes) return total;
  }
}

Result<Progress> TlsChannel::Write(std::span<const iovec> buffers) {
  if (!broken_.ok()) return broken_;
  std::size_t offered = 0;
  for (const auto& buffer : buffers) offered += buffer.iov_len;
  // Bytes in the outbox are not reported before they have left it: until then the caller keeps
  // offering them, and so keeps calling.
  std::size_t reported = 0;
  for (;;) {
    auto flushed = Flush();
    if (!flushed.ok()) return flushed.status();
    if (!flushed.value()) break;
    reported += std::exchange(unreported_, 0);
    if (reported >= offered) {
      if (socket_.outbox.capacity() > 0) std::vector<std::byte>().swap(socket_.outbox);
      return Progress{Ready::kDone, reported};
    }
    auto batch = WriteBatch(buffers, reported);
    if (!batch.ok()) return batch.status();
    if (batch.value() == 0) break;
    unreported_ = batch.value();
  }
  if (reported > 0) return Progress{Ready::kDone, reported};
  return Progress{Ready::kWantWrite, 0};
}

class TlsFactory final : public ChannelFactory {
 public:
  TlsFactory(std::shared_ptr<const TlsContext> context, std::uint64_t records_per_key)
      : shared_(std::make_shared<TlsShared>()) {
    shared_->context = std::move(context);
    shared_->records_per_key = std::max<std::uint64_t>(1, records_per_key);
  }

  Result<std::unique_ptr<Channel>> Accept(int fd) override { return Make(fd, Side::kServer); }
  Result<std::unique_ptr<Channel>> Connect(int fd) override { return Make(fd, Side::kClient); }
  std::uint64_t key_updates() const override {
    return shared_->key_updates.load(std::memory_order_relaxed);
  }

 private:
  Result<std::unique_ptr<Channel>> Make(int fd, Side side) {
    OwnedSocket socket(fd);
    if (Status s = PrepareSocket(fd); !s.ok()) return s;
    auto channel = std::make_unique<TlsChannel>(std::move(socket), shared_, side);
    if (Status s = channel->Start(); !s.ok()) return s;
    return std::unique_ptr<Channel>(std::move(channel));
  }

  const std::shared_ptr<TlsShared> shared_;
};

}  // namespace

Result<std::unique_ptr<ChannelFactory>> MakeTlsFactory(const std::string& job_key,
                                                       std::uint64_t records_per_key) {
  auto context = TlsContext::Create(job_key);
  if (!context.ok()) return context.status();
  return std::unique_ptr<ChannelFactory>(
      std::make_unique<TlsFactory>(std::move(context).value(), records_per_key));
}

}  // namespace sparsefleet

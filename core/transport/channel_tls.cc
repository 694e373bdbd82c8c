// The channel under TLS 1.3: the job key is the pre-shared key, there are no certificates.

#include <openssl/err.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <array>
#include <cstring>

#include "transport/channel.h"
#include "transport/channel_kinds.h"
#include "transport/socket.h"
#include "transport/tls_context.h"

namespace sparsefleet {
namespace {

constexpr std::size_t kRecordBytes = SSL3_RT_MAX_PLAIN_LENGTH;  // 16 KiB

struct SslDeleter {
  void operator()(SSL* ssl) const { SSL_free(ssl); }
};

class TlsChannel final : public Channel {
 public:
  TlsChannel(OwnedSocket socket, std::shared_ptr<const TlsContext> context, Side side)
      : owned_socket_(std::move(socket)), context_(std::move(context)), side_(side) {
    socket_.fd = owned_socket_.fd();
    socket_.hide_first_alert = side == Side::kServer;
  }
  ~TlsChannel() override;

  Status Start();
  Result<Ready> Handshake() override;
  Result<Progress> Read(std::span<std::byte> out) override;
  Result<Progress> Write(std::span<const iovec> buffers) override;
  bool HasBufferedInput() const override { return !drained_ && SSL_has_pending(ssl_.get()) == 1; }
  int fd() const override { return socket_.fd; }

 private:
  // Remembers the failure, so that every later call gives it again.
  Status Break(Status status) {
    broken_ = status;
    return status;
  }
  Status Lost(std::string_view doing, int ssl_error);

  OwnedSocket owned_socket_;
  TlsSocket socket_;
  const std::shared_ptr<const TlsContext> context_;
  const Side side_;
  std::unique_ptr<SSL, SslDeleter> ssl_;
  Status broken_;
  bool established_ = false;
  // The last Read() left nothing but, at most, the beginning of a record.
  bool drained_ = false;
};

Status TlsChannel::Start() {
  auto ssl = context_->NewConnection(side_, socket_);
  if (!ssl.ok()) return ssl.status();
  ssl_.reset(ssl.value());
  return Status::Ok();
}

TlsChannel::~TlsChannel() {
  if (established_ && broken_.ok()) {
    // One try to say that the end is meant; a full socket goes without.
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
    if (SSL_session_reused(ssl_.get()) != 1) return Break(KeyNotProven("the key was not used"));
    socket_.hide_first_alert = false;
    established_ = true;
    return Ready::kDone;
  }
  const int error = SSL_get_error(ssl_.get(), result);
  if (error == SSL_ERROR_WANT_READ) return Ready::kWantRead;
  if (error == SSL_ERROR_WANT_WRITE) return Ready::kWantWrite;
  const std::string reason = TakeOpenSslError();
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
  if (socket_.ended) return {Code::kPeerLost, prefix + "the peer ended it without notice"};
  return {Code::kPeerLost,
          prefix + (reason.empty() ? "TLS error " + std::to_string(ssl_error) : reason)};
}

Result<Progress> TlsChannel::Read(std::span<std::byte> out) {
  std::size_t total = 0;
  while (total < out.size()) {
    if (!broken_.ok()) break;
    ERR_clear_error();
    std::size_t moved = 0;
    // Gives at most one record at a time.
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

// The next up to kRecordBytes of `buffers` past `done`, in place if they lie in one piece, else
// copied together to `scratch`: a small frame is one record, a large buffer is never copied.
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

Result<Progress> TlsChannel::Write(std::span<const iovec> buffers) {
  std::array<std::byte, kRecordBytes> scratch;
  std::size_t total = 0;
  for (;;) {
    if (!broken_.ok()) return broken_;
    const auto record = NextRecord(buffers, total, scratch);
    if (record.empty()) return Progress{Ready::kDone, total};
    ERR_clear_error();
    std::size_t moved = 0;
    if (SSL_write_ex(ssl_.get(), record.data(), record.size(), &moved) == 1) {
      total += moved;
      continue;
    }
    const int error = SSL_get_error(ssl_.get(), 0);
    if (error != SSL_ERROR_WANT_READ && error != SSL_ERROR_WANT_WRITE) {
      return Break(Lost("writing", error));
    }
    if (total > 0) return Progress{Ready::kDone, total};
    return Progress{error == SSL_ERROR_WANT_READ ? Ready::kWantRead : Ready::kWantWrite, 0};
  }
}

class TlsFactory final : public ChannelFactory {
 public:
  explicit TlsFactory(std::shared_ptr<const TlsContext> context) : context_(std::move(context)) {}

  Result<std::unique_ptr<Channel>> Accept(int fd) override { return Make(fd, Side::kServer); }
  Result<std::unique_ptr<Channel>> Connect(int fd) override { return Make(fd, Side::kClient); }

 private:
  Result<std::unique_ptr<Channel>> Make(int fd, Side side) {
    OwnedSocket socket(fd);
    if (Status s = PrepareSocket(fd); !s.ok()) return s;
    auto channel = std::make_unique<TlsChannel>(std::move(socket), context_, side);
    if (Status s = channel->Start(); !s.ok()) return s;
    return std::unique_ptr<Channel>(std::move(channel));
  }

  const std::shared_ptr<const TlsContext> context_;
};

}  // namespace

Result<std::unique_ptr<ChannelFactory>> MakeTlsFactory(const std::string& job_key) {
  auto context = TlsContext::Create(job_key);
  if (!context.ok()) return context.status();
  return std::unique_ptr<ChannelFactory>(std::make_unique<TlsFactory>(std::move(context).value()));
}

}  // namespace sparsefleet

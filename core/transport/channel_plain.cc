// The unencrypted channel. Both sides prove the job key by challenge and response; after that the
// bytes go over the socket unchanged. Format: docs/wire_format.md, "Plain".

#include <algorithm>
#include <array>
#include <cstring>

#include "transport/channel.h"
#include "transport/channel_kinds.h"
#include "transport/key_proof.h"
#include "transport/socket.h"
#include "transport/stream_io.h"

namespace sparsefleet {
namespace {

// Format: docs/wire_format.md.
constexpr std::array<std::byte, 8> kPreamble = {std::byte{'S'}, std::byte{'P'}, std::byte{'P'},
                                                std::byte{'L'}, std::byte{1}};
constexpr std::size_t kNonceBytes = 32;
constexpr std::size_t kFirstBytes = kPreamble.size() + kNonceBytes + kDigestBytes;  // 72
constexpr std::size_t kAnswerBytes = kNonceBytes + kDigestBytes;                    // 64
constexpr std::size_t kLastBytes = kDigestBytes;                                    // 32

using Nonce = std::array<std::byte, kNonceBytes>;
using Bytes = std::span<const std::byte>;

// The steps of both sides; each side goes through those with its name.
enum class Step : std::uint8_t {
  kClientSendsFirst,
  kClientReadsAnswer,
  kClientSendsLast,
  kServerReadsFirst,
  kServerSendsAnswer,
  kServerReadsLast,
  kDone,
};

class PlainChannel final : public Channel {
 public:
  PlainChannel(OwnedSocket socket, std::shared_ptr<const std::string> job_key, Side side)
      : socket_(std::move(socket)), job_key_(std::move(job_key)), side_(side) {}

  Result<Ready> Handshake() override;
  bool HasAnswered() const override { return step_ != Step::kServerReadsFirst; }
  Result<Progress> Read(std::span<std::byte> out) override;
  Result<Progress> Write(std::span<const iovec> buffers) override;
  bool HasBufferedInput() const override { return false; }
  int fd() const override { return socket_.fd(); }

  // The client's opening message, or the server's wait for it.
  Status Start();

 private:
  void Expect(Step step, std::size_t bytes) {
    step_ = step;
    at_ = 0;
    size_ = bytes;
  }
  Status Advance();
  Status CheckFirst();
  Status CheckAnswer();
  Status CheckLast();
  bool Sends() const {
    return step_ == Step::kClientSendsFirst || step_ == Step::kServerSendsAnswer ||
           step_ == Step::kClientSendsLast;
  }
  std::span<std::byte> Part(std::size_t offset, std::size_t bytes) {
    return std::span(message_).subspan(offset, bytes);
  }

  OwnedSocket socket_;
  const std::shared_ptr<const std::string> job_key_;
  const Side side_;
  Step step_ = Step::kDone;
  bool heard_peer_ = false;
  std::array<std::byte, kFirstBytes> message_{};  // being sent or read
  std::size_t at_ = 0;
  std::size_t size_ = 0;
  Nonce client_nonce_{};
  Nonce server_nonce_{};
};

void Copy(Bytes from, std::span<std::byte> to) { std::ranges::copy(from, to.begin()); }

Status PlainChannel::Start() {
  if (side_ == Side::kServer) {
    Expect(Step::kServerReadsFirst, kFirstBytes);
    return Status::Ok();
  }
  if (Status s = FillRandom(client_nonce_); !s.ok()) return s;
  const auto proof = KeyedDigest(*job_key_, "client-1", {client_nonce_});
  if (!proof.ok()) return proof.status();
  Copy(kPreamble, Part(0, kPreamble.size()));
  Copy(client_nonce_, Part(kPreamble.size(), kNonceBytes));
  Copy(proof.value(), Part(kPreamble.size() + kNonceBytes, kDigestBytes));
  Expect(Step::kClientSendsFirst, kFirstBytes);
  return Status::Ok();
}

Status PlainChannel::CheckFirst() {
  Copy(Part(kPreamble.size(), kNonceBytes), client_nonce_);
  const auto wanted = KeyedDigest(*job_key_, "client-1", {client_nonce_});
  if (!wanted.ok()) return wanted.status();
  if (!SameDigest(Part(kPreamble.size() + kNonceBytes, kDigestBytes), wanted.value())) {
    return KeyNotProven("wrong proof from the client");
  }
  if (Status s = FillRandom(server_nonce_); !s.ok()) return s;
  const auto proof = KeyedDigest(*job_key_, "server", {client_nonce_, server_nonce_});
  if (!proof.ok()) return proof.status();
  Copy(server_nonce_, Part(0, kNonceBytes));
  Copy(proof.value(), Part(kNonceBytes, kDigestBytes));
  Expect(Step::kServerSendsAnswer, kAnswerBytes);
  return Status::Ok();
}

Status PlainChannel::CheckAnswer() {
  Copy(Part(0, kNonceBytes), server_nonce_);
  const auto wanted = KeyedDigest(*job_key_, "server", {client_nonce_, server_nonce_});
  if (!wanted.ok()) return wanted.status();
  if (!SameDigest(Part(kNonceBytes, kDigestBytes), wanted.value())) {
    return KeyNotProven("wrong proof from the server");
  }
  const auto proof = KeyedDigest(*job_key_, "client-2", {server_nonce_, client_nonce_});
  if (!proof.ok()) return proof.status();
  Copy(proof.value(), Part(0, kDigestBytes));
  Expect(Step::kClientSendsLast, kLastBytes);
  return Status::Ok();
}

Status PlainChannel::CheckLast() {
  const auto wanted = KeyedDigest(*job_key_, "client-2", {server_nonce_, client_nonce_});
  if (!wanted.ok()) return wanted.status();
  if (!SameDigest(Part(0, kDigestBytes), wanted.value())) {
    return KeyNotProven("wrong second proof from the client");
  }
  Expect(Step::kDone, 0);
  return Status::Ok();
}

// Called when the message of the current step is complete.
Status PlainChannel::Advance() {
  switch (step_) {
    case Step::kClientSendsFirst:
      Expect(Step::kClientReadsAnswer, kAnswerBytes);
      return Status::Ok();
    case Step::kClientReadsAnswer:
      return CheckAnswer();
    case Step::kServerReadsFirst:
      return CheckFirst();
    case Step::kServerSendsAnswer:
      Expect(Step::kServerReadsLast, kLastBytes);
      return Status::Ok();
    case Step::kServerReadsLast:
      return CheckLast();
    case Step::kClientSendsLast:
    case Step::kDone:
      break;
  }
  Expect(Step::kDone, 0);
  return Status::Ok();
}

Result<Ready> PlainChannel::Handshake() {
  while (step_ != Step::kDone) {
    const bool sends = Sends();
    IoResult io;
    if (sends) {
      const iovec rest{message_.data() + at_, size_ - at_};
      io = SendSome(fd(), {&rest, 1});
    } else {
      io = ReceiveSome(fd(), Part(at_, size_ - at_));
    }
    if (io.outcome == IoOutcome::kNotReady) return sends ? Ready::kWantWrite : Ready::kWantRead;
    if (io.outcome == IoOutcome::kEnd) return EndedInHandshake(side_, heard_peer_, "");
    if (io.outcome == IoOutcome::kBroken) {
      return EndedInHandshake(side_, heard_peer_, ErrnoText(io.error));
    }
    at_ += io.bytes;
    heard_peer_ = heard_peer_ || !sends;
    // Refused as soon as it is recognizable, so that a peer that sends less than a whole message
    // does not hold the connection until the handshake's deadline.
    const std::size_t known = std::min(at_, kPreamble.size());
    if (step_ == Step::kServerReadsFirst &&
        std::memcmp(message_.data(), kPreamble.data(), known) != 0) {
      return KeyNotProven("the first bytes are not those of the plain transport");
    }
    if (at_ < size_) continue;
    if (Status s = Advance(); !s.ok()) return s;
  }
  return Ready::kDone;
}

Result<Progress> PlainChannel::Read(std::span<std::byte> out) {
  if (out.empty()) return Progress{};
  const IoResult io = ReceiveSome(fd(), out);
  switch (io.outcome) {
    case IoOutcome::kMoved:
      return Progress{Ready::kDone, io.bytes};
    case IoOutcome::kNotReady:
      return Progress{Ready::kWantRead, 0};
    case IoOutcome::kEnd:
      return Progress{Ready::kDone, 0};
    case IoOutcome::kBroken:
      break;
  }
  return Status(Code::kPeerLost, "connection broke while reading: " + ErrnoText(io.error));
}

Result<Progress> PlainChannel::Write(std::span<const iovec> buffers) {
  while (!buffers.empty() && buffers.front().iov_len == 0) buffers = buffers.subspan(1);
  if (buffers.empty()) return Progress{};
  const IoResult io = SendSome(fd(), buffers);
  if (io.outcome == IoOutcome::kNotReady) return Progress{Ready::kWantWrite, 0};
  if (io.outcome == IoOutcome::kMoved) return Progress{Ready::kDone, io.bytes};
  return Status(Code::kPeerLost, "connection broke while writing: " + ErrnoText(io.error));
}

class PlainFactory final : public ChannelFactory {
 public:
  explicit PlainFactory(const std::string& job_key)
      : job_key_(std::make_shared<const std::string>(job_key)) {}

  Result<std::unique_ptr<Channel>> Accept(int fd) override { return Make(fd, Side::kServer); }
  Result<std::unique_ptr<Channel>> Connect(int fd) override { return Make(fd, Side::kClient); }

 private:
  Result<std::unique_ptr<Channel>> Make(int fd, Side side) {
    OwnedSocket socket(fd);
    if (Status s = PrepareSocket(fd); !s.ok()) return s;
    auto channel = std::make_unique<PlainChannel>(std::move(socket), job_key_, side);
    if (Status s = channel->Start(); !s.ok()) return s;
    return std::unique_ptr<Channel>(std::move(channel));
  }

  const std::shared_ptr<const std::string> job_key_;
};

}  // namespace

Result<std::unique_ptr<ChannelFactory>> MakePlainFactory(const std::string& job_key) {
  return std::unique_ptr<ChannelFactory>(std::make_unique<PlainFactory>(job_key));
}

}  // namespace sparsefleet
